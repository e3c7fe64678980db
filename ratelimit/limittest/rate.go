package limittest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/ratelimit"
)

// L10: at the edges (burst 1, one a second) more or less than burst + rate·t was
// admitted.
func admitsBurstAndRate(t *testing.T, sys System) {
	for i, r := range []ratelimit.Rate{
		{PerSecond: 1, Burst: 1},
		{PerSecond: 50, Burst: 100},
		{PerSecond: 10, Burst: 1},
		{PerSecond: 1, Burst: 10},
		{PerSecond: 3, Burst: 7},
		{PerSecond: 1000, Burst: 1000},
	} {
		s := ratelimit.Subject{Account: fmt.Sprint("rate", i)}
		if got := admitted(sys, s, r, r.Burst+50); got != r.Burst {
			t.Errorf("%+v: the first instant admits %d, want %d", r, got, r.Burst)
		}
		// Hammered 40 times a second for 5 s: the sustained rate and not one more.
		got := 0
		for range 5 * 40 {
			sys.Advance(time.Second / 40)
			got += admitted(sys, s, r, r.PerSecond/40+2)
		}
		// A bucket smaller than what one step brings loses what does not fit.
		want := min(5*r.PerSecond, 5*40*r.Burst)
		if got != want {
			t.Errorf("%+v: 5 s admit %d, want %d", r, got, want)
		}
		// A long pause is worth one burst, however long.
		sys.Advance(10_000 * time.Hour)
		if got := admitted(sys, s, r, r.Burst+50); got != r.Burst {
			t.Errorf("%+v: the instant after a pause admits %d, want %d", r, got, r.Burst)
		}
	}
}

// model is a token bucket in whole numbers: its unit is 10^-9 of a request, so a
// nanosecond brings PerSecond of them.
type model struct {
	level int64
	rate  ratelimit.Rate
}

func (m *model) advance(d time.Duration) {
	m.level = min(m.level+int64(d)*int64(m.rate.PerSecond), int64(m.rate.Burst)*1e9)
}

func (m *model) allow() bool {
	if m.level < 1e9 {
		return false
	}
	m.level -= 1e9
	return true
}

// L10, any schedule: pauses and bursts of all lengths against the model. The
// rates divide 10^9, so that no decision of the model hangs on less than a
// nanosecond.
func followsModel(t *testing.T, sys System) {
	source := rand.NewPCG(1, 2) // the same schedule each run
	below := func(n int64) int64 { return int64(source.Uint64()>>1) % n }
	for i, r := range []ratelimit.Rate{
		{PerSecond: 1, Burst: 1},
		{PerSecond: 2, Burst: 5},
		{PerSecond: 50, Burst: 100},
		{PerSecond: 1000, Burst: 3},
		{PerSecond: 1_000_000, Burst: 20},
	} {
		s := ratelimit.Subject{Account: fmt.Sprint("model", i)}
		m := model{level: int64(r.Burst) * 1e9, rate: r}
		gap := 4 * int64(time.Second) / int64(r.PerSecond)
		for step := range 1000 {
			d := time.Duration(below(gap))
			sys.Advance(d)
			m.advance(d)
			for range below(4) {
				if got, want := sys.Limiter.Allow(s, r).Allowed, m.allow(); got != want {
					t.Fatalf("%+v, step %d: admitted %t, want %t (level %d)", r, step, got, want, m.level)
				}
			}
		}
	}
}

