package gateway

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/refusal"
	"sluice/internal/tenant"
)

// H02: hop-by-hop headers of one connection went on to the next, in both
// directions, and on informational answers too. "Upgrade" is refused (H22).
func TestHopByHopEndsHere(t *testing.T) {
	rg, u := newUpRig(t, respond("HTTP/1.1 103 Early Hints\r\nConnection: X-Early\r\nX-Early: 1\r\nLink: </x>\r\n\r\n"+
		whole("200 OK", "Connection: X-Private, keep-alive\r\nX-Private: 1\r\nKeep-Alive: timeout=9\r\nProxy-Connection: keep-alive\r\n"+
			"Proxy-Authenticate: Basic\r\nTE: trailers\r\nTrailer: X-Late\r\nStream-Next-Offset: 7\r\n", "ok")), rigOptions{})
	raw := rg.raw(t, "GET /acme/s.priv HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer "+rg.Keys[key]+"\r\n"+
		"Connection:\r\nConnection: X-Drop, close\r\nX-Drop: 1\r\nKeep-Alive: 300\r\nProxy-Connection: keep-alive\r\n"+
		"Proxy-Authorization: Basic x\r\nProxy-Odd: 1\r\nTE: trailers, gzip\r\nTrailer: X-Late\r\nX-Kept: 1\r\n\r\n")
	got := u.await(t, 1).Header
	for _, name := range []string{"Connection", "X-Drop", "Keep-Alive", "Proxy-Connection", "Proxy-Authorization", "Proxy-Odd", "Te", "Trailer", "Upgrade"} {
		if v, ok := got[name]; ok {
			t.Errorf("%s reached the node: %q", name, v)
		}
	}
	if got.Get("X-Kept") != "1" {
		t.Errorf("the node saw %v, want X-Kept", got)
	}
	head, body := cutHead(t, raw)
	for _, name := range []string{"X-Private", "Keep-Alive", "Proxy-", "\nTe:", "Trailer", "X-Early", "Link", " 103 "} {
		if strings.Contains(strings.ToLower(head), strings.ToLower(name)) {
			t.Errorf("the client got %s: %q", name, head)
		}
	}
	if !strings.HasPrefix(head, "HTTP/1.1 200 OK") || !strings.Contains(head, "Stream-Next-Offset: 7") || body != "ok" {
		t.Errorf("answer %q", raw)
	}
}

// A trailer field is no header: neither side's goes on (design §3).
func TestTrailersEndHere(t *testing.T) {
	rg, u := newUpRig(t, respond("HTTP/1.1 200 OK\r\nTrailer: X-Late\r\nTransfer-Encoding: chunked\r\n\r\n"+chunk("ok")+"0\r\nX-Late: 1\r\nX-Ursula-Node: n1\r\n\r\n"), rigOptions{})
	raw := rg.raw(t, "POST /acme/s.priv HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer "+rg.Keys[key]+
		"\r\nConnection: close\r\nTrailer: X-Late\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nX-Late: 1\r\n\r\n")
	if got := u.await(t, 1); got.Body != "body" || strings.Contains(u.received(), "X-Late") {
		t.Errorf("the node got %q", u.received())
	}
	if strings.Contains(raw, "X-Late") || strings.Contains(raw, "X-Ursula") || !strings.HasSuffix(raw, "0\r\n\r\n") {
		t.Errorf("the client got %q", raw)
	}
}

