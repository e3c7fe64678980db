package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"sluice/bench/failover"
	"sluice/internal/ursulatest"
	"sluice/internal/ursulatest/realursula"
)

// The trials of the network: each node is reached through a TCP proxy that can
// break what passes, in the middle of whatever is under way.

// wire is the proxy before one node.
type wire struct {
	*toxiproxy.Proxy
	names []string // of the toxics that are in it now
}

func newWire(t *testing.T, name, node string) *wire {
	t.Helper()
	zerolog.SetGlobalLevel(zerolog.Disabled) // one of the toxics logs past the logger that it is given
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	w := &wire{Proxy: toxiproxy.NewProxy(server, name, "127.0.0.1:0", node)}
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w
}

func (w *wire) url() string { return "http://" + w.Listen }

// toxic is one thing that a wire does to what passes in one direction: upstream
// are requests, downstream answers. The types and attributes are toxiproxy's.
type toxic struct {
	kind, stream string
	attributes   map[string]int
}

// wireFault is what happens to a wire for a while.
type wireFault struct {
	name   string
	toxics func(*rand.Rand) []toxic // none = the proxy refuses connections, and cuts those that stand
	hold   time.Duration
	bites  bool // clients see it: somebody must try again
}

const (
	requests, replies = "upstream", "downstream"
	// While it lasts nobody is told of a timeout (5 s, facts §4.3), after which a
	// keyless producer would go on and its late line come behind the next one.
	longFault  = 2500 * time.Millisecond // a node that is silent for so long is out of selection
	shortFault = 800 * time.Millisecond
	forAges    = 3_600_000 // ms
)

func wireFaults() map[string]wireFault {
	one := func(kind, stream, attribute string, value func(*rand.Rand) int) func(*rand.Rand) []toxic {
		return func(r *rand.Rand) []toxic {
			return []toxic{{kind, stream, map[string]int{attribute: value(r)}}}
		}
	}
	both := func(kind string, attributes map[string]int) func(*rand.Rand) []toxic {
		return func(*rand.Rand) []toxic { return []toxic{{kind, requests, attributes}, {kind, replies, attributes}} }
	}
	few := func(r *rand.Rand) int { return 1 + r.IntN(700) } // bytes: heads and bodies of this load have some hundred
	soon := func(r *rand.Rand) int { return r.IntN(50) }
	none := func(*rand.Rand) int { return 0 }
	ages := func(*rand.Rand) int { return forAges }
	list := []wireFault{
		{"cut in a request", one("limit_data", requests, "bytes", few), shortFault, true},
		{"cut in an answer", one("limit_data", replies, "bytes", few), shortFault, true},
		{"reset at a request", one("reset_peer", requests, "timeout", soon), shortFault, true},
		{"reset at an answer", one("reset_peer", replies, "timeout", soon), shortFault, true},
		{"refused", nil, shortFault, true},
		// What is held back arrives when the fault ends: late, and maybe a second time.
		{"requests held", one("latency", requests, "latency", ages), longFault, false},
		{"answers held", one("latency", replies, "latency", ages), longFault, false},
		// Half open: one direction is dead, and neither end is told.
		{"requests lost", one("timeout", requests, "timeout", none), longFault, true},
		{"answers lost", one("timeout", replies, "timeout", none), longFault, true},
		{"blackhole", both("timeout", map[string]int{"timeout": 0}), longFault, true},
		{"slow", both("bandwidth", map[string]int{"rate": 2}), shortFault, false}, // KB/s
		{"late", both("latency", map[string]int{"latency": 150, "jitter": 100}), shortFault, false},
		{"byte by byte", both("slicer", map[string]int{"average_size": 1, "size_variation": 0, "delay": 20}), shortFault, false}, // µs
	}
	byName := make(map[string]wireFault, len(list))
	for _, f := range list {
		byName[f.name] = f
	}
	return byName
}

