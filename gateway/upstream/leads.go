package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Of a cluster of several nodes each is asked which Raft groups it leads, so that
// reads, which a follower answers without a word of who leads, find the leader
// too. What is learned here is a hint like any other: a node that leads no more
// sends a request away, or leaves Stream-Up-To-Date out.
const (
	metricsPath   = "/__ursula/metrics"   // which groups a node has, and which it leads
	placementPath = "/__ursula/placement" // how many groups the cluster has
	// leadsEvery is how often a node is asked.
	leadsEvery = time.Second
	// leadsFresh is how long an answer makes sure: one that was missed, and the
	// time that it takes.
	leadsFresh = 5 * leadsEvery / 2
	// leadsSettled is for how long a node must have led: one that was just elected
	// may not have applied all that was acknowledged before.
	leadsSettled = leadsEvery
	// leadsTimeout bounds the wait for an answer.
	leadsTimeout = 2 * time.Second
	// maxLeads bounds what is read of an answer: some thousand groups.
	maxLeads = 4 << 20
	// maxGroups bounds the number of groups that is believed.
	maxGroups = 1 << 16
)

// lead is what a node said of a group that it leads.
type lead struct {
	node        *node
	term        uint64
	since, seen time.Time
}

// leads remembers who leads each group, by the leader cache's keys.
type leads struct {
	mu    sync.RWMutex
	byKey map[string]lead
}

// sure reports whether n leads the group of key: it has said so a moment ago, and
// for a while.
func (l *leads) sure(key string, n *node) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	is, ok := l.byKey[key]
	return ok && is.node == n && is.seen.Sub(is.since) >= leadsSettled && time.Since(is.seen) < leadsFresh
}

// note takes what n says of a group, and reports whether n is its leader, and
// another one than before.
func (l *leads) note(key string, n *node, g groupState, now time.Time) (leader, changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was, known := l.byKey[key]
	switch {
	case !g.Leads:
		// Who led last stays known, so that its successor is news.
		if known && was.node == n {
			was.seen = time.Time{}
			l.byKey[key] = was
		}
		return false, false
	case known && was.node != n && was.term > g.Term:
		return false, false // it has not heard of its successor
	case known && was.node == n && was.term == g.Term && !was.seen.IsZero():
		was.seen = now
		l.byKey[key] = was
		return true, false
	}
	if l.byKey == nil {
		l.byKey = make(map[string]lead)
	}
	l.byKey[key] = lead{node: n, term: g.Term, since: now, seen: now}
	return true, known && was.node != n
}

// forget drops what is known of n, which says nothing any more of a group.
func (l *leads) forget(key string, n *node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if is := l.byKey[key]; is.node == n {
		is.seen = time.Time{}
		l.byKey[key] = is
	}
}

// keep forgets the groups that nodes lead that are not among nodes.
func (l *leads) keep(nodes []*node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, is := range l.byKey {
		if !contains(nodes, is.node) {
			delete(l.byKey, key)
		}
	}
}

// groupState is what is read of one group in a node's metrics.
type groupState struct {
	ID    uint64 `json:"raft_group_id"`
	Term  uint64 `json:"current_term"`
	Leads bool   `json:"leads_live"`
}

// askLeads asks a node that answers which groups it leads, when that is not
// fresh: beside the probes, which must not wait for it. A single node leads
// whatever there is.
func (p *Pool) askLeads(ctx context.Context, n *node) {
	last := n.led.Load()
	if len(*p.nodes.Load()) < 2 || !n.up() || ctx.Err() != nil || last != 0 && time.Since(time.Unix(0, last)) < leadsEvery || !n.leading.CompareAndSwap(false, true) {
		return
	}
	p.wait.Go(func() {
		defer n.leading.Store(false)
		n.led.Store(time.Now().UnixNano())
		if len(*p.groups.Load()) == 0 {
			p.askGroups(ctx, n)
		}
		var said struct {
			Groups []groupState `json:"raft_groups"`
		}
		if len(*p.groups.Load()) > 0 && p.askJSON(ctx, n, metricsPath, &said) == nil {
			p.heardLeads(ctx, n, said.Groups)
		}
	})
}

// askGroups learns the number of groups, where the operator has not told it.
func (p *Pool) askGroups(ctx context.Context, n *node) {
	var said struct {
		View struct {
			Bootstrapped struct {
				Params struct {
					GroupCount int `json:"group_count"`
				} `json:"params"`
			} `json:"bootstrapped"`
		} `json:"view"`
	}
	if p.askJSON(ctx, n, placementPath, &said) != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if count := said.View.Bootstrapped.Params.GroupCount; count > 0 && count <= maxGroups && len(*p.groups.Load()) == 0 && ctx.Err() == nil {
		p.told = count
		groups := newGroupKeys(count)
		p.groups.Store(&groups)
	}
}

// heardLeads notes which groups a node leads. Tails that wait at a node that has
// lost its group would wait in vain, as with a redirect.
func (p *Pool) heardLeads(ctx context.Context, n *node, groups []groupState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil {
		return // it was removed meanwhile
	}
	keys, now := *p.groups.Load(), time.Now()
	for _, g := range groups {
		if g.ID >= uint64(len(keys)) {
			continue
		}
		key := keys[g.ID]
		leader, changed := p.leads.note(key, n, g, now)
		if leader {
			p.leaders.learn(key, n)
		} else {
			p.leaders.drop(key, n)
		}
		if !changed {
			continue
		}
		for _, other := range *p.nodes.Load() {
			if other != n {
				other.cutTails(key)
			}
		}
	}
}

var errNotTold = errors.New("the node does not tell")

// askJSON reads what a node tells of itself under an operators' path.
func (p *Pool) askJSON(ctx context.Context, n *node, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, leadsTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.base+path, nil)
	if err != nil {
		return err
	}
	res, err := p.asker.RoundTrip(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: status %s", errNotTold, strconv.Itoa(res.StatusCode))
	}
	return json.NewDecoder(io.LimitReader(res.Body, maxLeads)).Decode(into)
}

// GroupsLed counts the Raft groups that each node says it leads, by its host and port:
// what it said last, within leadsFresh. It is empty where there is one node, which is
// not asked.
func (p *Pool) GroupsLed() map[string]int {
	nodes := *p.nodes.Load()
	if len(nodes) < 2 {
		return nil
	}
	led := make(map[string]int, len(nodes))
	for _, n := range nodes {
		led[n.host] = 0
	}
	p.leads.mu.RLock()
	defer p.leads.mu.RUnlock()
	for _, is := range p.leads.byKey {
		if _, ours := led[is.node.host]; ours && time.Since(is.seen) < leadsFresh {
			led[is.node.host]++
		}
	}
	return led
}
