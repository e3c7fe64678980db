package gateway

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"sluice/internal/syncbuf"
)

// up is a scripted node: a plain TCP server that keeps every byte it gets and
// answers with whatever bytes its script writes, so that a node can be odd in
// ways that no HTTP server is. The pool's own questions, which come on connections
// of their own, it answers itself, and does not record.
type up struct {
	URL string

	script func(*upConn, *upRequest)
	mu     sync.Mutex
	open   []*upConn // all, to be closed
	conns  []*upConn // those of requests, by their numbers
	reqs   []*upRequest
	wait   sync.WaitGroup
}

// upRequest is one request, as its bytes came.
type upRequest struct {
	Head   string // the head's raw bytes, blank line included
	Method string
	Target string
	Host   string
	Header http.Header
	Body   string
	Conn   int // number of the connection, from 0

	Framing []string // Transfer-Encoding
	Length  int64    // Content-Length; -1 = none
}

// upConn is one connection. Its script runs on the connection's own goroutine.
type upConn struct {
	net.Conn
	id   int  // from 0; -1 = no request has come
	own  bool // the pool's own questions come here
	in   *bufio.Reader
	raw  syncbuf.Buffer // everything that was received
	gone chan struct{}  // closed once the gateway has ended the connection
}

const upIdentity = "HTTP/1.1 404 Not Found\r\nUrsula-Protocol: 11\r\nUrsula-Cluster-Id: up\r\nContent-Length: 0\r\n\r\n"

// newUp starts a scripted node; a script that returns leaves the connection open
// for a next request.
func newUp(t testing.TB, script func(*upConn, *upRequest)) *up {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u := &up{URL: "http://" + l.Addr().String(), script: script}
	u.wait.Go(func() { u.accept(l) })
	t.Cleanup(func() {
		_ = l.Close()
		u.mu.Lock()
		for _, c := range u.open {
			_ = c.Close()
		}
		u.mu.Unlock()
		u.wait.Wait()
	})
	return u
}

func (u *up) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		u.mu.Lock()
		c := &upConn{Conn: conn, id: -1, gone: make(chan struct{})}
		c.in = bufio.NewReader(io.TeeReader(conn, &c.raw))
		u.open = append(u.open, c)
		u.mu.Unlock()
		u.wait.Go(func() { u.serve(c) })
	}
}

func (u *up) serve(c *upConn) {
	defer close(c.gone)
	defer func() { _ = c.Close() }()
	for {
		req, err := c.read()
		if err == nil && (strings.HasPrefix(req.Target, "/console/") || strings.HasPrefix(req.Target, "/__ursula/")) {
			c.own = true
			c.say(upIdentity)
			continue
		}
		u.record(c, req)
		if err != nil {
			return
		}
		u.script(c, req)
	}
}

// record notes a request, and its connection with the first bytes of one.
func (u *up) record(c *upConn, req *upRequest) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if c.own || req == nil && c.raw.String() == "" {
		return
	}
	if c.id < 0 {
		c.id = len(u.conns)
		u.conns = append(u.conns, c)
	}
	if req != nil {
		req.Conn = c.id
		u.reqs = append(u.reqs, req)
	}
}

// read takes one request off the connection, head as it is, body by its framing.
func (c *upConn) read() (*upRequest, error) {
	var head strings.Builder
	for !strings.HasSuffix(head.String(), "\r\n\r\n") {
		line, err := c.in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		head.WriteString(line)
	}
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(head.String())))
	if err != nil {
		return nil, err
	}
	req := &upRequest{
		Head: head.String(), Method: r.Method, Target: r.RequestURI, Host: r.Host, Header: r.Header,
		Framing: r.TransferEncoding, Length: r.ContentLength,
	}
	if r.ContentLength > 0 {
		body := make([]byte, r.ContentLength)
		if _, err := io.ReadFull(c.in, body); err != nil {
			return nil, err
		}
		req.Body = string(body)
	}
	return req, nil
}

// say writes bytes as they are; a gateway that has left is no fault here.
func (c *upConn) say(bytes string) { _, _ = io.WriteString(c.Conn, bytes) }

// hold keeps the exchange open until the gateway ends the connection.
func (c *upConn) hold() { _, _ = io.Copy(io.Discard, c.in) }

// reset ends the connection with a RST, so that no end is mistaken for a clean one.
func (c *upConn) reset() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// requests are those so far, without questions about the identity.
func (u *up) requests() []*upRequest {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.reqs)
}

// conn is the connection of a request.
func (u *up) conn(r *upRequest) *upConn {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.conns[r.Conn]
}

// received is every byte that came in on any connection.
func (u *up) received() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	var all strings.Builder
	for _, c := range u.conns {
		all.WriteString(c.raw.String())
	}
	return all.String()
}

// await returns the n-th request, counted from 1, as soon as it has come.
func (u *up) await(t testing.TB, n int) *upRequest {
	t.Helper()
	poll(t, fmt.Sprintf("request %d at the node", n), func() bool { return len(u.requests()) >= n })
	return u.requests()[n-1]
}

// untouched fails the test when a request has reached the node.
func (u *up) untouched(t testing.TB) {
	t.Helper()
	for _, r := range u.requests() {
		t.Errorf("the node got %s %s", r.Method, r.Target)
	}
}

