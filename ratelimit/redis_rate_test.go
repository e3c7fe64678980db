package ratelimit_test

import (
	"math"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/internal/redistest"
	"sluice/ratelimit"
)

// levelIn is what Redis has left of acme's bucket.
func levelIn(t *testing.T, client *redis.Client) float64 {
	t.Helper()
	level, err := client.HGet(t.Context(), "sluice:{0}:rate:acme", "l").Float64()
	if err != nil {
		t.Fatalf("read a level: %v", err)
	}
	return level / 1e6
}

// admit asks n times at once, and counts.
func admit(r ratelimit.Limiter, rate ratelimit.Rate, n int) int {
	in := 0
	for range n {
		if r.Allow(acme(), rate).Allowed {
			in++
		}
	}
	return in
}

// pace offers requests to a replica at so many a second until the end, and tells of
// each that is admitted. It returns how long it was at it, which is longer where the
// machine is busy.
func pace(r *ratelimit.Redis, rate ratelimit.Rate, perSecond float64, end time.Time, admitted func()) time.Duration {
	began := time.Now()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for offered := 0; ; <-tick.C {
		now := time.Now()
		for want := int(now.Sub(began).Seconds() * perSecond); offered < want; offered++ {
			if r.Allow(acme(), rate).Allowed {
				admitted()
			}
		}
		if now.After(end) {
			return now.Sub(began)
		}
	}
}

// admissions are the times of those of all replicas.
type admissions struct {
	mu    sync.Mutex
	times []time.Time
}

func (a *admissions) add() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.times = append(a.times, time.Now())
}

// excess is how many more than the rate allows were admitted in any window that
// begins after from.
func (a *admissions) excess(rate ratelimit.Rate, from time.Time) float64 {
	// With f(i) = i - rate·t(i), a window from i to j holds f(j) - f(i) + 1 too many.
	least, most := math.Inf(1), 0.0
	for i, at := range a.times {
		if at.Before(from) {
			continue
		}
		f := float64(i) - at.Sub(from).Seconds()*float64(rate.PerSecond)
		least = min(least, f)
		most = max(most, f-least+1)
	}
	return most
}

// gaps measures the longest time between two passes.
type gaps struct {
	mu      sync.Mutex
	last    time.Time
	longest time.Duration
}

func (g *gaps) pass(int, time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := time.Now(); g.last.IsZero() {
		g.last = now
	} else {
		g.longest, g.last = max(g.longest, now.Sub(g.last)), now
	}
}

// trial is how long the trials of rates take: the 30 s with SLUICE_SOAK=1.
func trial() time.Duration {
	if os.Getenv("SLUICE_SOAK") == "1" {
		return 30 * time.Second
	}
	return 5 * time.Second
}

// The trial: an account at 200 a second, offered 600 unevenly, has its
// whole rate and no more than the bound that Redis states, in any window. Where each
// replica has a fixed share, the small ones waste theirs.
func TestUnevenTrafficHasTheWholeRate(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rate := ratelimit.Rate{PerSecond: 200, Burst: 100}
	const interval = 50 * time.Millisecond
	var in admissions
	var wg sync.WaitGroup
	parts := []float64{0.80, 0.15, 0.05}
	took := trial()
	all, passes := make([]watched, len(parts)), make([]gaps, len(parts))
	for i := range parts {
		all[i] = watch(t, ratelimit.Options{Servers: at(server.Addr), Interval: interval, Events: ratelimit.Events{Pass: passes[i].pass}})
	}
	began := time.Now()
	for i, part := range parts {
		wg.Go(func() { pace(all[i].Redis, rate, 600*part, began.Add(took), in.add) })
	}
	wg.Wait()
	late := interval
	for i, r := range all {
		r.quiet(t)
		r.Close() // no more passes
		late = max(late, passes[i].longest)
	}
	seconds, got := took.Seconds(), float64(len(in.times))
	bound := float64(rate.Burst) + 3*200*2*interval.Seconds()
	if got < 190*seconds || got > 200*seconds+bound {
		t.Errorf("admitted %.0f in %v, want %.0f to %.0f", got, took, 190*seconds, 200*seconds+bound)
	}
	// What is late on a loaded machine widens the bound as a longer interval does.
	bound = float64(rate.Burst) + 3*200*2*late.Seconds()
	steady, whole := in.excess(rate, began.Add(time.Second)), in.excess(rate, began)
	if idle := float64(2 * rate.Burst); steady > bound || whole > bound+idle {
		t.Errorf("a window admits %.0f more than the rate, one from the start on %.0f; want at most %.0f, and %.0f more of bursts", steady, whole, bound, idle)
	}
	t.Logf("admitted %.1f a second; at most %.0f above the rate, %.0f from the start on; passes up to %v apart", got/seconds, steady, whole, late)
}

