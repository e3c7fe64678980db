package gateway

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sluice/internal/refusal"
)

// answers parses everything that came back on one raw connection.
func answers(t testing.TB, raw string, methods ...string) []answer {
	t.Helper()
	br := bufio.NewReader(strings.NewReader(raw))
	var all []answer
	for i := 0; ; i++ {
		if _, err := br.Peek(1); errors.Is(err, io.EOF) {
			return all
		}
		method := http.MethodGet
		if i < len(methods) {
			method = methods[i]
		}
		res := nextAnswer(t, br, method)
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatalf("answer %d of %q: %v", i, raw, err)
		}
		res.Text = string(text)
		all = append(all, res)
	}
}

// statuses are the answers' statuses in order.
func statuses(all []answer) []int {
	list := make([]int, 0, len(all))
	for _, a := range all {
		list = append(list, a.StatusCode)
	}
	return list
}

// H03: a message with both Content-Length and Transfer-Encoding was read by one
// and sent on by the other, and its rest became a second request at the node.
// Go's server keeps the chunks; the node gets one request with a length, and the
// rest is a request to the gateway, which is judged like any other.
func TestTwoFramings(t *testing.T) {
	for _, tc := range []struct {
		name, framing, body, want string
	}{
		{"length first", "Content-Length: 200\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n", ""},
		{"chunked first", "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", "5\r\nhello\r\n0\r\n\r\n", "hello"},
		{"length is shorter", "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n", "hello"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rg, u := newUpRig(t, respond(whole("200 OK", "", "ok")), rigOptions{})
			raw := rg.raw(t, "POST /acme/s.priv HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer "+rg.Keys[key]+"\r\n"+tc.framing+"\r\n"+tc.body+
				"GET /acme/s.priv?smuggled=1 HTTP/1.1\r\nHost: gw\r\nConnection: close\r\n\r\n")
			got := u.await(t, 1)
			if got.Body != tc.want || got.Length != int64(len(tc.want)) || got.Framing != nil {
				t.Errorf("the node got %q, length %d, framing %v; want %q with its length alone", got.Body, got.Length, got.Framing, tc.want)
			}
			if len(u.requests()) != 1 || strings.Contains(u.received(), "smuggled") {
				t.Errorf("bytes at the node: %q", u.received())
			}
			if got := statuses(answers(t, raw)); !slices.Equal(got, []int{200, 401}) && !slices.Equal(got, []int{200}) {
				t.Errorf("answers %v, want 200 and, for the request behind it, 401 or none", got)
			}
		})
	}
}