// newUpRig is a rig with one scripted node behind it.
func newUpRig(t testing.TB, script func(*upConn, *upRequest), o rigOptions) (*rig, *up) {
	t.Helper()
	u := newUp(t, script)
	o.nodes = []string{u.URL}
	rg := newRig(t, o)
	poll(t, "the node's identity", func() bool { _, err := rg.Pool.Identity(); return err == nil })
	return rg, u
}

// respond is a script of one answer, given again and again.
func respond(bytes string) func(*upConn, *upRequest) {
	return func(c *upConn, _ *upRequest) { c.say(bytes) }
}

// whole is an answer with a Content-Length; header lines end with \r\n.
func whole(status, headerLines, body string) string {
	return fmt.Sprintf("HTTP/1.1 %s\r\n%sContent-Length: %d\r\n\r\n%s", status, headerLines, len(body), body)
}

const (
	sseHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache, no-store\r\nTransfer-Encoding: chunked\r\n\r\n"
	sseTail = "/acme/s.priv?offset=now&live=sse"
)

// chunk frames bytes for Transfer-Encoding: chunked.
func chunk(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }

// poll waits for a condition that nothing announces.
func poll(t testing.TB, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("never came: %s", what)
		}
	}
}

// protocols are clients of both protocols of the public listener. Each has
// connections of its own, and none follows redirects or asks for a coding.
func protocols(t testing.TB) map[string]*http.Client {
	t.Helper()
	var prior http.Protocols
	prior.SetUnencryptedHTTP2(true)
	h2 := &http.Transport{DisableCompression: true, Protocols: &prior}
	t.Cleanup(h2.CloseIdleConnections)
	return map[string]*http.Client{"h1": client(), "h2": {Transport: h2, CheckRedirect: client().CheckRedirect}}
}

// open sends a GET and returns as soon as its head is there. The body ends with
// the test, or with cancel.
func (rg *rig) open(t testing.TB, c *http.Client, path, keyName string, headers ...string) (opened answer, cancel func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, rg.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if keyName != "" {
		req.Header.Set("Authorization", "Bearer "+rg.Keys[keyName])
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	return answer{res, ""}, cancel
}

// nextAnswer reads the next head of a raw connection; its body ends with the test.
func nextAnswer(t testing.TB, br *bufio.Reader, method string) answer {
	t.Helper()
	res := readHead(t, br, method)
	t.Cleanup(func() { _ = res.Body.Close() })
	return answer{res, ""}
}

// readN reads exactly n bytes of a body that may stay open behind them.
func readN(t testing.TB, body io.Reader, n int) string {
	t.Helper()
	b := make([]byte, n)
	if got, err := io.ReadFull(body, b); err != nil {
		t.Fatalf("read %d of %d bytes: %v", got, n, err)
	}
	return string(b)
}

// exposition is what /metrics would say.
func (rg *rig) exposition(t testing.TB) string {
	t.Helper()
	rec := httptest.NewRecorder()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
	promhttp.HandlerFor(rg.Metrics, promhttp.HandlerOpts{}).ServeHTTP(rec, req)
	return rec.Body.String()
}

// counts reports whether the exposition has the sample, labels and value as they
// are written there.
func (rg *rig) counts(t testing.TB, sample string) bool {
	t.Helper()
	return slices.Contains(strings.Split(rg.exposition(t), "\n"), sample)
}

// awaitCount waits until the exposition has the sample: a request is counted when it
// has ended, which may be after the client has its answer, or knows of its cut.
func (rg *rig) awaitCount(t testing.TB, sample string) {
	t.Helper()
	poll(t, sample, func() bool { return rg.counts(t, sample) })
}

// awaitLines waits for n lines of the access log: a line is written when its
// request has ended, which may be after the client has its answer.
func (rg *rig) awaitLines(t testing.TB, n int) []map[string]any {
	t.Helper()
	poll(t, fmt.Sprintf("%d access lines", n), func() bool { return len(rg.requestLines(t)) >= n })
	lines := rg.requestLines(t)
	if len(lines) != n {
		t.Errorf("%d access lines, want %d", len(lines), n)
	}
	return lines
}

// cutHead parts a raw answer.
func cutHead(t testing.TB, raw string) (head, body string) {
	t.Helper()
	head, body, ok := strings.Cut(raw, "\r\n\r\n")
	if !ok {
		t.Fatalf("no head in %q", raw)
	}
	return head, body
}

// The scripted node is the witness of most cases: it must not lie.
func TestUp(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("200 OK", "", "ok")), rigOptions{})
	res := rg.Do(t, http.MethodPost, "/acme/s.priv?a=1", key, "body", "Content-Type", "text/plain")
	if res.StatusCode != http.StatusOK || res.Text != "ok" {
		t.Fatalf("answer: %d %q", res.StatusCode, res.Text)
	}
	got := u.await(t, 1)
	if got.Method != http.MethodPost || got.Target != "/acme/s.priv?a=1" || got.Body != "body" || got.Length != 4 {
		t.Errorf("the node saw %+v", got)
	}
	if !strings.Contains(u.received(), got.Head+"body") || !bytes.HasPrefix([]byte(got.Head), []byte("POST /acme/s.priv?a=1 HTTP/1.1\r\n")) {
		t.Errorf("bytes at the node: %q", u.received())
	}
}
