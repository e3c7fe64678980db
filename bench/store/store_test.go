package store

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// large is the size that issue 7 names.
func large() size { return size{accounts: 1000, keys: 1_000_000, streams: 100_000} }

const (
	// defaultKnown is the operator's default of store.known_keys.
	defaultKnown = 100_000
	// readsEach are one after the other in each round.
	readsEach = 500
	// manyKeys are asked for in turn to see what is remembered of them.
	manyKeys = 200_000
)

var (
	errRefused     = errors.New("refused")
	errUnavailable = errors.New("told to come again")
)

// read reads, by a key, the stream that it may.
func (r *rig) read(tb testing.TB, p *program, i int) error {
	switch status, text := p.get(tb, p.url+r.target(i)+"?offset=-1", apiKey(tb, i)); status {
	case http.StatusOK:
		return nil
	case http.StatusServiceUnavailable:
		return fmt.Errorf("%w: key %d: %s", errUnavailable, i, text)
	default:
		return fmt.Errorf("%w: key %d: %d %s", errRefused, i, status, text)
	}
}

// BenchmarkLargeStore is a gateway on a store of a million keys.
func BenchmarkLargeStore(b *testing.B) {
	r := newRig(b, large())
	b.Run("start", func(b *testing.B) {
		for b.Loop() {
			p, took := r.start(b, defaultKnown)
			b.ReportMetric(float64(took.Milliseconds()), "ms/ready")
			b.StopTimer()
			p.end(b)
			b.StartTimer()
		}
	})
	p, _ := r.start(b, defaultKnown)
	next := 0
	for _, kind := range []struct {
		name string
		key  func() int
	}{
		{"cold", func() int { next++; return (next * 7919) % r.keys }}, // 7919 is prime to a million: each comes once
		{"warm", func() int { return 1 }},
	} {
		b.Run(kind.name, func(b *testing.B) {
			var all []time.Duration
			for b.Loop() {
				for range readsEach {
					i := kind.key()
					began := time.Now()
					if err := r.read(b, p, i); err != nil {
						b.Fatal(err)
					}
					all = append(all, time.Since(began))
				}
			}
			slices.Sort(all)
			b.ReportMetric(float64(all[len(all)/2].Microseconds()), "µs/median")
			b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "µs/p99")
			b.ReportMetric(float64(all[len(all)-1].Microseconds()), "µs/most")
		})
	}
	p.end(b)
	for _, known := range []int{defaultKnown, defaultKnown / 10} {
		b.Run(fmt.Sprintf("memory/known_keys=%d", known), func(b *testing.B) {
			for b.Loop() {
				p, _ := r.start(b, known)
				before := p.gauge(b, "process_resident_memory_bytes")
				again, err := r.readMany(b, p, manyKeys)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(again), "again")
				b.ReportMetric(before/(1<<20), "MiB/before")
				b.ReportMetric(p.gauge(b, "process_resident_memory_bytes")/(1<<20), "MiB/after")
				b.ReportMetric(p.gauge(b, "sluice_store_keys"), "keys")
				p.end(b)
			}
		})
	}
}

// readMany reads by the first n keys in turn, from 16 clients. Who is told to come again,
// since the store did not answer in time, does so; again is how often that was.
func (r *rig) readMany(tb testing.TB, p *program, n int) (again int64, err error) {
	tb.Helper()
	var group errgroup.Group
	group.SetLimit(16)
	var told atomic.Int64
	for i := range n {
		group.Go(func() error {
			tick := time.NewTicker(200 * time.Millisecond)
			defer tick.Stop()
			err := r.read(tb, p, i)
			for tries := 0; errors.Is(err, errUnavailable) && tries < 50; tries++ {
				told.Add(1)
				<-tick.C
				err = r.read(tb, p, i)
			}
			return err
		})
	}
	err = group.Wait()
	return told.Load(), err
}

// What the benchmarks drive: each key of a filled store is let in to what it may read and
// to nothing else, whether it is remembered or not, and no more are remembered than the
// operator's file says.
func TestFilledStore(t *testing.T) {
	t.Parallel()
	const known = 1000
	r := newRig(t, size{accounts: 10, keys: 3000, streams: 100})
	p, _ := r.start(t, known)
	for range 2 { // most of the second time, too, are to be asked for
		if _, err := r.readMany(t, p, r.keys); err != nil {
			t.Fatal(err)
		}
		if keys := p.gauge(t, "sluice_store_keys"); keys != known {
			t.Errorf("%v keys are remembered, want %d", keys, known)
		}
	}
	if accounts, streams := p.gauge(t, "sluice_store_accounts"), p.gauge(t, "sluice_store_streams"); accounts != 10 || streams != 100 {
		t.Errorf("%v accounts and %v streams are remembered", accounts, streams)
	}
	if status, text := p.get(t, p.url+r.target(1)+"?offset=-1", apiKey(t, 2)); status != http.StatusForbidden {
		t.Errorf("another account's stream: %d %s", status, text)
	}
	if status, text := p.get(t, p.url+r.target(1)+"?offset=-1", apiKey(t, r.keys)); status != http.StatusUnauthorized {
		t.Errorf("a key that is not there: %d %s", status, text)
	}
}
