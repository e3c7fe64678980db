package upstream

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/internal/bubble"
)

// pipes is a network in memory for tests in a bubble of testing/synctest, where
// a real one would keep the clock from moving.
type pipes struct {
	mu    sync.Mutex
	nodes map[string]*pipeNode // by host
}

// pipeNode is a node of such a network. As it is made it takes connections at
// once and answers.
type pipeNode struct {
	d      *double
	conns  chan net.Conn
	done   chan struct{}
	dial   atomic.Int64          // how long a connection takes, in ns; more than ConnectTimeout = none
	refuse atomic.Bool           // takes no connection
	lack   atomic.Pointer[error] // what connecting to it fails with, on this side
	last   atomic.Bool           // ends each connection with its answer, as a node that drains
	probed atomic.Int64          // connections for probes and questions about the identity
	dialed atomic.Int64          // connections for requests, those that did not come about too

	mu   sync.Mutex
	open []net.Conn
	used []net.Conn    // by requests of all kinds, in their order
	thaw chan struct{} // not nil while the node is frozen
}

func (n *pipeNode) Accept() (net.Conn, error) {
	select {
	case c := <-n.conns:
		return c, nil
	case <-n.done:
		return nil, net.ErrClosed
	}
}

func (n *pipeNode) Close() error   { return nil }
func (n *pipeNode) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)} }

// freeze makes the node take connections and requests and answer none, as under
// SIGSTOP; unfreeze has it answer what it took.
func (n *pipeNode) freeze() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.thaw = make(chan struct{})
}

func (n *pipeNode) unfreeze() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.thaw)
	n.thaw = nil
}

// kill cuts all connections and refuses new ones; revive takes them again.
func (n *pipeNode) kill() {
	n.refuse.Store(true)
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.open {
		_ = c.Close()
	}
	n.open = nil
}

func (n *pipeNode) revive() {
	n.last.Store(false)
	n.refuse.Store(false)
}

// drain refuses new connections and ends those that stand with their next answer.
func (n *pipeNode) drain() {
	n.last.Store(true)
	n.refuse.Store(true)
}

func (n *pipeNode) front(w http.ResponseWriter, r *http.Request) {
	conn, _ := r.Context().Value(pipeConnKey{}).(net.Conn)
	n.mu.Lock()
	n.used = append(n.used, conn)
	thaw := n.thaw
	n.mu.Unlock()
	if thaw != nil {
		select {
		case <-thaw:
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
	if n.last.Load() {
		w.Header().Set("Connection", "close")
	}
}

// takeUsed returns the connections that were used since it was called last.
func (n *pipeNode) takeUsed() []net.Conn {
	n.mu.Lock()
	defer n.mu.Unlock()
	used := n.used
	n.used = nil
	return used
}

type pipeConnKey struct{}

// serve adds a node under a host name and returns its base URL. It closes
// connections that are idle for so long.
func (ps *pipes) serve(t *testing.T, host string, id int, idle time.Duration, h, probe http.HandlerFunc) (*pipeNode, string) {
	t.Helper()
	n := &pipeNode{d: &double{id: id, probes: probe}, conns: make(chan net.Conn), done: make(chan struct{})}
	n.d.front = n.front
	ps.mu.Lock()
	ps.nodes[host] = n
	ps.mu.Unlock()
	server := &http.Server{
		Handler: n.d.handler(h), ReadHeaderTimeout: time.Hour, IdleTimeout: idle,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, pipeConnKey{}, c)
		},
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(n)
	}()
	t.Cleanup(func() {
		close(n.done)
		_ = server.Close()
		<-served
	})
	return n, "http://" + host
}

// newPipes makes a pool over in-memory nodes a:1, b:1, c:1, …, one for each
// handler, and asks the first of them first.
func newPipes(t *testing.T, handlers ...http.HandlerFunc) (*Pool, []*pipeNode) {
	t.Helper()
	p, nodes, _ := newWatchedPipes(t, handlers...)
	return p, nodes
}

func newWatchedPipes(t *testing.T, handlers ...http.HandlerFunc) (*Pool, []*pipeNode, *outcomes) {
	t.Helper()
	return newProbedPipes(t, nil, handlers...)
}

// newProbedPipes has probe answer the probes of the first node.
func newProbedPipes(t *testing.T, probe http.HandlerFunc, handlers ...http.HandlerFunc) (*Pool, []*pipeNode, *outcomes) {
	t.Helper()
	ps := &pipes{nodes: map[string]*pipeNode{}}
	urls := make([]string, len(handlers))
	nodes := make([]*pipeNode, len(handlers))
	for i, h := range handlers {
		var own http.HandlerFunc
		if i == 0 {
			own = probe
		}
		nodes[i], urls[i] = ps.serve(t, string(rune('a'+i))+":1", i, time.Hour, h, own)
	}
	seen := &outcomes{}
	p := newPoolOf(t, Options{Nodes: urls, Dial: ps.dialRequest, probeDial: ps.dial, Observer: seen})
	p.firstIs(0, len(urls))
	return p, nodes, seen
}

