package upstream

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/internal/ursulatest"
)

const streamPath = "/acme/s.priv"

// newPool makes a pool that ends with the test.
func newPool(t testing.TB, nodes ...string) *Pool {
	t.Helper()
	return newPoolOf(t, Options{Nodes: nodes})
}

func newPoolOf(t testing.TB, o Options) *Pool {
	t.Helper()
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// newBlindPool makes a pool that does not probe its nodes, so that a dead one is
// found out by a request and by nothing before it.
func newBlindPool(t testing.TB, bases ...string) *Pool {
	t.Helper()
	p := newPool(t)
	nodes := make([]*node, len(bases))
	for i, base := range bases {
		var err error
		if nodes[i], err = newNode(base, defaultDial()); err != nil {
			t.Fatal(err)
		}
		nodes[i].cancel = func() {}
	}
	p.nodes.Store(&nodes)
	return p
}

// firstIs makes the next request without a known leader go to node i of n.
func (p *Pool) firstIs(i, n int) {
	p.next.Store(0)
	for range n + i - 1 {
		p.next.Add(1)
	}
}

// newCluster starts a stand-in of n nodes with the stream of streamPath.
func newCluster(t testing.TB, n int) *ursulatest.Cluster {
	t.Helper()
	c := ursulatest.New(ursulatest.Options{Nodes: n})
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	p := newPool(t, c.URLs()[0])
	res := p.mustSend(t, http.MethodPut, streamPath, Meta{Path: streamPath}, "Content-Type", "text/plain")
	if res.StatusCode != http.StatusCreated {
		t.Fatalf("create: %d", res.StatusCode)
	}
	p.Close()
	c.ResetRequests()
	return c
}

// clientRequests are the requests that reached a cluster, but for questions about
// its identity.
func clientRequests(c *ursulatest.Cluster) []ursulatest.Request {
	return slices.DeleteFunc(c.Requests(), func(r ursulatest.Request) bool { return r.Target == identityPath })
}

// result is an answer read whole.
type result struct {
	*http.Response
	Text string
}

// send sends one request through the pool; headers are pairs.
func (p *Pool) send(ctx context.Context, method, target string, m Meta, headers ...string) (result, error) {
	req, err := http.NewRequestWithContext(ctx, method, target, nil)
	if err != nil {
		return result{}, err
	}
	req.Host = "gateway.example"
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	res, err := p.Send(ctx, req, m)
	if err != nil {
		return result{}, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	return result{res, string(text)}, err
}

func (p *Pool) mustSend(t testing.TB, method, target string, m Meta, headers ...string) result {
	t.Helper()
	res, err := p.send(t.Context(), method, target, m, headers...)
	if err != nil {
		t.Fatalf("%s %s: %v", method, target, err)
	}
	return res
}

// wantKind fails the test unless err is an *Error of that kind.
func wantKind(t testing.TB, err error, want Kind) {
	t.Helper()
	var own *Error
	if !errors.As(err, &own) {
		t.Fatalf("error %v, want an *Error of kind %s", err, want)
	}
	if own.Kind != want {
		t.Errorf("error %v, want kind %s", err, want)
	}
}

// eventually polls a condition that nothing announces.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
		runtime.Gosched()
		time.Sleep(time.Millisecond)
	}
}

// double is a node whose answers a test writes. Probes and questions about its
// identity it answers itself; they are not among hits.
type double struct {
	URL     string
	front   http.HandlerFunc       // comes before every answer, probes' too
	probes  http.HandlerFunc       // answers probes in the double's place
	cluster atomic.Pointer[string] // the id it tells; nil = "double", "" = it tells none
	// operator answers the questions about groups; nil = 404.
	operator atomic.Pointer[http.HandlerFunc]

	mu   sync.Mutex
	seen []ursulatest.Request
	log  *[]int // shared between doubles: the order in which they were asked
	id   int
}

// newDouble starts a node. A nil handler answers 200.
func newDouble(t testing.TB, handler http.HandlerFunc) *double {
	t.Helper()
	d := &double{}
	s := httptest.NewServer(d.handler(handler))
	t.Cleanup(s.Close)
	d.URL = s.URL
	return d
}

