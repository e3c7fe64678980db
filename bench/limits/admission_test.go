package limits

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"sluice/internal/redistest"
	"sluice/ratelimit"
)

// endless are limits that no benchmark uses up.
func endless() ratelimit.Rate {
	return ratelimit.Rate{PerSecond: 1_000_000_000, Burst: 1_000_000_000}
}

func account(i int) ratelimit.Subject {
	return ratelimit.Subject{Account: fmt.Sprintf("account-%d", i)}
}

func at(addr string) ratelimit.Servers { return ratelimit.Servers{URL: "redis://" + addr} }

func newRedis(b *testing.B, o ratelimit.Options) *ratelimit.Redis {
	b.Helper()
	r, err := ratelimit.NewRedis(o)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(r.Close)
	return r
}

// commands is how many commands a server has been sent in all.
func commands(b *testing.B, server *redistest.Server) float64 {
	b.Helper()
	info, err := server.Client(b).InfoMap(b.Context(), "stats").Result()
	if err != nil {
		b.Fatal(err)
	}
	n, err := strconv.ParseFloat(info["Stats"]["total_commands_processed"], 64)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// BenchmarkAdmission is what a request of an active account pays for its rate: in this
// process, over Redis, and while that is lost. Target: under 2 µs, and no round trip;
// so commands/s is what the passes make, however many requests there are.
func BenchmarkAdmission(b *testing.B) {
	server := redistest.Start(b)
	acme := account(0)
	run := func(b *testing.B, l ratelimit.Limiter) {
		before, began := commands(b, server), time.Now()
		b.ReportAllocs()
		for b.Loop() {
			if !l.Allow(acme, endless()).Allowed {
				b.Fatal("refused")
			}
		}
		b.ReportMetric((commands(b, server)-before)/time.Since(began).Seconds(), "commands/s")
	}
	b.Run("counted=alone", func(b *testing.B) { run(b, ratelimit.NewMemory(ratelimit.MemoryOptions{})) })
	b.Run("counted=Redis", func(b *testing.B) { run(b, newRedis(b, ratelimit.Options{Servers: at(server.Addr)})) })
	b.Run("counted=lost", func(b *testing.B) {
		run(b, newRedis(b, ratelimit.Options{Servers: at(redistest.Refusing(b))}))
	})
}

// BenchmarkHeartbeat counts what a replica says to Redis between its heartbeats, by
// commands and by bytes on the wire, with few tails open and with many over 1,000
// accounts. Target: the same, within 10 %.
func BenchmarkHeartbeat(b *testing.B) {
	for _, tails := range []int{10, 10_000} {
		b.Run(fmt.Sprintf("tails=%d", tails), func(b *testing.B) {
			proxy := redistest.StartProxy(b, redistest.Start(b).Addr)
			// What is measured is not how fast tails are opened here.
			r := newRedis(b, ratelimit.Options{Servers: at(proxy.Addr), Wait: 5 * time.Second, CallTimeout: 5 * time.Second})
			for i := range tails {
				if _, err := r.Acquire(context.Background(), account(i%1000), 16); err != nil {
					b.Fatal(err)
				}
			}
			beats, total, bytes := 0, 0, 0
			awaitBeat(b, proxy)
			for b.Loop() {
				n, size := awaitBeat(b, proxy)
				beats, total, bytes = beats+1, total+n, bytes+size
			}
			if r.Degraded() || r.OpenTails() != tails {
				b.Fatalf("degraded %t, %d tails", r.Degraded(), r.OpenTails())
			}
			b.ReportMetric(float64(total)/float64(beats), "commands/beat")
			b.ReportMetric(float64(bytes)/float64(beats), "bytes/beat")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// awaitBeat waits for the replica's next sign of life, and says what it sent up to
// then.
func awaitBeat(b *testing.B, proxy *redistest.Proxy) (commands, bytes int) {
	b.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); <-tick.C {
		beat := false
		for _, c := range proxy.Commands() {
			commands, bytes = commands+1, bytes+c.Bytes
			beat = beat || slices.Contains(c.Args, "beat")
		}
		if beat {
			return commands, bytes
		}
	}
	b.Fatal("no heartbeat came")
	return 0, 0
}

// BenchmarkAccounts is what 100,000 active accounts cost here, with what a pass over all
// of them holds, and in Redis. Target: under 100 MiB.
func BenchmarkAccounts(b *testing.B) {
	const accounts = 100_000
	server := redistest.Start(b)
	heap := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	most, empty := 0.0, used(b, server)
	for b.Loop() {
		before := heap()
		passed := make(chan int, 1000)
		r := newRedis(b, ratelimit.Options{Servers: at(server.Addr), Interval: 200 * time.Millisecond, Events: ratelimit.Events{
			Pass: func(n int, _ time.Duration) { passed <- n },
		}})
		for i := range accounts {
			r.Allow(account(i), ratelimit.Rate{PerSecond: 50, Burst: 100})
		}
		late := time.After(time.Minute)
		for told := 0; told < accounts; {
			most = max(most, heap()-before)
			select {
			case n := <-passed:
				told += n
			case <-late:
				b.Fatalf("%d of %d accounts are told of after a minute: the machine is too busy, and Redis was lost", told, accounts)
			default:
			}
		}
		if got := r.Subjects(); got != accounts {
			b.Fatalf("%d accounts are kept", got)
		}
		r.Close()
	}
	b.ReportMetric(most/(1<<20), "MiB")
	b.ReportMetric((used(b, server)-empty)/(1<<20), "redis-MiB")
	b.ReportMetric(0, "ns/op")
}

// used is the memory that a server has in use, in bytes.
func used(b *testing.B, server *redistest.Server) float64 {
	b.Helper()
	info, err := server.Client(b).InfoMap(b.Context(), "memory").Result()
	if err != nil {
		b.Fatal(err)
	}
	n, err := strconv.ParseFloat(info["Memory"]["used_memory"], 64)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// BenchmarkPass is a pass over 10,000 accounts that were used since the last, and that
// another replica has used too: by the clock, and of Redis' processor time for each of
// its calls. Targets: under 150 ms, and under 5 ms.
func BenchmarkPass(b *testing.B) {
	const accounts, interval = 10_000, 500 * time.Millisecond
	server := redistest.Start(b)
	use := func(r *ratelimit.Redis) {
		for i := range accounts {
			r.Allow(account(i), endless())
		}
	}
	type pass struct {
		n    int
		took time.Duration
	}
	passes := make(chan pass, 1000)
	replica := func() *ratelimit.Redis {
		return newRedis(b, ratelimit.Options{Servers: at(server.Addr), Interval: interval, CallTimeout: 5 * time.Second, Events: ratelimit.Events{
			Pass: func(n int, took time.Duration) { passes <- pass{n, took} },
		}})
	}
	// whole uses all accounts until a pass has told of all of them.
	whole := func(r *ratelimit.Redis) time.Duration {
		for {
			use(r)
			if p := <-passes; p.n == accounts {
				return p.took
			}
		}
	}
	other := replica()
	whole(other)
	other.Close()
	r := replica()
	whole(r)
	var sum time.Duration
	n := 0
	cpu, calls := server.Used(b)
	for b.Loop() {
		sum += whole(r)
		n++
	}
	cpuAfter, callsAfter := server.Used(b)
	b.ReportMetric(sum.Seconds()*1e3/float64(n), "ms/pass")
	b.ReportMetric((cpuAfter-cpu).Seconds()*1e3/float64(callsAfter-calls), "redis-ms/call")
	b.ReportMetric(0, "ns/op")
}
