package ratelimit

import (
	"context"
	"testing"
	"time"
)

// A client that spreads its requests over replicas is told to wait for what they
// have not told yet as well; one that is alone at a replica is not.
func TestWaitCountsWhatIsNotToldYet(t *testing.T) {
	at, replicas := time.Now(), 1
	r := newSharedRates(func() time.Time { return at }, 50*time.Millisecond, func() int { return replicas })
	s, rate := Subject{Account: "acme"}, Rate{PerSecond: 10, Burst: 10}
	for r.allow(s, rate, rate, true).Allowed {
		continue
	}
	alone := r.allow(s, rate, rate, true).RetryAfter
	if alone != 100*time.Millisecond {
		t.Fatalf("alone: wait %v, want 100ms", alone)
	}
	rows := r.collect(newKeys("p", false))
	if len(rows) != 1 {
		t.Fatalf("%d buckets to tell of, want 1", len(rows))
	}
	r.call(rows, "me")
	// The others have used 15 since the last pass, and may have used as much as this one
	// since, or twice those 15; but not more than three replicas can.
	replicas = 3
	if err := r.apply(rows, []any{int64(-15 * micro)}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ after, want time.Duration }{
		{0, 1600*time.Millisecond + 2*time.Second},
		{50 * time.Millisecond, 3700 * time.Millisecond},
		{100 * time.Millisecond, 3700 * time.Millisecond},
		// Nothing was heard for a while: what others do now is not known.
		{100 * time.Millisecond, 1350 * time.Millisecond},
	} {
		at = at.Add(tc.after)
		got := r.allow(s, rate, rate, true).RetryAfter
		if diff := (got - tc.want).Abs(); diff > time.Millisecond {
			t.Errorf("wait %v, want %v", got, tc.want)
		}
	}
}

// A client used up the bursts of three replicas before any of them had told, and was
// let wait for the one that refused it alone: it was refused again. One that has just
// begun is taken to have used the others alike, until a pass tells that it has not.
func TestWaitOfAClientThatJustBegan(t *testing.T) {
	const interval = 50 * time.Millisecond
	at := time.Now()
	r := newSharedRates(func() time.Time { return at }, interval, func() int { return 3 })
	s, rate := Subject{Account: "acme"}, Rate{PerSecond: 10, Burst: 10}
	all := func() time.Duration {
		for {
			if d := r.allow(s, rate, rate, true); !d.Allowed {
				return d.RetryAfter
			}
		}
	}
	if got, want := all(), 2100*time.Millisecond; got != want {
		t.Errorf("at once: wait %v, want %v", got, want)
	}
	// Nobody else has ever used the bucket, says the pass.
	rows := r.collect(newKeys("p", false))
	r.call(rows, "me")
	if err := r.apply(rows, []any{nil}); err != nil {
		t.Fatal(err)
	}
	for _, pause := range []time.Duration{interval, 3 * interval, time.Minute} {
		at = at.Add(pause)
		if got, most := all(), 100*time.Millisecond; got > most {
			t.Errorf("known to be alone, %v later: wait %v, want %v at most", pause, got, most)
		}
	}
	// Another replica's use, of which nothing is left to see.
	r.call(r.collect(newKeys("p", false)), "me")
	if err := r.apply(rows, []any{int64(0)}); err != nil {
		t.Fatal(err)
	}
	at = at.Add(time.Minute)
	if got, want := all(), 2100*time.Millisecond; got != want {
		t.Errorf("known to be spread, after a pause: wait %v, want %v", got, want)
	}
}

// L14: a client that leaves at the moment at which its slot is granted gives it back.
func TestGrantToOneWhoLeftIsGivenBack(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := &Redis{o: Options{}.withDefaults(), holds: newHolds()}
	s := &session{down: make(chan struct{})}
	key := holdKey{keyTails, Subject{Account: "acme"}}
	for range 100 { // either may be seen first
		c := &claim{ask: ask{slots: 1}, verdict: make(chan error, 1), state: claimGranted}
		c.verdict <- nil
		r.holds.mu.Lock()
		r.holds.add(r.holds.of(key), 1, 0)
		r.holds.mu.Unlock()
		err := r.await(ctx, s, key, c)
		if n, _ := r.holds.slotsOf(key); (n == 1) != (err == nil) {
			t.Fatalf("%d slots are held, and the claim says %v", n, err)
		}
		if err == nil {
			r.holds.release(key, 1, 0)
		}
	}
}
