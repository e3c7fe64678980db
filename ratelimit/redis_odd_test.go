package ratelimit_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/internal/redistest"
	"sluice/ratelimit"
)

// asShipped are the options that the program has.
func asShipped(s ratelimit.Servers) ratelimit.Options {
	return ratelimit.Options{
		Servers: s, Wait: wait, CallTimeout: 250 * time.Millisecond,
		Floor: ratelimit.Floor{RequestsPerSecond: 50, OpenTails: 16},
	}
}

// busyTails opens and closes so many tails a second, of many accounts, until stop.
func busyTails(r ratelimit.Tails, perSecond int) (stop func()) {
	done := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			all.Go(func() {
				if lease, err := r.Acquire(context.Background(), account(i%500), 100); err == nil {
					<-time.After(50 * time.Millisecond)
					lease.Release()
				}
			})
		}
	})
	return func() { close(done); all.Wait() }
}

// L02: with tails that open and close, a replica never got to the end of telling a
// Redis that was back what it holds, if that was a few milliseconds away: it counted
// alone, and gave more tails to an account that had all of its own.
func TestBusyReplicaComesBack(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr)
	proxy.Rule(redistest.Scripts(redistest.Fault{Late: 5 * time.Millisecond}))
	o := asShipped(at(proxy.Addr))
	o.Wait = patient // whether it is quick enough is not the matter here
	a, b := watch(t, o), watch(t, ratelimit.Options{Servers: at(server.Addr)})
	open(t, b, acme(), 16, 16)
	stop := busyTails(a, 400)
	defer stop()
	proxy.Rule(redistest.All(redistest.Fault{Cut: true}))
	a.degrades(t, patient)
	proxy.Rule(redistest.Scripts(redistest.Fault{Late: 5 * time.Millisecond}))
	eventually(t, back, "shared again", func() bool { return !a.Degraded() })
	if _, err := a.Acquire(t.Context(), acme(), 16); err == nil {
		t.Error("a further tail of a full account is granted")
	}
}

