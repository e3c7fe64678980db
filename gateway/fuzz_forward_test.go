package gateway

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
)

// forwardRig is a whole gateway in front of a tap, in haste: it waits for
// nothing longer than 20 ms, and tells which connections it still has.
type forwardRig struct {
	*rig
	node *tap
	addr string

	mu   sync.Mutex
	open map[string]bool // by the client's address
}

const haste = 20 * time.Millisecond

func (fr *forwardRig) note(conn net.Conn, s http.ConnState) {
	fr.mu.Lock()
	defer fr.mu.Unlock()
	if fr.open[conn.RemoteAddr().String()] = true; s == http.StateClosed {
		delete(fr.open, conn.RemoteAddr().String())
	}
}

func (fr *forwardRig) has(conn net.Conn) bool {
	fr.mu.Lock()
	defer fr.mu.Unlock()
	return fr.open[conn.LocalAddr().String()]
}

func newForwardRig(tb testing.TB) *forwardRig {
	tb.Helper()
	fr := &forwardRig{node: newTap(tb), open: map[string]bool{}}
	fr.rig = newRig(tb, rigOptions{nodes: []string{fr.node.url}, change: func(o *Options) {
		o.Log = zap.NewNop() // it would grow with every input
		o.Pace = Pace{Stall: haste, DrainStall: haste, BudgetWait: haste}
	}})
	server := NewServer(fr.Gateway, log.New(io.Discard, "", 0))
	server.ConnState, server.IdleTimeout, server.ReadHeaderTimeout = fr.note, haste, haste
	var lc net.ListenConfig
	l, err := lc.Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	tb.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	fr.addr = l.Addr().String()
	poll(tb, "the node's identity", func() bool { _, err := fr.Pool.Identity(); return err == nil })
	return fr
}

// exchange writes bytes on a connection of their own and reads what is answered
// to its end, by which the gateway has finished with all that it was sent.
func (fr *forwardRig) exchange(t *testing.T, input string) string {
	t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", fr.addr)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = io.WriteString(conn, input)
	text, err := io.ReadAll(conn)
	_ = conn.Close()
	if err != nil { // a reset, which may come before the end
		poll(t, "the end of the connection", func() bool { return !fr.has(conn) })
	}
	return string(text)
}

// forwardWho are the credentials that FuzzForward gives its attacker, one at a
// time, so that nothing else can be behind what reaches the node.
var forwardWho = []string{"", "full", "read", "narrowed", "covering", "expired", "revoked", "agent", "unknown", "malformed", "other.full", "poor.full", "gone.full"}

// mayReach is design §5 and §4 on what the rig holds.
func mayReach(who string, w wanted) bool {
	active := w.account == "acme" || w.account == "other"
	public := active && w.stream == "pub" && !w.write
	switch who {
	case "full":
		return active && w.account == "acme" && !w.lifecycle || public
	case "other.full":
		return w.account == "other" && !w.lifecycle || public
	case "read":
		return w.account == "acme" && !w.write || public
	case "covering":
		covered := w.stream == "priv" || strings.HasPrefix(w.stream, "pub") || strings.HasPrefix(w.stream, "miss")
		return w.account == "acme" && covered && !w.lifecycle || public
	default: // none, those that reach nothing, and broken ones beside requests with none
		return public
	}
}

// forbidden are headers that no node may get from a client (design §3).
var forbidden = regexp.MustCompile(`(?i)\A(authorization|cookie|idempotency-key|x-idempotency-key|x-ursula-.*|x-http-method(-override)?|x-method-override|` +
	`x-original-(url|uri|host)|x-rewrite-url|x-host|forwarded|via|x-forwarded.*|x-real-ip|true-client-ip|expect|te|trailers?|transfer-encoding|` +
	`connection|keep-alive|upgrade|proxy-.*|.*_.*)\z`)