// H04: odd spellings of the framing were read in two ways. Each is refused (by
// Go's parser, or as a broken body by us), the connection closes, and no
// byte reaches the node.
func TestOddFraming(t *testing.T) {
	const chunked = "5\r\nhello\r\n0\r\n\r\n"
	rg, u := newUpRig(t, respond(whole("200 OK", "", "ok")), rigOptions{})
	for _, tc := range []struct {
		name, headers, body string
		status              int
	}{
		{"CR inside", "Transfer-Encoding: chunked\r\r\n", chunked, 400},
		{"CR before", "Transfer-Encoding: \rchunked\r\n", chunked, 400},
		{"xchunked", "Transfer-Encoding: xchunked\r\n", chunked, 501},
		{"two lines", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", chunked, 501},
		{"identity behind", "Transfer-Encoding: chunked, identity\r\n", chunked, 501},
		{"identity", "Transfer-Encoding: identity\r\n", chunked, 501},
		{"gzip before", "Transfer-Encoding: gzip, chunked\r\n", chunked, 501},
		{"vertical tab", "Transfer-Encoding: \x0bchunked\r\n", chunked, 400},
		{"space before the colon", "Transfer-Encoding : chunked\r\n", chunked, 400},
		{"folded", "Transfer-Encoding:\r\n chunked\r\n", chunked, 0},
		{"length with a sign", "Content-Length: +5\r\n", "hello", 400},
		{"length negative", "Content-Length: -5\r\n", "hello", 400},
		{"length a list", "Content-Length: 5, 5\r\n", "hello", 400},
		{"length twice, different", "Content-Length: 5\r\nContent-Length: 6\r\n", "hello", 400},
		{"length with a vertical tab", "Content-Length:  5\x0b\r\n", "hello", 400},
		{"length in hex", "Content-Length: 0x5\r\n", "hello", 400},
		{"length empty", "Content-Length: \r\n", "hello", 400},
		{"chunk extension ends in a bare LF", "Transfer-Encoding: chunked\r\n", "5;a\nhello\r\n0\r\n\r\n", 400},
		{"chunk size ends in a bare LF", "Transfer-Encoding: chunked\r\n", "5\nhello\r\n0\r\n\r\n", 400},
		{"chunk size with 0x", "Transfer-Encoding: chunked\r\n", "0x5\r\nhello\r\n0\r\n\r\n", 400},
		{"chunk size with a sign", "Transfer-Encoding: chunked\r\n", "+5\r\nhello\r\n0\r\n\r\n", 400},
		{"chunk size overflows", "Transfer-Encoding: chunked\r\n", "10000000000000005\r\nhello\r\n0\r\n\r\n", 400},
		{"chunk longer than said", "Transfer-Encoding: chunked\r\n", "4\r\nhello\r\n0\r\n\r\n", 400},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := len(u.requests())
			raw := rg.raw(t, "POST /acme/s.priv HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer "+rg.Keys[key]+"\r\n"+tc.headers+"\r\n"+tc.body+
				"GET /acme/s.pub?smuggled=1 HTTP/1.1\r\nHost: gw\r\nConnection: close\r\n\r\n")
			if tc.status == 0 {
				// Go's parser unfolds: one reading, the same as if it stood in one line.
				if got := u.await(t, before+1); got.Body != "hello" || got.Length != 5 {
					t.Errorf("the node got %q", got.Head+got.Body)
				}
				if got := statuses(answers(t, raw)); !slices.Equal(got, []int{200, 200}) || len(u.requests()) != before+2 {
					t.Errorf("answers %v to the write and the read behind it", got)
				}
				return
			}
			got := answers(t, raw)
			if len(got) != 1 || got[0].StatusCode != tc.status || !got[0].Close {
				t.Errorf("answers %q, want one %d that closes", raw, tc.status)
			}
			if len(u.requests()) != before {
				t.Errorf("the node got %q", u.requests()[before].Head)
			}
		})
	}
}

