package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/internal/redistest"
)

// redisFault is a way in which Redis goes away, and comes back.
type redisFault struct {
	name  string
	begin func(t *testing.T)
	end   func(t *testing.T)
	// harmless: nobody has to do without Redis for it.
	harmless bool
	// brief: it may be over before the gauge is looked at.
	brief bool
}

// directFaults are those of the server itself.
func directFaults(server *redistest.Server) []redisFault {
	signal := func(send func() error) func(t *testing.T) {
		return func(t *testing.T) {
			t.Helper()
			if err := send(); err != nil {
				t.Fatal(err)
			}
		}
	}
	return []redisFault{
		{name: "stopped", begin: func(*testing.T) { server.Kill() }, end: func(t *testing.T) { t.Helper(); server.Restart(t) }},
		{name: "frozen", begin: signal(server.Pause), end: signal(server.Cont)},
		{name: "scripts flushed", harmless: true, begin: func(t *testing.T) {
			t.Helper()
			if err := server.Client(t).ScriptFlush(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		}, end: func(*testing.T) {}},
	}
}

// proxiedFaults are those that no server can be made to have.
func proxiedFaults(proxy *redistest.Proxy) []redisFault {
	rule := func(name string, r func(int, []string) redistest.Fault) redisFault {
		return redisFault{name: name, begin: func(*testing.T) { proxy.Rule(r) }, end: func(*testing.T) { proxy.Rule(nil) }}
	}
	return []redisFault{
		rule("blackholed", redistest.All(redistest.Fault{Hang: true})),
		rule("LOADING", redistest.All(redistest.Fault{Error: "LOADING Redis is loading the dataset in memory"})),
		rule("READONLY", redistest.Scripts(redistest.Fault{Error: "READONLY You can't write against a read only replica."})),
	}
}

const (
	// waitsForRedis is the longest that a request waits for Redis (design §6), and
	// busyFor what a machine that does other things may add in a test.
	waitsForRedis = 50 * time.Millisecond
	busyFor       = 200 * time.Millisecond
)

// faultTime is how long a fault lasts.
func faultTime() time.Duration {
	if soak() {
		return 10 * time.Second
	}
	return 800 * time.Millisecond
}

const unlimited = "requests_per_second: 100000, burst: 100000, open_tails: 1000, uploads: 1000, upload_bytes: 1GiB"

// mixedLoad is 200 requests a second of all kinds that limits are asked for.
type mixedLoad struct {
	stop  func()
	all   chan []outcome
	stall chan time.Duration // the longest that the machine had no time for this process
}

func startMixedLoad(t *testing.T, r *replica, a payer) *mixedLoad {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &mixedLoad{stop: cancel, all: make(chan []outcome, 1), stall: make(chan time.Duration, 1)}
	c := loadClient(t)
	go func() { l.stall <- longestStall(ctx) }()
	go func() {
		var mu sync.Mutex
		all := make([]outcome, 0, 1<<10)
		var wait sync.WaitGroup
		for kind, perSecond := range map[string]float64{"read": 177, "tail": 20, "upload": 3} {
			wait.Go(func() {
				some := r.load(ctx, c, a, kind, perSecond)
				mu.Lock()
				defer mu.Unlock()
				all = append(all, some...)
			})
		}
		wait.Wait()
		l.all <- all
	}()
	t.Cleanup(cancel)
	return l
}

// finish ends the load and returns what became of its requests, and the longest that
// the machine was busy with something else meanwhile.
func (l *mixedLoad) finish() (all []outcome, stall time.Duration) {
	l.stop()
	return <-l.all, <-l.stall
}

// longestStall is by how much a tick was late at the most until ctx ends.
func longestStall(ctx context.Context) (longest time.Duration) {
	const every = 5 * time.Millisecond
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return longest
		case <-ticker.C:
			now := time.Now()
			last, longest = now, max(longest, now.Sub(last)-every)
		}
	}
}

// slowest is the longest that an answer took, by kind.
func slowest(all []outcome) map[string]time.Duration {
	took := map[string]time.Duration{}
	for _, o := range all {
		took[o.kind] = max(took[o.kind], o.took)
	}
	return took
}

