package gateway

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"sluice/internal/refusal"
)

// H18: the server answered behind the chain's back: no log, no access, or a method PRI at
// the node. What parses is the chain's; what does not is refused in the same words, logged
// and counted, in clear text and over TLS.
func TestServerAnswersNothingBehindOurBack(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("200 OK", "", "ok")), rigOptions{})
	raw := rg.raw(t, "OPTIONS * HTTP/1.1\r\nHost: gw\r\nConnection: close\r\n\r\n")
	if got := answers(t, raw); len(got) != 1 || got[0].StatusCode != 400 || got[0].code() != string(refusal.InvalidRequest) {
		t.Errorf("OPTIONS *: %q, want our 400", raw)
	}
	if line := rg.awaitLines(t, 1)[0]; line["method"] != "OPTIONS" || line["code"] != string(refusal.InvalidRequest) || line["target"] != "*" {
		t.Errorf("access line %v", line)
	}
	rg.awaitCount(t, `sluice_refusals_total{code="INVALID_REQUEST"} 1`)
	secure := rg.secureListen(t)
	count := 1
	// Parts of the preface of HTTP/2 are requests to net/http, and what follows is another.
	for _, request := range []string{"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", "PRI * HTTP/2.0\r\nHost: gw\r\n\r\nSM\r\n\r\n", "PRI * HTTP/1.1\r\nHost: gw\r\nConnection: close\r\n\r\n"} {
		raw := rg.raw(t, request)
		got := answers(t, raw)
		for _, a := range got {
			if a.StatusCode != 400 || a.code() != string(refusal.InvalidRequest) {
				t.Errorf("%q: %q, want our 400", request, raw)
			}
		}
		if count += len(got); len(got) == 0 {
			t.Errorf("%q: no answer", request)
		}
		rg.awaitCount(t, `sluice_refusals_total{code="INVALID_REQUEST"} `+strconv.Itoa(count))
	}
	for _, tc := range []struct {
		name, request string
		status        int
	}{
		{"bad request line", "GARBAGE-AS-LONG-AS-A-PREFACE\r\n\r\n", 400},
		{"no version", "GET /acme/s.pub\r\nHost: gw\r\n\r\n", 400},
		{"no method", " /acme/s.pub HTTP/1.1\r\nHost: gw\r\n\r\n", 400},
		{"missing Host", "GET /acme/s.pub HTTP/1.1\r\nConnection: close\r\n\r\n", 400},
		{"a header with a space", "GET /acme/s.pub HTTP/1.1\r\nHost: gw\r\nX-A : 1\r\n\r\n", 400},
		{"another version", "GET /acme/s.pub HTTP/3.0\r\nHost: gw\r\nConnection: close\r\n\r\n", 505},
		{"unknown expectation", "POST /acme/s.priv HTTP/1.1\r\nHost: gw\r\nExpect: foo\r\nContent-Length: 0\r\n\r\n", 417},
		{"unknown coding", "POST /acme/s.priv HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: gzip\r\n\r\n", 501},
		{"a head too large", "GET /acme/s.pub HTTP/1.1\r\nHost: gw\r\nX-A: " + strings.Repeat("a", maxHead) + "\r\n\r\n", 431},
		{"behind a good one", "GET /acme/s.pub HTTP/1.1\r\nHost: gw\r\n\r\nGET /acme/s.pub HTTP/1.1\r\n\r\n", 400},
	} {
		for way, dial := range map[string]func() net.Conn{
			"clear text": func() net.Conn { return rg.dial(t) },
			"TLS":        func() net.Conn { return secureDial(t, secure, "gw", "http/1.1") },
		} {
			t.Run(tc.name+" "+way, func(t *testing.T) {
				conn := dial()
				if _, err := io.WriteString(conn, tc.request); err != nil {
					t.Fatal(err)
				}
				text, _ := io.ReadAll(conn) // what was not read may have it reset
				got := answers(t, string(text))
				if len(got) == 2 && got[0].StatusCode == 200 {
					got = got[1:]
				}
				if len(got) != 1 || got[0].StatusCode != tc.status || got[0].code() != string(refusal.InvalidRequest) || !got[0].Close ||
					got[0].Header.Get("Cache-Control") != "no-store" || got[0].Header.Get("X-Request-Id") == "" {
					t.Fatalf("%q, want our %d", text, tc.status)
				}
				count++
				rg.awaitCount(t, `sluice_refusals_total{code="INVALID_REQUEST"} `+strconv.Itoa(count))
				if !strings.Contains(rg.Log.String(), `"message":"no request","request_id":"`+got[0].Header.Get("X-Request-Id")+`","client":"127.0.0.1","status":`+strconv.Itoa(tc.status)) {
					t.Errorf("no line tells of it: %s", rg.Log)
				}
			})
		}
	}
	if n := len(u.requests()); n != 2 {
		t.Errorf("%d requests at the node, want the good ones", n)
	}
}

