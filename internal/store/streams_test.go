package store

import (
	"testing"
	"time"

	"sluice/internal/tenant"
)

func TestStreamLife(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.account(t, "acme")
		r.account(t, "other")
		after, err := r.Revision(ctx)
		must(t, err)
		want := r.aStream("acme", "a")
		want.Public, want.ExpiresAt, want.BusyUntil = true, r.clock.read().Add(time.Hour), r.clock.read().Add(time.Minute)
		must(t, r.CreateStream(ctx, someone(), want))
		got, err := r.Stream(ctx, "acme", "a")
		must(t, err)
		equal(t, "made", got, want)

		second := r.aStream("acme", "a")
		second.ID = "another"
		wants(t, "its name", r.CreateStream(ctx, someone(), second), ErrTaken)
		second.Name, second.ID = "b", want.ID
		wants(t, "its id", r.CreateStream(ctx, someone(), second), ErrTaken)
		wants(t, "no account", r.CreateStream(ctx, someone(), r.aStream("none", "a")), ErrNotFound)
		must(t, r.CreateStream(ctx, someone(), r.aStream("other", "a")))
		_, err = r.Stream(ctx, "acme", "none")
		wants(t, "none", err, ErrNotFound)

		must(t, r.MarkCreated(ctx, want.ID, "inc9"))
		want.State, want.Incarnation, want.BusyUntil = Live, "inc9", time.Time{}
		got, err = r.Stream(ctx, "acme", "a")
		must(t, err)
		equal(t, "created", got, want)
		wants(t, "created twice", r.MarkCreated(ctx, want.ID, "x"), ErrNotFound)
		wants(t, "none created", r.MarkCreated(ctx, "none", "x"), ErrNotFound)
		wants(t, "one that lives removed", r.RemoveStream(ctx, want.ID), ErrNotFound)

		want.Public = false
		for range 2 { // the second changes nothing, and tells nothing
			got, err = r.SetPublic(ctx, someone(), "acme", "a", false)
			must(t, err)
			equal(t, "private", got, want)
		}
		_, err = r.SetPublic(ctx, someone(), "acme", "none", true)
		wants(t, "none made public", err, ErrNotFound)

		want.State = Deleting
		for range 2 {
			got, err = r.DeleteStream(ctx, someone(), "acme", "a")
			must(t, err)
			equal(t, "deleted", got, want)
		}
		_, err = r.DeleteStream(ctx, someone(), "acme", "none")
		wants(t, "none deleted", err, ErrNotFound)
		_, err = r.SetPublic(ctx, someone(), "acme", "a", true)
		wants(t, "one on its way out made public", err, ErrGone)
		wants(t, "its name while it goes", r.CreateStream(ctx, someone(), Stream{Stream: want.Stream, ID: "another"}), ErrTaken)
		wants(t, "created when it goes", r.MarkCreated(ctx, want.ID, "x"), ErrNotFound)

		must(t, r.RemoveStream(ctx, want.ID))
		wants(t, "removed twice", r.RemoveStream(ctx, want.ID), ErrNotFound)
		_, err = r.Stream(ctx, "acme", "a")
		wants(t, "after its removal", err, ErrNotFound)
		must(t, r.CreateStream(ctx, someone(), second))
		changed := func(a tenant.AccountID, name tenant.StreamName) tenant.Change {
			return tenant.Change{Kind: tenant.StreamChanged, Account: a, Stream: name}
		}
		a := changed("acme", "a")
		// That it was made was told too: replicas forgot a stream that was in use already, and
		// where the store stopped at that moment it was 503 for as long as that took.
		equal(t, "told", r.told(t, &after), []tenant.Change{a, changed("other", "a"), a, a, a, changed("acme", "b")})
	})
}

