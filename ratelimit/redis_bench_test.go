package ratelimit_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"sluice/internal/redistest"
	"sluice/ratelimit"
)

// endless are limits that no benchmark uses up.
func endless() ratelimit.Rate {
	return ratelimit.Rate{PerSecond: 1_000_000_000, Burst: 1_000_000_000}
}

// BenchmarkRedisAllow is what a request of an active account pays: the issue wants
// less than 2 µs, and no round trip.
func BenchmarkRedisAllow(b *testing.B) {
	r := newRedis(b, ratelimit.Options{Servers: at(redistest.Start(b).Addr)})
	b.ReportAllocs()
	for b.Loop() {
		if !r.Allow(acme(), endless()).Allowed {
			b.Fatal("refused")
		}
	}
}

// BenchmarkRedisAllowAmongMany has 100,000 accounts in use, asked for in no order,
// while passes tell of them.
func BenchmarkRedisAllowAmongMany(b *testing.B) {
	r := newRedis(b, ratelimit.Options{Servers: at(redistest.Start(b).Addr)})
	subjects := make([]ratelimit.Subject, 100_000)
	for i := range subjects {
		subjects[i] = account(i)
		r.Allow(subjects[i], endless())
	}
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		r.Allow(subjects[i], endless())
		i = (i + 61_001) % len(subjects)
	}
}

func BenchmarkRedisAllowParallel(b *testing.B) {
	r := newRedis(b, ratelimit.Options{Servers: at(redistest.Start(b).Addr)})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			r.Allow(acme(), endless())
		}
	})
}

// BenchmarkRedisTail is one tail opened, which is a round trip, and closed.
func BenchmarkRedisTail(b *testing.B) {
	r := newRedis(b, ratelimit.Options{Servers: at(redistest.Start(b).Addr)})
	b.ReportAllocs()
	for b.Loop() {
		lease, err := r.Acquire(context.Background(), acme(), 16)
		if err != nil {
			b.Fatal(err)
		}
		lease.Release()
	}
}

// memoryOf is the heap that so many active accounts cost, in bytes, what passes
// hold while they run included.
func memoryOf(tb testing.TB, server *redistest.Server, accounts int) uint64 {
	tb.Helper()
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	r := newRedis(tb, ratelimit.Options{Servers: at(server.Addr), Interval: 200 * time.Millisecond})
	defer r.Close()
	before := heap()
	for range 3 {
		for i := range accounts {
			r.Allow(account(i), ratelimit.Rate{PerSecond: 50, Burst: 100})
		}
	}
	most := heap()
	for range 10 {
		most = max(most, heap())
	}
	if !r.Flush() {
		tb.Fatal("Redis is not told")
	}
	most = max(most, heap())
	if got := r.Subjects(); got != accounts {
		tb.Fatalf("%d accounts are kept, want %d", got, accounts)
	}
	return most - min(most, before)
}

// The bounds that no clock is needed for: 100,000 active accounts cost under
// 100 MiB, and no call of a pass over 10,000, which another replica has used too, holds
// Redis for more than 5 ms. The calls are alike, so what all take of the server's
// processor time tells what one takes, whatever else runs on the machine. How long a
// pass takes is for bench/limits to say.
func TestManyAccountsAreCheap(t *testing.T) {
	server := redistest.Start(t)
	if got := memoryOf(t, server, 100_000); got > 100<<20 {
		t.Errorf("100,000 accounts cost %d MiB", got>>20)
	}
	const accounts = 10_000
	used := func() *ratelimit.Redis {
		r := newRedis(t, ratelimit.Options{Servers: at(server.Addr), Interval: 400 * time.Millisecond})
		for i := range accounts {
			r.Allow(account(i), endless())
		}
		if !r.Flush() {
			t.Fatal("Redis is not told")
		}
		return r
	}
	used().Close()
	cpuBefore, callsBefore := server.Used(t)
	used()
	cpu, calls := server.Used(t)
	cpu, calls = cpu-cpuBefore, calls-callsBefore
	if each := cpu / time.Duration(calls); calls < 2 || each > 5*time.Millisecond {
		t.Errorf("%d calls take %v of Redis' time each", calls, each)
	}
}

func TestRedisAllowDoesNotAllocate(t *testing.T) {
	r := newRedis(t, ratelimit.Options{Servers: at(redistest.Start(t).Addr), Interval: time.Hour})
	r.Allow(acme(), endless())
	if n := testing.AllocsPerRun(1000, func() { r.Allow(acme(), endless()) }); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}
