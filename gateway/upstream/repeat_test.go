package upstream

import (
	"net/http"
	"testing"
	"time"

	"sluice/internal/bubble"
)

// Facts L20, L21, L22, L23, R12, R14, R15, R23: what goes out again after a
// request may have reached a node, through the pool. L22: of a keyed append only
// a 2xx of the other node counts. L23: who is led back to the silent one stops.
func TestRepeats(t *testing.T) {
	const h = HeaderTimeout
	type handlers = []http.HandlerFunc
	read, keyed, keyless, remove := readKind(), keyedKind(), keylessKind(), deleteKind()
	b := saying("b")
	tests := []struct {
		name  string
		kind  kind
		nodes handlers
		text  string // "" = an error of that kind
		err   Kind
		took  time.Duration
		hits  []int
	}{
		{"facts L20 timeout of a read", read, handlers{silent, b, b}, "b", 0, h, []int{1, 1, 0}},
		{"facts L20 timeout of a keyed append", keyed, handlers{silent, b, b}, "b", 0, h, []int{1, 1, 0}},
		{"facts L20 a fresh deadline", keyed, handlers{silent, after(h-time.Millisecond, b), b}, "b", 0, 2*h - time.Millisecond, []int{1, 1, 0}},
		{"facts L20 the repeat is redirected", keyed, handlers{silent, to("c"), saying("c")}, "c", 0, h, []int{1, 1, 1}},
		{"facts L20 a read's repeat is refused", read, handlers{silent, saying("no"), b}, "no", 0, h, []int{1, 1, 0}},
		{"facts L21 timeout of a keyless append", keyless, handlers{silent, b, b}, "", TimedOut, h, []int{1, 0, 0}},
		{"facts L21 timeout of a keyed delete", remove, handlers{silent, b, b}, "", TimedOut, h, []int{1, 0, 0}},
		{"facts L22 refused, 403", keyed, handlers{silent, status(403), b}, "", TimedOut, h, []int{1, 1, 0}},
		{"facts L22 refused, 404", keyed, handlers{silent, status(404), b}, "", TimedOut, h, []int{1, 1, 0}},
		{"facts L22 refused, 409", keyed, handlers{silent, status(409), b}, "", TimedOut, h, []int{1, 1, 0}},
		{"facts L22 refused, 503", keyed, handlers{silent, status(503), b}, "", TimedOut, h, []int{1, 1, 0}},
		{"facts L22 redirected, then refused", keyed, handlers{silent, to("c"), status(409)}, "", TimedOut, h, []int{1, 1, 1}},
		{"facts L22 no leader among the rest", keyed, handlers{silent, search, search}, "", TimedOut, h, []int{1, 1, 1}},
		{"facts L22 second one silent, keyed", keyed, handlers{silent, silent, b}, "", TimedOut, 2 * h, []int{1, 1, 0}},
		{"facts L22 second one silent, read", read, handlers{silent, silent, b}, "", TimedOut, 2 * h, []int{1, 1, 0}},
		{"facts L22 second one breaks", keyed, handlers{silent, cut, b}, "", TimedOut, h, []int{1, 1, 0}},
		{"facts L23 keyed, led back", keyed, handlers{silent, to("a"), b}, "", TimedOut, h, []int{1, 1, 0}},
		{"facts L23 read, led back", read, handlers{silent, to("a"), b}, "", TimedOut, h, []int{1, 1, 0}},
		{"facts L23 led back over a third", keyed, handlers{silent, to("c"), to("a")}, "", TimedOut, h, []int{1, 1, 1}},
		{"silent after a redirect, read", read, handlers{to("b"), silent, b}, "b", 0, h, []int{1, 1, 1}},
		{"silent after a redirect, keyed", keyed, handlers{to("b"), silent, b}, "b", 0, h, []int{1, 1, 1}},
		{"hops of the repeat are counted anew", read, handlers{to("b"), silent, to("d"), saying("d")}, "d", 0, h, []int{1, 1, 1, 1}},
		{"facts R12 leader hop silent, keyless", keyless, handlers{to("b"), silent, b}, "", TimedOut, h, []int{1, 1, 0}},
		{"facts R14 search hop broke, keyless", keyless, handlers{search, cut, b}, "", Failed, 0, []int{1, 1, 0}},
		{"facts R14 search hop broke, keyed", keyed, handlers{search, cut, b}, "", Failed, 0, []int{1, 1, 0}},
		{"facts R15 search hop silent, keyless", keyless, handlers{search, silent, b}, "", TimedOut, h, []int{1, 1, 0}},
		{"facts R23 broke, keyed", keyed, handlers{cut, b, b}, "", Failed, 0, []int{1, 0, 0}},
		{"facts R23 broke, read", read, handlers{cut, b, b}, "", Failed, 0, []int{1, 0, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				p, nodes, seen := newWatchedPipes(t, tt.nodes...)
				bubble.Wait()
				seen.takeEvents()
				(<-p.begin(t, tt.kind)).want(t, tt.text, tt.err, tt.took)
				wantHits(t, nodes, tt.hits...)
				if got := seen.takeEvents(); len(got) != 0 {
					t.Errorf("events %v, want none: probes were answered", got)
				}
				if tt.text == "" && p.leaders.get(streamPath) != nil {
					t.Error("a route was learned from a failure")
				}
				// Every hop carries the same request.
				for _, n := range nodes {
					for _, r := range n.d.hits() {
						if r.Method != tt.kind.method || string(r.Body) != string(tt.kind.meta.Body) {
							t.Errorf("node %d got %s %q", r.Node, r.Method, r.Body)
						}
					}
				}
			})
		})
	}
}

// A read whose repeat is refused has its answer: it has no effect to be in doubt.
func TestRefusedRepeatOfARead(t *testing.T) {
	for _, code := range []int{404, 410, 416, 503} {
		bubble.Test(t, func(t *testing.T) {
			p, _ := newPipes(t, silent, status(code))
			bubble.Wait()
			if e := <-p.begin(t, readKind()); e.err != nil || e.res.StatusCode != code {
				t.Errorf("got %v, error %v; want %d", e.res.Response, e.err, code)
			}
		})
	}
}

// A node that is dead is passed over by a repeat too, where the probes know it.
func TestRepeatGoesToALiveNode(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, nodes := newPipes(t, silent, saying("b"), saying("c"))
		bubble.Wait()
		nodes[1].kill()
		lasts(t, p.is("b:1", Stopped))
		p.leaders.learn(streamPath, (*p.nodes.Load())[0])
		(<-p.begin(t, keyedKind())).want(t, "c", 0, HeaderTimeout)
		wantHits(t, nodes, 1, 0, 1)
	})
}