func (fr *forwardRig) check(t *testing.T, who, input string) {
	t.Helper()
	text := fr.exchange(t, input)
	reqs, odd := fr.node.take()
	for _, o := range odd {
		t.Errorf("the node got an odd %s\nof %q\nanswered %q", o, input, text)
	}
	if n := strings.Count(input, "HTTP/1."); len(reqs) > n {
		t.Errorf("%d requests reached the node, of at most %d in %q", len(reqs), n, input)
	}
	for _, r := range reqs {
		if w := wantRoute(r.method, r.target); w.code != "" || !mayReach(who, w) {
			t.Errorf("%q reached the node with %s %s: %+v\nof %q", who, r.method, r.target, w, input)
		}
		if !strings.Contains("\n"+input, "\n"+r.method+" "+r.target+" HTTP/1.") {
			t.Errorf("the node got %s %s, which nobody sent: %q", r.method, r.target, input)
		}
		if !strings.Contains(strings.ToLower(input), "chunked") && !strings.Contains(input, r.body) || r.body != "" && (r.method == "GET" || r.method == "HEAD") {
			t.Errorf("the node got the body %q of %q", r.body, input)
		}
		for _, f := range r.fields {
			if forbidden.MatchString(f[0]) {
				t.Errorf("the node got %s: %s of %q", f[0], f[1], input)
			}
		}
		if hosts := r.values("Host"); len(hosts) != 1 || "http://"+hosts[0] != fr.node.url || len(r.values("X-Request-Id")) != 1 {
			t.Errorf("the node got Host %q and X-Request-Id %q of %q", hosts, r.values("X-Request-Id"), input)
		}
	}
}

// request writes a client's request; nothing in it is escaped or checked.
func (fr *forwardRig) request(method, target, headers, body, who string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n", method, target)
	if k := fr.Keys[who]; k != "" {
		fmt.Fprintf(&b, "Authorization: Bearer %s\r\n", k)
	}
	b.WriteString(headers)
	b.WriteString("\r\n")
	b.WriteString(body)
	return b.String()
}

