package ursulatest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Node is one server of a Cluster. All methods are safe for concurrent use.
type Node struct {
	cluster    *Cluster
	index      int
	fault      atomic.Pointer[Fault]
	probeFault atomic.Pointer[Fault]
	conns      atomic.Int64

	mu     sync.Mutex
	idle   *sync.Cond // signalled when active falls to 0
	active int        // requests being answered
	addr   string     // kept over Stop, so that Restart finds the same port
	server *http.Server
	ln     net.Listener
	cancel context.CancelFunc
	served chan struct{} // closed when Serve returned
}

func newNode(c *Cluster, index int) *Node {
	n := &Node{cluster: c, index: index}
	n.idle = sync.NewCond(&n.mu)
	return n
}

// URL returns the node's base URL without a trailing slash; "" before Start.
func (n *Node) URL() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.addr == "" {
		return ""
	}
	return "http://" + n.addr
}

// Hits counts the client requests that reached this node since the last
// Cluster.ResetRequests.
func (n *Node) Hits() int { return n.cluster.log.hits(n.index) }

// SetFault makes f be asked first for every client request; nil takes it away.
// Operator paths (/__ursula/…) have their own: see SetProbeFault.
func (n *Node) SetFault(f Fault) { storeFault(&n.fault, f) }

// SetProbeFault is SetFault for the operator paths, which gateways probe.
func (n *Node) SetProbeFault(f Fault) { storeFault(&n.probeFault, f) }

func storeFault(p *atomic.Pointer[Fault], f Fault) {
	if f == nil {
		p.Store(nil)
		return
	}
	p.Store(&f)
}

// Handler returns the node's client port as a handler, for use without Start.
// Faults that break the connection then only abort the answer.
func (n *Node) Handler() http.Handler { return n }

// Stop kills the node: it refuses connections, and those it has are cut.
// Nothing happens when it does not listen.
func (n *Node) Stop() { n.shutdown() }

// Drain closes the listener only: new connections are refused while those
// that stand are still served, as a real node does for 10 s after SIGTERM
// (facts §4.3).
func (n *Node) Drain() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ln != nil {
		_ = n.ln.Close()
	}
}

// Restart listens again on the port the node had. It panics when the port was
// taken by somebody else meanwhile, since no test could go on from there.
func (n *Node) Restart() {
	n.shutdown()
	n.mu.Lock()
	addr := n.addr
	n.mu.Unlock()
	if err := n.listen(addr); err != nil {
		panic(fmt.Sprintf("ursulatest: restart node %d: %v", n.index, err))
	}
}

// listen starts serving on addr. The goroutine ends in shutdown.
func (n *Node) listen(addr string) error {
	ctx, cancel := context.WithCancel(context.Background())
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		cancel()
		return err
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	srv := &http.Server{
		Handler:           n,
		Protocols:         protocols,
		ReadHeaderTimeout: time.Minute,
		MaxHeaderBytes:    400 << 10, // facts §1.3: 431 above about 400 KB
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, connInfo{id: n.conns.Add(1), conn: conn})
		},
		DisableGeneralOptionsHandler: true,
	}
	served := make(chan struct{})
	n.mu.Lock()
	n.addr, n.ln, n.server, n.cancel, n.served = ln.Addr().String(), ln, srv, cancel, served
	n.mu.Unlock()
	go func() {
		defer close(served)
		_ = srv.Serve(ln) // always ends with an error: the listener was closed
	}()
	return nil
}

// shutdown stops serving, cuts the connections and waits for the requests
// under way.
func (n *Node) shutdown() {
	n.mu.Lock()
	srv, cancel, served := n.server, n.cancel, n.served
	n.server, n.ln, n.cancel = nil, nil, nil
	n.mu.Unlock()
	if srv == nil {
		return
	}
	cancel()
	_ = srv.Close()
	<-served
	n.mu.Lock()
	defer n.mu.Unlock()
	for n.active > 0 {
		n.idle.Wait()
	}
}

func (n *Node) enter(delta int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.active += delta
	if n.active == 0 {
		n.idle.Broadcast()
	}
}

// ServeHTTP answers as the client port of an Ursula node does.
func (n *Node) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n.enter(1)
	defer n.enter(-1)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	// The cluster's end joins the request's own: it has no parent context to inherit.
	defer context.AfterFunc(n.cluster.ctx, cancel)() //nolint:contextcheck // see above
	target := originForm(r.RequestURI)
	answer := func(w http.ResponseWriter, r *http.Request) { n.answer(w, r, target) }
	r = r.WithContext(context.WithValue(ctx, answerKey{}, answer))
	faults := &n.probeFault
	if !strings.HasPrefix(target, operatorPrefix) {
		faults = &n.fault
		e := n.cluster.log.add(n.index, r)
		r.Body = &recordedBody{ReadCloser: r.Body, log: &n.cluster.log, entry: e}
		n.cluster.noteHit()
	}
	if f := faults.Load(); f != nil && (*f)(w, r) {
		return
	}
	answer(w, r)
}