// H08: a forged client address was believed, and limits and lists were passed
// by. With no trusted proxy the peer is the client whatever is sent; behind one
// it is the right-most hop that is not trusted.
func TestForgedClientAddress(t *testing.T) {
	trusted := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8")}
	tests := []struct {
		name    string
		trusted []netip.Prefix
		headers []string
		want    string
	}{
		{"untrusted peer, one hop", nil, []string{"X-Forwarded-For", "1.1.1.1"}, "127.0.0.1"},
		{"untrusted peer, Forwarded", nil, []string{"Forwarded", "for=1.1.1.1"}, "127.0.0.1"},
		{"untrusted peer, two lines", nil, []string{"X-Forwarded-For", "1.1.1.1", "X-Forwarded-For", "2.2.2.2"}, "127.0.0.1"},
		{"untrusted peer, other names", nil, []string{"X-Real-Ip", "1.1.1.1", "True-Client-Ip", "1.1.1.1", "X_Forwarded_For", "1.1.1.1", "Cf-Connecting-Ip", "1.1.1.1"}, "127.0.0.1"},
		{"trusted, spoof before real", trusted, []string{"X-Forwarded-For", "1.1.1.1, 2.2.2.2"}, "2.2.2.2"},
		{"trusted, two lines", trusted, []string{"X-Forwarded-For", "1.1.1.1", "X-Forwarded-For", "2.2.2.2"}, "2.2.2.2"},
		{"trusted, inner hop behind", trusted, []string{"X-Forwarded-For", "1.1.1.1, 2.2.2.2, 10.1.2.3"}, "2.2.2.2"},
		{"trusted, only inner hops", trusted, []string{"X-Forwarded-For", "10.9.9.9, 10.1.2.3"}, "10.9.9.9"},
		{"trusted, rubbish on the right", trusted, []string{"X-Forwarded-For", "1.1.1.1, unknown"}, "127.0.0.1"},
		{"trusted, other names say nothing", trusted, []string{"X-Real-Ip", "1.1.1.1", "True-Client-Ip", "1.1.1.1", "X_Forwarded_For", "1.1.1.1"}, "127.0.0.1"},
		{"trusted, Forwarded", trusted, []string{"Forwarded", `for=1.1.1.1, for="[2001:db8::7]:443";proto=https`}, "2001:db8::7"},
		{"trusted, the two disagree", trusted, []string{"X-Forwarded-For", "1.1.1.1", "Forwarded", "for=2.2.2.2"}, "127.0.0.1"},
		{"trusted, IPv4 in IPv6 (L11)", trusted, []string{"X-Forwarded-For", "::ffff:2.2.2.2"}, "2.2.2.2"},
	}
	rg, u := newUpRig(t, respond(whole("200 OK", "", "ok")), rigOptions{})
	for i, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			o := rg.Options
			o.TrustedProxies = tc.trusted
			rg.Gateway.Swap(o)
			headers := append(tc.headers, "X-Forwarded-Host", "evil", "X-Forwarded-Proto", "ftp", "X-Forwarded-Uri", "/evil",
				"X-Original-Url", "/evil", "X-Client-Ip", "9.9.9.9", "X_Real_Ip", "9.9.9.9", "Via", "1.1 evil")
			if res := rg.Do(t, http.MethodGet, "/acme/s.pub", "", "", headers...); res.StatusCode != http.StatusOK {
				t.Fatalf("answer %d %s", res.StatusCode, res.Text)
			}
			if got := rg.awaitLines(t, i+1)[i]["client"]; got != tc.want {
				t.Errorf("client %v, want %s", got, tc.want)
			}
			got := u.await(t, i+1)
			for name := range got.Header {
				if name != requestIDHeader && name != "User-Agent" {
					t.Errorf("%s reached the node", name)
				}
			}
			if strings.Contains(got.Head, "1.1.1.1") || strings.Contains(got.Head, "9.9.9.9") {
				t.Errorf("the node was told of addresses: %q", got.Head)
			}
		})
	}
}

// H10: an informational answer was taken for the last one, a flood of them ate
// memory, and headers froze at the first. They are dropped, and bounded by the
// bytes that a node's head may have.
func TestInformationalAnswers(t *testing.T) {
	rg, _ := newUpRig(t, func(c *upConn, r *upRequest) {
		n := 200
		if strings.Contains(r.Target, "flood") {
			n = 20_000
		}
		c.say("HTTP/1.1 103 Early Hints\r\nCache-Control: public\r\nServer: node\r\n\r\n" + strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", n) +
			whole("200 OK", "Stream-Next-Offset: 7\r\n", "ok"))
	}, rigOptions{})
	raw := rg.raw(t, "GET /acme/s.pub HTTP/1.1\r\nHost: gw\r\nConnection: close\r\n\r\n")
	head, body := cutHead(t, raw)
	if !strings.HasPrefix(head, "HTTP/1.1 200 OK\r\n") || body != "ok" || !strings.Contains(head, "Cache-Control: no-store") ||
		!strings.Contains(head, "Stream-Next-Offset: 7") || !strings.Contains(head, "X-Request-Id: ") || strings.Contains(head, "Server") {
		t.Errorf("answer %q", raw)
	}
	for name, c := range protocols(t) {
		res, _ := rg.open(t, c, "/acme/s.pub?flood=1", "")
		if res.StatusCode != http.StatusBadGateway {
			t.Errorf("%s: a flood is answered %d, want 502", name, res.StatusCode)
		}
	}
}

