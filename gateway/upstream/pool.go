package upstream

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Meta is what the pool is told of a request beside the request itself.
type Meta struct {
	Key      string        // the stream's path: requests of one key share a leader
	Body     []byte        // the whole body, kept until the answer's head has come
	CatchUp  bool          // a read that must say Stream-Up-To-Date (design §8)
	LongPoll bool          // a live=long-poll read
	Wait     time.Duration // its timeout_ms; 0 when absent or unreadable
	Parts    int           // staged parts that the request commits
}

// Observer is told of every exchange with a node. Implementations must be safe
// for concurrent use and must not block.
type Observer interface {
	// Exchanged is called once an attempt has a head, or has ended without one;
	// outcome is the status' class ("2xx"), a Kind's name, or "client_closed".
	Exchanged(node, outcome string)
}

// Options configure a Pool.
type Options struct {
	Nodes    []string // base URLs, http or https, without a path
	Observer Observer // nil = nobody
}

// node is one Ursula server. Nodes are kept by address over configuration
// changes, so that what is known of them outlives a reload.
type node struct {
	base   string // scheme://host[:port], no trailing slash
	scheme string
	host   string
	cancel context.CancelFunc
}

// Pool sends requests to the nodes. It is safe for concurrent use. Close ends
// its goroutines.
type Pool struct {
	transport  *http.Transport
	observer   Observer
	nodes      atomic.Pointer[[]*node]
	next       atomic.Uint64
	leaders    leaders
	identities identities

	mu     sync.Mutex // guards changes of nodes
	ctx    context.Context
	cancel context.CancelFunc
	wait   sync.WaitGroup
}

// New makes a pool and begins to ask its nodes who they are. The error names a
// node whose URL is not one.
func New(o Options) (*Pool, error) {
	ctx, cancel := context.WithCancel(context.Background())
	p := &Pool{transport: newTransport(), observer: o.Observer, ctx: ctx, cancel: cancel}
	if p.observer == nil {
		p.observer = nobody{}
	}
	p.nodes.Store(&[]*node{})
	if err := p.SetNodes(o.Nodes); err != nil {
		cancel()
		return nil, err
	}
	return p, nil
}

type nobody struct{}

func (nobody) Exchanged(string, string) {}

// SetNodes replaces the nodes. What is known of those that stay is kept, and
// requests under way go on. On an error nothing changes.
func (p *Pool) SetNodes(bases []string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := *p.nodes.Load()
	next := make([]*node, 0, len(bases))
	var fresh []*node
	for _, base := range bases {
		n, err := newNode(base)
		if err != nil {
			return err
		}
		if known := find(old, n.base); known != nil {
			n = known
		} else {
			fresh = append(fresh, n)
		}
		next = append(next, n)
	}
	p.nodes.Store(&next)
	// Before what they said is forgotten, so that none says it again.
	for _, n := range old {
		if !contains(next, n) {
			n.cancel()
		}
	}
	p.leaders.keep(next)
	p.identities.keep(next)
	for _, n := range fresh {
		var ctx context.Context
		ctx, n.cancel = context.WithCancel(p.ctx)
		p.wait.Go(func() { p.identify(ctx, n) })
	}
	return nil
}

func find(nodes []*node, base string) *node {
	for _, n := range nodes {
		if n.base == base {
			return n
		}
	}
	return nil
}

// Close ends the pool's goroutines and closes its idle connections. Requests
// under way end with their own contexts.
func (p *Pool) Close() {
	p.mu.Lock()
	p.cancel()
	p.mu.Unlock()
	p.wait.Wait()
	p.transport.CloseIdleConnections()
}

// Identity is what the nodes say of themselves; ErrNotIdentified or
// ErrTwoClusters, wrapped, while that is unknown or in dispute.
func (p *Pool) Identity() (Identity, error) {
	if len(*p.nodes.Load()) == 0 {
		return Identity{}, &Error{Kind: NoUpstream}
	}
	return p.identities.get()
}

// Send sends the request to the node that can answer it, follows internal
// redirects, and returns the answer, whose body the caller closes. The request's
// path and query go out as they are. Its error is *Error, or the request
// context's error when the client has left.
//
// No part of a request is sent to a second node but as retry.go says.
func (p *Pool) Send(req *http.Request, m Meta) (*http.Response, error) {
	nodes := *p.nodes.Load()
	if len(nodes) == 0 {
		return nil, &Error{Kind: NoUpstream}
	}
	w := walk{pool: p, nodes: nodes, meta: m}
	return w.run(req)
}

