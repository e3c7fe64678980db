package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"sluice/internal/redistest"
	"sluice/internal/tenant"
	"sluice/internal/ursulatest"
)

// leakTrial is a program before one node, under tails that come and go.
type leakTrial struct {
	r       *patient
	cluster *ursulatest.Cluster
	secure  bool
	redis   *redis.Client // nil where each process counts by itself
	text    string        // its file

	narrow, unknown string // keys
	slow, few       payer  // accounts whose limits are met

	marks  atomic.Int64
	coming sync.Map // mark → chan struct{}, which gets one for each request that came to the node

	mu    sync.Mutex
	tried map[string]int // by way
}

const (
	groupSize = 20 // tails of one connection over HTTP/2, or connections of one over HTTP/1.1
	groups    = 8  // at one time
	// strayed is how far from where it was a count may be.
	strayed = 3
	// grown is how much larger what lives may be behind a second run, in bytes.
	grown = 2 << 20
)

// newLeakTrial starts the program, with further sections in its file.
func newLeakTrial(t *testing.T, secure bool, sections string) *leakTrial {
	t.Helper()
	tr := &leakTrial{cluster: ursulatest.New(ursulatest.Options{}), secure: secure, narrow: newTestKey(t), unknown: newTestKey(t), tried: map[string]int{}}
	must(t, tr.cluster.Start())
	t.Cleanup(func() { _ = tr.cluster.Close() })
	tr.slow, tr.few = newPayer(t, ""), newPayer(t, "")
	e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	sections += fmt.Sprintf("usage: {export: %q, flush: 1s}\n", filepath.Join(t.TempDir(), "usage.jsonl"))
	var b strings.Builder
	b.WriteString(strings.Replace(edgeFile(e, tr.cluster.URLs(), sections), "streams:\n", "streams:\n      - {name: closed, content_type: text/plain}\n      - {name: cut, content_type: text/plain}\n"+
		"      - {name: gone, content_type: text/plain}\n      - {name: hang, content_type: text/plain}\n      - {name: poll, content_type: text/plain}\n", 1))
	fmt.Fprintf(&b, "      - {name: narrow, digest: %q, streams: [text]}\n", tenant.DigestOf(tr.narrow))
	for a, limits := range map[*payer]string{&tr.slow: "requests_per_second: 1, burst: 1, open_tails: 100", &tr.few: "requests_per_second: 100000, burst: 100000, open_tails: 1"} {
		fmt.Fprintf(&b, "  - id: %s\n    limits: {%s}\n    streams: [{name: json, content_type: application/json}]\n    keys: [{name: all, digest: %q}]\n", a.id, limits, tenant.DigestOf(a.key))
	}
	tr.r = startPatient(t, e, roomy(b.String()))
	tr.text = readFile(t, tr.r.path)
	tr.r.awaitReady(t)
	tr.r.append(t, "json", `{"n":1}`)
	want(t, tr.r.do(t, http.MethodPost, tr.r.edge.path("closed"), []byte("the end"), "Content-Type", "text/plain", "Stream-Closed", "true"), http.StatusNoContent)
	tr.cluster.Node(0).SetFault(tr.fault())
	return tr
}

// fault is what the node does to the streams that are there for it.
func (tr *leakTrial) fault() ursulatest.Fault {
	of := func(name string) func(r *http.Request) bool {
		return func(r *http.Request) bool { return strings.Contains(r.RequestURI, "/s."+name+"?") }
	}
	marked := func(then ursulatest.Fault) ursulatest.Fault {
		return func(w http.ResponseWriter, r *http.Request) bool {
			id, _ := strconv.ParseInt(r.URL.Query().Get("cursor"), 10, 64)
			if came, ok := tr.coming.Load(id); ok {
				came.(chan struct{}) <- struct{}{} //nolint:errcheck // nothing else is kept
			}
			return then(w, r)
		}
	}
	goOn := func(http.ResponseWriter, *http.Request) bool { return false }
	return ursulatest.Chain(
		ursulatest.Match(of("cut"), ursulatest.CutAfter(60)), ursulatest.Match(of("gone"), ursulatest.Reset),
		ursulatest.Match(of("hang"), marked(ursulatest.Hang)), ursulatest.Match(of("poll"), marked(goOn)),
	)
}

// mark is a number that n requests may have, and where it is told that they have come to
// the node.
func (tr *leakTrial) mark(n int) (id int, came <-chan struct{}) {
	mark, c := tr.marks.Add(1), make(chan struct{}, 2*n)
	tr.coming.Store(mark, c)
	return int(mark), c
}