// H17: a key that reads only wrote, by a header or parameter that another
// framework takes for the method. Overrides do not go on; a parameter does,
// since no node reads it; a method is what the request line says, case and all.
func TestMethodTricks(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("200 OK", "", "ok")), rigOptions{})
	res := rg.Do(t, http.MethodGet, "/acme/s.priv?_method=DELETE", "read", "",
		"X-HTTP-Method-Override", "DELETE", "X-Method-Override", "DELETE", "X-HTTP-Method", "DELETE")
	got := u.await(t, 1)
	if res.StatusCode != http.StatusOK || got.Method != http.MethodGet || got.Target != "/acme/s.priv?_method=DELETE" || strings.Contains(got.Head, "verride") || strings.Contains(got.Head, "X-Http-Method") {
		t.Errorf("answer %d, the node got %q", res.StatusCode, got.Head)
	}
	for _, tc := range []struct {
		method, keyName string
		status          int
		code            refusal.Code
	}{
		{"get", "read", 405, refusal.MethodNotAllowed},
		{"Get", key, 405, refusal.MethodNotAllowed},
		{"TRACE", key, 405, refusal.MethodNotAllowed},
		{"PATCH", key, 405, refusal.MethodNotAllowed},
		{"FOO", key, 405, refusal.MethodNotAllowed},
		{"OPTIONS", key, 405, refusal.MethodNotAllowed},
		{"QUERY", "", 405, refusal.MethodNotAllowed},
		{"POST", "read", 403, refusal.Forbidden},
		{"DELETE", "read", 403, refusal.Forbidden},
		{"PUT", "read", 403, refusal.Forbidden},
	} {
		t.Run(tc.method+" "+tc.keyName, func(t *testing.T) {
			res := rg.Do(t, tc.method, "/acme/s.priv", tc.keyName, "", "X-Echo", "echo-me")
			if res.StatusCode != tc.status || res.code() != string(tc.code) {
				t.Errorf("answer %d %s, want %d %s", res.StatusCode, res.Text, tc.status, tc.code)
			}
			if want := "GET, HEAD, POST, PUT, DELETE"; tc.status == 405 && res.Header.Get("Allow") != want {
				t.Errorf("Allow %q, want %q", res.Header.Get("Allow"), want)
			}
			if strings.Contains(res.Text, "echo-me") || strings.Contains(res.Text, "tbo_") {
				t.Errorf("echoed: %s", res.Text)
			}
		})
	}
	if n := len(u.requests()); n != 1 {
		t.Errorf("%d requests at the node, want the one GET", n)
	}
}

// H19: a Host or an absolute target chose the virtual host, or came back in an
// answer's URL. A target is a path; Host decides nothing and goes nowhere: the
// node sees its own. Host lines that Go's parser does not take stay its bare 400.
func TestHostDecidesNothing(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("200 OK", "Location: /acme/s.priv\r\n", "ok")), rigOptions{})
	auth := "Authorization: Bearer " + rg.Keys[key] + "\r\nConnection: close\r\n\r\n"
	for _, tc := range []struct{ name, request, status string }{
		{"absolute form", "GET http://evil/acme/s.priv HTTP/1.1\r\nHost: gw\r\n", "400 Bad Request"},
		{"absolute form, own host", "GET http://gw/acme/s.priv HTTP/1.1\r\nHost: gw\r\n", "400 Bad Request"},
		{"absolute form, no path", "GET http://evil HTTP/1.1\r\nHost: gw\r\n", "400 Bad Request"},
		{"two hosts", "GET /acme/s.priv HTTP/1.1\r\nHost: gw\r\nHost: evil\r\n", "400 Bad Request"},
		{"no host", "GET /acme/s.priv HTTP/1.1\r\n", "400 Bad Request"},
		{"host with another name before it", "GET /acme/s.priv HTTP/1.1\r\nHost: pub.example:443@evil\r\n", "400 Bad Request"},
		{"host with a path", "GET /acme/s.priv HTTP/1.1\r\nHost: evil/x\r\n", "400 Bad Request"},
	} {
		raw := rg.raw(t, tc.request+auth)
		if !strings.HasPrefix(raw, "HTTP/1.1 "+tc.status) || strings.Contains(raw, "evil") {
			t.Errorf("%s: %q, want %s", tc.name, raw, tc.status)
		}
	}
	u.untouched(t)
	for i, host := range []string{"evil.example", "", "127.0.0.1:1", "169.254.169.254"} {
		raw := rg.raw(t, "GET /acme/s.priv HTTP/1.1\r\nHost: "+host+"\r\n"+auth)
		head, _ := cutHead(t, raw)
		if !strings.HasPrefix(raw, "HTTP/1.1 200 OK") || host != "" && strings.Contains(head, host) || strings.Contains(head, "Location") {
			t.Errorf("Host %q: %q", host, raw)
		}
		if got := u.await(t, i+1).Host; "http://"+got != u.URL {
			t.Errorf("Host %q: the node saw Host %q, want its own", host, got)
		}
	}
	refused := rg.raw(t, "GET /acme/s.priv HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
	if !strings.HasPrefix(refused, "HTTP/1.1 401 ") || strings.Contains(refused, "evil") {
		t.Errorf("a refusal names the Host: %q", refused)
	}
}