func TestStreamPages(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.account(t, "acme")
		r.account(t, "other")
		names := []tenant.StreamName{"A", "a", "a-", "a.b", "aB", "a_", "aa", "a~"} // sorted
		for _, name := range names {
			must(t, r.CreateStream(t.Context(), someone(), r.aStream("acme", name)))
		}
		must(t, r.CreateStream(t.Context(), someone(), r.aStream("other", "a1")))
		pages := func(p Page) (all []tenant.StreamName) {
			t.Helper()
			for {
				page, err := r.Streams(t.Context(), "acme", p)
				must(t, err)
				if len(page) == 0 {
					return all
				}
				for _, st := range page {
					all = append(all, st.Name)
				}
				p.After = string(page[len(page)-1].Name)
			}
		}
		equal(t, "all", pages(Page{Limit: 3}), names)
		equal(t, "a…", pages(Page{Limit: 2, Prefix: "a"}), names[1:])
		equal(t, "a.…", pages(Page{Limit: 2, Prefix: "a."}), names[3:4])
	})
}

// What is being worked on is left alone, and what is forgotten is found.
func TestUnsettled(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.account(t, "acme")
		start := r.clock.read()
		busy := r.aStream("acme", "busy")
		busy.BusyUntil = start.Add(time.Minute)
		must(t, r.CreateStream(ctx, someone(), busy))
		must(t, r.CreateStream(ctx, someone(), r.aStream("acme", "new")))
		r.live(t, "acme", "live")
		going := r.live(t, "acme", "going")
		_, err := r.DeleteStream(ctx, someone(), "acme", "going")
		must(t, err)
		expiring := r.aStream("acme", "expiring")
		expiring.ExpiresAt = start.Add(2 * time.Minute)
		must(t, r.CreateStream(ctx, someone(), expiring))
		must(t, r.MarkCreated(ctx, expiring.ID, "inc"))
		settle := func(limit int) (names []tenant.StreamName) {
			t.Helper()
			all, err := r.Unsettled(ctx, limit)
			must(t, err)
			for _, st := range all {
				names = append(names, st.Name)
				if st.State == Live {
					t.Errorf("%s is settled", st.Name)
				}
			}
			return names
		}
		equal(t, "at first", settle(9), []tenant.StreamName{"going", "new"})
		equal(t, "one", settle(1), []tenant.StreamName{"going"})
		must(t, r.Busy(ctx, going.ID, start.Add(30*time.Second)))
		must(t, r.Busy(ctx, going.ID, start.Add(10*time.Second))) // moves nothing back
		wants(t, "none", r.Busy(ctx, "none", start), ErrNotFound)
		r.clock.pass(20 * time.Second)
		equal(t, "while one is worked on", settle(9), []tenant.StreamName{"new"})
		r.clock.pass(40 * time.Second)
		// Those that wait longest first, so that none is starved.
		equal(t, "when all are over", settle(9), []tenant.StreamName{"new", "going", "busy"})
		after, err := r.Revision(ctx)
		must(t, err)
		r.clock.pass(time.Minute)
		equal(t, "when one has expired", settle(9), []tenant.StreamName{"expiring", "new", "going", "busy"})
		equal(t, "told", r.told(t, &after), []tenant.Change{{Kind: tenant.StreamChanged, Account: "acme", Stream: "expiring"}})
		settle(9)
		equal(t, "told again", r.told(t, &after), nil)
	})
}

// Replicas' clocks differ. What one of them keeps for a minute is kept for a minute by
// the clock that all share, whatever its own says.
func TestBusyIsOnTheSharedClock(t *testing.T) {
	t.Parallel()
	c := &clock{now: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)} // years behind Postgres
	s := open(t, Options{URL: postgres.Database(t), SealingKey: testSealingKey, Now: c.read})
	r := &rig{Store: s, clock: c}
	r.account(t, "acme")
	st := r.aStream("acme", "a")
	st.BusyUntil = c.read().Add(time.Minute)
	must(t, r.CreateStream(t.Context(), someone(), st))
	must(t, r.CreateStream(t.Context(), someone(), r.aStream("acme", "b")))
	left, err := r.Unsettled(t.Context(), 9)
	must(t, err)
	if len(left) != 1 || left[0].Name != "b" {
		t.Errorf("unsettled while one is busy: %v", left)
	}
	must(t, r.Busy(t.Context(), left[0].ID, c.read().Add(time.Minute)))
	if left, err := r.Unsettled(t.Context(), 9); err != nil || len(left) != 0 {
		t.Errorf("unsettled while both are busy: %v, %v", left, err)
	}
}