// H12: a refused upload was invited by a 100 first, and one that a node refused
// without a 100 poisoned the connection to it. (a) No 100 goes before a refusal,
// and the connection closes; (b) a body is read here first, so no Expect reaches
// the node, and its next request is answered rightly; (c) another expectation
// is a 417.
func TestExpectContinue(t *testing.T) {
	rg, u := newUpRig(t, func(c *upConn, r *upRequest) {
		if r.Body == "conflict" {
			c.say(whole("409 Conflict", "Content-Type: application/json\r\n", `{"error":{"code":"X"}}`))
			return
		}
		c.say(whole("200 OK", "", "for "+r.Body))
	}, rigOptions{change: func(o *Options) { o.Pace.DrainStall = 50 * time.Millisecond }})
	post := func(keyName, expect string, length int, more string) string {
		return "POST /acme/s.priv HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer " + rg.Keys[keyName] + "\r\nExpect: " + expect + "\r\n" +
			"Content-Length: " + strconv.Itoa(length) + "\r\n" + more + "\r\n"
	}
	for _, tc := range []struct {
		name, request string
		status        int
	}{
		{"unknown key", post("unknown", "100-continue", 5, ""), 401},
		{"read-only key", post("read", "100-Continue", 5, ""), 403},
		{"too large", post(key, "100-continue", 9<<20, ""), 413},
		{"no such route", "POST /nowhere HTTP/1.1\r\nHost: gw\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", 404},
		{"other expectation", post(key, "foo", 0, ""), 417},
	} {
		t.Run("a "+tc.name, func(t *testing.T) {
			// The body is withheld: what comes, and the end, come without it.
			raw := rg.raw(t, tc.request)
			got := answers(t, raw)
			if len(got) != 1 || got[0].StatusCode != tc.status || !got[0].Close || strings.Contains(raw, " 100 ") {
				t.Errorf("answers %q, want one %d that closes", raw, tc.status)
			}
			if len(got) == 1 && got[0].code() == "" {
				t.Errorf("the refusal is not our JSON: %q", raw)
			}
		})
	}
	u.untouched(t)
	conn := rg.dial(t)
	br := bufio.NewReader(conn)
	for i, tc := range []struct {
		body, text string
		status     int
	}{{"conflict", `{"error":{"code":"X"}}`, 409}, {"second", "for second", 200}, {"conflict", `{"error":{"code":"X"}}`, 409}, {"third", "for third", 200}} {
		if _, err := io.WriteString(conn, post(key, "100-continue", len(tc.body), "")); err != nil {
			t.Fatal(err)
		}
		if line, err := br.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
			t.Fatalf("%q, %v; want a 100", line, err)
		}
		if _, err := br.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, tc.body); err != nil {
			t.Fatal(err)
		}
		res := nextAnswer(t, br, http.MethodPost)
		text, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != tc.status || string(text) != tc.text {
			t.Errorf("b %s: %d %q %v, want %d %q", tc.body, res.StatusCode, text, err, tc.status, tc.text)
		}
		if got := u.await(t, i+1); got.Header.Get("Expect") != "" || got.Body != tc.body {
			t.Errorf("b: the node got %q", got.Head+got.Body)
		}
	}
}

// H21: a read's body was forwarded, or left unread and taken for the next
// request. It is a 400, and the framing of what follows is right.
func TestBodyOnARead(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("200 OK", "", "ok")), rigOptions{})
	follow := "GET /acme/s.pub?next=1 HTTP/1.1\r\nHost: gw\r\nConnection: close\r\n\r\n"
	for i, tc := range []struct {
		name, request string
		status        int
	}{
		{"GET", "GET /acme/s.pub HTTP/1.1\r\nHost: gw\r\nContent-Length: 3\r\n\r\nabc", 400},
		{"HEAD", "HEAD /acme/s.pub HTTP/1.1\r\nHost: gw\r\nContent-Length: 3\r\n\r\nabc", 400},
		{"chunked", "GET /acme/s.pub HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 400},
		{"chunked and empty", "GET /acme/s.pub HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
		{"a tail", "GET /acme/s.pub?live=sse HTTP/1.1\r\nHost: gw\r\nContent-Length: 3\r\n\r\nabc", 400},
		{"a refused write's", "POST /acme/s.pub HTTP/1.1\r\nHost: gw\r\nContent-Length: " + strconv.Itoa(len(follow)) + "\r\n\r\n" + follow, 401},
		{"DELETE of a stream", "DELETE /acme/s.priv HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer " + rg.Keys[key] + "\r\nContent-Length: 3\r\n\r\nabc", 403},
		{"another route's", "POST /nowhere HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 404},
	} {
		t.Run(tc.name, func(t *testing.T) {
			raw := rg.raw(t, tc.request+follow)
			method, _, _ := strings.Cut(tc.request, " ")
			got := answers(t, raw, method)
			if len(got) != 2 || got[0].StatusCode != tc.status || got[1].StatusCode != 200 || got[1].Text != "ok" {
				t.Fatalf("answers %q, want %d and 200", raw, tc.status)
			}
			if r := u.await(t, i+1); r.Target != "/acme/s.pub?next=1" || r.Length > 0 || len(u.requests()) != i+1 {
				t.Errorf("request %d at the node: %q of %d", i+1, r.Head, len(u.requests()))
			}
		})
	}
	t.Run("h2", func(t *testing.T) {
		before := len(u.requests())
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, rg.URL+"/acme/s.pub", strings.NewReader("abc"))
		if err != nil {
			t.Fatal(err)
		}
		res, err := protocols(t)["h2"].Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		if res.StatusCode != 400 || len(u.requests()) != before {
			t.Errorf("answer %d, %d requests at the node", res.StatusCode, len(u.requests())-before)
		}
	})
}

// H21, on writes that need none: a body on DELETE or on a retention goes on as one
// request with one framing, or is refused, and what follows is right.
func TestBodyOnABodylessWrite(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("200 OK", "", "ok")), rigOptions{})
	for i, tc := range []struct{ method, path string }{
		{"DELETE", "/acme/s.priv/snapshot/parts"},
		{"PUT", "/acme/s.priv/retention/7"},
	} {
		for j, framing := range []string{"Content-Length: 3\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"} {
			raw := rg.raw(t, tc.method+" "+tc.path+" HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer "+rg.Keys[key]+"\r\n"+framing+
				"GET /acme/s.pub?next=1 HTTP/1.1\r\nHost: gw\r\nConnection: close\r\n\r\n")
			if got := statuses(answers(t, raw)); !slices.Equal(got, []int{200, 200}) {
				t.Errorf("%s %s: answers %v to the write and the read behind it", tc.method, framing, got)
			}
			n := 4*i + 2*j
			w, r := u.await(t, n+1), u.await(t, n+2)
			if w.Method != tc.method || w.Body != "abc" || w.Length != 3 || w.Framing != nil || r.Target != "/acme/s.pub?next=1" || r.Length > 0 || len(u.requests()) != n+2 {
				t.Errorf("the node got %q and %q", w.Head+w.Body, r.Head)
			}
		}
	}
}