// All of an account's traffic at one of three replicas: a share each would give it
// a third.
func TestOneReplicaHasTheWholeRate(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	// A burst of a second, so that a test that is not run for a while loses nothing.
	rate := ratelimit.Rate{PerSecond: 200, Burst: 200}
	all := several(t, 3, ratelimit.Options{Servers: at(server.Addr)})
	for i, r := range all {
		began := time.Now()
		in := admit(r, rate, 1000)
		pace(r.Redis, rate, 1000, began.Add(1500*time.Millisecond), func() { in++ })
		took := time.Since(began)
		if want := 200 + 200*took.Seconds(); float64(in) < 0.95*want || float64(in) > want+5 {
			t.Errorf("replica %d admits %d in %v, want the burst of 200 and the whole rate of 200 a second", i, in, took)
		}
		// The next one finds the bucket full again.
		<-time.After(time.Second + 100*time.Millisecond)
	}
}

// What replicas admit beyond the bucket, before they know of each other, is a debt
// that all of them carry.
func TestOverUseIsADebtOfAll(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	rate := ratelimit.Rate{PerSecond: 20, Burst: 50}
	all := several(t, 3, ratelimit.Options{Servers: at(server.Addr)})
	began := time.Now()
	in := 0
	for _, r := range all {
		in += admit(r, rate, 100)
	}
	if in < 149 || in > 170 {
		t.Fatalf("three replicas admit %d at once, want a burst each", in)
	}
	for _, r := range all {
		r.Flush()
	}
	want := float64(rate.Burst-in) + time.Since(began).Seconds()*float64(rate.PerSecond)
	if got := levelIn(t, client); math.Abs(got-want) > 10 {
		t.Errorf("Redis has %.1f left, want about %.1f", got, want)
	}
	// Who told first learns of the rest with its next request at the latest; what it
	// refuses before it has, it may refuse for too short a while.
	for i, r := range all {
		admitted := 0
		var d ratelimit.Decision
		eventually(t, patient, "a replica knows of the debt", func() bool {
			if d = r.Allow(acme(), rate); d.Allowed {
				admitted++
				r.Flush()
			}
			return d.RetryAfter >= 3*time.Second
		})
		if admitted > 1 {
			t.Errorf("replica %d admits %d requests in debt", i, admitted)
		}
		if d.RetryAfter > 20*time.Second {
			t.Errorf("replica %d says to wait %v, want about %v", i, d.RetryAfter, time.Duration(-want/20*float64(time.Second)))
		}
	}
}

// A client that spreads its requests over the replicas, and stops when one of them
// refuses, must be let in after the wait that it was told.
func TestObedientClientIsAdmitted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rate := ratelimit.Rate{PerSecond: 50, Burst: 20}
	all := several(t, 3, ratelimit.Options{Servers: at(server.Addr)})
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	refusals := 0
	for i := 0; refusals < 4; i++ {
		<-tick.C
		d := all[i%3].Allow(acme(), rate)
		if d.Allowed {
			continue
		}
		refusals++
		wait := time.Duration(math.Ceil(d.RetryAfter.Seconds())) * time.Second // as the header says it
		<-time.After(wait)
		if again := all[(i+1)%3].Allow(acme(), rate); !again.Allowed {
			t.Errorf("refusal %d: refused after its wait of %v, told to wait %v more", refusals, d.RetryAfter, again.RetryAfter)
		}
	}
}

