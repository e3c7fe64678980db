package manage

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"sluice/internal/bubble"
)

// Clients and the API at one name at once, over two replicas, with nodes that lose, delay and
// do not answer: whoever wins, the two systems agree when it is quiet, and the name can be
// used.
func TestClientsAndTheAPIRace(t *testing.T) {
	seeds := uint64(4)
	if soak() {
		seeds = 200
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { bubble.Test(t, func(t *testing.T) { raceClients(t, seed) }) })
	}
}

func raceClients(t *testing.T, seed uint64) {
	const workers, rounds = 6, 40
	g := newRig(t)
	g.options.Reconciler.Close()                                                 // it has only made the account
	nodes := &moodyNodes{Nodes: g.nodes, random: rand.New(rand.NewPCG(seed, 3))} //nolint:gosec // to be repeated by its seed
	g.nodes = nodes
	replicas := []*rig{g.process("one", &injector{}), g.process("two", &injector{})}
	for _, r := range replicas {
		t.Cleanup(r.options.Reconciler.Close)
	}
	var mu sync.Mutex
	seen := map[int]int{}
	var group sync.WaitGroup
	for w := range workers {
		r, random := replicas[w%2], rand.New(rand.NewPCG(seed, uint64(w))) //nolint:gosec // the same
		group.Go(func() {
			for range rounds {
				var got answered
				switch n := random.IntN(40); {
				case n < 20:
					got = r.client(http.MethodPut, "events", "text/plain", "one")
				case n < 38 || seed%2 == 0: // without the API, which keeps a name for a while
					got = r.client(http.MethodDelete, "events", "", "")
				case n < 39:
					got = r.own(http.MethodPost, "/v1/streams", `{"name":"events","content_type":"application/json"}`)
				default:
					got = r.own(http.MethodDelete, "/v1/streams/events", "")
				}
				mu.Lock()
				seen[got.status]++
				mu.Unlock()
				time.Sleep(time.Duration(random.IntN(5000)) * time.Millisecond)
			}
		})
	}
	group.Wait()
	if seed%2 == 0 && (seen[201] < 5 || seen[204] < 5 || seen[0] < 5) {
		t.Errorf("answers %v: nothing raced", seen)
	}
	nodes.well.Store(true)
	time.Sleep(settled)
	g.agree("events")
	replicas[0].act([]deed{deleting(), putting("text/plain", "two")}, &injector{})
	g.agree("events")
}
