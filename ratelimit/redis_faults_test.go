package ratelimit_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/internal/redistest"
	"sluice/ratelimit"
)

const (
	// wait is the longest that a request waits for Redis (design §6), and slack what
	// a loaded machine may add.
	wait  = 50 * time.Millisecond
	slack = 200 * time.Millisecond
)

// generous are limits that no test here uses up.
func generous() ratelimit.Rate { return ratelimit.Rate{PerSecond: 1_000_000, Burst: 1_000_000} }

// goesOn wants requests to be decided without Redis, and without waiting for it.
func goesOn(t *testing.T, r *ratelimit.Redis, within time.Duration) {
	t.Helper()
	for range 20 {
		began := time.Now()
		if !r.Allow(acme(), generous()).Allowed {
			t.Fatal("a request is refused")
		}
		lease, err := r.Acquire(context.Background(), acme(), 100)
		if err != nil {
			t.Fatalf("a tail is refused: %v", err)
		}
		upload, err := r.AcquireUpload(context.Background(), acme(), ratelimit.UploadLimits{Uploads: 100, Bytes: 100}, 1)
		if err != nil {
			t.Fatalf("an upload is refused: %v", err)
		}
		upload.Release()
		lease.Release()
		if took := time.Since(began); took > within {
			t.Errorf("a request took %v, want at most %v", took, within)
		}
	}
}

// L02: a Redis that refused connections was answered with 4xx or 5xx, or each
// request waited for retries.
func TestRedisStopped(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := watch(t, ratelimit.Options{Servers: at(server.Addr)})
	held := open(t, r, acme(), 3, 3)
	server.Kill()
	goesOn(t, r.Redis, slack)
	if cause := r.degrades(t, patient).cause; cause == nil {
		t.Error("no cause is told")
	}
	// The limits are still there, and what was open before counts.
	full(t, r, acme(), 3)
	server.Restart(t)
	r.shares(t)
	full(t, r, acme(), 3)
	if n, _ := slotsIn(t, server.Client(t), "sluice", "tails", acme()); n != 3 {
		t.Errorf("the Redis that came back knows of %d tails, want 3", n)
	}
	for _, l := range held {
		l.Release()
	}
	r.quiet(t)
}

// L03: without a Redis at the start, a limiter would not start, or never join.
func TestRedisAbsentAtStart(t *testing.T) {
	t.Parallel()
	addr := redistest.Refusing(t)
	began := time.Now()
	r := watchAny(t, ratelimit.Options{Servers: at(addr)})
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("the start took %v", took)
	}
	if r.degrades(t, patient).cause == nil {
		t.Error("no cause is told")
	}
	goesOn(t, r.Redis, slack)
	held := open(t, r, acme(), 2, 10)
	server := redistest.StartAt(t, addr)
	r.shares(t)
	if n, _ := slotsIn(t, server.Client(t), "sluice", "tails", acme()); n != 2 {
		t.Errorf("Redis knows of %d tails, want the 2 from before it was there", n)
	}
	for _, l := range held {
		l.Release()
	}
	r.quiet(t)
}

// A Redis that hangs: one that is frozen, and a network that swallows everything.
func TestRedisHangs(t *testing.T) {
	t.Parallel()
	for name, hang := range map[string]func(t *testing.T, server *redistest.Server, proxy *redistest.Proxy) (thaw func()){
		"frozen": func(t *testing.T, server *redistest.Server, _ *redistest.Proxy) func() {
			if err := server.Pause(); err != nil {
				t.Fatal(err)
			}
			return func() {
				if err := server.Cont(); err != nil {
					t.Fatal(err)
				}
			}
		},
		"blackholed": func(_ *testing.T, _ *redistest.Server, proxy *redistest.Proxy) func() {
			proxy.Rule(redistest.All(redistest.Fault{Hang: true}))
			return func() { proxy.Rule(nil) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			proxy := redistest.StartProxy(t, server.Addr)
			r := watch(t, ratelimit.Options{Servers: at(proxy.Addr), Wait: wait, CallTimeout: patient})
			thaw := hang(t, server, proxy)
			// All that wait at one time wait together, once.
			var wg sync.WaitGroup
			for i := range 50 {
				wg.Go(func() {
					began := time.Now()
					lease, err := r.Acquire(context.Background(), account(i), 10)
					if err != nil {
						t.Errorf("Acquire: %v", err)
						return
					}
					if took := time.Since(began); took > wait+slack {
						t.Errorf("a request waited %v for Redis, want at most %v", took, wait)
					}
					lease.Release()
				})
			}
			wg.Wait()
			if cause := r.degrades(t, patient).cause; !errors.Is(cause, ratelimit.ErrSlow) {
				t.Errorf("the cause is %v, want ErrSlow", cause)
			}
			// After the first of them nobody waits at all.
			goesOn(t, r.Redis, wait-10*time.Millisecond)
			r.quiet(t)
			thaw()
			r.shares(t)
			goesOn(t, r.Redis, patient)
			// A call that a request no longer waited for may be answered, and taken back, later.
			eventually(t, patient, "no slot is left", func() bool {
				r.Flush()
				n, _ := slotsIn(t, server.Client(t), "sluice", "tails", acme())
				return n == 0
			})
		})
	}
}