func retryAfterIsTrue(t *testing.T, sys System) {
	for i, r := range []ratelimit.Rate{
		{PerSecond: 1, Burst: 1},
		{PerSecond: 3, Burst: 1},
		{PerSecond: 7, Burst: 20},
		{PerSecond: 50, Burst: 100},
		{PerSecond: 999_983, Burst: 2},
		{PerSecond: 1_000_000_000, Burst: 1},
	} {
		s := ratelimit.Subject{Account: fmt.Sprint("retry", i)}
		for admitted(sys, s, r, 1) == 1 {
			continue
		}
		for step := range 300 {
			d := sys.Limiter.Allow(s, r)
			if d.Allowed || d.RetryAfter <= 0 || d.RetryAfter > time.Second || d.Remaining != 0 {
				t.Fatalf("%+v, step %d: got %+v, want a refusal with a wait of at most 1 s", r, step, d)
			}
			// Half of the wait is not enough, and asking meanwhile costs nothing.
			if half := d.RetryAfter / 2; half > time.Microsecond {
				sys.Advance(half)
				if sys.Limiter.Allow(s, r).Allowed {
					t.Fatalf("%+v, step %d: admitted after half of the wait of %v", r, step, d.RetryAfter)
				}
				d.RetryAfter -= half
			}
			sys.Advance(d.RetryAfter)
			if got := sys.Limiter.Allow(s, r); !got.Allowed {
				t.Fatalf("%+v, step %d: refused after its wait, told to wait %v more", r, step, got.RetryAfter)
			}
		}
	}
}

// A wait rounded down to whole nanoseconds was too short by a float's last digit,
// and the client was sent away a second time: with the naive sum one refusal in
// four or five at these rates, with requests at any moment.
func retryAfterIsTrueAtAnyMoment(t *testing.T, sys System) {
	source := rand.NewPCG(3, 4) // the same schedule each run
	for i, r := range []ratelimit.Rate{{PerSecond: 2, Burst: 1}, {PerSecond: 200, Burst: 1}, {PerSecond: 320, Burst: 2}} {
		s := ratelimit.Subject{Account: fmt.Sprint("moment", i)}
		for step := range 1000 {
			sys.Advance(time.Duration(int64(source.Uint64()>>1) % (2e9 / int64(r.PerSecond))))
			d := sys.Limiter.Allow(s, r)
			if d.Allowed || step%3 != 0 {
				continue
			}
			sys.Advance(d.RetryAfter)
			if got := sys.Limiter.Allow(s, r); !got.Allowed {
				t.Fatalf("%+v, step %d: refused after its wait of %v, told to wait %v more", r, step, d.RetryAfter, got.RetryAfter)
			}
		}
	}
}

// A client that hammers while it is refused must not push its own admission
// further away.
func refusalIsFree(t *testing.T, sys System) {
	r := ratelimit.Rate{PerSecond: 10, Burst: 5}
	if got := admitted(sys, subject(), r, 10_000); got != 5 {
		t.Fatalf("admitted %d, want 5", got)
	}
	sys.Advance(100 * time.Millisecond)
	if got := admitted(sys, subject(), r, 10_000); got != 1 {
		t.Errorf("admitted %d a tenth of a second later, want 1", got)
	}
}

// L10: a limit of 0 was taken for "unlimited".
func zeroIsClosed(t *testing.T, sys System) {
	for i, r := range []ratelimit.Rate{{}, {PerSecond: 0, Burst: 10}, {PerSecond: 10, Burst: 0}, {PerSecond: -1, Burst: 10}, {PerSecond: 10, Burst: -1}} {
		s := ratelimit.Subject{Account: fmt.Sprint("zero", i)}
		for range 3 {
			if d := sys.Limiter.Allow(s, r); d.Allowed || d.Remaining != 0 || d.RetryAfter != ratelimit.ClosedRetryAfter {
				t.Errorf("%+v: got %+v, want a refusal with a wait of %v", r, d, ratelimit.ClosedRetryAfter)
			}
			sys.Advance(time.Hour)
		}
		if open := (ratelimit.Rate{PerSecond: 1, Burst: 2}); admitted(sys, s, open, 5) != 2 {
			t.Errorf("%+v: opened again, it does not admit its burst of 2", r)
		}
	}
}

