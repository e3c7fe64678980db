package ursulatest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// Bounds of what a cluster keeps, so that a runaway client of `sluice dev`
// cannot eat the machine.
const (
	maxRequests     = 4096      // recorded requests
	maxRequestBytes = 64 << 20  // bodies of recorded requests, all together
	maxStreams      = 100_000   // streams of the cluster
	maxStoredBytes  = 512 << 20 // stream and snapshot bytes of the cluster
	maxProducers    = 4096      // producers of one stream (facts §1.6)
)

// Options configures a Cluster. The zero value is one node with the real clock.
type Options struct {
	Nodes     int              // how many nodes; default 1
	ClusterID string           // Ursula-Cluster-Id of HEAD answers; default "ursulatest"
	Now       func() time.Time // clock of expiry and producer ages; default time.Now
}

// Cluster is a set of nodes over one shared state. All methods are safe for
// concurrent use.
type Cluster struct {
	id    string
	now   func() time.Time
	nodes []*Node
	state *state
	log   recorder

	ctx  context.Context // ends with Close, and with it every wait in a handler
	stop context.CancelFunc

	mu      sync.Mutex
	leader  int
	term    int // of the leader
	tails   int
	changed chan struct{} // closed and replaced when tails or hits change
}

// New makes a cluster. Nothing listens before Start; the handlers of its nodes
// (Node.Handler) work at once.
func New(o Options) *Cluster {
	if o.Nodes <= 0 {
		o.Nodes = 1
	}
	if o.ClusterID == "" {
		o.ClusterID = "ursulatest"
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	c := &Cluster{id: o.ClusterID, now: o.Now, state: newState(), changed: make(chan struct{})}
	c.ctx, c.stop = context.WithCancel(context.Background())
	for i := range o.Nodes {
		c.nodes = append(c.nodes, newNode(c, i))
	}
	return c
}

// Start makes every node listen on a free port of 127.0.0.1, with HTTP/1.1 and
// h2c prior knowledge. On error nothing listens.
func (c *Cluster) Start() error {
	for _, n := range c.nodes {
		if err := n.listen("127.0.0.1:0"); err != nil {
			return errors.Join(fmt.Errorf("node %d: %w", n.index, err), c.Close())
		}
	}
	return nil
}

// Close stops every node, ends all live reads and held faults, and waits until
// the goroutines of the cluster are gone. Further calls do nothing.
func (c *Cluster) Close() error {
	c.stop()
	for _, n := range c.nodes {
		n.shutdown()
	}
	return nil
}

// URLs returns the base URL of each node, without a trailing slash.
func (c *Cluster) URLs() []string {
	urls := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		urls[i] = n.URL()
	}
	return urls
}

// Node returns node i, counted from 0. It panics when there is no such node.
func (c *Cluster) Node(i int) *Node { return c.nodes[i] }

// SetLeader says which node leads the one Raft group; the first at the start.
// -1 means that no leader is known: every node then answers as a real one that
// lost its quorum, 503 NO_LEADER with X-Ursula-Raft-Group and Retry-After: 1,
// but for catch-up reads of data it holds (facts §4.1).
func (c *Cluster) SetLeader(i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leader = i
	c.term++
}

func (c *Cluster) leaderIndex() int {
	leader, _ := c.leadership()
	return leader
}

func (c *Cluster) leadership() (leader, term int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leader, c.term
}

// Hits counts the client requests that reached any node since the last
// ResetRequests; operator paths (/__ursula/…) do not count.
func (c *Cluster) Hits() int { return c.log.hits(-1) }

// Requests returns a copy of the recorded client requests, oldest first: the
// last 4096, fewer when their bodies are larger than 64 MiB together. A body is
// what its handler had read when this was called.
func (c *Cluster) Requests() []Request { return c.log.snapshot() }

// ResetRequests forgets the recorded requests and sets all hit counts to 0.
func (c *Cluster) ResetRequests() { c.log.reset() }

// OpenTails counts the live reads (SSE and long-poll) that wait at the nodes.
func (c *Cluster) OpenTails() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tails
}

// WaitTails returns nil once exactly n live reads wait, or ctx's error.
func (c *Cluster) WaitTails(ctx context.Context, n int) error {
	return c.wait(ctx, func() bool { return c.OpenTails() == n })
}

// WaitHits returns nil once at least n client requests reached the nodes, or
// ctx's error.
func (c *Cluster) WaitHits(ctx context.Context, n int) error {
	return c.wait(ctx, func() bool { return c.Hits() >= n })
}

func (c *Cluster) wait(ctx context.Context, done func() bool) error {
	for {
		c.mu.Lock()
		changed := c.changed
		c.mu.Unlock()
		if done() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *Cluster) addTail(delta int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tails += delta
	c.broadcast()
}

func (c *Cluster) noteHit() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broadcast()
}

// broadcast wakes wait; c.mu is held.
func (c *Cluster) broadcast() {
	close(c.changed)
	c.changed = make(chan struct{})
}

var _ http.Handler = (*Node)(nil)