// L02, L04: Redis that refuses, hangs, is frozen, loads or has become read-only was
// passed on to clients as 4xx or 5xx, or each request waited for it. Under a load of
// 200 requests a second of all kinds nothing but the limits' keepers notices: every
// request is let in and answered, none waits more than 50 ms, a tail that is open goes
// on, the gauge and one log line tell, and within 5 s of its return limits are shared.
func TestRedisFaultsUnderLoad(t *testing.T) {
	t.Run("direct", func(t *testing.T) {
		server := redistest.Start(t)
		endureAll(t, "url: redis://"+server.Addr, directFaults(server))
	})
	t.Run("through a network", func(t *testing.T) {
		proxy := redistest.StartProxy(t, redistest.Start(t).Addr)
		endureAll(t, "url: redis://"+proxy.Addr, proxiedFaults(proxy))
	})
	if !soak() {
		return
	}
	t.Run("Sentinel", func(t *testing.T) {
		s := redistest.StartSentinel(t)
		endureAll(t, fmt.Sprintf("addrs: [%q], master_name: %s", s.Addr, s.MasterName), []redisFault{
			{name: "failed over", brief: true, begin: func(t *testing.T) { t.Helper(); s.Failover(t) }, end: func(*testing.T) {}},
			{name: "master killed", begin: func(t *testing.T) { t.Helper(); s.Master(t).Kill() }, end: func(t *testing.T) { t.Helper(); s.AwaitOther(t, s.Servers[1]) }},
		})
	})
	t.Run("Cluster", func(t *testing.T) {
		c := redistest.StartCluster(t)
		faults := make([]redisFault, 0, len(c.Nodes))
		for i, node := range c.Nodes {
			faults = append(faults, redisFault{
				name: fmt.Sprint("master ", i, " stopped"), begin: func(*testing.T) { node.Kill() }, end: func(t *testing.T) { t.Helper(); node.Restart(t) },
			})
		}
		endureAll(t, fmt.Sprintf(`addrs: ["%s"], mode: cluster`, strings.Join(c.Addrs(), `", "`)), faults)
	})
}

// endureAll holds one replica to what is promised through one fault after the other.
func endureAll(t *testing.T, redis string, faults []redisFault) {
	t.Helper()
	a := newPayer(t, unlimited)
	r := startReplicas(t, 1, replicaFile([]string{standIn(t)}, redis, a))[0]
	c := loadClient(t)
	tail := r.openTail(t, c, a)
	events := bufio.NewReader(tail.Body)
	readEvent(t, events)
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) { r.endure(t, a, f) })
	}
	// The tail has been open all the while, and is the one that is.
	appendEvent(t, r, c, a)
	got := readEvent(t, events)
	for strings.HasPrefix(got, ":") { // heartbeats
		got = readEvent(t, events)
	}
	if !strings.Contains(got, "still here") {
		t.Errorf("the tail reads %q", got)
	}
	eventually(t, "one tail is open", func() bool { return r.gauge(t, "sluice_open_tails") == 1 })
	tail.close()
	eventually(t, "no tail is open", func() bool { return r.gauge(t, "sluice_open_tails") == 0 })
	r.checkLog(t)
}

// appendEvent adds an event to the stream that tails read.
func appendEvent(t *testing.T, r *replica, c *http.Client, a payer) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.URL+a.path("json"), strings.NewReader(`"still here"`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+a.key)
	req.Header.Set("Content-Type", edgeStreams["json"])
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusNoContent {
		t.Fatalf("append: %d", res.StatusCode)
	}
}

// checkLog wants no line above info but those that tell of Redis.
func (r *replica) checkLog(t *testing.T) {
	t.Helper()
	for _, entry := range r.entries(t) {
		level, message := entry["level"], entry["message"]
		if text, ok := message.(string); level != "info" && (!ok || !strings.HasPrefix(text, "Redis is lost") && !strings.HasPrefix(text, "configuration: ")) {
			t.Errorf("a line in the log: %v", entry)
		}
	}
}

// endure holds the replica to what is promised of a Redis that goes away and comes
// back under load.
func (r *replica) endure(t *testing.T, a payer, f redisFault) {
	load := startMixedLoad(t, r, a)
	hold := func(d time.Duration) { <-time.After(d) }
	hold(faultTime() / 2)
	// On a busy machine Redis may have been slow once: that is told of to its end first.
	eventually(t, "no loss is being told of", func() bool { return r.lines(t, saysShared) == r.lines(t, saysLost)+1 })
	before := [2]int{r.lines(t, saysLost), r.lines(t, saysShared)}
	lost := time.Now()
	f.begin(t)
	if !f.harmless && !f.brief {
		eventually(t, "the gauge says degraded", func() bool { return r.gauge(t, "sluice_redis_degraded") == 1 })
		t.Logf("degraded %v after the fault", time.Since(lost).Round(time.Millisecond))
	}
	hold(faultTime() - time.Since(lost))
	f.end(t)
	back := time.Now()
	eventually(t, "limits are shared again", func() bool { return r.gauge(t, "sluice_redis_degraded") == 0 })
	took := time.Since(back)
	t.Logf("shared %v after Redis is back", took.Round(time.Millisecond))
	if took > sharedWithin {
		t.Errorf("limits are shared only %v after Redis is back, want %v", took, sharedWithin)
	}
	all, stall := load.finish()
	for _, o := range all {
		if !o.ok() || o.err != nil {
			t.Errorf("%v, begun %v after the fault", o, o.begun.Sub(lost).Round(time.Millisecond))
		}
	}
	checkWaits(t, all, stall, lost)
	if kinds := slowest(all); len(kinds) != 3 {
		t.Errorf("only %v were asked for", kinds)
	}
	during := slices.DeleteFunc(slices.Clone(all), func(o outcome) bool { return o.begun.Before(lost) || o.begun.After(back) })
	t.Logf("%d requests, %d during the fault; the slowest %v", len(all), len(during), slowest(during))
	want := 1
	if f.harmless {
		want = 0
	}
	eventually(t, "the log tells of the change", func() bool { return r.lines(t, saysShared) >= before[1]+want })
	if got := r.losses(t)[before[0]:]; len(got) < want || len(withoutSlow(got)) > want {
		t.Errorf("the log tells of the losses %q, want %d", got, want)
	}
}