// The same of a client that uses up all bursts before the replicas have told each
// other: it was told to wait for one burst, and refused again.
func TestObedientFloodIsAdmitted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rate := ratelimit.Rate{PerSecond: 50, Burst: 60}
	all := known(t, 3, ratelimit.Options{Servers: at(server.Addr)})
	for round := range 2 {
		var d ratelimit.Decision
		for i := 0; d.Allowed || i == 0; i++ {
			d = all[i%3].Allow(acme(), rate)
		}
		<-time.After(time.Duration(math.Ceil(d.RetryAfter.Seconds())) * time.Second)
		for i, r := range all {
			if again := r.Allow(acme(), rate); !again.Allowed {
				t.Errorf("round %d: replica %d refuses after a wait of %v, told to wait %v more", round, i, d.RetryAfter, again.RetryAfter)
			}
		}
		<-time.After(4 * time.Second) // full again
	}
}

// L07: a pass that was applied and whose answer came late was sent again, and its
// requests were charged twice.
func TestLateAnswersChargeNothingTwice(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	for name, fault := range map[string]redistest.Fault{
		"late": {Late: 300 * time.Millisecond},
		"lost": {Lose: true},
		"cut":  {Cut: true},
	} {
		t.Run(name, func(t *testing.T) {
			if err := client.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			proxy := redistest.StartProxy(t, server.Addr)
			rate := ratelimit.Rate{PerSecond: 1, Burst: 1000}
			other := watch(t, ratelimit.Options{Servers: at(server.Addr)})
			r := watch(t, ratelimit.Options{Servers: at(proxy.Addr), CallTimeout: 100 * time.Millisecond})
			began := time.Now()
			sent := admit(other, rate, 1)
			other.Flush()
			sent += admit(r, rate, 1)
			r.Flush()
			for range 3 {
				proxy.Rule(redistest.Scripts(fault))
				sent += admit(r, rate, 100)
				r.degrades(t, patient)
				proxy.Rule(nil)
				r.shares(t)
				// By itself: no further request has to come for it.
				r.Flush()
				if got := levelIn(t, client); got > float64(1000-sent)+time.Since(began).Seconds()+0.1 {
					t.Errorf("%d requests were made, and Redis has %.3f left of 1000 when it is back", sent, got)
				}
				sent += admit(r, rate, 10)
				r.Flush()
			}
			want := float64(1000 - sent)
			if got := levelIn(t, client); got < want-0.001 || got > want+time.Since(began).Seconds()+0.1 {
				t.Errorf("%d requests were made, and Redis has %.3f left of 1000", sent, got)
			}
			r.Close()
			other.Close()
		})
	}
}

// L08: a replica whose own clock is 90 s ahead decides like the others, and a step
// back of Redis' clock by a minute locks nobody out.
func TestClocksDiffer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	// A burst of a second, so that a test that is not run for a while loses nothing.
	rate := ratelimit.Rate{PerSecond: 100, Burst: 100}
	a := watch(t, ratelimit.Options{Servers: at(server.Addr)})
	b := watch(t, ratelimit.Options{Servers: at(server.Addr), Now: func() time.Time { return time.Now().Add(90 * time.Second) }})
	offer := func(when string, burst float64) {
		var in atomic.Int64
		began := time.Now()
		var wg sync.WaitGroup
		for _, r := range []watched{a, b} {
			wg.Go(func() { pace(r.Redis, rate, 300, began.Add(2*time.Second), func() { in.Add(1) }) })
		}
		wg.Wait()
		took := time.Since(began)
		want := burst + 100*took.Seconds()
		// Below by what is still a debt, above by what one of them did not know.
		if got := float64(in.Load()); got < want-50 || got > want+110 {
			t.Errorf("%s: admitted %.0f in %v of 100 a second, want about %.0f", when, got, took, want)
		}
	}
	offer("with clocks that differ", 100)
	da, db := a.Allow(acme(), rate), b.Allow(acme(), rate)
	if diff := (da.RetryAfter - db.RetryAfter).Abs(); diff > time.Second {
		t.Errorf("one says to wait %v, the other %v", da.RetryAfter, db.RetryAfter)
	}
	// As if what is in Redis had been written by a clock that was a minute ahead.
	if err := client.HIncrBy(t.Context(), "sluice:{0}:rate:acme", "t", 60_000_000).Err(); err != nil {
		t.Fatal(err)
	}
	offer("after the clock was set back", 0)
}

