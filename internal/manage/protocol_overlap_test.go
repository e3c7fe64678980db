package manage

import (
	"context"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"sluice/internal/bubble"
)

// Two clients' changes of a stream took effect in one order and were answered in the other.
// The answer that came last was believed where its request was the one begun last: a stream
// whose PUT was answered 201 lost its row, and one that was gone kept its row for ever. Only
// answers that are slow show it, not those that are lost.
func TestClientsOverlap(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		// Looks are what this test spends its time on.
		g := newRig(t, func(r *ReconcilerOptions, _ *Options) { r.Poll = 10 * time.Second })
		random := rand.New(rand.NewPCG(8, 8))                                                 //nolint:gosec // to be repeated
		g.clientNodes = &slowNodes{Nodes: g.clientNodes, random: rand.New(rand.NewPCG(8, 9))} //nolint:gosec // to be repeated
		seen := map[int]int{}
		for range 30 {
			var mu sync.Mutex
			var group sync.WaitGroup
			for range 3 {
				method, wait := http.MethodPut, time.Duration(random.IntN(2000))*time.Millisecond
				if random.IntN(2) == 0 {
					method = http.MethodDelete
				}
				group.Go(func() {
					time.Sleep(wait)
					got := g.client(method, "events", "text/plain", "one")
					mu.Lock()
					defer mu.Unlock()
					seen[got.status]++
				})
			}
			group.Wait()
			time.Sleep(settled)
			g.agree("events")
			if t.Failed() {
				break
			}
		}
		if seen[201] < 5 || seen[204] < 5 || seen[0] > 0 {
			t.Errorf("answers %v", seen)
		}
	})
}

// slowNodes answer everything, after a while.
type slowNodes struct {
	Nodes
	mu     sync.Mutex
	random *rand.Rand
}

func (n *slowNodes) Do(r *http.Request) (*http.Response, error) {
	n.mu.Lock()
	before, after := time.Duration(n.random.IntN(1000))*time.Millisecond, time.Duration(n.random.IntN(1000))*time.Millisecond
	n.mu.Unlock()
	time.Sleep(before)
	res, err := n.Nodes.Do(r.Clone(context.WithoutCancel(r.Context())))
	time.Sleep(after)
	return res, err
}
