package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestWriteOutcomes is the promise of design §4, for random scripts of clients
// and nodes: no answer proves that nothing was applied for a write that a node may
// have that did not refuse it, none but a keyed append reaches two such nodes, and
// its repetition is answered by a 2xx only. What else a walk owes stands with the
// checks below.
//
// Each seed is a script (script_test.go). SLUICE_SCRIPTS says how many are run
// (2,000; 1,000,000 with SLUICE_SOAK=1), SLUICE_SEED runs one only.
func TestWriteOutcomes(t *testing.T) {
	first, count := uint64(1), uint64(2_000)
	if os.Getenv("SLUICE_SOAK") == "1" {
		count = 1_000_000
	}
	number := func(name string, into *uint64) bool {
		text := os.Getenv(name)
		if text == "" {
			return false
		}
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		*into = n
		return true
	}
	number("SLUICE_SCRIPTS", &count)
	single := number("SLUICE_SEED", &first)
	if single {
		count = 1
	}
	// net/http's transport tells the standard logger of bytes that nobody asked for.
	log.SetOutput(io.Discard)
	t.Cleanup(func() { log.SetOutput(os.Stderr) })
	var seen tally
	t.Run("scripts", func(t *testing.T) {
		var failed atomic.Bool
		const shards = uint64(8) // as many at a time as there are processors
		for shard := range shards {
			t.Run(strconv.FormatUint(shard, 10), func(t *testing.T) {
				t.Parallel()
				for i := shard; i < count && !failed.Load(); i += shards {
					s := draw(first + i)
					if faults := play(t, s, &seen); len(faults) > 0 {
						failed.Store(true)
						report(t, s, faults)
					}
				}
			})
		}
	})
	t.Log(seen.String())
	if !single && count >= 2_000 {
		seen.wantAll(t)
	}
}

// report prints a script that failed, and the least that still does.
func report(t *testing.T, s script, faults []string) {
	t.Helper()
	rule, _, _ := strings.Cut(faults[0], ":")
	small := s.shrink(1500, func(c script) bool {
		for range 3 { // what happens at one instant happens in any order
			for _, fault := range play(t, c, nil) {
				if strings.HasPrefix(fault, rule+":") {
					faults = []string{fault}
					return true
				}
			}
		}
		return false
	})
	t.Errorf("SLUICE_SEED=%d: %s\nin %sof which this is enough:\n%s", s.Seed, strings.Join(faults, "\n"), s, small)
}

// askKey is the key of an ask's number in its context.
type askKey struct{}

// trial is one run of a script.
type trial struct {
	script script
	start  time.Time
	pool   *Pool
	nodes  []*scriptedNode
	byHost map[string]*scriptedNode
	over   chan struct{}
	served sync.WaitGroup

	mu       sync.Mutex
	receipts []*receipt
	failures []failedDial
	all      []*link
	outcomes []outcome
	open     int // connections that the pool has left open
	closing  time.Duration
}

// failedDial is a connection that did not come about, begun after that many
// receipts.
type failedDial struct{ ask, node, after int }

// outcome is what a client got.
type outcome struct {
	begun, ended time.Duration
	left, stuck  bool
	leftAt       time.Duration
	err, readErr error
	status       int
	tags         []string
	text         string
}

func (t *trial) since() time.Duration { return time.Since(t.start) }

// receive notes a request whose first bytes are being written. t.mu is held.
func (t *trial) receive(l *link, number int, p []byte) *receipt {
	rc := &receipt{ask: number, node: l.node.number, serial: len(t.receipts), link: l, at: t.since()}
	rc.kept = l.count > 0 || l.ask != number || l.at < rc.at
	if n := l.node; len(n.deeds) > 0 {
		rc.deed, n.deeds = n.deeds[0], n.deeds[1:]
	}
	rc.refuses = rc.deed.Say == sayRefusal
	rc.head = strings.Index(string(p[:min(len(p), 2000)]), "\r\n\r\n") + 4
	rc.total = rc.head + t.script.Asks[number].Size
	t.receipts = append(t.receipts, rc)
	return rc
}

// dialFailed notes a failed connection. t.mu is held.
func (t *trial) dialFailed(number int, ok bool, n *scriptedNode, after int) {
	if ok {
		t.failures = append(t.failures, failedDial{number, n.number, after})
	}
}

// play runs a script in a bubble of its own, and says what was wrong.
func play(t *testing.T, s script, seen *tally) (faults []string) {
	t.Helper()
	tr := &trial{script: s, byHost: map[string]*scriptedNode{}, outcomes: make([]outcome, len(s.Asks))}
	defer func() {
		if r := recover(); r != nil {
			faults = append(faults, fmt.Sprintf("goroutines: %v", r))
		}
	}()
	// A trial whose own clock runs on for ever says so, with its seed.
	stuck := time.AfterFunc(2*time.Minute, func() { panic(fmt.Sprintf("SLUICE_SEED=%d does not end", s.Seed)) })
	defer stuck.Stop()
	synctest.Test(t, func(t *testing.T) { tr.run(t) })
	seen.count(tr)
	return tr.check()
}

