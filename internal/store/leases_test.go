package store

import (
	"testing"
	"time"
)

func TestLeases(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		hold := func(lease, holder string, want bool) {
			t.Helper()
			got, err := r.Hold(ctx, lease, holder, 10*time.Second)
			if err != nil || got != want {
				t.Errorf("%s holds %s: %t, %v; want %t", holder, lease, got, err, want)
			}
		}
		hold("settle", "a", true)
		hold("settle", "b", false)
		hold("other", "b", true)
		r.clock.pass(9 * time.Second)
		hold("settle", "a", true) // longer
		r.clock.pass(9 * time.Second)
		hold("settle", "b", false)
		must(t, r.LetGo(ctx, "settle", "b")) // not its own
		hold("settle", "b", false)
		r.clock.pass(time.Second)
		hold("settle", "b", true) // over
		hold("settle", "a", false)
		must(t, r.LetGo(ctx, "settle", "b"))
		hold("settle", "a", true)
	})
}

// Two replicas whose clocks are an hour apart: a lease is the store's, by its clock.
func TestLeaseIsOnTheSharedClock(t *testing.T) {
	t.Parallel()
	url := postgres.Database(t)
	at := func(d time.Duration) *Store {
		return open(t, Options{URL: url, SealingKey: testSealingKey, Now: func() time.Time { return time.Now().Add(d) }})
	}
	a, b := at(0), at(time.Hour)
	if got, err := a.Hold(t.Context(), "settle", "a", time.Minute); err != nil || !got {
		t.Fatalf("hold: %t, %v", got, err)
	}
	if got, err := b.Hold(t.Context(), "settle", "b", time.Minute); err != nil || got {
		t.Errorf("the second took it: %t, %v", got, err)
	}
}