// A Redis that is there but too slow for a request to wait for: it is not used, and
// not tried by requests again and again.
func TestSlowRedisIsNotUsed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr)
	r := watch(t, ratelimit.Options{Servers: at(proxy.Addr), Wait: wait})
	proxy.Rule(redistest.Scripts(redistest.Fault{Late: 120 * time.Millisecond}))
	r.fails(t)
	for range 15 {
		goesOn(t, r.Redis, wait-10*time.Millisecond)
		<-time.After(100 * time.Millisecond)
	}
	r.quiet(t)
	proxy.Rule(nil)
	r.shares(t)
}

// L04: errors of a Redis that is not ready were passed on to clients, or taken for
// a good answer; and connections to a server that had become a replica were kept.
func TestRedisAnswersErrors(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for _, text := range []string{
		"LOADING Redis is loading the dataset in memory",
		"READONLY You can't write against a read only replica.",
		"CLUSTERDOWN The cluster is down",
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
		"OOM command not allowed when used memory > 'maxmemory'.",
		"NOSCRIPT No matching script. Please use EVAL.",
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
		"BUSY Redis is busy running a script.",
		"ERR unknown command",
	} {
		t.Run(strings.Fields(text)[0], func(t *testing.T) {
			t.Parallel()
			proxy := redistest.StartProxy(t, server.Addr)
			prefix := strings.ToLower(strings.Fields(text)[0])
			r := watch(t, ratelimit.Options{Servers: at(proxy.Addr), Prefix: prefix})
			held := open(t, r, acme(), 1, 100)
			proxy.Rule(redistest.Scripts(redistest.Fault{Error: text}))
			goesOn(t, r.Redis, slack)
			if cause := r.degrades(t, patient).cause; !strings.Contains(cause.Error(), text) {
				t.Errorf("the cause is %v, want what Redis said", cause)
			}
			// It tries again meanwhile, and does not take each try for a change.
			before := proxy.Conns()
			eventually(t, patient, "further tries", func() bool { return proxy.Conns() > before+1 })
			goesOn(t, r.Redis, slack)
			r.quiet(t)
			proxy.Rule(nil)
			r.shares(t)
			r.Flush()
			if n, _ := slotsIn(t, server.Client(t), prefix, "tails", acme()); n != 1 {
				t.Errorf("Redis knows of %d tails, want 1", n)
			}
			held[0].Release()
		})
	}
}

// L04: after a failover by address, the connections from before still reach the old
// master, which is a replica now, and new ones the new.
func TestReadOnlyConnectionsAreDropped(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr)
	r := watch(t, ratelimit.Options{Servers: at(proxy.Addr)})
	old := proxy.Conns()
	proxy.Rule(func(conn int, command []string) redistest.Fault {
		if conn <= old && strings.HasPrefix(strings.ToUpper(command[0]), "EVAL") {
			return redistest.Fault{Error: "READONLY You can't write against a read only replica."}
		}
		return redistest.Fault{}
	})
	lease := open(t, r, acme(), 1, 1)[0]
	if cause := r.degrades(t, patient).cause; !strings.Contains(cause.Error(), "READONLY") {
		t.Errorf("the cause is %v", cause)
	}
	r.shares(t)
	full(t, r, acme(), 1)
	lease.Release()
	r.quiet(t)
}

// SCRIPT FLUSH, or a server that never saw the scripts, costs nobody anything.
func TestScriptsAreSentAgain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	r := watch(t, ratelimit.Options{Servers: at(server.Addr)})
	for range 3 {
		if err := client.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		goesOn(t, r.Redis, patient)
		r.Flush()
	}
	if r.Degraded() {
		t.Error("degraded")
	}
	r.quiet(t)
}

// L07, for slots: a call that was applied and answered late was taken for one that
// was not, and what it took was taken twice, or never given back.
func TestLateAnswersTakeNoSlotTwice(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr)
	for name, fault := range map[string]redistest.Fault{
		"late": {Late: 200 * time.Millisecond},
		"lost": {Lose: true},
	} {
		r := watch(t, ratelimit.Options{Servers: at(proxy.Addr), Prefix: name, Wait: wait})
		proxy.Rule(redistest.Scripts(fault))
		leases := open(t, r, acme(), 3, 10)
		r.degrades(t, patient)
		leases[0].Release()
		proxy.Rule(nil)
		r.shares(t)
		r.Flush()
		if n, _ := slotsIn(t, server.Client(t), name, "tails", acme()); n != 2 {
			t.Errorf("%s: Redis has %d tails, want the 2 that are open", name, n)
		}
		leases[1].Release()
		leases[2].Release()
		r.Flush()
		if n, _ := slotsIn(t, server.Client(t), name, "tails", acme()); n != 0 {
			t.Errorf("%s: Redis has %d tails, want none", name, n)
		}
		r.quiet(t)
		r.Close()
	}
}

