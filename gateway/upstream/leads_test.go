package upstream

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sluice/internal/bubble"
)

// told is what nodes in memory tell of their one group.
type told struct {
	leader, term atomic.Int64
	groups       atomic.Int64 // of the cluster; 0 = they do not tell
}

func (c *told) handler(id int64) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case c.groups.Load() == 0:
			http.NotFound(w, r)
		case r.URL.Path == placementPath:
			_, _ = fmt.Fprintf(w, `{"view":{"bootstrapped":{"params":{"group_count":%d}}}}`, c.groups.Load())
		default:
			_, _ = fmt.Fprintf(w, `{"raft_groups":[{"raft_group_id":0,"current_term":%d,"leads_live":%t}]}`, c.term.Load(), c.leader.Load() == id)
		}
	}
}

// reader answers as a node does: whoever leads says so, a follower that is asked
// to confirm too.
func (c *told) reader(id int64) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		confirmed := strings.Contains(r.URL.RawQuery, "consistency=leader")
		if c.leader.Load() == id || confirmed {
			w.Header().Set("Stream-Up-To-Date", "true")
		}
		_, _ = fmt.Fprintf(w, "%d", id)
	}
}

func newTold(t *testing.T) (*told, *Pool, []*pipeNode) {
	t.Helper()
	c := &told{}
	c.groups.Store(1)
	p, nodes := newPipes(t, c.reader(0), c.reader(1), c.reader(2))
	for i, n := range nodes {
		h := c.handler(int64(i))
		n.d.operator.Store(&h)
	}
	return c, p, nodes
}

func (p *Pool) catchUp(t *testing.T) result {
	t.Helper()
	res, err := p.send(t.Context(), http.MethodGet, streamPath, Meta{Path: streamPath, Read: true, CatchUp: true})
	if err != nil {
		t.Fatal(err)
	}
	if res.Header.Get("Stream-Up-To-Date") != "true" {
		t.Errorf("node %s: no Stream-Up-To-Date", res.Text)
	}
	return res
}

func targets(n *pipeNode) []string {
	hits := n.d.hits()
	list := make([]string, len(hits))
	for i, h := range hits {
		list[i] = h.Target
	}
	return list
}

// A catch-up read cost a confirmation by the cluster even at the leader, and one
// more hop at a follower, since no answer to a read says who leads. The nodes tell:
// reads go to the leader, and plain once it has led for a while.
func TestCatchUpReadsGoToTheLeader(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c, p, nodes := newTold(t)
		c.leader.Store(2)
		time.Sleep(probeEvery / 2) // the nodes have been asked once
		for range 3 {
			if res := p.catchUp(t); res.Text != "2" {
				t.Errorf("asked node %s, want the leader", res.Text)
			}
		}
		time.Sleep(2 * leadsEvery)
		p.catchUp(t)
		if led := p.GroupsLed(); len(led) != 3 || led[(*p.nodes.Load())[2].host] != 1 {
			t.Errorf("groups led: %v, want the one at the third node", led)
		}
		want := append(slices.Repeat([]string{streamPath + "?consistency=leader"}, 3), streamPath)
		if got := targets(nodes[2]); !slices.Equal(got, want) {
			t.Errorf("the leader was asked %q, want %q", got, want)
		}
		wantHits(t, nodes, 0, 0, 4)
	})
}

// A node that has lost its group, and is not known to have, answers a plain read
// as a follower does. The read is asked again, confirmed, and says that it is up
// to date: a reader would take a stale state for the present one.
func TestPlainReadAtAFollowerIsAskedAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c, p, nodes := newTold(t)
		time.Sleep(3*leadsEvery + probeEvery/2)
		p.catchUp(t)
		c.leader.Store(1)
		c.term.Store(1)
		p.catchUp(t)
		p.catchUp(t)
		plain, confirmed := streamPath, streamPath+"?consistency=leader"
		if got := targets(nodes[0]); !slices.Equal(got, []string{plain, plain, confirmed, confirmed}) {
			t.Errorf("the old leader was asked %q", got)
		}
		time.Sleep(leadsEvery)
		if res := p.catchUp(t); res.Text != "1" {
			t.Errorf("asked node %s, want the new leader", res.Text)
		}
		if got := targets(nodes[1]); !slices.Equal(got, []string{confirmed}) {
			t.Errorf("the new leader was asked %q, want a confirmation: it may not have applied everything", got)
		}
	})
}

// What nobody has told lately makes nothing sure: a leader that does not answer
// the question any more is asked to confirm.
func TestOldKnowledgeIsNotSure(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c, p, nodes := newTold(t)
		time.Sleep(3*leadsEvery + probeEvery/2)
		p.catchUp(t)
		c.groups.Store(0)
		time.Sleep(leadsFresh + leadsEvery)
		p.catchUp(t)
		if got := targets(nodes[0]); !slices.Equal(got, []string{streamPath, streamPath + "?consistency=leader"}) {
			t.Errorf("asked %q", got)
		}
	})
}

// A tail at a node that has lost its group waited for ever where no redirect told
// of the new leader (Ursula wakes live readers only where a stream is led).
func TestTailsAreCutWhereTheGroupIsLost(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := &told{}
		c.groups.Store(1)
		tail := func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).Flush()
			silent(w, r)
		}
		p, nodes := newPipes(t, tail, ok)
		for i, n := range nodes {
			h := c.handler(int64(i))
			n.d.operator.Store(&h)
		}
		time.Sleep(2*leadsEvery + probeEvery/2)
		start, ended := time.Now(), make(chan error, 1)
		go func() {
			_, err := p.send(t.Context(), http.MethodGet, streamPath, Meta{Path: streamPath, Read: true, Live: true})
			ended <- err
		}()
		bubble.Wait()
		c.term.Store(1)
		c.leader.Store(1)
		if err := <-ended; err == nil {
			t.Error("the tail ended cleanly")
		}
		if took := time.Since(start); took > 2*leadsEvery {
			t.Errorf("cut after %s", took)
		}
	})
}

// What a node says late, or of groups that cannot be, changes nothing.
func TestLeadsHoldWhatIsNewest(t *testing.T) {
	a, b := &node{host: "a"}, &node{host: "b"}
	var l leads
	at := time.Now()
	l.note("0", a, groupState{Term: 5, Leads: true}, at)
	if leader, changed := l.note("0", b, groupState{Term: 4, Leads: true}, at); leader || changed {
		t.Error("a leader of an older term counts")
	}
	if leader, changed := l.note("0", b, groupState{Term: 6, Leads: true}, at); !leader || !changed {
		t.Error("a leader of a newer term does not count")
	}
	l.note("0", a, groupState{Term: 6}, at)
	if l.byKey["0"].node != b {
		t.Error("a follower's word ended the leader")
	}
	l.keep([]*node{a})
	if len(l.byKey) != 0 {
		t.Error("a removed node still leads")
	}
}
