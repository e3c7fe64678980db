package wire

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sluice/internal/bubble"
)

// kind is a kind of connection.
type kind struct {
	name   string
	socket bool // the kernel can be asked about it
	secure bool
	real   bool // TCP on the loopback; all others are in memory
}

func plain() kind { return kind{name: "socket", socket: true} }
func tcp() kind   { return kind{name: "TCP", socket: true, real: true} }

// inMemory are the kinds that a bubble takes.
func inMemory() []kind {
	return []kind{
		plain(),
		{name: "no socket"},
		{name: "TLS", socket: true, secure: true},
		{name: "TLS, no socket", secure: true},
	}
}

func overTCP() []kind {
	return []kind{tcp(), {name: "TCP and TLS", socket: true, secure: true, real: true}}
}

// each runs f in a bubble for each kind in memory.
func each(t *testing.T, f func(t *testing.T, k kind)) {
	t.Helper()
	for _, k := range inMemory() {
		t.Run(k.name, func(t *testing.T) { bubble.Test(t, func(t *testing.T) { f(t, k) }) })
	}
}

// rig is a Conns and the server that it asks. Whatever is dialed is watched.
type rig struct {
	*Conns
	t      testing.TB
	kind   kind
	serve  func(*peer)
	server *tls.Config
	done   chan struct{} // closed when the test ends, before the connections are
	wait   sync.WaitGroup
	dialed atomic.Int32
	listen net.Listener
	states [2]syscall.RawConn // of sockets in memory: quiet, loud

	mu    sync.Mutex
	near  []interface{ isClosed() bool }
	peers []*peer
	lines []*line // the near ends
	ended map[*Exchange]int
}

// peer is the server's end of a connection.
type peer struct {
	net.Conn
	under net.Conn
	cork  *cork // below TLS; else the same as under
	in    *bufio.Reader
	n     int // 1 for the first connection
	rig   *rig
}

// newRig makes a server whose connections are served by serve, each by a goroutine
// of its own, and are closed when it returns.
func newRig(t testing.TB, k kind, serve func(*peer)) *rig {
	t.Helper()
	r := &rig{t: t, kind: k, serve: serve, done: make(chan struct{}), ended: map[*Exchange]int{}}
	o := Options{Address: "node.test:80", Dial: r.dial, Idle: time.Minute, MaxIdle: 4, MaxHead: 64 << 10}
	if k.secure {
		r.server, o.TLS = certificate(t)
	}
	if k.socket && !k.real {
		r.states[0], r.states[1] = states(t)
	}
	if k.real {
		listen, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		r.listen, o.Address = listen, listen.Addr().String()
		r.wait.Go(r.accept)
	}
	r.Conns = New(o)
	t.Cleanup(r.close)
	return r
}

// close ends the rig, once; nothing may be left of it.
func (r *rig) close() {
	select {
	case <-r.done:
		return
	default:
		close(r.done)
	}
	r.Close()
	if r.listen != nil {
		_ = r.listen.Close()
	}
	r.mu.Lock()
	for _, p := range r.peers {
		_ = p.under.Close()
	}
	r.mu.Unlock()
	r.wait.Wait()
	if n := r.open(); n != 0 {
		r.t.Errorf("%d connections are still open", n)
	}
}

// open is how many of the dialed connections are not closed.
func (r *rig) open() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, c := range r.near {
		if !c.isClosed() {
			n++
		}
	}
	return n
}

// watched is the near end of TCP that tells whether it was closed.
type watched struct {
	*net.TCPConn
	closed atomic.Bool
}

func (w *watched) Close() error {
	w.closed.Store(true)
	return w.TCPConn.Close()
}

func (w *watched) isClosed() bool { return w.closed.Load() }

func (r *rig) dial(ctx context.Context, network, address string) (net.Conn, error) {
	r.dialed.Add(1)
	if r.kind.real {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		inner, ok := c.(*net.TCPConn)
		if !ok {
			return nil, errors.ErrUnsupported
		}
		w := &watched{TCPConn: inner}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.near = append(r.near, w)
		return w, nil
	}
	near, far := newLine()
	r.mu.Lock()
	r.near = append(r.near, near)
	r.lines = append(r.lines, near)
	r.mu.Unlock()
	r.meet(far)
	if !r.kind.socket {
		return near, nil
	}
	return &socket{line: near, quiet: r.states[0], loud: r.states[1]}, nil
}

func (r *rig) accept() {
	for {
		c, err := r.listen.Accept()
		if err != nil {
			return
		}
		r.meet(c)
	}
}