func (t *trial) run(tt *testing.T) {
	t.start, t.over = time.Now(), make(chan struct{})
	for i := range t.script.Hosts {
		n := &scriptedNode{trial: t, number: i, host: hostOf(i), deeds: t.script.Deeds[i], dials: t.script.Dials[i]}
		for _, s := range t.script.Spells {
			if s.Node != i {
				continue
			}
			n.spells = append(n.spells, s)
			if s.What == down {
				t.served.Go(func() {
					if t.sleep(tt.Context(), nil, s.From) == nil {
						n.kill(0)
					}
				})
			}
		}
		t.nodes, t.byHost[n.host] = append(t.nodes, n), n
	}
	var err error
	if t.pool, err = New(Options{Dial: t.dial}); err != nil {
		tt.Fatal(err)
	}
	// Probes do not go over connections here: thousands of scripts would pay for
	// what the tests of probes hold.
	t.pool.prober.RegisterProtocol("http", t)
	t.pool.asker.RegisterProtocol("http", t)
	list := make([]int, t.script.Listed)
	for i := range list {
		list[i] = i
	}
	t.configure(tt, list, t.script.Groups)
	t.pool.next.Store(t.script.First)
	ctx, cancel := context.WithCancel(tt.Context())
	var changes, clients sync.WaitGroup
	for _, set := range t.script.Sets {
		changes.Go(func() {
			if t.sleep(ctx, nil, set.At) == nil {
				t.configure(tt, set.Nodes, set.Groups)
			}
		})
	}
	for i, a := range t.script.Asks {
		if !a.Together {
			clients.Wait()
		}
		time.Sleep(a.Gap)
		clients.Go(func() { t.client(i, a) })
	}
	clients.Wait()
	cancel()
	changes.Wait()
	t.end()
}

// end closes the pool, and then the nodes.
func (t *trial) end() {
	begun := t.since()
	t.pool.Close()
	t.closing = t.since() - begun
	// What was in use a moment ago ends at once; what was being connected, as soon
	// as it is.
	for _, wait := range []time.Duration{200 * time.Millisecond, time.Minute} {
		time.Sleep(wait)
		synctest.Wait()
		t.open += t.unclosed()
	}
	close(t.over)
	for _, l := range t.all {
		l.hangUp(true)
		_ = l.Close()
	}
	t.served.Wait()
}

// unclosed counts the connections that the pool holds.
func (t *trial) unclosed() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.all {
		select {
		case <-l.gone:
		default:
			n++
		}
	}
	return n
}

func (t *trial) configure(tt *testing.T, nodes []int, groups int) {
	urls := make([]string, len(nodes))
	for i, n := range nodes {
		urls[i] = "http://" + hostOf(n)
	}
	if err := t.pool.SetNodes(urls, groups); err != nil {
		tt.Error(err)
	}
}

// patience is how long a client reads an answer's body for.
const patience = 3 * time.Second

func (t *trial) client(i int, a ask) {
	out := &t.outcomes[i]
	out.begun = t.since()
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), askKey{}, i))
	defer cancel()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if !out.left {
			out.left, out.leftAt = true, t.since()
		}
		cancel()
	}
	if a.Leave > 0 {
		timer := time.AfterFunc(a.Leave, leave)
		defer timer.Stop()
	}
	guard := time.AfterFunc(10*time.Minute, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		out.stuck = true
		cancel()
	})
	defer guard.Stop()
	path := "/acme/s." + strconv.Itoa(a.Stream)
	req, err := http.NewRequestWithContext(ctx, a.Kind.method(), "http://gateway"+path+askMark+strconv.Itoa(i), nil)
	if err != nil {
		out.err = err
		return
	}
	res, err := t.pool.Send(ctx, req, Meta{
		Path: path, Body: a.body(i), Read: a.Kind.read(), Keyed: a.Kind == askKeyed,
		CatchUp: a.CatchUp, Spread: a.Spread, LongPoll: a.Poll > 0, Wait: a.Poll,
	})
	out.ended = t.since()
	if err != nil {
		out.err = err
		return
	}
	defer func() { _ = res.Body.Close() }()
	out.status, out.tags = res.StatusCode, res.Header.Values(tagHeader)
	timer := time.AfterFunc(patience, leave)
	defer timer.Stop()
	last := time.AfterFunc(2*patience, func() { _ = res.Body.Close() })
	defer last.Stop()
	text, err := io.ReadAll(res.Body)
	out.text, out.readErr = string(text), err
}

// tally counts what was seen, so that a script language that has stopped to bring
// something about is noticed.
type tally struct {
	mu   sync.Mutex
	seen map[string]int
	slow time.Duration
}

func (y *tally) count(t *trial) {
	if y == nil {
		return
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.seen == nil {
		y.seen = map[string]int{}
	}
	y.seen["scripts"]++
	for i, a := range t.script.Asks {
		out := &t.outcomes[i]
		y.slow = max(y.slow, out.ended-out.begun)
		class := a.Kind.String()
		var own *Error
		switch {
		case errors.As(out.err, &own):
			y.seen[class+" "+own.Kind.String()]++
		case out.err != nil:
			y.seen[class+" left"]++
		default:
			y.seen[class+" "+statusClass(out.status)]++
		}
		having := 0
		for _, rc := range t.receipts {
			if rc.ask == i && rc.mayHave() {
				having++
			}
		}
		if having > 1 {
			y.seen[class+" twice"]++
			if out.err == nil {
				y.seen[class+" twice, answered"]++
			}
		}
	}
}

func (y *tally) String() string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(y.seen)) {
		fmt.Fprintf(&b, "%s: %d, ", key, y.seen[key])
	}
	return fmt.Sprintf("%slongest walk %v", b.String(), y.slow)
}

func (y *tally) wantAll(t *testing.T) {
	t.Helper()
	for k := range askKinds {
		for _, what := range []string{"2xx", "4xx", "5xx", "no_upstream", "unreachable", "no_leader", "failed", "timed_out", "left"} {
			if y.seen[k.String()+" "+what] == 0 {
				t.Errorf("no script led to: %s %s", k, what)
			}
		}
	}
	for _, what := range []string{"read twice, answered", "keyed twice, answered", "keyed twice"} {
		if y.seen[what] == 0 {
			t.Errorf("no script led to: %s", what)
		}
	}
}
