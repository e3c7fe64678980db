package manage

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/internal/bubble"
)

// Two replicas that create and delete the same few names at once, with nodes that lose,
// delay and do not answer: every answer is one that openapi.yaml has and no 5xx, and when
// it is quiet both systems agree.
func TestHandlersThatRace(t *testing.T) {
	seeds := uint64(2)
	if soak() {
		seeds = 200
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { bubble.Test(t, func(t *testing.T) { raceHandlers(t, seed) }) })
	}
}

func raceHandlers(t *testing.T, seed uint64) {
	const workers, rounds, names = 6, 12, 2
	g := newRig(t)
	g.options.Reconciler.Close()                                                 // it has only made the account
	nodes := &moodyNodes{Nodes: g.nodes, random: rand.New(rand.NewPCG(seed, 2))} //nolint:gosec // to be repeated by its seed
	g.nodes = nodes
	one, other := g.process("one", &injector{}), g.process("two", &injector{})
	t.Cleanup(one.options.Reconciler.Close)
	t.Cleanup(other.options.Reconciler.Close)
	var mu sync.Mutex
	seen := map[int]int{}
	var group sync.WaitGroup
	for w := range workers {
		replica := []*rig{one, other}[w%2]
		group.Go(func() {
			for i := range rounds {
				name := fmt.Sprint("s", (w+i)%names)
				answers := []answered{replica.own(http.MethodPost, "/v1/streams", `{"name":"`+name+`","content_type":"text/`+name+`"}`)}
				if i%2 == 0 {
					answers = append(answers, replica.own(http.MethodDelete, "/v1/streams/"+name, ""))
				}
				mu.Lock()
				for _, got := range answers {
					if got.status >= 500 || got.status == 400 {
						t.Errorf("%d %s", got.status, got.body)
					}
					seen[got.status]++
				}
				mu.Unlock()
				time.Sleep(time.Duration(w*i) * time.Second)
			}
		})
	}
	group.Wait()
	if seen[201] == 0 || seen[202] == 0 || seen[409] == 0 {
		t.Errorf("answers %v: nothing raced", seen)
	}
	nodes.well.Store(true)
	time.Sleep(settled)
	for i := range names {
		g.agree(fmt.Sprint("s", i))
	}
}

// Of many creates of one name at once one is done, and the others are told that there is
// nothing to do; of keys likewise, so that no second one is left.
func TestOneOfManyCreates(t *testing.T) {
	g := newRig(t)
	for _, tt := range []struct{ target, body, refused string }{
		{"/v1/streams", events, "STREAM_ALREADY_EXISTS_CONFLICT"},
		{"/v1/api-keys", `{"name":"ci"}`, "API_KEY_ALREADY_EXISTS_CONFLICT"},
	} {
		const callers = 8
		answers := make(chan answered, callers)
		for range callers {
			go func() { answers <- g.own(http.MethodPost, tt.target, tt.body) }()
		}
		done := 0
		for range callers {
			got := <-answers
			if got.status == http.StatusCreated {
				done++
			} else if got.refused() != tt.refused {
				t.Errorf("%s: %d %s", tt.target, got.status, got.body)
			}
		}
		if done != 1 {
			t.Errorf("%s: %d were done", tt.target, done)
		}
	}
}

// Four rotations at once, each with an overlap of a day: up to four were 200, the secret in
// use was void, and so were some of those just shown.
func TestRotationsAtOnce(t *testing.T) {
	const callers = 4
	g := newRig(t)
	made := g.own(http.MethodPost, "/v1/api-keys", `{"name":"ci"}`)
	answers := make(chan answered, callers)
	for range callers {
		go func() { answers <- g.own(http.MethodPost, "/v1/api-keys/"+made.text("id")+"/rotate", `{}`) }()
	}
	shown := []string{made.text("key")}
	for range callers {
		if got := <-answers; got.status == http.StatusOK {
			shown = append(shown, got.text("key"))
		} else if got.refused() != "API_KEY_ROTATION_CONFLICT" {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	if len(shown) != 2 {
		t.Errorf("%d rotations were done", len(shown)-1)
	}
	for i, key := range shown {
		if !g.works(key) {
			t.Errorf("secret %d of those shown does not work", i)
		}
	}
}

// Limits that were changed one each at once: all were 200, and some changes were lost.
func TestLimitsAtOnce(t *testing.T) {
	g := newRig(t)
	limits := []string{"requests_per_second", "burst", "open_tails", "uploads", "upload_bytes", "request_bytes"}
	answers := make(chan answered, len(limits))
	for _, name := range limits {
		go func() {
			answers <- g.ask(g.operator, "", http.MethodPatch, "/v1/accounts/acme", `{"limits":{"`+name+`":7}}`)
		}()
	}
	for range limits {
		if got := <-answers; got.status != http.StatusOK {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	got := g.ask(g.operator, "", http.MethodGet, "/v1/accounts/acme", "")
	for _, name := range limits {
		if got.at("own_limits", name) != 7.0 {
			t.Errorf("%s is lost: %s", name, got.body)
		}
	}
}

// moodyNodes lose every sixth request, do not answer another, and let a third take effect
// when its sender has given up.
type moodyNodes struct {
	Nodes
	well   atomic.Bool
	mu     sync.Mutex
	random *rand.Rand
}

func (n *moodyNodes) Do(r *http.Request) (*http.Response, error) {
	if n.well.Load() {
		return n.Nodes.Do(r)
	}
	n.mu.Lock()
	mood, after := n.random.IntN(6), time.Duration(n.random.IntN(14_000))*time.Millisecond
	n.mu.Unlock()
	later := r.Clone(context.WithoutCancel(r.Context()))
	apply := func() {
		if res, err := n.Nodes.Do(later); err == nil {
			_ = res.Body.Close()
		}
	}
	switch mood {
	case 0:
	case 1:
		apply()
	case 2:
		go func() {
			time.Sleep(after)
			apply()
		}()
	default:
		return n.Nodes.Do(r)
	}
	<-r.Context().Done()
	return nil, r.Context().Err()
}
