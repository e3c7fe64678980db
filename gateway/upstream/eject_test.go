package upstream

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/bubble"
)

// held answers a text once release is closed.
func held(release <-chan struct{}, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
			saying(text)(w, r)
		case <-r.Context().Done():
		}
	}
}

// justAfterAProbe waits until a probe was answered a millisecond ago: the worst
// moment for a node to stop.
func justAfterAProbe() { time.Sleep(4*probeEvery + time.Millisecond) }

// Facts L9, L19: a request that runs into its timeout ejects nobody; the route to
// the node is dropped, and a redirect to it is followed as before.
func TestTimeoutEjectsNobody(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		p, nodes, seen := newWatchedPipes(t, func(w http.ResponseWriter, r *http.Request) {
			if asked.Add(1) == 1 {
				silent(w, r)
				return
			}
			saying("a")(w, r)
		}, to("a"))
		bubble.Wait()
		seen.takeEvents()
		p.leaders.learn(streamPath, (*p.nodes.Load())[0])
		(<-p.begin(t, keylessKind())).want(t, "", TimedOut, HeaderTimeout)
		if p.leaders.get(streamPath) != nil {
			t.Error("the route to the silent leader is kept")
		}
		p.firstIs(1, 2)
		(<-p.begin(t, keylessKind())).want(t, "a", 0, 0)
		if got := seen.takeEvents(); len(got) != 0 {
			t.Errorf("events %v, want none", got)
		}
		wantHits(t, nodes, 2, 1)
	})
}

// Facts L10: when a node is ejected as silent, the read and the keyed append that
// wait on it move on at once; everything else waits for its own timeout.
func TestSilentNodeWithRequests(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, nodes := newPipes(t, silent, saying("b"))
		justAfterAProbe()
		nodes[0].freeze()
		p.leaders.learn(streamPath, (*p.nodes.Load())[0])
		waiting := make([]<-chan ending, 0, 4)
		for _, k := range []kind{readKind(), keyedKind(), keylessKind(), deleteKind()} {
			waiting = append(waiting, p.begin(t, k))
		}
		const out = silentAfter + probeEvery - time.Millisecond
		(<-waiting[0]).want(t, "b", 0, out)
		(<-waiting[1]).want(t, "b", 0, out)
		(<-waiting[2]).want(t, "", TimedOut, HeaderTimeout)
		(<-waiting[3]).want(t, "", TimedOut, HeaderTimeout)
		wantHits(t, nodes, 4, 2)
	})
}

// Facts L11, L12: a node that refuses connections may work on what it has: the
// append in flight gets its real answer, the read moves on. If it falls silent
// then, the keyed append moves on too.
func TestDrainingNodeWithRequests(t *testing.T) {
	for _, dies := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			p, nodes := newPipes(t, held(release, "a, late"), saying("b"))
			justAfterAProbe()
			p.leaders.learn(streamPath, (*p.nodes.Load())[0])
			read, keyed, keyless := p.begin(t, readKind()), p.begin(t, keyedKind()), p.begin(t, keylessKind())
			bubble.Wait()
			nodes[0].drain()
			start := time.Now()
			// One probe has an answer still, the next has no connection.
			(<-read).want(t, "b", 0, 2*probeEvery-time.Millisecond)
			if !p.is("a:1", Stopped)() {
				t.Errorf("states %v, want a:1 stopped", p.States())
			}
			if !dies {
				time.Sleep(time.Second)
				close(release)
				took := time.Since(start)
				(<-keyed).want(t, "a, late", 0, took)
				(<-keyless).want(t, "a, late", 0, took)
				wantHits(t, nodes, 3, 1)
				return
			}
			nodes[0].freeze()
			nodes[0].refuse.Store(false)
			lasts(t, p.is("a:1", Silent))
			// The third probe is the one that has a connection and no answer.
			(<-keyed).want(t, "b", 0, 3*probeEvery+silentAfter-time.Millisecond)
			(<-keyless).want(t, "", TimedOut, HeaderTimeout)
			wantHits(t, nodes, 3, 2)
		})
	}
}