// within fails the test when the proxy itself hangs.
func within(t *testing.T, what string, do func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- do() }()
	patience := time.NewTimer(20 * time.Second)
	defer patience.Stop()
	select {
	case err := <-done:
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	case <-patience.C:
		t.Fatalf("%s: the proxy hangs", what)
	}
}

// poison begins a fault; connections that stand get it too.
func (w *wire) poison(t *testing.T, f wireFault, r *rand.Rand) {
	t.Helper()
	if f.toxics == nil {
		within(t, f.name, func() error { w.Stop(); return nil })
		return
	}
	for _, x := range f.toxics(r) {
		name := x.kind + " of " + x.stream
		text, err := json.Marshal(map[string]any{"name": name, "type": x.kind, "stream": x.stream, "attributes": x.attributes})
		if err != nil {
			t.Fatal(err)
		}
		within(t, f.name, func() error {
			_, err := w.Toxics.AddToxicJson(strings.NewReader(string(text)))
			return err
		})
		w.names = append(w.names, name)
	}
}

// heal ends every fault of the wire.
func (w *wire) heal(t *testing.T) {
	t.Helper()
	for _, name := range w.names {
		within(t, "the end of "+name, func() error { return w.Toxics.RemoveToxic(t.Context(), name) })
	}
	w.names = nil
	if !w.Enabled {
		within(t, "the start", w.Start)
	}
}

// toxicTrial is a trial whose gateways know the nodes by their wires.
type toxicTrial struct {
	*trial
	wires  []*wire
	leader func(t *testing.T) int // index of the node that leads the group with tails
}

// newToxicTrial starts nodes behind wires, the real ones or the stand-in, and two
// gateways.
func newToxicTrial(t *testing.T, ursula bool, perGroup int) *toxicTrial {
	t.Helper()
	tt := &toxicTrial{trial: &trial{}}
	if ursula {
		tt.nodes = realursula.StartClusterBehind(t, clusterNodes, func(id int, address string) string {
			tt.wires = append(tt.wires, newWire(t, fmt.Sprint("node", id), address))
			return tt.wires[id-1].url()
		})
		tt.leader = func(t *testing.T) int { t.Helper(); return tt.trial.leader(t).NodeID - 1 }
	} else {
		tt.standIn(t)
	}
	fronts := make([]*realursula.Server, 0, len(tt.wires))
	for _, w := range tt.wires {
		fronts = append(fronts, &realursula.Server{URL: w.url()})
	}
	first := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	tt.paths = failover.Paths(clusterGroups, perGroup, func(i int) string { return first.path(fmt.Sprintf("load-%d", i)) })
	second := &edge{Account: first.Account, Key: first.Key, Reads: first.Reads}
	for i, e := range []*edge{first, second} {
		tt.edges[i] = e.start(t, trialFile(e, fronts, slices.Concat(tt.paths...)), nil)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for i, e := range tt.edges {
				t.Logf("log of gateway %d, but for what went well:\n%s", i+1, troubles(e.Log.String()))
			}
		}
	})
	return tt
}

// standIn runs the stand-in behind wires. Its redirects name its own addresses, so
// its followers answer by a fault that names the leader's wire.
func (tt *toxicTrial) standIn(t *testing.T) {
	t.Helper()
	cluster := ursulatest.New(ursulatest.Options{Nodes: clusterNodes})
	if err := cluster.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cluster.Close() })
	for i, url := range cluster.URLs() {
		tt.wires = append(tt.wires, newWire(t, fmt.Sprint("node", i+1), strings.TrimPrefix(url, "http://")))
	}
	for i := 1; i < clusterNodes; i++ {
		cluster.Node(i).SetFault(func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodGet && r.URL.Query().Get("live") == "" || r.Method == http.MethodHead {
				return false // a follower answers these
			}
			w.Header().Set("Location", tt.wires[0].url()+r.RequestURI)
			w.Header().Set("X-Ursula-Raft-Leader-Id", "1")
			w.WriteHeader(http.StatusTemporaryRedirect)
			return true
		})
	}
	tt.leader = func(*testing.T) int { return 0 }
}