func (d *double) handler(next http.HandlerFunc) http.Handler {
	if next == nil {
		next = ok
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := next
		switch r.URL.Path {
		case probePath:
			if answer = d.probes; answer == nil {
				answer = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }
			}
		case identityPath:
			answer = d.identify
		case metricsPath, placementPath:
			answer = http.NotFound
			if h := d.operator.Load(); h != nil {
				answer = *h
			}
		default:
			d.note(r)
		}
		if d.front != nil {
			d.front(w, r)
		}
		answer(w, r)
	})
}

func (d *double) note(r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen = append(d.seen, ursulatest.Request{
		Node: d.id, Method: r.Method, Target: r.RequestURI, Host: r.Host, Header: r.Header.Clone(), Body: body, RemoteAddr: r.RemoteAddr,
	})
	if d.log != nil {
		*d.log = append(*d.log, d.id)
	}
}

func (d *double) identify(w http.ResponseWriter, _ *http.Request) {
	id := "double"
	if own := d.cluster.Load(); own != nil {
		id = *own
	}
	if id == "" {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.Header().Set(ProtocolHeader, "11")
	w.Header().Set(ClusterIDHeader, id)
	w.WriteHeader(http.StatusNotFound)
}

func (d *double) setCluster(id string) { d.cluster.Store(&id) }

func (d *double) hits() []ursulatest.Request {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.seen)
}

// deadURL is the address of a node that refuses connections; each i has its own.
// The ports are of those that no system hands out: one that was free a moment ago
// may be somebody's listener by now.
func deadURL(i int) string { return fmt.Sprint("http://127.0.0.1:", 1+i) }

// cut breaks the connection of a request without an answer.
func cut(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// redirect answers as a node that is not the leader.
func redirect(w http.ResponseWriter, location string, named bool) {
	w.Header().Set("Location", location)
	w.Header().Set("X-Ursula-Raft-Group", "0")
	if named {
		w.Header().Set("X-Ursula-Raft-Leader-Id", "2")
	}
	w.WriteHeader(http.StatusTemporaryRedirect)
	_, _ = io.WriteString(w, "not here")
}

// rawNode is a node that speaks bytes: script is called for each connection and
// the connection ends when it returns. Probes and identity questions are answered
// where the script uses readRequest.
type rawNode struct {
	URL   string
	conns chan int // the number of each connection, as it comes
	l     net.Listener
}

func newRawNode(t testing.TB, script func(c net.Conn, in *bufio.Reader)) *rawNode {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &rawNode{URL: "http://" + l.Addr().String(), conns: make(chan int, 10_000), l: l}
	var wait sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	wait.Go(func() {
		for i := 0; ; i++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.conns <- i
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			wait.Go(func() {
				defer func() { _ = c.Close() }()
				script(c, bufio.NewReader(c))
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		wait.Wait()
	})
	return n
}

// readRequest reads one request with its body; nil at the connection's end, and
// for a probe or a question about the identity, which it answers.
func readRequest(c net.Conn, in *bufio.Reader) (*http.Request, string) {
	for {
		req, err := http.ReadRequest(in)
		if err != nil {
			return nil, ""
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, ""
		}
		var own string
		switch req.URL.Path {
		case probePath:
			own = "HTTP/1.1 204 No Content\r\n\r\n"
		case identityPath:
			own = "HTTP/1.1 404 Not Found\r\nUrsula-Protocol: 11\r\nUrsula-Cluster-Id: raw\r\nContent-Length: 0\r\n\r\n"
		case metricsPath, placementPath:
			own = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
		default:
			return req, string(body)
		}
		if _, err := io.WriteString(c, own); err != nil {
			return nil, ""
		}
	}
}

// say writes an answer with that body.
func say(c net.Conn, status int, body string) {
	_, _ = io.WriteString(c, "HTTP/1.1 "+strconv.Itoa(status)+" "+http.StatusText(status)+"\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"+body)
}

// goroutinesOf counts the goroutines that run in this package's code or in the
// transport, tests excluded by function.
func goroutinesOf(parts ...string) int {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	n := 0
	for g := range strings.SplitSeq(string(buf), "\n\n") {
		if slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(g, part) }) {
			n++
		}
	}
	return n
}

// closeIdle ends the pool's kept connections.
func closeIdle(p *Pool) {
	for _, n := range *p.nodes.Load() {
		n.conns.CloseIdle()
	}
}