// With no node to move to, whoever waits on the only one goes on waiting: it may
// answer yet. What has not reached it is given up.
func TestNowhereToMove(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, nodes := newPipes(t, ok)
		justAfterAProbe()
		nodes[0].freeze()
		read, keyed := p.begin(t, readKind()), p.begin(t, keyedKind())
		time.Sleep(3 * time.Second)
		if !p.is("a:1", Silent)() {
			t.Fatalf("states %v, want a:1 silent", p.States())
		}
		nodes[0].unfreeze()
		(<-read).want(t, "ok", 0, 3*time.Second)
		(<-keyed).want(t, "ok", 0, 3*time.Second)
		wantHits(t, nodes, 2)
		time.Sleep(time.Second)
		nodes[0].dial.Store(int64(time.Hour))
		nodes[0].kill()
		(<-p.begin(t, keyedKind())).want(t, "", Unreachable, silentAfter+probeEvery-time.Millisecond)
	})
}

// The one repetition of a keyed append is its last chance: it waits for the second
// node as long as a request may, though that is ejected meanwhile.
func TestRepeatWaits(t *testing.T) {
	for _, k := range []kind{readKind(), keyedKind()} {
		bubble.Test(t, func(t *testing.T) {
			p, nodes := newPipes(t, silent, saying("b"), saying("c"))
			justAfterAProbe()
			p.leaders.learn(streamPath, (*p.nodes.Load())[0])
			under := p.begin(t, k)
			time.Sleep(HeaderTimeout - time.Second)
			nodes[1].freeze()
			time.Sleep(4 * time.Second)
			if !p.is("b:1", Silent)() {
				t.Errorf("states %v, want b:1 silent", p.States())
			}
			nodes[1].unfreeze()
			(<-under).want(t, "b", 0, HeaderTimeout+3*time.Second)
			wantHits(t, nodes, 1, 1, 0)
		})
	}
}

// Facts L14: a redirect to an ejected leader is not followed while others are
// there to ask; they all lead to it, so there is no leader. Once it is back it is.
func TestRedirectToEjectedLeader(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, nodes := newPipes(t, saying("a"), to("a"), to("a"))
		bubble.Wait()
		nodes[0].freeze()
		lasts(t, p.is("a:1", Silent))
		for _, k := range []kind{readKind(), keyedKind(), keylessKind()} {
			(<-p.begin(t, k)).want(t, "", NoLeader, 0)
		}
		wantHits(t, nodes, 0, 3, 3)
		nodes[0].unfreeze()
		lasts(t, p.is("a:1", Up))
		p.firstIs(1, 3)
		(<-p.begin(t, keylessKind())).want(t, "a", 0, 0)
		wantHits(t, nodes, 1, 4, 3)
	})
}

// Facts L15, R11: a named leader that cannot be reached is ejected, the follower
// that named it is not.
func TestUnreachableLeaderIsEjected(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, nodes, seen := newWatchedPipes(t, to("b"), to("c"), saying("c"))
		bubble.Wait()
		seen.takeEvents()
		nodes[2].refuse.Store(true) // the probes' connection stands
		(<-p.begin(t, keylessKind())).want(t, "", Unreachable, 0)
		if diff := cmp.Diff([]string{"c:1 stopped"}, seen.takeEvents()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		wantHits(t, nodes, 1, 1, 0)
	})
}

// Facts R19: a hint at a node that a firewall hides costs one connect timeout, by
// when no further hop may begin, and ejects it.
func TestHintIntoABlackHole(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, nodes, seen := newWatchedPipes(t, hint("b"), saying("b"), saying("c"))
		justAfterAProbe() // so that the next does not come with the timeout
		seen.takeEvents()
		nodes[1].dial.Store(int64(time.Hour)) // the probes' connection stands
		(<-p.begin(t, keylessKind())).want(t, "", Unreachable, ConnectTimeout)
		if diff := cmp.Diff([]string{"b:1 silent"}, seen.takeEvents()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		wantHits(t, nodes, 1, 0, 0)
	})
}