// H20: HEAD lost lengths or hung, and took slots. Its head is GET's; a refusal
// has the JSON's length and no JSON; live= on HEAD is no tail.
func TestHead(t *testing.T) {
	const chunkPath = "/acme/s.pub/incarnation/7/chunk/00000000000000000000"
	rg, u := newUpRig(t, func(c *upConn, r *upRequest) {
		head := "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 3\r\nETag: \"e\"\r\nStream-Next-Offset: 7\r\nStream-Immutable: true\r\n" +
			"Stream-TTL: 60\r\nStream-Expires-At: 2030-01-01T00:00:00Z\r\n\r\n"
		if r.Method != http.MethodHead {
			head += "abc"
		}
		c.say(head)
	}, rigOptions{limits: func(l *tenant.Limits) { l.OpenTails = 0 }})
	for name, c := range protocols(t) {
		for _, path := range []string{"/acme/s.priv", chunkPath, "/acme/s.priv?live=sse&offset=now", "/acme/s.priv?live=long-poll"} {
			res := do(t, c, http.MethodHead, rg.URL+path, rg.Keys[key])
			if res.StatusCode != http.StatusOK || res.ContentLength != 3 || res.Header.Get("Etag") != `"e"` || res.Header.Get("Stream-Next-Offset") != "7" || res.Text != "" {
				t.Errorf("%s HEAD %s: %d, length %d, %v %q", name, path, res.StatusCode, res.ContentLength, res.Header, res.Text)
			}
			if res.Header.Get("Stream-Ttl") != "" || res.Header.Get("Stream-Expires-At") != "" {
				t.Errorf("%s HEAD %s tells a managed stream's life: %v", name, path, res.Header)
			}
		}
		// No slot is to be had: as a GET the same is refused, so HEAD took none.
		if res := do(t, c, http.MethodGet, rg.URL+"/acme/s.priv?live=sse&offset=now", rg.Keys[key]); res.code() != string(refusal.LiveReadsExhausted) {
			t.Errorf("%s: GET %d %s, want LIVE_READS_EXHAUSTED", name, res.StatusCode, res.Text)
		}
		before := len(u.requests())
		for _, path := range []string{"/acme/s.priv", "/acme/s.missing", "/nowhere", "/acme/s.pub?live=x", "/acme//s.pub", "/gone/s.pub", "/poor/s.pub", "/acme/s.pub/retention/7"} {
			get := do(t, c, http.MethodGet, rg.URL+path, "")
			head := do(t, c, http.MethodHead, rg.URL+path, "")
			if head.StatusCode != get.StatusCode || head.Text != "" || head.ContentLength != int64(len(get.Text)) || get.code() == "" {
				t.Errorf("%s %s: HEAD %d, length %d, %q; GET %d %q", name, path, head.StatusCode, head.ContentLength, head.Text, get.StatusCode, get.Text)
			}
			for _, h := range []http.Header{get.Header, head.Header} {
				h.Del("X-Request-Id")
				h.Del("Date")
			}
			if diff := cmp.Diff(get.Header, head.Header); diff != "" {
				t.Errorf("%s %s: headers of GET and HEAD differ:\n%s", name, path, diff)
			}
		}
		if n := len(u.requests()); n != before {
			t.Errorf("%s: %d refused requests reached the node", name, n-before)
		}
	}
}