// first chooses the node that is asked first: the stream's leader where one was
// learned, else the next in turn.
func (p *Pool) first(nodes []*node, key string) *node {
	if n := p.leaders.get(key); n != nil && contains(nodes, n) {
		return n
	}
	return nodes[p.next.Add(1)%uint64(len(nodes))]
}

// walk is the way of one request over the nodes.
type walk struct {
	pool       *Pool
	nodes      []*node
	meta       Meta
	tried      []*node
	redirected time.Time // of the first redirect; zero before it
	hops       int
}

func (w *walk) run(req *http.Request) (*http.Response, error) {
	at := attempt{node: w.pool.first(w.nodes, w.meta.Key)}
	for {
		w.tried = append(w.tried, at.node)
		res, err := w.pool.exchange(req, w.meta, &at, len(w.nodes) > 1)
		if ctxErr := req.Context().Err(); err != nil && ctxErr != nil {
			return nil, ctxErr
		}
		var next attempt
		switch {
		case err != nil:
			if next, err = w.afterError(at, err); err != nil {
				return nil, err
			}
		case isRedirect(res):
			if next, err = w.afterRedirect(at, res); err != nil {
				return nil, err
			}
		case isForeignRedirect(res):
			discard(res)
			return nil, &Error{Kind: Failed, Node: at.node.base, Err: errRedirectStatus}
		default:
			w.settle(at.node, res)
			return res, nil
		}
		at = next
	}
}

// settle learns from an answer: a success after a redirect names the leader, a
// 503 that asks to come back says that it is none any more.
func (w *walk) settle(n *node, res *http.Response) {
	switch {
	case res.StatusCode < 300 && !w.redirected.IsZero():
		w.pool.leaders.learn(w.meta.Key, n)
	case res.StatusCode == http.StatusServiceUnavailable && res.Header.Get("Retry-After") != "":
		w.pool.leaders.drop(w.meta.Key, n)
	}
}

func (w *walk) afterError(at attempt, cause error) (attempt, error) {
	w.pool.leaders.drop(w.meta.Key, at.node)
	v, kind := judge(at)
	if errors.Is(cause, errHeaderTimeout) && at.connected {
		kind = TimedOut
	}
	if v == tryNext && w.mayHop() {
		if n := nextUntried(w.nodes, at.node, w.tried); n != nil {
			if !w.redirected.IsZero() {
				w.hops++
			}
			return attempt{node: n}, nil
		}
	}
	return attempt{}, &Error{Kind: kind, Node: at.node.base, Err: cause}
}

func (w *walk) afterRedirect(at attempt, res *http.Response) (attempt, error) {
	location, named := res.Header.Get("Location"), namesLeader(res)
	discard(res)
	w.pool.leaders.drop(w.meta.Key, at.node)
	if w.redirected.IsZero() {
		w.redirected = time.Now()
	}
	if !w.mayHop() {
		return attempt{}, &Error{Kind: NoLeader, Node: at.node.base, Err: errRedirects}
	}
	w.hops++
	if n := locate(w.nodes, location); n != nil && !contains(w.tried, n) {
		return attempt{node: n, named: named}, nil
	}
	if n := nextUntried(w.nodes, at.node, w.tried); n != nil {
		return attempt{node: n}, nil
	}
	return attempt{}, &Error{Kind: NoLeader, Node: at.node.base, Err: errRedirects}
}

// mayHop holds the bounds on redirects; before the first there are none but the
// number of nodes.
func (w *walk) mayHop() bool {
	return w.redirected.IsZero() || w.hops < maxHops && time.Since(w.redirected) < redirectDeadline
}

// leaderQuery asks a follower to check with the leader, so that a catch-up read
// is not stale and says Stream-Up-To-Date. With one node there is nothing to
// ask, and the query goes out as it came.
func leaderQuery(query string) string {
	const ask = "consistency=leader"
	if query == "" {
		return ask
	}
	return strings.TrimSuffix(query, "&") + "&" + ask
}