// with opens a group of tails and closes what is left of it.
func (tr *leakTrial) with(ctx context.Context, d rawDialer, n int, target, key string, do func(g *tailGroup) error) error {
	g, err := d.tails(ctx, n, target, key)
	if err != nil {
		return err
	}
	defer g.close()
	return do(g)
}

func (tr *leakTrial) dialer(h2 bool) rawDialer {
	return rawDialer{address: hostOf(tr.r.URL), secure: tr.secure, h2: h2}
}

// run opens and closes so many tails in all ways, some at one time, and then those that
// need the program or the node to change, one way after the other.
func (tr *leakTrial) run(ctx context.Context, t *testing.T, tails int) {
	t.Helper()
	ways, episodes := leakWays(), leakEpisodes()
	each := max(tails/20/groupSize, 2) * groupSize // of an episode
	var group errgroup.Group
	group.SetLimit(groups)
	for i, left := 0, tails-each*len(episodes); left > 0 && ctx.Err() == nil; i++ {
		w, d := ways[i%len(ways)], tr.dialer(i/len(ways)%2 == 0)
		n := min(groupSize, left)
		left -= n
		group.Go(func() error {
			tr.count(w.name, n)
			if err := w.try(ctx, tr, d, n); err != nil {
				return fmt.Errorf("%s, %s: %w", w.name, d, err)
			}
			return nil
		})
	}
	must(t, group.Wait())
	for _, e := range episodes {
		tr.count(e.name, each)
		all := make([]*tailGroup, 0, each/groupSize)
		for i := range each / groupSize {
			g, err := tr.dialer(i%2 == 0).tails(ctx, groupSize, tr.r.edge.path("json")+sseTail, tr.r.Reads)
			must(t, err)
			defer g.close()
			must(t, g.begun())
			all = append(all, g)
		}
		again := e.change(t, tr)
		for _, g := range all {
			if err := g.over(e.whole, e.last); err != nil {
				t.Fatalf("%s: %v", e.name, err)
			}
			g.close()
		}
		again()
	}
}

func (tr *leakTrial) count(name string, n int) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.tried[name] += n
}

// leakEpisode ends all tails that are open.
type leakEpisode struct {
	name   string
	change func(t *testing.T, tr *leakTrial) (again func())
	whole  bool
	last   string
}

func leakEpisodes() []leakEpisode {
	reloaded := func(edit func(text string) string) func(t *testing.T, tr *leakTrial) func() {
		return func(t *testing.T, tr *leakTrial) func() {
			t.Helper()
			reload := func(text string) {
				rename(t, tr.r.path, text)
				want(t, tr.r.admin(t, http.MethodPost, "/reload"), http.StatusOK)
			}
			reload(edit(tr.text))
			return func() { reload(tr.text) }
		}
	}
	return []leakEpisode{
		{"the node is killed", func(t *testing.T, tr *leakTrial) func() {
			t.Helper()
			tr.cluster.Node(0).Stop()
			return func() {
				tr.cluster.Node(0).Restart()
				tr.r.awaitReady(t)
			}
		}, false, ""},
		{"the key is removed", reloaded(func(text string) string { return without(text, "reads") }), true, "credential-expired"},
		{"the key expires", reloaded(func(text string) string {
			return strings.Replace(text, "access: read}", "access: read, expires_at: "+time.Now().Add(time.Second).UTC().Format(time.RFC3339Nano)+"}", 1)
		}), true, "credential-expired"},
		{"they are too old", reloaded(func(text string) string { return text + "tails: {max_age: 1s}\n" }), true, "retry: "},
	}
}

// idle waits until nothing is under way any more, and tells how the process is then: what
// is made and ends by itself, as looks at the nodes are, is left out.
func (tr *leakTrial) idle(t *testing.T) vitals {
	t.Helper()
	best := vitals{Goroutines: 1 << 30, Descriptors: 1 << 30}
	steady := 0
	ok := patiently(func() bool {
		v := tr.r.is(t, askCounts)
		if v.Goroutines < best.Goroutines || v.Descriptors < best.Descriptors {
			best.Goroutines, best.Descriptors, steady = min(best.Goroutines, v.Goroutines), min(best.Descriptors, v.Descriptors), 0
			return false
		}
		steady++
		return steady > 100 && tr.r.gauge(t, "sluice_open_tails") == 0 && tr.r.gauge(t, "sluice_client_addresses") == 0
	})
	if !ok {
		t.Fatal("the process does not come to rest")
	}
	return best
}