func (r *rig) meet(far net.Conn) {
	p := &peer{Conn: far, under: far, cork: &cork{Conn: far}, rig: r}
	if r.kind.secure {
		p.Conn = tls.Server(p.cork, r.server)
	} else {
		p.Conn = p.cork
	}
	p.in = bufio.NewReader(p.Conn)
	r.mu.Lock()
	r.peers = append(r.peers, p)
	p.n = len(r.peers)
	r.mu.Unlock()
	r.wait.Go(func() {
		r.serve(p)
		_ = p.Close()
	})
}

// cork is a connection whose writes can be held to go out as one segment.
type cork struct {
	net.Conn
	in   bool
	held bytes.Buffer
}

func (c *cork) Write(p []byte) (int, error) {
	if c.in {
		return c.held.Write(p)
	}
	return c.Conn.Write(p)
}

// together has the server write what f writes as one segment.
func (p *peer) together(f func()) {
	p.cork.in = true
	f()
	p.cork.in = false
	_, _ = p.under.Write(p.cork.held.Bytes())
	p.cork.held.Reset()
}

// request reads a request whole; nil is the connection's end.
func (p *peer) request() *http.Request {
	req, err := http.ReadRequest(p.in)
	if err != nil {
		return nil
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil
	}
	req.Body = io.NopCloser(bytes.NewReader(body))
	return req
}

// head reads a request but for its body; false is the connection's end.
func (p *peer) head() bool {
	_, err := http.ReadRequest(p.in)
	return err == nil
}

// say writes each part as a segment of its own.
func (p *peer) say(parts ...string) {
	for _, part := range parts {
		_, _ = io.WriteString(p, part)
	}
}

// reset ends the connection as a server does that is killed.
func (p *peer) reset() {
	switch c := p.under.(type) {
	case *line:
		c.reset()
	case *net.TCPConn:
		_ = c.SetLinger(0)
		_ = c.Close()
	}
}

// stay waits for the end of the test.
func (p *peer) stay() { <-p.rig.done }

// answer is a plain answer with that body.
func answer(body string) string {
	return "HTTP/1.1 200 OK\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
}

// exchange makes an exchange with time enough, whose endings are counted.
func (r *rig) exchange() *Exchange {
	x := &Exchange{Connect: 5 * time.Second, Head: 5 * time.Second}
	x.Ended = func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.ended[x]++
	}
	return x
}

func (r *rig) endings(x *Exchange) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended[x]
}

// outcome is how an exchange went.
type outcome struct {
	x       *Exchange
	status  int
	header  http.Header
	trailer http.Header
	body    string
	err     error // of Do
	readErr error // of the body; nil = its clean end
}

func newRequest(t testing.TB, method, body string) *http.Request {
	t.Helper()
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(context.Background(), method, "http://node.test/bucket/stream", in)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// run makes the exchange, reads the answer to its end and closes it.
func (r *rig) run(x *Exchange, req *http.Request) outcome {
	r.t.Helper()
	o := outcome{x: x}
	res, err := x.Do(context.Background(), r.Conns, req)
	if err == nil {
		var body []byte
		body, o.readErr = io.ReadAll(res.Body)
		_ = res.Body.Close()
		o.status, o.header, o.trailer, o.body = res.StatusCode, res.Header, res.Trailer, string(body)
	}
	o.err = err
	if n := r.endings(x); n != 1 {
		r.t.Errorf("ended %d times", n)
	}
	return o
}

func (r *rig) get() outcome {
	r.t.Helper()
	return r.run(r.exchange(), newRequest(r.t, http.MethodGet, ""))
}

// want checks that the exchange went well, with that body.
func (o outcome) want(t testing.TB, body string) {
	t.Helper()
	if o.err != nil || o.readErr != nil || o.body != body {
		t.Errorf("got %q, error %v, then %v; want %q", short(o.body), o.err, o.readErr, short(body))
	}
}

func short(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}

// wantDialed checks how many connections were opened.
func (r *rig) wantDialed(n int) {
	r.t.Helper()
	if got := int(r.dialed.Load()); got != n {
		r.t.Errorf("%d connections, want %d", got, n)
	}
}

// certificate makes a self-signed certificate and both sides' configurations.
func certificate(t testing.TB) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"node.test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Unix(0, 0), NotAfter: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	raw, err := x509.CreateCertificate(rand.Reader, form, form, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	server = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{raw}, PrivateKey: key}}}
	client = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: "node.test", RootCAs: roots, NextProtos: []string{"http/1.1"}}
	return server, client
}
