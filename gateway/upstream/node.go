package upstream

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"sluice/gateway/upstream/wire"
)

// State is what is known of a node's answering.
type State int32

// The states of a node. Silent is stronger than Stopped: a node that takes no
// connections may still answer what it has taken, one that is silent will not.
const (
	Up      State = iota // answers, or was not asked yet
	Stopped              // takes no connections
	Silent               // does not answer in time
)

// String names the state as logs and metrics do.
func (s State) String() string { return [...]string{"up", "stopped", "silent"}[s] }

// node is one Ursula server. Nodes are kept by address over configuration
// changes, so that what is known of them outlives a reload.
type node struct {
	base   string // scheme://host[:port], no trailing slash
	scheme string
	host   string
	conns  *wire.Conns // for requests; probes have their own
	cancel context.CancelFunc

	state   atomic.Int32 // State; written with mu held
	asked   atomic.Int64 // when it last told its identity, in Unix ns; 0 = ask again
	asking  atomic.Bool
	led     atomic.Int64 // when it was last asked which groups it leads, in Unix ns
	leading atomic.Bool  // it is being asked

	mu      sync.Mutex
	waiting map[*try]struct{} // attempts that have no answer yet
}

func (n *node) up() bool { return State(n.state.Load()) == Up }

// errEjected ends an attempt at a node that was found not to answer.
var (
	errEjectedStopped = errors.New("node takes no connections any more")
	errEjectedSilent  = errors.New("node does not answer any more")
	errLeaderMoved    = errors.New("another node leads the stream now")
)

// wait registers an attempt, so that it moves on when the node is ejected. One
// at a node that is out already, since there is no other, is left alone.
func (n *node) wait(w *try) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.waiting == nil {
		n.waiting = make(map[*try]struct{})
	}
	n.waiting[w] = struct{}{}
}

func (n *node) leave(w *try) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.waiting, w)
}

// become changes the node's state and reports whether it did; n.mu is held. The
// attempts that the retry table lets move on are ended where there is a node to
// move to; the others go on waiting, since the node may answer yet.
func (n *node) become(s State) bool {
	old := State(n.state.Load())
	if s == old || s == Stopped && old == Silent {
		return false
	}
	n.state.Store(int32(s))
	if s == Up {
		return true
	}
	what, cause := eventStopped, errEjectedStopped
	if s == Silent {
		what, cause = eventSilent, errEjectedSilent
	}
	for w := range n.waiting {
		// A tail on a node that is out would stay open and say nothing. It is cut,
		// and its client resumes from its offset where the stream is led now.
		if w.live.Load() {
			w.Cut(cause)
			continue
		}
		// What has not reached the node is not lost by giving up.
		if !w.Connected() || mayMove(what, w.walk.class) && w.elsewhere() {
			w.Cut(cause)
		}
	}
	return true
}

// cutTails ends the live reads of key at the node: it does not lead any more, and
// Ursula wakes live readers only where a stream is led.
func (n *node) cutTails(key string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for w := range n.waiting {
		if w.live.Load() && w.walk.key == key {
			w.Cut(errLeaderMoved)
		}
	}
}

// alive lists the nodes that are not ejected; all of them where none is left,
// since one that seems dead may answer all the same (facts L16).
func alive(nodes []*node) []*node {
	up := 0
	for _, n := range nodes {
		if n.up() {
			up++
		}
	}
	if up == 0 || up == len(nodes) {
		return nodes
	}
	list := make([]*node, 0, up)
	for _, n := range nodes {
		if n.up() {
			list = append(list, n)
		}
	}
	return list
}