// rests checks that all is as it was before, and gives the bytes that live.
func (tr *leakTrial) rests(t *testing.T, base vitals) uint64 {
	t.Helper()
	var v vitals
	if !patiently(func() bool {
		v = tr.r.is(t, askCounts)
		return v.Goroutines <= base.Goroutines+strayed && v.Descriptors <= base.Descriptors+strayed
	}) {
		t.Errorf("%d goroutines, before %d; %d descriptors, before %d; the goroutines are\n%s",
			v.Goroutines, base.Goroutines, v.Descriptors, base.Descriptors, tr.r.is(t, askStacks).Stacks)
	}
	for _, name := range []string{"sluice_open_tails", "sluice_open_uploads", "sluice_client_addresses", "sluice_body_budget_bytes"} {
		eventually(t, name+" is 0", func() bool { return tr.r.gauge(t, name) == 0 })
	}
	must(t, tr.cluster.WaitTails(t.Context(), 0))
	for _, a := range []payer{{id: tr.r.Account, key: tr.r.Key}, tr.slow, tr.few} {
		tr.free(t, a)
	}
	if soak() {
		<-time.NewTimer(goKeeps).C
	}
	return tr.r.is(t, askHeap).Heap
}

// free checks that an account has all its slots: one of them has but one. What is left in
// Redis of a line that was lost counts for nothing, and is gone with the next tail.
func (tr *leakTrial) free(t *testing.T, a payer) {
	t.Helper()
	eventually(t, "the account opens a tail", func() bool {
		err := tr.with(t.Context(), tr.dialer(false), 1, a.path("json")+sseTail, a.key, (*tailGroup).begun)
		return err == nil
	})
	eventually(t, "no slot is taken", func() bool { return tr.r.gauge(t, "sluice_open_tails") == 0 })
	if tr.redis == nil {
		return
	}
	// Where the line was lost just then, it is the tail behind it that clears the slots away.
	eventually(t, "no slot is taken in Redis", func() bool {
		if held(t, tr.redis, "tails", a.id) == 0 {
			return true
		}
		_ = tr.with(t.Context(), tr.dialer(false), 1, a.path("json")+sseTail, a.key, (*tailGroup).begun)
		eventually(t, "no slot is taken", func() bool { return tr.r.gauge(t, "sluice_open_tails") == 0 })
		return false
	})
}

// leakTails is how many tails come and go in each of the two runs of a program.
func leakTails() int {
	if soak() {
		return 50_000
	}
	return 2500
}

// goKeeps is for how long net/http keeps what was an HTTP/2 connection, a few KiB, whose
// client has gone while it had streams: Go 1.26 starts the timer of idle connections once
// more behind their end, and its function keeps the connection (IdleTimeout of
// gateway/server.go). So it is a matter of how many come within that time, and the long
// form waits for it. The short form bears with it.
const goKeeps = 2*time.Minute + 5*time.Second

// O07: what ended in one of many ways left something behind: a descriptor, a goroutine, an
// entry of a map. 10,000 tails (200,000 with SLUICE_SOAK=1) are opened and closed in all
// ways, over HTTP/1.1 and HTTP/2, in two runs through each of two programs: behind each run
// the program is as before, and behind the second next to nothing more lives than behind
// the first.
func TestTailsLeaveNothing(t *testing.T) {
	for name, shared := range map[string]bool{"clear text": false, "over TLS and with Redis": true} {
		t.Run(name, func(t *testing.T) {
			var tr *leakTrial
			if shared {
				server := redistest.Start(t)
				tr = newLeakTrial(t, true, fmt.Sprintf("tls: {mode: internal}\nredis: {url: \"redis://%s\"}\n", server.Addr))
				tr.redis = server.Client(t)
			} else {
				tr = newLeakTrial(t, false, "")
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			tr.run(ctx, t, 500) // what is made once, as connections to Redis
			base := tr.idle(t)
			clear(tr.tried)
			var lives [2]uint64
			began := time.Now()
			for i := range lives {
				tr.run(ctx, t, leakTails())
				lives[i] = tr.rests(t, base)
			}
			t.Logf("2 × %d tails in %v; at rest %d goroutines and %d descriptors; %d bytes live behind the first run, %d behind the second",
				leakTails(), time.Since(began).Round(time.Millisecond), base.Goroutines, base.Descriptors, lives[0], lives[1])
			for _, name := range slices.Sorted(maps.Keys(tr.tried)) {
				t.Logf("%6d %s", tr.tried[name], name)
			}
			if more := int64(lives[1]) - int64(lives[0]); more > grown { //nolint:gosec // no heap is that large
				t.Errorf("%d bytes more live behind the second run than behind the first", more)
			}
		})
	}
}