// dial is for probes and questions about the identity, dialRequest for requests.
func (ps *pipes) dial(ctx context.Context, _, address string) (net.Conn, error) {
	n := ps.node(address)
	n.probed.Add(1)
	return n.connect(ctx)
}

func (ps *pipes) dialRequest(ctx context.Context, _, address string) (net.Conn, error) {
	n := ps.node(address)
	n.dialed.Add(1)
	return n.connect(ctx)
}

func (ps *pipes) node(address string) *pipeNode {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.nodes[address]
}

func (n *pipeNode) connect(ctx context.Context) (net.Conn, error) {
	if lack := n.lack.Load(); lack != nil {
		return nil, *lack
	}
	takes := time.Duration(n.dial.Load())
	timer := time.NewTimer(min(takes, ConnectTimeout))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	switch {
	case takes > ConnectTimeout:
		return nil, timeoutError{}
	case n.refuse.Load():
		return nil, errRefused
	}
	mine, theirs := net.Pipe()
	n.mu.Lock()
	n.open = append(n.open, theirs)
	n.mu.Unlock()
	select {
	case n.conns <- theirs:
		return mine, nil
	case <-n.done:
		return nil, errRefused
	}
}

var errRefused = errors.New("connection refused")

// timeoutError is what a dialer says of an address that does not answer.
type timeoutError struct{}

func (timeoutError) Error() string   { return "dial: i/o timeout" }
func (timeoutError) Timeout() bool   { return true }
func (timeoutError) Temporary() bool { return true }

// after has next answer once d has passed; silent never answers.
func after(d time.Duration, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			next(w, r)
		case <-r.Context().Done():
		}
	}
}

func ok(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }

func silent(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// saying answers 200 with a text; status answers a status, and 503 as a node does.
func saying(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if code == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "1")
		}
		w.WriteHeader(code)
	}
}

// to redirects to a node as the leader, hint to a replica, search to a stranger.
func to(host string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { redirect(w, "http://"+host+":1"+r.RequestURI, true) }
}

func hint(host string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { redirect(w, "http://"+host+":1"+r.RequestURI, false) }
}

func search(w http.ResponseWriter, r *http.Request) {
	redirect(w, "http://elsewhere:1"+r.RequestURI, true)
}

// What the gateway would say of the requests that the retry table tells apart.
type kind struct {
	name, method string
	meta         Meta
}

func readKind() kind {
	return kind{"read", http.MethodGet, Meta{Path: streamPath, Read: true}}
}

func keyedKind() kind {
	return kind{"keyed append", http.MethodPost, Meta{Path: streamPath, Keyed: true, Body: []byte("k")}}
}

func keylessKind() kind {
	return kind{"keyless append", http.MethodPost, Meta{Path: streamPath, Body: []byte("x")}}
}

// deleteKind stands for every PUT and DELETE, producer headers or not.
func deleteKind() kind {
	return kind{"keyed delete", http.MethodDelete, Meta{Path: streamPath}}
}

// ending is how a request ended.
type ending struct {
	res  result
	err  error
	took time.Duration
}

// begin sends a request and returns while it is under way.
func (p *Pool) begin(t *testing.T, k kind) <-chan ending {
	t.Helper()
	done := make(chan ending, 1)
	start := time.Now()
	go func() {
		res, err := p.send(t.Context(), k.method, streamPath, k.meta)
		done <- ending{res, err, time.Since(start)}
	}()
	return done
}

// want checks an ending: a text, or where that is "" an error of the kind, and
// that it came within the fake clock's millisecond of took.
func (e ending) want(t *testing.T, text string, k Kind, took time.Duration) {
	t.Helper()
	switch {
	case text == "":
		if e.err == nil {
			t.Errorf("answered %d %q, want %s", e.res.StatusCode, e.res.Text, k)
			return
		}
		wantKind(t, e.err, k)
	case e.err != nil || e.res.Text != text:
		t.Errorf("got %q, error %v; want %q", e.res.Text, e.err, text)
	}
	if got := e.took.Round(time.Millisecond); got != took {
		t.Errorf("took %s, want %s", got, took)
	}
}

// step is how exactly lasts measures: each step costs real time.
const step = 5 * time.Millisecond

// lasts advances the fake clock until ok holds, and returns how long that took.
func lasts(t *testing.T, ok func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	for !ok() {
		if time.Since(start) > time.Minute {
			t.Fatal("not within a minute")
		}
		time.Sleep(step)
	}
	took := time.Since(start)
	bubble.Wait() // it has been told, too
	return took
}

func (p *Pool) is(host string, s State) func() bool {
	return func() bool { return p.States()[host] == s }
}

func wantHits(t *testing.T, nodes []*pipeNode, want ...int) {
	t.Helper()
	for i, n := range nodes {
		if got := len(n.d.hits()); got != want[i] {
			t.Errorf("node %d: %d hits, want %d", i, got, want[i])
		}
	}
}

func errorsIsContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
