package store

import (
	"testing"
	"time"
)

// Whoever knows that nothing is under way for a stream lets others settle it sooner than
// it had said, or later.
func TestLeave(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.account(t, "acme")
		start := r.clock.read()
		st := r.aStream("acme", "a")
		st.BusyUntil = start.Add(time.Hour)
		must(t, r.CreateStream(ctx, someone(), st))
		free := func(want int) {
			t.Helper()
			all, err := r.Unsettled(ctx, 9)
			must(t, err)
			equal(t, "unsettled", len(all), want)
		}
		free(0)
		must(t, r.Leave(ctx, st.ID, start.Add(time.Minute)))
		free(0)
		r.clock.pass(time.Minute)
		free(1)
		must(t, r.Busy(ctx, st.ID, r.clock.read().Add(time.Hour)))
		free(0)
		must(t, r.Leave(ctx, st.ID, r.clock.read()))
		free(1)
		wants(t, "none", r.Leave(ctx, "none", start), ErrNotFound)
	})
}