// A call of a session that is over may come to Redis late, when it was on its way
// while Redis was frozen. It must change nothing then.
func TestCallsOfAnOldSessionChangeNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := watch(t, ratelimit.Options{Servers: at(server.Addr), Wait: wait})
	for round := range 5 {
		if err := server.Pause(); err != nil {
			t.Fatal(err)
		}
		leases := open(t, r, acme(), 2, 10)
		r.degrades(t, patient)
		leases[0].Release()
		if err := server.Cont(); err != nil {
			t.Fatal(err)
		}
		r.shares(t)
		r.Flush()
		if n, _ := slotsIn(t, server.Client(t), "sluice", "tails", acme()); n != 1 {
			t.Fatalf("round %d: Redis has %d tails, want the 1 that is open", round, n)
		}
		leases[1].Release()
		r.Flush()
	}
}

// L17: without Redis each replica granted the whole limit, so that four of them
// granted four times as much.
func TestReplicasAloneSplitTheLimit(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	const replicas = 4
	floor := ratelimit.Floor{RequestsPerSecond: 50, OpenTails: 16}
	all := make([]watched, 0, replicas)
	c := &clock{}
	for range replicas {
		all = append(all, watch(t, quickly(ratelimit.Options{Servers: at(server.Addr), Floor: floor, Now: c.now})))
	}
	for _, r := range all {
		eventually(t, patient, "all replicas are known", func() bool { return r.Replicas() == replicas })
	}
	server.Kill()
	for _, r := range all {
		r.degrades(t, patient)
		if r.Replicas() != replicas {
			t.Errorf("%d replicas are known after the loss, want %d", r.Replicas(), replicas)
		}
	}
	for _, tc := range []struct {
		name                 string
		limit, each, sum     int
		tails, eachOfTheTail int
	}{
		{"split", 400, 100, 400, 200, 50},
		{"the floor holds", 100, 50, 200, 20, 16},
		{"never more than the account's own", 40, 40, 160, 3, 3},
	} {
		s := ratelimit.Subject{Account: strings.ReplaceAll(tc.name, " ", "-")}
		rate := ratelimit.Rate{PerSecond: tc.limit, Burst: tc.limit}
		for _, r := range all { // the bursts
			for r.Allow(s, rate).Allowed {
				continue
			}
		}
		sum := 0
		for range 50 {
			c.advance(100 * time.Millisecond)
			for _, r := range all {
				for r.Allow(s, rate).Allowed {
					sum++
				}
			}
		}
		if got := sum / 5; got < tc.sum*75/100 || got > tc.sum*125/100 {
			t.Errorf("%s: all replicas admit %d a second of %d, want %d", tc.name, got, tc.limit, tc.sum)
		}
		for _, r := range all {
			leases := open(t, r, s, tc.eachOfTheTail, tc.tails)
			full(t, r, s, tc.tails)
			for _, l := range leases {
				l.Release()
			}
		}
	}
}

// L12, without Redis: what is kept must not grow with every account that ever asked,
// and nobody gets a new burst by pushing others out.
func TestDegradedIsBoundedAndEvictionRefillsNobody(t *testing.T) {
	t.Parallel()
	c := &clock{}
	r := newRedis(t, ratelimit.Options{Servers: at(redistest.Refusing(t)), Now: c.now})
	rate := ratelimit.Rate{PerSecond: 1, Burst: 1000}
	abuser := ratelimit.Subject{Account: "abuser"}
	const seconds, perSecond = 40, 3000
	abused, most := 0, 0
	for sec := range seconds {
		for i := range perSecond {
			s := account(sec*perSecond + i)
			r.Allow(s, ratelimit.Rate{PerSecond: 50, Burst: 100})
			open(t, r, s, 1, 1)[0].Release()
			if r.Allow(abuser, rate).Allowed {
				abused++
			}
		}
		most = max(most, r.Subjects())
		c.advance(time.Second)
	}
	if want := rate.Burst + (seconds-1)*rate.PerSecond; abused != want {
		t.Errorf("the abuser got %d requests, want %d", abused, want)
	}
	if bound := 256*32 + 2*perSecond + 2; most > bound {
		t.Errorf("%d buckets in memory after %d subjects, want at most %d", most, seconds*perSecond, bound)
	}
	if n := r.Holds(); n != 0 {
		t.Errorf("%d accounts are kept with no tail open", n)
	}
}