// do is send over a client of the test's choice.
func do(t testing.TB, c *http.Client, method, url, bearer string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s: body: %v", method, url, err)
	}
	return answer{res, string(text)}
}

// H23: a node's redirect, cookie or software named the inside to clients, or led
// the gateway to an address of the redirect's choice. It follows to configured
// nodes only, by redirects that Ursula sends only.
func TestNodesStayInside(t *testing.T) {
	trap := newUp(t, respond(whole("200 OK", "", "trapped")))
	inner := []string{"10.0.0.7", "169.254.169.254", strings.TrimPrefix(trap.URL, "http://"), "n1.internal", "node-secret"}
	private := "Server: node-secret\r\nVia: 1.1 n1.internal\r\nSet-Cookie: a=node-secret\r\nX-Powered-By: node-secret\r\nAlt-Svc: h2=\"n1.internal:443\"\r\n" +
		"X-Ursula-Raft-Leader-Id: n1.internal\r\nX-Ursula-Raft-Group: node-secret\r\nX-Ursula-Node: node-secret\r\nContent-Location: http://n1.internal/x\r\nRefresh: 0; url=http://n1.internal/\r\n" +
		"Link: <http://n1.internal/>\r\nX-Accel-Redirect: /node-secret\r\nServer-Timing: node-secret\r\n"
	rg, _ := newUpRig(t, func(c *upConn, r *upRequest) {
		_, to, _ := strings.Cut(r.Target, "to=")
		status, location, _ := strings.Cut(to, ",")
		lines := private
		if location != "" {
			lines += "Location: " + location + "\r\n"
		}
		c.say(whole(status+" X", lines, ""))
	}, rigOptions{})
	for _, tc := range []struct {
		to     string
		status int
		code   refusal.Code
	}{
		{"200", 200, ""},
		{"404", 404, ""},
		{"503", 503, ""},
		{"307,http://10.0.0.7:4491/acme/s.priv", 503, refusal.NoLeader},
		{"307,http://169.254.169.254/latest", 503, refusal.NoLeader},
		{"307," + trap.URL + "/acme/s.priv", 503, refusal.NoLeader},
		{"308," + trap.URL + "/acme/s.priv", 503, refusal.NoLeader},
		{"307,//n1.internal/acme/s.priv", 503, refusal.NoLeader},
		{"307", 503, refusal.NoLeader},
		{"301," + trap.URL + "/acme/s.priv", 502, refusal.UpstreamFailed},
		{"302," + trap.URL + "/acme/s.priv", 502, refusal.UpstreamFailed},
		{"303," + trap.URL + "/acme/s.priv", 502, refusal.UpstreamFailed},
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			res := rg.Do(t, method, "/acme/s.priv?to="+tc.to, key, "")
			if res.StatusCode != tc.status || res.code() != string(tc.code) {
				t.Errorf("%s %s: %d %s, want %d %s", method, tc.to, res.StatusCode, res.Text, tc.status, tc.code)
			}
			if res.StatusCode == http.StatusServiceUnavailable && res.Header.Get("Retry-After") == "" {
				t.Errorf("%s %s: 503 without Retry-After", method, tc.to)
			}
			all := fmt.Sprint(res.Header, res.Text)
			for _, word := range inner {
				if strings.Contains(all, word) {
					t.Errorf("%s %s: the client is told %q: %s", method, tc.to, word, all)
				}
			}
			for _, name := range []string{"Location", "Server", "Via", "Set-Cookie"} {
				if res.Header.Get(name) != "" {
					t.Errorf("%s %s: the client got %s: %q", method, tc.to, name, res.Header.Get(name))
				}
			}
		}
	}
	if got := trap.received(); got != "" {
		t.Errorf("a redirect led to an address that is not configured: %q", got)
	}
}

// A node's answer without a media type got one guessed from its bytes by
// net/http: an owner's bytes became text/html under our origin.
func TestNoMediaTypeIsGuessed(t *testing.T) {
	rg, _ := newUpRig(t, respond(whole("200 OK", "", "<html><script>alert(1)</script>")), rigOptions{})
	for name, c := range protocols(t) {
		res := do(t, c, http.MethodGet, rg.URL+"/acme/s.pub", "")
		if got, ok := res.Header["Content-Type"]; ok || res.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: Content-Type %q, %v; want none, and nosniff", name, got, res.Header)
		}
	}
}