// A flush of Redis must be neither a way to a new burst nor to a debt.
func TestFlushKeepsLevels(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	rate := ratelimit.Rate{PerSecond: 1, Burst: 100}
	a, b := watch(t, ratelimit.Options{Servers: at(server.Addr)}), watch(t, ratelimit.Options{Servers: at(server.Addr)})
	in := admit(a, rate, 60)
	a.Flush()
	in += admit(b, rate, 1)
	b.Flush()
	in += admit(a, rate, 1)
	a.Flush()
	for range 3 {
		if err := client.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		for _, r := range []watched{a, b} {
			in += admit(r, rate, 1)
			r.Flush()
		}
	}
	in += admit(a, rate, 1000) + admit(b, rate, 1000)
	// Both knew of about 70 uses, and may use what is left of 100 once each.
	if in < 100 || in > 150 {
		t.Errorf("admitted %d in all, want the burst of 100, and what was left of it once more", in)
	}
}

// What replicas admit by their own limits while Redis is gone is no debt, or an
// account would pay for the outage when it is over; and what they admitted before it
// is one.
func TestAnOutageLeavesNoDebt(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rate := ratelimit.Rate{PerSecond: 50, Burst: 100}
	floor := ratelimit.Floor{RequestsPerSecond: 50}
	a := watch(t, ratelimit.Options{Servers: at(server.Addr), Floor: floor, Wait: wait})
	b := watch(t, ratelimit.Options{Servers: at(server.Addr), Floor: floor, Wait: wait})
	for _, r := range []watched{a, b, a} { // both know that it is shared
		admit(r, rate, 1)
		r.Flush()
	}
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	for _, r := range []watched{a, b} {
		r.fails(t)
		// Each has its floor: together they use far more than the account's rate.
		in := admit(r, rate, 1000)
		pace(r.Redis, rate, 1000, time.Now().Add(time.Second), func() { in++ })
		if in < 100 {
			t.Fatalf("admitted %d without Redis", in)
		}
	}
	if err := server.Cont(); err != nil {
		t.Fatal(err)
	}
	for _, r := range []watched{a, b} {
		r.shares(t)
	}
	for _, r := range []watched{a, b} {
		in := 0
		pace(r.Redis, rate, 1000, time.Now().Add(time.Second), func() { in++ })
		if in < 25 {
			t.Errorf("admitted %d in the second after the outage, of 50", in)
		}
	}
}

// Q5: what is kept of idle accounts goes, here and in Redis; an active one stays, and
// one that comes back gets no more than the time has refilled.
func TestIdleAccountsAreForgotten(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	c := &clock{}
	r := newRedis(t, ratelimit.Options{Servers: at(server.Addr), Now: c.now})
	slow, quick := ratelimit.Rate{PerSecond: 1, Burst: 1000}, ratelimit.Rate{PerSecond: 1000, Burst: 1000}
	if got := admit(r, slow, 500); got != 500 {
		t.Fatalf("admitted %d", got)
	}
	for i := range 20_000 {
		r.Allow(account(i), quick)
	}
	r.Flush()
	c.advance(2 * time.Minute)
	for i := range 10_000 { // each shard sweeps with the next request that it sees
		r.Allow(account(100_000+i%1000), quick)
		c.advance(time.Millisecond)
		if i%2000 == 0 {
			r.Flush()
		}
	}
	if got := r.Subjects(); got > 256*32 {
		t.Errorf("%d buckets in memory, want at most %d", got, 256*32)
	}
	if got := admit(r, slow, 1000); got != 500+130 {
		t.Errorf("admitted %d after 130 s, want the 500 that were left and 130", got)
	}
	for _, key := range []string{"sluice:{0}:rate:acme", "sluice:{0}:rate:account-0"} {
		if ttl, err := client.TTL(t.Context(), key).Result(); err != nil || ttl <= 0 || ttl > time.Hour {
			t.Errorf("%s lives for %v, %v; want it to end by itself", key, ttl, err)
		}
	}
}
