package upstream

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Meta is what the pool is told of a request beside the request itself.
type Meta struct {
	Path     string        // the stream's path, "/bucket/stream": what its leader is known by
	Body     []byte        // the whole body, kept until the answer's head has come
	Read     bool          // GET or HEAD: repeating it has no effect
	Keyed    bool          // an append with all three producer headers: stored once
	CatchUp  bool          // a read that must say Stream-Up-To-Date (design §8)
	Spread   bool          // an immutable read that any node answers: it goes to all of them in turn
	Live     bool          // a read whose answer goes on: live=sse
	LongPoll bool          // a live=long-poll read
	Wait     time.Duration // its timeout_ms; 0 when absent or unreadable
	Parts    int           // staged parts that the request commits
	// Idle, where not nil, is called by the Read of the answer's body, each time
	// that nothing has come for IdleAfter; its error ends the body.
	Idle      func() error
	IdleAfter time.Duration
	// Trail, where not nil, is told what becomes of the request.
	Trail *Trail
}

// Observer is told what happens at the nodes. Implementations must be safe for
// concurrent use and must not block.
type Observer interface {
	// Exchanged is called once an attempt has a head, or has ended without one;
	// outcome is the status' class ("2xx"), a Kind's name, or "client_closed". took is
	// how long that was; below 0 where it says nothing of the node, since the request
	// asked it to wait.
	Exchanged(node, outcome string, took time.Duration)
	// NodeChanged is called when a node is ejected ("stopped", "silent") or is
	// back ("up").
	NodeChanged(node, state string)
	// ClusterChanged is called when the nodes agree on a cluster's id, and it is
	// not the one that was known before.
	ClusterChanged(id string)
}

// Options configure a Pool.
type Options struct {
	Nodes      []string // base URLs, http or https, without a path
	GroupCount int      // Raft groups of the cluster; 0 = the nodes are asked
	Observer   Observer // nil = nobody
	Dial       DialFunc // nil = TCP

	probeDial DialFunc // how probes connect; nil = Dial
}

// Pool sends requests to the nodes. It is safe for concurrent use. Close ends
// its goroutines.
type Pool struct {
	dial       DialFunc
	prober     *http.Transport // of probes alone, so that none of them waits
	asker      *http.Transport // of what else nodes are asked for the pool's own sake
	observer   Observer
	nodes      atomic.Pointer[[]*node]
	groups     atomic.Pointer[groupKeys]
	next       atomic.Uint64
	leaders    leaders
	leads      leads
	room       room
	identities identities

	mu     sync.Mutex // guards changes of nodes, and told
	told   int        // Raft groups, as the nodes say; 0 = not known
	ctx    context.Context
	cancel context.CancelFunc
	wait   sync.WaitGroup
}

// New makes a pool and begins to probe its nodes. The error names a node whose
// URL is not one.
func New(o Options) (*Pool, error) {
	dial := o.Dial
	if dial == nil {
		dial = defaultDial()
	}
	probeDial := o.probeDial
	if probeDial == nil {
		probeDial = dial
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Pool{prober: newProber(probeDial), asker: newProber(probeDial), observer: o.Observer, ctx: ctx, cancel: cancel}
	p.dial = p.bounded(dial)
	if p.observer == nil {
		p.observer = nobody{}
	}
	p.nodes.Store(&[]*node{})
	// Several gateways that start together do not all begin at the same node.
	p.next.Store(rand.Uint64() >> 1) //nolint:gosec // a place to begin, not a secret
	if err := p.SetNodes(o.Nodes, o.GroupCount); err != nil {
		cancel()
		return nil, err
	}
	return p, nil
}

type nobody struct{}

func (nobody) Exchanged(string, string, time.Duration) {}
func (nobody) NodeChanged(string, string)              {}
func (nobody) ClusterChanged(string)                   {}

// SetNodes replaces the nodes and the number of Raft groups. What is known of
// nodes that stay is kept, and requests under way go on. On an error nothing
// changes.
func (p *Pool) SetNodes(bases []string, groupCount int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := *p.nodes.Load()
	next := make([]*node, 0, len(bases))
	var fresh []*node
	for _, base := range bases {
		n, err := newNode(base, p.dial)
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
	if len(fresh) == len(next) {
		p.told = 0 // what the nodes have told stands for as long as some of them stay
	}
	if groupCount == 0 {
		groupCount = p.told
	}
	groups := newGroupKeys(groupCount)
	p.groups.Store(&groups)
	p.nodes.Store(&next)
	// Before what they said is forgotten, so that none says it again.
	for _, n := range old {
		if !contains(next, n) {
			n.cancel()
			n.conns.Close()
		}
	}
	p.leaders.keep(next)
	p.leads.keep(next)
	p.tell(p.identities.keep(next))
	for _, n := range fresh {
		var ctx context.Context
		ctx, n.cancel = context.WithCancel(p.ctx)
		p.wait.Go(func() { p.watch(ctx, n) })
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
	for _, n := range *p.nodes.Load() {
		n.conns.Close()
	}
	p.prober.CloseIdleConnections()
	p.asker.CloseIdleConnections()
}

// Identity is what the nodes say of themselves; ErrNotIdentified or
// ErrTwoClusters, wrapped, while that is unknown or in dispute.
func (p *Pool) Identity() (Identity, error) {
	if len(*p.nodes.Load()) == 0 {
		return Identity{}, &Error{Kind: NoUpstream}
	}
	return p.identities.get()
}

// Ready reports whether requests can be served: the nodes agree on who they are,
// and one at least answers. Its errors are Identity's, and ErrNoneAnswers.
func (p *Pool) Ready() error {
	if _, err := p.Identity(); err != nil {
		return err
	}
	for _, n := range *p.nodes.Load() {
		if n.up() {
			return nil
		}
	}
	return ErrNoneAnswers
}

// States tells each node's state, by its host and port.
func (p *Pool) States() map[string]State {
	nodes := *p.nodes.Load()
	states := make(map[string]State, len(nodes))
	for _, n := range nodes {
		states[n.host] = State(n.state.Load())
	}
	return states
}

// Send sends the request to the node that can answer it, follows internal
// redirects, and returns the answer, whose body the caller closes. The request's
// path and query go out as they are. Its error is *Error, or ctx's error when the
// client has left. req is the pool's from now on, which changes it; its own
// context means nothing.
//
// No part of a request is sent to a second node but as retry.go says.
func (p *Pool) Send(ctx context.Context, req *http.Request, m Meta) (*http.Response, error) {
	nodes := *p.nodes.Load()
	if len(nodes) == 0 {
		return nil, &Error{Kind: NoUpstream}
	}
	w := walk{pool: p, nodes: nodes, meta: m, class: classOf(m), key: p.groups.Load().of(m.Path), query: req.URL.RawQuery}
	return w.run(ctx, req)
}

// first chooses the node that is asked first: the leader where one was learned,
// else the next in turn of those that answer. A route to a node that is out is
// dropped while others are not (facts L16, L17).
func (p *Pool) first(nodes []*node, key string, m Meta) *node {
	up := alive(nodes)
	if !m.Spread {
		if n := p.leaders.get(key); n != nil && contains(nodes, n) {
			if contains(up, n) {
				return n
			}
			p.leaders.drop(key, n)
		}
	}
	return up[p.next.Add(1)%uint64(len(up))]
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