// A Redis that answers, but fails at what is asked of it later, was joined and lost
// 20 times a second, with two lines in the log each: a key of another kind, a right
// that is missing, a memory that fills up.
func TestRedisThatFailsLater(t *testing.T) {
	t.Parallel()
	used := func(r *ratelimit.Redis, accounts int) {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for i := range 400 {
			<-tick.C
			for j := range accounts {
				r.Allow(account(i*accounts+j), generous())
			}
		}
	}
	t.Run("keys of another kind", func(t *testing.T) {
		server := redistest.Start(t)
		client := server.Client(t)
		acmes := "sluice:{0}:%s:" + acme().Account
		for _, what := range []string{"rate", "tails", "uploads"} {
			if err := client.Set(t.Context(), fmt.Sprintf(acmes, what), "x", 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
		if err := client.Set(t.Context(), "sluice:{0}:replicas", "x", 0).Err(); err != nil {
			t.Fatal(err)
		}
		r := watch(t, asShipped(at(server.Addr)))
		for _, fields := range [][]any{nil, {"l", "x", "t", "y", "n", "z"}, {"n", "1"}, {"l", "1", "t", "1", "n", "1", "other", "z"}} {
			if fields != nil {
				if err := client.Del(t.Context(), fmt.Sprintf(acmes, "rate")).Err(); err != nil {
					t.Fatal(err)
				}
				if err := client.HSet(t.Context(), fmt.Sprintf(acmes, "rate"), fields...).Err(); err != nil {
					t.Fatal(err)
				}
			}
			admit(r, generous(), 1)
			r.Flush()
		}
		open(t, r, acme(), 1, 1)
		if _, err := r.AcquireUpload(t.Context(), acme(), ratelimit.UploadLimits{Uploads: 1, Bytes: 1}, 1); err != nil {
			t.Error(err)
		}
		r.quiet(t)
	})
	t.Run("a right is missing", func(t *testing.T) {
		server := redistest.Start(t)
		if err := server.Client(t).Do(t.Context(), "ACL", "SETUSER", "sluice", "on", ">word", "~sluice:*", "+@all", "-hmget").Err(); err != nil {
			t.Fatal(err)
		}
		servers := ratelimit.Servers{URL: "redis://sluice:word@" + server.Addr}
		r := watchAny(t, asShipped(servers))
		r.degrades(t, patient)
		used(r.Redis, 10)
		r.quiet(t)
		if err := ratelimit.Ping(t.Context(), servers); err == nil || !strings.Contains(err.Error(), "tell of a rate") {
			t.Errorf("Ping: %v", err)
		}
	})
	t.Run("a memory that fills up", func(t *testing.T) {
		server := redistest.Start(t, "--maxmemory", "3mb")
		r := watch(t, asShipped(at(server.Addr)))
		used(r.Redis, 100)
		r.degrades(t, patient)
		r.quiet(t)
	})
}

// A Redis that was too slow for one claim in two was joined and lost for ever, and an
// account had three times its tails: what answers only just in time is not used.
func TestRedisThatIsJustTooSlow(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr)
	proxy.Rule(redistest.Scripts(redistest.Fault{Late: 40 * time.Millisecond}))
	r := watchAny(t, asShipped(at(proxy.Addr)))
	r.degrades(t, patient)
	stop := busyTails(r, 50)
	<-time.After(2 * time.Second)
	stop()
	r.quiet(t)
	proxy.Rule(nil)
	r.shares(t)
}

// Of 20,000 tails that end at once, as with a balancer, Redis was told first, and who
// opened one meanwhile waited for all of them: 50 ms, and then Redis was taken for lost.
func TestManyTailsEndAtOnce(t *testing.T) {
	server := redistest.Start(t)
	a, b := watch(t, ratelimit.Options{Servers: at(server.Addr)}), watch(t, ratelimit.Options{Servers: at(server.Addr)})
	const subjects = 20_000
	leases := make([]ratelimit.Lease, subjects)
	var opening sync.WaitGroup
	for worker := range 16 {
		opening.Go(func() {
			for i := worker; i < subjects; i += 16 {
				lease, err := a.Acquire(context.Background(), account(i), 16)
				if err != nil {
					t.Error(err)
					return
				}
				leases[i] = lease
			}
		})
	}
	if opening.Wait(); t.Failed() {
		return
	}
	open(t, b, acme(), 16, 16)
	a.Flush()
	for _, l := range leases {
		l.Release()
	}
	if _, err := a.Acquire(t.Context(), acme(), 16); err == nil {
		t.Error("the 17th tail of 16 is granted")
	}
	if a.Told() {
		t.Error("Redis was told of all that ended before it was asked for the one that somebody waits for")
	}
}

// A debt from larger limits outlived them: after a reload from 1000 a second to 10 an
// account was shut out for 15 minutes, and for 37 s after the loss of Redis, though the
// floor promises it 50 a second there.
func TestDebtsEndWithTheirLimits(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := known(t, 3, asShipped(at(server.Addr)))
	use := func(s ratelimit.Subject, r ratelimit.Rate) {
		for _, a := range all {
			for a.Allow(s, r).Allowed {
				continue
			}
		}
		for _, a := range all {
			eventually(t, patient, "a debt", func() bool { return a.Allow(s, r).RetryAfter > 5*time.Second })
		}
	}
	reload, loss := ratelimit.Subject{Account: "reload"}, ratelimit.Subject{Account: "loss"}
	use(reload, ratelimit.Rate{PerSecond: 1000, Burst: 5000})
	for i, a := range all {
		// 3 × (10 + 1 + 1), and a request
		if d := a.Allow(reload, ratelimit.Rate{PerSecond: 10, Burst: 10}); d.RetryAfter > 3700*time.Millisecond+time.Second {
			t.Errorf("after a reload replica %d says to wait %v", i, d.RetryAfter)
		}
	}
	big := ratelimit.Rate{PerSecond: 200, Burst: 1000}
	use(loss, big)
	server.Kill()
	for i, a := range all {
		a.degrades(t, patient)
		if d := a.Allow(loss, big); d.RetryAfter > 100*time.Millisecond {
			t.Errorf("without Redis replica %d says to wait %v", i, d.RetryAfter)
		}
	}
}

// L17: a Redis that came back empty, and went again, had each replica believe that it
// is alone: together they gave twice the limit.
func TestEmptyRedisDoesNotHideReplicas(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := known(t, 4, asShipped(at(server.Addr)))
	for range 2 {
		server.Kill()
		for _, r := range all {
			eventually(t, patient, "lost", func() bool { r.Allow(acme(), generous()); return r.Degraded() })
		}
		server.Restart(t)
		for i, r := range all {
			eventually(t, back, "shared", func() bool { return !r.Degraded() })
			if n := r.Replicas(); n != 4 {
				t.Errorf("replica %d knows of %d replicas, want 4", i, n)
			}
		}
	}
}

// A single client that asks one replica after the other, slowly, and waits as it is
// told, was refused again: who refuses knew of its own part only.
func TestObedientClientInTurnIsAdmitted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := known(t, 3, ratelimit.Options{Servers: at(server.Addr)})
	wholeSeconds := func(d time.Duration) time.Duration { // as the header says it
		return time.Duration(max(1, math.Ceil(d.Seconds()))) * time.Second
	}
	t.Run("a request a second", func(t *testing.T) {
		rate, waited := ratelimit.Rate{PerSecond: 1, Burst: 1}, time.Duration(0)
		for i := range 10 {
			d := all[i%3].Allow(acme(), rate)
			if !d.Allowed && waited > 0 {
				t.Errorf("request %d: refused after a wait of %v, told to wait %v more", i, waited, d.RetryAfter)
			}
			if waited = 0; !d.Allowed {
				waited = wholeSeconds(d.RetryAfter)
			}
			<-time.After(waited + 120*time.Millisecond)
		}
	})
	t.Run("a burst of each", func(t *testing.T) {
		s, rate := ratelimit.Subject{Account: "bursts"}, ratelimit.Rate{PerSecond: 50, Burst: 100}
		for _, r := range all {
			for range 100 {
				r.Allow(s, rate)
			}
			<-time.After(250 * time.Millisecond)
		}
		d := all[0].Allow(s, rate)
		if d.Allowed {
			t.Fatal("a request is admitted in debt")
		}
		<-time.After(wholeSeconds(d.RetryAfter))
		if again := all[0].Allow(s, rate); !again.Allowed {
			t.Errorf("refused after a wait of %v, told to wait %v more", wholeSeconds(d.RetryAfter), again.RetryAfter)
		}
	})
}
