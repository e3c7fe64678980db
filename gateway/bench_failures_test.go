package gateway

import (
	"context"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/internal/tenant"
)

// BenchmarkGoodClientBesideBadTokens is what one client with a good key sees, over
// real connections to a node, while others send 2,000 tokens a second whose
// signature is wrong, which is the dearest way to be wrong: alone, beside them, and
// beside them where their address has had its failures.
func BenchmarkGoodClientBesideBadTokens(b *testing.B) {
	for _, bc := range []struct {
		name      string
		perSecond int
		failures  int
		good      bool // the others' token is good, and seen before: what the load alone costs
	}{{"alone", 0, 0, false}, {"beside good ones", 2000, 0, true}, {"beside", 2000, 0, false}, {"beside, refused for their rate", 2000, 60, false}} {
		b.Run(bc.name, func(b *testing.B) {
			rg, _ := newUpRig(b, respond(whole("200 OK", "", "x")), rigOptions{
				limits: func(l *tenant.Limits) { l.RequestsPerSecond, l.Burst = 1_000_000_000, 1_000_000_000 },
				change: func(o *Options) { o.FailedPerMinute = bc.failures },
			})
			good := rg.token(b, "full")
			forged := good[:len(good)-6] + "AAAAAA"
			if bc.good {
				forged = good
			}
			ctx, stop := context.WithCancel(b.Context())
			var wait sync.WaitGroup
			var sent atomic.Int64
			start := time.Now()
			if bc.perSecond > 0 {
				const senders = 32
				every := time.Second * senders / time.Duration(bc.perSecond)
				for i := range senders { // one after the other, not all at one time
					wait.Go(func() { spin(ctx, rg.URL, forged, every, every*time.Duration(i)/senders, &sent) })
				}
			}
			c := &http.Client{Transport: &http.Transport{DisableCompression: true}}
			var took []time.Duration
			b.ResetTimer()
			for b.Loop() {
				begun := time.Now()
				if status := get(ctx, c, rg.URL, good); status != http.StatusOK {
					b.Fatalf("status %d", status)
				}
				took = append(took, time.Since(begun))
			}
			b.StopTimer()
			elapsed := time.Since(start)
			stop()
			wait.Wait()
			c.CloseIdleConnections()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
			b.ReportMetric(float64(sent.Load())/elapsed.Seconds(), "bad/s")
		})
	}
}

// spin sends a credential once each interval, from some time after the start, on a
// connection of its own, until ctx ends.
func spin(ctx context.Context, url, credential string, every, after time.Duration, sent *atomic.Int64) {
	c := &http.Client{Transport: &http.Transport{DisableCompression: true}}
	defer c.CloseIdleConnections()
	<-time.After(after)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			get(ctx, c, url, credential)
			sent.Add(1)
		}
	}
}

// get reads a stream and drops it; 0 is no answer.
func get(ctx context.Context, c *http.Client, url, credential string) int {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/acme/s.priv?offset=-1", nil)
	if err != nil {
		return 0
	}
	req.Header.Set("Authorization", "Bearer "+credential)
	res, err := c.Do(req)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	return res.StatusCode
}