// H22: an upgrade made a tunnel past every rule. It never goes on, a node that
// switches protocols unasked has failed, and CONNECT is a method like others.
func TestNoTunnel(t *testing.T) {
	rg, u := newUpRig(t, respond("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nraw bytes"), rigOptions{})
	auth := "Host: gw\r\nAuthorization: Bearer " + rg.Keys[key] + "\r\n"
	for _, tc := range []struct {
		name, request string
		status        int
		code          refusal.Code
	}{
		{"websocket", "GET /acme/s.priv HTTP/1.1\r\n" + auth + "Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n\r\n", 400, refusal.InvalidRequest},
		{"h2c", "GET /acme/s.priv HTTP/1.1\r\n" + auth + "Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n", 400, refusal.InvalidRequest},
		{"another, on a write", "POST /acme/s.priv HTTP/1.1\r\n" + auth + "Connection: Upgrade, close\r\nUpgrade: foo\r\nContent-Length: 1\r\n\r\nx", 400, refusal.InvalidRequest},
		{"without Connection", "GET /acme/s.priv HTTP/1.1\r\n" + auth + "Connection: close\r\nUpgrade: foo\r\n\r\n", 400, refusal.InvalidRequest},
		{"CONNECT", "CONNECT h:1 HTTP/1.1\r\n" + auth + "Connection: close\r\n\r\n", 405, refusal.MethodNotAllowed},
		{"CONNECT of a path", "CONNECT /acme/s.priv HTTP/1.1\r\n" + auth + "Connection: close\r\n\r\n", 405, refusal.MethodNotAllowed},
	} {
		raw := rg.raw(t, tc.request)
		if got := answers(t, raw, strings.Fields(tc.request)[0]); len(got) != 1 || got[0].StatusCode != tc.status || got[0].code() != string(tc.code) {
			t.Errorf("%s: %q, want %d %s", tc.name, raw, tc.status, tc.code)
		}
	}
	u.untouched(t)
	for name, c := range protocols(t) {
		res := do(t, c, http.MethodGet, rg.URL+"/acme/s.priv", rg.Keys[key])
		if res.StatusCode != 502 || res.code() != string(refusal.UpstreamFailed) || res.Header.Get("Upgrade") != "" || strings.Contains(res.Text, "raw") {
			t.Errorf("%s: a 101 of the node: %d %v %s", name, res.StatusCode, res.Header, res.Text)
		}
	}
}
