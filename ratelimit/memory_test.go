package ratelimit_test

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/internal/bubble"
	"sluice/ratelimit"
	"sluice/ratelimit/limittest"
)

// clock is a time that moves only when told.
type clock struct{ elapsed atomic.Int64 }

func (c *clock) now() time.Time {
	return time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(c.elapsed.Load()))
}

func (c *clock) advance(d time.Duration) { c.elapsed.Add(int64(d)) }

func newMemory() (*ratelimit.Memory, *clock) {
	c := &clock{}
	return ratelimit.NewMemory(ratelimit.MemoryOptions{Now: c.now}), c
}

func account(i int) ratelimit.Subject { return ratelimit.Subject{Account: fmt.Sprint("account-", i)} }

func TestMemory(t *testing.T) {
	limittest.Suite(t, func(*testing.T) limittest.System {
		m, c := newMemory()
		return limittest.System{
			Limiter: m, Tails: m, Uploads: m, Advance: c.advance, TailsOf: m.TailsOf, UploadsOf: m.UploadsOf,
		}
	})
}

// The same suite while other subjects come, go and are swept all the time, on
// the clock that Memory takes by itself: what is dropped must change nothing.
func TestMemoryUnderSweeps(t *testing.T) {
	limittest.Suite(t, func(*testing.T) limittest.System {
		m, c := newMemory()
		next := 0
		return limittest.System{Limiter: m, Tails: m, Uploads: m, TailsOf: m.TailsOf, UploadsOf: m.UploadsOf, Advance: func(d time.Duration) {
			c.advance(d)
			for range 8 {
				m.Allow(account(next), ratelimit.Rate{PerSecond: 1000, Burst: 1})
				next++
			}
		}}
	})
}

// L12: the map of a limiter grew with every address seen, and where it was cut,
// the abuser's entry went with the rest and came back with a new burst.
func TestMemoryIsBoundedAndEvictionRefillsNobody(t *testing.T) {
	m, c := newMemory()
	r := ratelimit.Rate{PerSecond: 1, Burst: 1000}
	abuser := ratelimit.Subject{Account: "abuser"}
	abused := 0
	const seconds, perSecond = 40, 3000
	most := 0
	for sec := range seconds {
		for i := range perSecond {
			m.Allow(account(sec*perSecond+i), ratelimit.Rate{PerSecond: 50, Burst: 100})
			if m.Allow(abuser, r).Allowed {
				abused++
			}
		}
		most = max(most, m.Subjects())
		c.advance(time.Second)
	}
	if want := r.Burst + (seconds-1)*r.PerSecond; abused != want {
		t.Errorf("the abuser got %d requests, want %d", abused, want)
	}
	// After each second all buckets but the abuser's are full again, so what lies in
	// memory is at most what came since, twice, or 32 a shard.
	if bound := 256*32 + 2*perSecond + 2; most > bound {
		t.Errorf("%d buckets in memory after %d subjects, want at most %d", most, seconds*perSecond, bound)
	}
}

// The other side of the bound: what is in use is never dropped, however many.
func TestMemoryKeepsWhatIsInUse(t *testing.T) {
	m, c := newMemory()
	r := ratelimit.Rate{PerSecond: 1, Burst: 1}
	const subjects = 50_000
	for i := range subjects {
		if !m.Allow(account(i), r).Allowed {
			t.Fatalf("subject %d is refused its first request", i)
		}
	}
	c.advance(time.Second - time.Microsecond)
	for i := range subjects {
		if m.Allow(account(i), r).Allowed {
			t.Fatalf("subject %d is admitted a second time within its second", i)
		}
	}
	if got := m.Subjects(); got != subjects {
		t.Errorf("%d buckets in memory, want %d", got, subjects)
	}
	// A minute later each shard drops its full ones with the next request it sees.
	c.advance(time.Minute)
	for i := range 10_000 {
		m.Allow(ratelimit.Subject{Account: fmt.Sprint("late-", i)}, ratelimit.Rate{PerSecond: math.MaxInt32, Burst: 1})
		c.advance(time.Millisecond)
	}
	if got := m.Subjects(); got > 256*32 {
		t.Errorf("%d buckets in memory a minute later, want at most %d", got, 256*32)
	}
}

// A closed subject asks for ever and must not cost memory for it.
func TestMemoryKeepsNothingOfClosedSubjects(t *testing.T) {
	m, _ := newMemory()
	for i := range 1000 {
		m.Allow(account(i), ratelimit.Rate{})
	}
	if got := m.Subjects(); got != 0 {
		t.Errorf("%d buckets in memory, want 0", got)
	}
}

// Two goroutines read the clock in one order and count in the other; the same
// span was then refilled for each of them.
func TestMemoryTimeNeverGoesBack(t *testing.T) {
	m, c := newMemory()
	s, r := account(1), ratelimit.Rate{PerSecond: 10, Burst: 100}
	got := 0
	for range 1000 {
		c.advance(100 * time.Millisecond)
		if m.Allow(s, r).Allowed {
			got++
		}
		c.advance(-100 * time.Millisecond)
		if m.Allow(s, r).Allowed {
			got++
		}
	}
	if got != 100 {
		t.Errorf("admitted %d in one tenth of a second that came 1000 times, want the burst of 100", got)
	}
}

func TestMemoryDefaultsToTheSystemClock(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := ratelimit.NewMemory(ratelimit.MemoryOptions{})
		s, r := account(1), ratelimit.Rate{PerSecond: 2, Burst: 1}
		first, second := m.Allow(s, r), m.Allow(s, r)
		if !first.Allowed || second.Allowed || second.RetryAfter != 500*time.Millisecond {
			t.Fatalf("got %+v, %+v; want one admitted and a wait of 500ms", first, second)
		}
		time.Sleep(second.RetryAfter) // the bubble's clock
		if !m.Allow(s, r).Allowed {
			t.Error("refused after its wait")
		}
	})
}

func TestOpenTailsCountsAllSubjects(t *testing.T) {
	m, _ := newMemory()
	leases := make([]ratelimit.Lease, 0, 100)
	for i := range 100 {
		lease, err := m.Acquire(t.Context(), account(i%10), 10)
		if err != nil {
			t.Fatalf("Acquire: %v", err)
		}
		leases = append(leases, lease)
	}
	if got := m.OpenTails(); got != 100 {
		t.Errorf("got %d open tails, want 100", got)
	}
	var wg sync.WaitGroup
	for _, lease := range leases {
		wg.Go(lease.Release)
		wg.Go(lease.Release)
	}
	wg.Wait()
	if got := m.OpenTails(); got != 0 {
		t.Errorf("got %d open tails, want 0", got)
	}
}

func TestAllowDoesNotAllocate(t *testing.T) {
	m, _ := newMemory()
	s, r := account(1), ratelimit.Rate{PerSecond: 1, Burst: 10}
	m.Allow(s, r)
	if n := testing.AllocsPerRun(1000, func() { m.Allow(s, r) }); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}