// L10: 10^9 a second with a burst of 1 is one request a nanosecond.
func largestRate(t *testing.T, sys System) {
	r := ratelimit.Rate{PerSecond: 1_000_000_000, Burst: 1}
	for step := range 100 {
		if got := admitted(sys, subject(), r, 10); got != 1 {
			t.Fatalf("step %d: admitted %d in one nanosecond, want 1", step, got)
		}
		sys.Advance(time.Nanosecond)
	}
}

// L10: with a burst of 10^9 each single request still counts.
func largestBurst(t *testing.T, sys System) {
	r := ratelimit.Rate{PerSecond: 1, Burst: 1_000_000_000}
	for i := 1; i <= 1000; i++ {
		if d := sys.Limiter.Allow(subject(), r); !d.Allowed || d.Remaining != r.Burst-i {
			t.Fatalf("request %d: got %+v, want %d remaining", i, d, r.Burst-i)
		}
	}
}

func remainingCountsDown(t *testing.T, sys System) {
	r := ratelimit.Rate{PerSecond: 2, Burst: 4}
	for want := 3; want >= 0; want-- {
		if d := sys.Limiter.Allow(subject(), r); !d.Allowed || d.Remaining != want {
			t.Errorf("got %+v, want %d remaining", d, want)
		}
	}
	sys.Advance(1250 * time.Millisecond) // two and a half requests
	if d := sys.Limiter.Allow(subject(), r); !d.Allowed || d.Remaining != 1 {
		t.Errorf("got %+v, want 1 remaining", d)
	}
}

// A reload of other limits, there and back, must not be a way to a new burst.
func changeRefillsNothing(t *testing.T, sys System) {
	small, large := ratelimit.Rate{PerSecond: 1, Burst: 2}, ratelimit.Rate{PerSecond: 100, Burst: 1000}
	if got := admitted(sys, subject(), small, 10); got != 2 {
		t.Fatalf("admitted %d, want 2", got)
	}
	for range 20 {
		if got := admitted(sys, subject(), large, 1) + admitted(sys, subject(), small, 1); got != 0 {
			t.Fatalf("a change admits %d, want 0", got)
		}
	}
	// From the change on, the new rate counts.
	admitted(sys, subject(), large, 1)
	sys.Advance(100 * time.Millisecond)
	if got := admitted(sys, subject(), large, 100); got != 10 {
		t.Errorf("admitted %d a tenth of a second after the change to 100 a second, want 10", got)
	}
	// A smaller burst cuts what had been saved, and the larger does not bring it back.
	sys.Advance(time.Hour)
	if got := admitted(sys, subject(), small, 1); got != 1 {
		t.Errorf("admitted %d after a pause, want 1", got)
	}
	if got := admitted(sys, subject(), large, 100); got != 1 {
		t.Errorf("admitted %d after there and back, want the 1 that was left", got)
	}
}

// L16: one account's requests spent another's share, and strangers' the owner's.
func subjectsDoNotShare(t *testing.T, sys System) {
	r := ratelimit.Rate{PerSecond: 5, Burst: 10}
	all := []ratelimit.Subject{{Account: "acme"}, {Account: "acme", Public: true}, {Account: "beta"}, {Account: "beta", Public: true}}
	for _, hammered := range all {
		if got := admitted(sys, hammered, r, 1000); got != 10 {
			t.Errorf("%+v: admitted %d, want a burst of its own of 10", hammered, got)
		}
	}
	sys.Advance(time.Second)
	for _, s := range all {
		if got := admitted(sys, s, r, 1000); got != 5 {
			t.Errorf("%+v: admitted %d in a second, want a rate of its own of 5", s, got)
		}
	}
}

func concurrentRequests(t *testing.T, sys System) {
	r := ratelimit.Rate{PerSecond: 1, Burst: 500}
	var in atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { in.Add(int64(admitted(sys, subject(), r, 200))) })
	}
	wg.Wait()
	if in.Load() != 500 {
		t.Errorf("admitted %d of 1600 at one time, want 500", in.Load())
	}
}