// forwardSeeds are header lines and bodies: H02, H03, H04, H08, H17, H21, H22.
func forwardSeeds() [][2]string {
	const typed = "Content-Type: application/json\r\n"
	smuggled := "0\r\n\r\nGET /acme/s.priv HTTP/1.1\r\nHost: x\r\n\r\n"
	return [][2]string{
		{"", ""},
		{typed + "Content-Length: 7\r\n", `{"n":1}`},
		{typed + "Transfer-Encoding: chunked\r\n", "7\r\n{\"n\":1}\r\n0\r\n\r\n"},
		{typed + "Transfer-Encoding: chunked\r\nTrailer: X-T\r\n", "7\r\n{\"n\":1}\r\n0\r\nX-T: 1\r\nAuthorization: x\r\n\r\n"},
		// H03
		{typed + fmt.Sprintf("Content-Length: %d\r\nTransfer-Encoding: chunked\r\n", len(smuggled)), smuggled},
		{typed + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", smuggled},
		// H04
		{"Transfer-Encoding: chunked\r\r\n", smuggled},
		{"Transfer-Encoding: xchunked\r\n", smuggled},
		{"Transfer-Encoding:\tchunked\r\n", smuggled},
		{"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", smuggled},
		{"Transfer-Encoding: chunked, identity\r\n", smuggled},
		{"Transfer-Encoding : chunked\r\n", smuggled},
		{"Transfer-Encoding: chunked\r\n", "7;a=\n\r\n{\"n\":1}\r\n0\r\n\r\n"},
		{" Transfer-Encoding: chunked\r\n", smuggled},
		{"Content-Length: +5\r\n", "abcde"},
		{"Content-Length: 5, 5\r\n", "abcde"},
		{"Content-Length:  5\x0b\r\n", "abcde"},
		{"Content-Length: 5\r\nContent-Length: 5\r\n", "abcde"},
		{"Content-Length: 5\r\nContent-Length: 0\r\n", "abcde"},
		{"Content-Length: -1\r\n", "abcde"},
		// H02, H08
		{"Keep-Alive: 1\r\nProxy-Connection: x\r\nProxy-Authorization: x\r\nTE: trailers, gzip\r\nConnection:\r\nConnection: X-A, Content-Length\r\nX-A: 1\r\n", ""},
		{"X-Forwarded-For: 1.1.1.1\r\nX-Real-IP: 1.1.1.1\r\nForwarded: for=1.1.1.1\r\nX_Forwarded_For: 1\r\nX-Ursula-Debug-Token: x\r\nCookie: a=b\r\nIdempotency-Key: 1\r\n", ""},
		// H12, H17, H19, H21, H22
		{"Expect: 100-continue\r\nContent-Length: 7\r\n" + typed, `{"n":1}`},
		{"X-HTTP-Method-Override: DELETE\r\nX-Method-Override: PUT\r\nX-Original-URL: /acme/s.priv\r\n", ""},
		{"Host: y\r\n", ""},
		{"X-Request-Id: mine\r\nX-Request-Id: yours\r\n", ""},
		{"Authorization: Bearer x\r\n", ""},
		{"authorization: Basic YTpi\r\n", ""},
		{"Content-Length: 3\r\n", "abc"},
		{"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n", ""},
		{"X-A: 1\r\n\tfolded\r\n", ""},
		{"X-A: a\x00b\r\n", ""},
		{"X-A: a\rb\r\n", ""},
		{"no colon\r\n", ""},
		{": empty\r\n", ""},
		{"0:\xf8\r\n", ""},
		{"!#$%&'*+-.^`|~: 1\r\n", ""},
	}
}

// FuzzForward sends bytes through the whole gateway. The invariant: what is
// authorised is what the node receives, and nothing else ever reaches it.
func FuzzForward(f *testing.F) {
	who := 0
	add := func(method, target string, rest [2]string) {
		f.Add(method, target, rest[0], rest[1], who)
		who++
	}
	for i, target := range fuzzTargets() {
		for _, method := range []string{"GET", "POST", fuzzMethods()[i%len(fuzzMethods())]} {
			add(method, target, [2]string{})
		}
	}
	for _, rest := range forwardSeeds() {
		for range forwardWho {
			add("POST", "/acme/s.priv", rest)
			add("GET", "/acme/s.pub", rest)
		}
	}
	// More than one request, or half of one, where one is expected.
	add("GET /acme/s.pub HTTP/1.1\r\nHost: x\r\n\r\nGET", "/acme/s.priv", [2]string{})
	add("GET", "/acme/s.pub HTTP/1.1\r\nHost: x\r\n\r\nDELETE /acme/s.priv", [2]string{})
	add("GET", "/acme/s.pub HTTP/1.0\r\n\r\n", [2]string{})
	fr := newForwardRig(f)
	f.Fuzz(func(t *testing.T, method, target, headers, body string, who int) {
		name := forwardWho[uint(who)%uint(len(forwardWho))]
		fr.check(t, name, fr.request(method, target, headers, body, name))
	})
}

// FuzzForward would hold of a gateway that forwards nothing, too.
func TestForwardRigForwards(t *testing.T) {
	fr := newForwardRig(t)
	for _, rest := range forwardSeeds()[:4] {
		text := fr.exchange(t, fr.request("POST", "/acme/s.priv?x=%41&offset", rest[0], rest[1], key))
		reqs, odd := fr.node.take()
		if len(reqs) != 1 || len(odd) != 0 || reqs[0].target != "/acme/s.priv?x=%41&offset" || rest[1] != "" && reqs[0].body != `{"n":1}` {
			t.Errorf("the node got %+v, odd %q, of %q, answered %q", reqs, odd, rest, text)
		}
	}
	fr.exchange(t, fr.request("POST", "/acme/s.priv", "", "", ""))
	if reqs, odd := fr.node.take(); len(reqs)+len(odd) != 0 {
		t.Errorf("the node got %+v, odd %q, with no credential", reqs, odd)
	}
}
