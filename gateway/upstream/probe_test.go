package upstream

import (
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/bubble"
)

// Facts L4, L5: a node that refused one request is asked by none of the next 60,
// and after 600 s it is still out, since no probe was answered.
func TestRefusedConnectionEjects(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, nodes, seen := newWatchedPipes(t, saying("a"), saying("b"))
		bubble.Wait()
		seen.takeEvents()
		// The probes' connection stands, so that only the request can tell.
		nodes[0].refuse.Store(true)
		(<-p.begin(t, keylessKind())).want(t, "b", 0, 0)
		if diff := cmp.Diff([]string{"a:1 stopped"}, seen.takeEvents()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		nodes[0].kill()
		sixty := func() {
			t.Helper()
			before := nodes[0].dialed.Load()
			for range 60 {
				(<-p.begin(t, keylessKind())).want(t, "b", 0, 0)
			}
			if got := nodes[0].dialed.Load() - before; got != 0 {
				t.Errorf("%d requests tried the ejected node", got)
			}
		}
		time.Sleep(3 * probeEvery)
		sixty()
		time.Sleep(600 * time.Second)
		sixty()
		if !p.is("a:1", Stopped)() {
			t.Errorf("states %v, want a:1 stopped still", p.States())
		}
		wantHits(t, nodes, 0, 121)
		nodes[0].revive()
		if got := lasts(t, p.is("a:1", Up)); got > probeEvery+step {
			t.Errorf("back after %s, want %s at the most", got, probeEvery)
		}
	})
}

// Facts L6, L7: a node that falls silent without a request on it is out within
// 1.75 s, whenever between two probes that happens, and requests go to a live
// one at once; its first answer brings it back, and traffic with it.
func TestSilentNodeIsEjected(t *testing.T) {
	for _, into := range []int{0, 1, 100, 200, 249} {
		bubble.Test(t, func(t *testing.T) {
			p, nodes, seen := newWatchedPipes(t, saying("a"), saying("b"))
			time.Sleep(2*probeEvery + time.Duration(into)*time.Millisecond)
			seen.takeEvents()
			nodes[0].freeze()
			if got := lasts(t, p.is("a:1", Silent)); got < 1500*time.Millisecond || got > 1750*time.Millisecond+step {
				t.Errorf("frozen %d ms after a probe: out after %s, want 1.5 s to 1.75 s", into, got)
			}
			for range 10 {
				(<-p.begin(t, readKind())).want(t, "b", 0, 0)
			}
			time.Sleep(12 * time.Second)
			nodes[0].unfreeze()
			if got := lasts(t, p.is("a:1", Up)); got > 500*time.Millisecond {
				t.Errorf("back after %s, want 500 ms at the most", got)
			}
			// After one that asks nobody to come first, each is asked in turn.
			for range 4 {
				<-p.begin(t, readKind())
			}
			wantHits(t, nodes, 2, 12)
			if diff := cmp.Diff([]string{"a:1 silent", "a:1 up"}, seen.takeEvents()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

// Facts L8: a node that takes a second for each probe is never out.
func TestSlowNodeIsNotEjected(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, _, seen := newProbedPipes(t, after(time.Second, status(http.StatusNoContent)), ok)
		time.Sleep(15 * time.Second)
		if diff := cmp.Diff([]string{"cluster double"}, seen.takeEvents()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

// Facts L13: an answer that comes after its probe had put the node out brings it
// back, and its connection is used again.
func TestLateProbeAnswer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, nodes := newPipes(t, ok)
		justAfterAProbe()
		nodes[0].freeze()
		nodes[0].takeUsed()
		time.Sleep(4 * time.Second) // the probe waits for HeaderTimeout
		late := nodes[0].takeUsed()
		if len(late) != 1 || !p.is("a:1", Silent)() {
			t.Fatalf("%d requests, states %v; want one probe, a:1 silent", len(late), p.States())
		}
		nodes[0].unfreeze()
		time.Sleep(probeEvery / 2)
		if !p.is("a:1", Up)() {
			t.Errorf("states %v after the late answer, want a:1 up", p.States())
		}
		// By the next probe, or by the question who answers there now.
		if !slices.Contains(nodes[0].takeUsed(), late[0]) {
			t.Error("the late answer's connection was given up")
		}
	})
}

// Any answer to a probe is one, whatever its status, and its head is enough.
func TestAnyAnswerToAProbe(t *testing.T) {
	withoutEnd := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		silent(w, r)
	}
	probes := map[string]http.HandlerFunc{
		"404": status(404), "500": status(500), "503": status(503), "307": to("b"), "200 with a body": ok, "a body without end": withoutEnd,
	}
	for name, probe := range probes {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				_, _, seen := newProbedPipes(t, probe, ok)
				time.Sleep(4 * time.Second)
				if diff := cmp.Diff([]string{"cluster double"}, seen.takeEvents()); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A node whose probes break is out as stopped, as one that refuses them is.
func TestBrokenProbe(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, _, _ := newProbedPipes(t, cut, ok)
		if got := lasts(t, p.is("a:1", Stopped)); got > probeEvery+step {
			t.Errorf("out after %s, want %s at the most", got, probeEvery)
		}
	})
}

// One probe at a time: a node that answers none is asked again when the one under
// way has been given up.
func TestOneProbeAtATime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var probes atomic.Int64
		newProbedPipes(t, func(w http.ResponseWriter, r *http.Request) {
			probes.Add(1)
			silent(w, r)
		}, ok)
		time.Sleep(10*HeaderTimeout + time.Millisecond)
		bubble.Wait()
		if got := probes.Load(); got != 11 {
			t.Errorf("%d probes in ten times their limit, want 11", got)
		}
	})
}
