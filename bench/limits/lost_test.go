package limits

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	"sluice/internal/redistest"
)

// loss is a way in which Redis is lost, and comes back.
type loss struct {
	name       string
	begin, end func(b *testing.B)
}

func losses(server *redistest.Server, proxy *redistest.Proxy) []loss {
	check := func(f func() error) func(b *testing.B) {
		return func(b *testing.B) {
			b.Helper()
			if err := f(); err != nil {
				b.Fatal(err)
			}
		}
	}
	rule := func(r func(int, []string) redistest.Fault) func(b *testing.B) {
		return func(*testing.B) { proxy.Rule(r) }
	}
	scripts := func(text string) func(b *testing.B) { return rule(redistest.Scripts(redistest.Fault{Error: text})) }
	return []loss{
		{"none", rule(nil), rule(nil)},
		{"stopped", func(*testing.B) { server.Kill() }, func(b *testing.B) { b.Helper(); server.Restart(b) }},
		{"frozen", check(server.Pause), check(server.Cont)},
		{"blackholed", rule(redistest.All(redistest.Fault{Hang: true})), rule(nil)},
		{"LOADING", scripts("LOADING Redis is loading the dataset in memory"), rule(nil)},
		{"READONLY", scripts("READONLY You can't write against a read only replica."), rule(nil)},
		{"scripts flushed", func(b *testing.B) {
			b.Helper()
			if err := server.Client(b).ScriptFlush(b.Context()).Err(); err != nil {
				b.Fatal(err)
			}
		}, rule(nil)},
	}
}

const (
	perSecond = 500
	calm      = 3 * time.Second // before the loss
	lasting   = 4 * time.Second
)

// BenchmarkRedisLost is what requests wait when Redis is lost under 500 requests a
// second, a twentieth of which open tails, and so ask Redis: the 99th of a hundred
// before it, in its first second, and after that, by a clock that runs from when each
// was due. Targets: no answer other than before, a rise of less than 50 ms in the first
// second and 5 ms after it, and limits shared again within 5 s. What is reported are
// medians over the rounds, and the longest way back.
func BenchmarkRedisLost(b *testing.B) {
	server := redistest.Start(b)
	proxy := redistest.StartProxy(b, server.Addr)
	p := startProgram(b, proxy.Addr)
	for _, l := range losses(server, proxy) {
		b.Run("loss="+l.name, func(b *testing.B) {
			var before, first, after, back []float64
			bad := 0
			for b.Loop() {
				await(b, "limits are shared", func() bool { return !p.degraded(b) })
				ctx, stop := context.WithCancel(b.Context())
				done := make(chan []shot, 1)
				go func() { done <- p.load(ctx, perSecond) }()
				<-time.After(calm)
				lost := time.Now()
				l.begin(b)
				<-time.After(lasting)
				healed := time.Now()
				l.end(b)
				await(b, "limits are shared again", func() bool { return !p.degraded(b) })
				back = append(back, time.Since(healed).Seconds())
				stop()
				shots := <-done
				second := lost.Add(time.Second)
				before = append(before, p99(shots, time.Time{}, lost))
				first = append(first, p99(shots, lost, second))
				after = append(after, p99(shots, second, healed))
				for _, s := range shots {
					if s.status != http.StatusOK {
						bad++
					}
				}
			}
			b.ReportMetric(median(before), "p99-before-ms")
			b.ReportMetric(median(first), "p99-first-second-ms")
			b.ReportMetric(median(after), "p99-after-ms")
			b.ReportMetric(slices.Max(back), "s-until-shared")
			b.ReportMetric(float64(bad), "other-answers")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// p99 is the 99th of a hundred of the requests that were due in a time, in
// milliseconds.
func p99(shots []shot, from, to time.Time) float64 {
	var took []time.Duration
	for _, s := range shots {
		if !s.begun.Before(from) && s.begun.Before(to) {
			took = append(took, s.took)
		}
	}
	slices.Sort(took)
	if len(took) == 0 {
		return 0
	}
	return took[len(took)*99/100].Seconds() * 1e3
}

func median(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}