// Where the probes meet the black hole too, nobody waits so long.
func TestHintIntoABlackHoleThatProbesSee(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, nodes := newPipes(t, hint("b"), saying("b"), saying("c"))
		justAfterAProbe()
		nodes[1].dial.Store(int64(time.Hour))
		nodes[1].kill()
		p.firstIs(0, 3)
		(<-p.begin(t, keylessKind())).want(t, "c", 0, silentAfter+probeEvery-time.Millisecond)
		wantHits(t, nodes, 1, 0, 1)
	})
}

// A request that still looks for its connection when the node is found silent
// does not wait for the connect timeout; nothing of it was sent, so any may move.
func TestUnconnectedMovesWithTheEjection(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, nodes := newPipes(t, saying("a"), saying("b"))
		justAfterAProbe()
		nodes[0].dial.Store(int64(time.Hour))
		nodes[0].kill()
		nodes[0].revive()
		waiting := make([]<-chan ending, 0, 4)
		for _, k := range []kind{readKind(), keyedKind(), keylessKind(), deleteKind()} {
			p.firstIs(0, 2)
			waiting = append(waiting, p.begin(t, k))
			bubble.Wait()
		}
		for _, e := range waiting {
			(<-e).want(t, "b", 0, silentAfter+probeEvery-time.Millisecond)
		}
		wantHits(t, nodes, 0, 4)
	})
}

// Facts L16: with every node ejected requests are sent all the same, and a route
// that was learned is kept.
func TestAllEjected(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ps := &pipes{nodes: map[string]*pipeNode{}}
		a, urlA := ps.serve(t, "a:1", 0, time.Hour, saying("a"), silent)
		b, urlB := ps.serve(t, "b:1", 1, time.Hour, saying("b"), silent)
		p := newPoolOf(t, Options{Nodes: []string{urlA, urlB}, Dial: ps.dialRequest, probeDial: ps.dial})
		leader := (*p.nodes.Load())[1]
		p.leaders.learn(streamPath, leader)
		lasts(t, func() bool { return p.is("a:1", Silent)() && p.is("b:1", Silent)() })
		for range 10 {
			(<-p.begin(t, keylessKind())).want(t, "b", 0, 0)
		}
		if p.leaders.get(streamPath) != leader {
			t.Error("the route is gone")
		}
		p.leaders.drop(streamPath, leader)
		for range 10 {
			<-p.begin(t, readKind())
		}
		wantHits(t, []*pipeNode{a, b}, 5, 15)
	})
}

// Facts L17: a route to an ejected node is dropped while others live.
func TestRouteToEjectedNode(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, nodes := newPipes(t, saying("a"), saying("b"))
		bubble.Wait()
		p.leaders.learn(streamPath, (*p.nodes.Load())[0])
		nodes[0].freeze()
		lasts(t, p.is("a:1", Silent))
		(<-p.begin(t, keylessKind())).want(t, "b", 0, 0)
		if p.leaders.get(streamPath) != nil {
			t.Error("the route is kept")
		}
	})
}

// Facts L18: a request that cannot be written is no node's fault: outcome unknown
// as far as the caller is concerned, and nobody is ejected.
func TestRequestThatCannotBeBuilt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, nodes, seen := newWatchedPipes(t, ok, ok)
		bubble.Wait()
		seen.takeEvents()
		for _, k := range []kind{readKind(), keyedKind(), keylessKind()} {
			_, err := p.send(t.Context(), k.method, streamPath, k.meta, "Bad\nName", "x")
			wantKind(t, err, Failed)
			_, err = p.send(t.Context(), k.method, streamPath, k.meta, "X-Name", "bad\nvalue")
			wantKind(t, err, Failed)
		}
		if got := seen.takeEvents(); len(got) != 0 {
			t.Errorf("events %v, want none", got)
		}
		wantHits(t, nodes, 0, 0)
	})
}