// losses are the causes of all losses that the log tells of. Each is told of once, and
// so is each return.
func (r *replica) losses(t *testing.T) []string {
	t.Helper()
	var causes []string
	lost, shared := false, false
	for i, entry := range r.entries(t) {
		text, ok := entry["message"].(string)
		switch {
		case ok && strings.HasPrefix(text, "Redis is lost"):
			if cause, ok := entry["error"].(string); ok && !lost {
				causes = append(causes, cause)
			} else {
				t.Errorf("line %d tells of a loss again, or of no cause: %v", i, entry)
			}
			lost = true
		case ok && strings.HasPrefix(text, "limits are counted over all replicas"):
			if !lost && shared { // not the first time
				t.Errorf("line %d tells of a return again: %v", i, entry)
			}
			lost, shared = false, true
		}
	}
	return causes
}

// withoutSlow leaves out what a busy machine may add to any trial: a Redis that did
// not answer in time.
func withoutSlow(causes []string) []string {
	return slices.DeleteFunc(slices.Clone(causes), func(c string) bool { return strings.Contains(c, "did not answer in time") })
}

// checkWaits wants no request to have waited for Redis for longer than it may. The
// machine may be busy with something else at any of them, but not at many, unless this
// process has seen how busy it is (a request goes through two more, each of which may be
// kept waiting as long), or as many were late before the fault.
func checkWaits(t *testing.T, all []outcome, stall time.Duration, fault time.Time) {
	t.Helper()
	busyFor := max(busyFor, 3*stall)
	before, lateBefore := 0, 0
	counts, late := map[string]int{}, map[string]int{}
	for _, o := range all {
		counts[o.kind]++
		limit := waitsForRedis + busyFor
		if o.kind == "upload" { // a mebibyte takes its time by itself
			limit += 2 * busyFor
		}
		if o.took > limit {
			late[o.kind]++
		}
		if o.begun.Before(fault) {
			before++
			if o.took > limit {
				lateBefore++
			}
		}
		if o.took > limit+4*busyFor {
			t.Errorf("%v: want no wait of more than %v for Redis", o, waitsForRedis)
		}
	}
	for kind, n := range late {
		if n > 1+counts[kind]/10 && lateBefore <= before/20 {
			t.Errorf("%d of %d requests (%s) were late", n, counts[kind], kind)
		}
	}
}

// L03: a Redis that is not there at the start, or hangs, or loads, kept the gateway
// from starting, or was never joined later.
func TestRedisFaultsAtStart(t *testing.T) {
	node := []string{standIn(t)}
	for _, name := range []string{"absent", "frozen", "LOADING"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var address string
			var heal func()
			if name == "absent" {
				address = redistest.Refusing(t)
				heal = func() { redistest.StartAt(t, address) }
			} else {
				server := redistest.Start(t)
				proxy := redistest.StartProxy(t, server.Addr)
				address = proxy.Addr
				faults := map[string]redisFault{}
				for _, f := range append(directFaults(server), proxiedFaults(proxy)...) {
					faults[f.name] = f
				}
				faults[name].begin(t)
				heal = func() { faults[name].end(t) }
			}
			a := newPayer(t, unlimited)
			r := startReplica(t, replicaFile(node, "url: redis://"+address, a))
			r.awaitReady(t)
			c := loadClient(t)
			all := make([]outcome, 0, 60)
			for range 20 {
				for _, kind := range []string{"read", "tail", "upload"} {
					o := r.try(c, a, kind)
					if all = append(all, o); !o.ok() {
						t.Errorf("without Redis: %v", o)
					}
				}
			}
			checkWaits(t, all, 0, time.Time{})
			if got := r.gauge(t, "sluice_redis_degraded"); got != 1 {
				t.Errorf("the gauge says %v", got)
			}
			heal()
			back := time.Now()
			eventually(t, "limits are shared", func() bool { return r.gauge(t, "sluice_redis_degraded") == 0 })
			if took := time.Since(back); took > sharedWithin {
				t.Errorf("limits are shared only %v after Redis is there, want %v", took, sharedWithin)
			}
			if o := r.try(c, a, "tail"); !o.ok() {
				t.Errorf("with Redis: %v", o)
			}
			eventually(t, "the log tells", func() bool { return r.lines(t, saysShared) >= 1 })
			if got := r.losses(t); len(got) < 1 || len(withoutSlow(got)) > 1 {
				t.Errorf("the log tells of the losses %q, want one", got)
			}
			r.checkLog(t)
		})
	}
}