// H18: clear text on the port of TLS was answered bare, HTTP/2 was spoken where it had not
// been agreed on, and HTTP/1 where HTTP/2 had.
func TestWhatWasNotAgreedOn(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("200 OK", "", "ok")), rigOptions{})
	secure := rg.secureListen(t)
	const get = "GET /acme/s.pub HTTP/1.1\r\nHost: gw\r\nConnection: close\r\n\r\n"
	plain := func() net.Conn {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", secure)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		return conn
	}
	for _, tc := range []struct {
		name, says string
		conn       net.Conn
		status     int // 0: the connection is closed without a word
	}{
		{"clear text", get, plain(), 400},
		{"clear text with a body", "DELETE / HTTP/1.1\r\nHost: gw\r\nContent-Length: 5000\r\n\r\n" + strings.Repeat("a", 5000), plain(), 400},
		{"HTTP/2 in clear text", preface, plain(), 400},
		{"no HTTP", "\x00\x01\x02\x03\x04\x05\x06", plain(), 0},
		{"HTTP/2 after http/1.1", preface, secureDial(t, secure, "gw", "http/1.1"), 505},
		{"HTTP/2 without ALPN", preface, secureDial(t, secure, "gw"), 505},
		{"HTTP/1.1 after h2", get, secureDial(t, secure, "gw", "h2"), 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := io.WriteString(tc.conn, tc.says); err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(tc.conn)
			if tc.status == 0 {
				if strings.Contains(string(text), "HTTP/1") {
					t.Errorf("answered %q", text)
				}
				return
			}
			if got := answers(t, string(text)); len(got) != 1 || got[0].StatusCode != tc.status || got[0].code() != string(refusal.InvalidRequest) || !got[0].Close {
				t.Errorf("%q, want our %d", text, tc.status)
			}
		})
	}
	u.untouched(t)
	if got := rg.exposition(t); !strings.Contains(got, `sluice_refusals_total{code="INVALID_REQUEST"} 5`) {
		t.Errorf("not counted: %s", got)
	}
}

// H18: over HTTP/2 a head that is too large, and a request that does not parse, are
// net/http's to answer: they are counted.
func TestUnheardOverHTTP2(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("200 OK", "", "ok")), rigOptions{})
	f := newFlooder(t, rg.dial(t))
	f.request(http.MethodGet, "/acme/s.pub", rg.Keys[key], true, "x", strings.Repeat("~", maxHead-4000), "y", strings.Repeat("~", 1500))
	f.must(f.flush())
	if got := f.await("431", "200", "GOAWAY"); got != "431" {
		t.Errorf("answered %s, want 431", got)
	}
	f.request(http.MethodGet, "/acme/s.pub", rg.Keys[key], true)
	f.must(f.flush())
	if got := f.await("431", "200", "GOAWAY"); got != "200" {
		t.Errorf("the next is answered %s, want 200", got)
	}
	_ = f.conn.Close()
	rg.awaitCount(t, "sluice_requests_unheard_total 1")
	if n := len(u.requests()); n != 1 {
		t.Errorf("%d requests at the node, want 1", n)
	}
}

// A body that reads like an answer of net/http's own stays as it is.
func TestBodiesThatLookLikeAnswers(t *testing.T) {
	const body = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n400 Bad Request"
	rg, _ := newUpRig(t, func(c *upConn, r *upRequest) {
		if strings.Contains(r.Target, "live=") {
			c.say(sseHead + chunk(body) + "0\r\n\r\n")
			return
		}
		c.say("HTTP/1.1 200 OK\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
	}, rigOptions{})
	for name, c := range protocols(t) {
		for _, path := range []string{"/acme/s.priv", sseTail} {
			if got := do(t, c, http.MethodGet, rg.URL+path, rg.Keys[key]); got.StatusCode != 200 || got.Text != body {
				t.Errorf("%s %s: %d %q", name, path, got.StatusCode, got.Text)
			}
		}
	}
}
