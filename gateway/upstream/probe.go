package upstream

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"time"
)

// Numbers of facts §4.3: a node that stops answering is out after 1.75 s at the
// most, and comes back with the first answer.
const (
	probePath   = "/__ursula/live"
	probeEvery  = 250 * time.Millisecond
	silentAfter = 1500 * time.Millisecond
	// identityEvery is how often a node that answers is asked who it is, beside
	// each time that it comes back or its connection was not the last one.
	identityEvery = 10 * time.Second
)

// watch probes a node until ctx ends, one probe at a time.
func (p *Pool) watch(ctx context.Context, n *node) {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		if p.probe(ctx, n) {
			n.asked.Store(0)
		}
		p.askSometimes(ctx, n)
		p.askLeads(ctx, n)
		n.conns.Reap()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// askSometimes asks a node that answers who it is, when that is not known or not
// fresh: beside the probes, which must not wait for it.
func (p *Pool) askSometimes(ctx context.Context, n *node) {
	last := n.asked.Load()
	if !n.up() || ctx.Err() != nil || last != 0 && time.Since(time.Unix(0, last)) < identityEvery || !n.asking.CompareAndSwap(false, true) {
		return
	}
	p.wait.Go(func() {
		defer n.asking.Store(false)
		if id, err := p.askIdentity(ctx, n); err == nil {
			p.identified(ctx, n, id)
			n.asked.CompareAndSwap(last, time.Now().UnixNano())
		}
	})
}

// probe asks a node whether it answers. Any answer, whatever its status, brings
// the node back; none within silentAfter puts it out as silent, while the probe
// still waits; a connection that is refused or breaks puts it out as stopped.
// fresh tells that the node may be another one than before: it was out, or the
// connection to it is new.
func (p *Pool) probe(ctx context.Context, n *node) (fresh bool) {
	ctx, cancel := context.WithTimeout(ctx, HeaderTimeout)
	defer cancel()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { fresh = fresh || !info.Reused },
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.base+probePath, nil)
	if err != nil {
		return false
	}
	answered := false // guarded by n.mu: a late timer must not undo an answer
	timer := time.AfterFunc(silentAfter, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if !answered && ctx.Err() == nil {
			p.become(n, Silent)
		}
	})
	defer timer.Stop()
	res, err := p.prober.RoundTrip(req)
	if err != nil {
		p.unanswered(ctx, n, err)
		return false
	}
	n.mu.Lock()
	answered = true
	back := p.become(n, Up)
	n.mu.Unlock()
	// The head is the answer; a body that does not end must not put the node out.
	discard(res, cancel)
	return fresh || back
}

// become is node.become, and tells it while n.mu is still held: so what the
// observer hears last is the state that the node is in.
func (p *Pool) become(n *node, s State) bool {
	changed := n.become(s)
	if changed {
		p.observer.NodeChanged(n.host, s.String())
	}
	return changed
}

// unanswered puts a node out after a probe without an answer, which ended with err.
func (p *Pool) unanswered(ctx context.Context, n *node, err error) {
	switch cause := context.Cause(ctx); {
	case isOurs(err): // nobody was asked
	case cause == nil:
		p.eject(n, Stopped)
	case errors.Is(cause, context.DeadlineExceeded):
		p.eject(n, Silent)
	default: // the pool is closing, or the node was removed
	}
}

// eject puts a node out of selection until a probe is answered.
func (p *Pool) eject(n *node, s State) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p.become(n, s)
}
