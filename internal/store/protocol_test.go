package store

import (
	"testing"
	"time"

	"sluice/internal/tenant"
)

// begin begins a client's attempt at acme's stream "a", a minute at most at a node.
func (r *rig) begin(t *testing.T, doomed string) Stream {
	t.Helper()
	want := r.aStream("acme", "a")
	want.Doomed, want.BusyUntil = doomed, r.clock.read().Add(time.Minute)
	st, err := r.Begin(t.Context(), someone(), want)
	must(t, err)
	return st
}

// is checks the row of "a"; nil = that there is none.
func (r *rig) is(t *testing.T, what string, check func(Stream) bool) {
	t.Helper()
	st, err := r.Stream(t.Context(), "acme", "a")
	if check == nil {
		wants(t, what, err, ErrNotFound)
		return
	}
	must(t, err)
	if !check(st) {
		t.Errorf("%s: %+v", what, st)
	}
}

func (r *rig) unsettled(t *testing.T) int {
	t.Helper()
	all, err := r.Unsettled(t.Context(), 10)
	must(t, err)
	return len(all)
}

func (r *rig) looks(t *testing.T) int {
	t.Helper()
	all, err := r.Looks(t.Context(), 10)
	must(t, err)
	return len(all)
}

func TestAttemptLife(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		_, err := r.Begin(ctx, someone(), r.aStream("none", "a"))
		wants(t, "no account", err, ErrNotFound)
		r.account(t, "acme")
		first := r.begin(t, "")
		if first.State != Creating || !first.Protocol || first.Attempts != 1 || first.Unanswered != 1 {
			t.Errorf("begun: %+v", first)
		}
		wants(t, "its name", r.CreateStream(ctx, someone(), r.aStream("acme", "a")), ErrTaken)
		if r.unsettled(t) != 0 {
			t.Error("it is looked at while it is at a node")
		}
		// The API's own steps do not move a client's time back.
		must(t, r.Leave(ctx, first.ID, r.clock.read()))
		if r.unsettled(t) != 0 {
			t.Error("left alone no more")
		}
		end := r.clock.read().Add(time.Hour)
		must(t, r.End(ctx, someone(), first.ID, 1, Made, Sight{Incarnation: "7", ContentType: "text/plain", ExpiresAt: end}))
		r.is(t, "made", func(st Stream) bool {
			return st.State == Live && st.Incarnation == "7" && st.ContentType == "text/plain" && st.ExpiresAt.Equal(end) && st.Unanswered == 0 && st.BusyUntil.IsZero()
		})
		// Ursula ends it: nobody makes it Deleting, and its name stays to be had.
		r.clock.pass(time.Hour + lookAfter)
		if r.unsettled(t) != 0 || r.looks(t) != 1 {
			t.Errorf("at its end: %d unsettled, %d looks", r.unsettled(t), r.looks(t))
		}
		live, err := r.Stream(ctx, "acme", "a")
		must(t, err)
		must(t, r.Saw(ctx, live, nil, true))
		r.is(t, "gone", nil)
		wants(t, "an attempt at what is gone", r.End(ctx, someone(), first.ID, 1, Made, Sight{}), ErrNotFound)
	})
}

// An attempt that did nothing takes its row with it, unless another was begun meanwhile.
func TestAttemptRefused(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.account(t, "acme")
		st := r.begin(t, "")
		must(t, r.End(t.Context(), someone(), st.ID, 1, Refused, Sight{}))
		r.is(t, "alone", nil)
		first, second := r.begin(t, ""), r.begin(t, "")
		must(t, r.End(t.Context(), someone(), first.ID, first.Attempts, Refused, Sight{}))
		r.is(t, "beside another", func(st Stream) bool { return st.State == Creating && st.Unanswered == 1 && !st.BusyUntil.IsZero() })
		must(t, r.End(t.Context(), someone(), second.ID, second.Attempts, Refused, Sight{}))
		if r.unsettled(t) != 1 {
			t.Error("nobody looks what became of them")
		}
	})
}

// A DELETE frees the name at once where no other attempt is open; else whatever comes up is
// to go.
func TestAttemptGone(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.account(t, "acme")
		lost := r.begin(t, "")
		made := r.begin(t, "")
		must(t, r.End(ctx, someone(), made.ID, made.Attempts, Made, Sight{Incarnation: "7", ContentType: "text/plain"}))
		gone := r.begin(t, Whatever)
		if gone.Doomed != "7" {
			t.Errorf("doomed: %q", gone.Doomed)
		}
		must(t, r.End(ctx, someone(), gone.ID, gone.Attempts, Gone, Sight{}))
		r.is(t, "while one has no answer", func(st Stream) bool { return st.Doomed == Whatever && st.Unanswered == 1 })
		r.clock.pass(2 * time.Minute)
		if r.unsettled(t) != 1 {
			t.Error("nobody looks")
		}
		now, err := r.Stream(ctx, "acme", "a")
		must(t, err)
		stale := now
		stale.Attempts--
		wants(t, "condemned as it was", r.Condemn(ctx, stale), ErrNotFound)
		must(t, r.Condemn(ctx, now))
		_, err = r.Begin(ctx, someone(), r.aStream("acme", "a"))
		wants(t, "begun while it goes", err, ErrGone)
		must(t, r.End(ctx, someone(), lost.ID, lost.Attempts, Made, Sight{Incarnation: "8"}))
		r.is(t, "made when it goes", func(st Stream) bool { return st.State == Deleting })
		must(t, r.RemoveStream(ctx, now.ID))
		st := r.begin(t, Whatever)
		must(t, r.End(ctx, someone(), st.ID, 1, Gone, Sight{}))
		r.is(t, "deleted alone", nil)
	})
}

// What a look saw is not noted where a client has begun something since, and an attempt that
// is settled is not taken off twice.
func TestLookLater(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.account(t, "acme")
		first := r.begin(t, "")
		r.begin(t, "")
		wants(t, "an older look", r.Saw(ctx, first, nil, true), ErrNotFound)
		now, err := r.Stream(ctx, "acme", "a")
		must(t, err)
		seen := Sight{Incarnation: "7", ContentType: "text/plain", TTL: 60}
		must(t, r.Saw(ctx, now, &seen, true))
		third := r.begin(t, "")
		must(t, r.End(ctx, someone(), first.ID, 1, Refused, Sight{}))
		r.is(t, "after a settled one", func(st Stream) bool { return st.Unanswered == 1 && !st.BusyUntil.IsZero() })
		must(t, r.End(ctx, someone(), third.ID, third.Attempts, Made, seen))
		r.is(t, "made again", func(st Stream) bool { return st.Unanswered == 0 && st.TTL == 60 })
		r.clock.pass(time.Minute + lookAfter)
		if r.looks(t) != 1 {
			t.Error("it is not looked at")
		}
	})
}

// What was public is private when a client makes it anew, and replicas are told.
func TestMadeAnewIsPrivate(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.account(t, "acme")
		want := r.aStream("acme", "a")
		want.Public, want.ExpiresAt = true, r.clock.read().Add(time.Hour)
		must(t, r.CreateStream(ctx, someone(), want))
		_, err := r.Begin(ctx, someone(), want)
		wants(t, "while it is created otherwise", err, ErrTaken)
		must(t, r.MarkCreated(ctx, want.ID, "7"))
		after, err := r.Revision(ctx)
		must(t, err)
		again := r.begin(t, "")
		must(t, r.End(ctx, someone(), again.ID, again.Attempts, Made, Sight{Incarnation: "7"}))
		r.is(t, "the same", func(st Stream) bool { return st.Public && !st.Protocol && !st.ExpiresAt.IsZero() })
		anew := r.begin(t, "")
		must(t, r.End(ctx, someone(), anew.ID, anew.Attempts, Made, Sight{Incarnation: "8", ContentType: "text/csv"}))
		r.is(t, "another", func(st Stream) bool {
			return !st.Public && st.Protocol && st.ExpiresAt.IsZero() && st.ContentType == "text/csv" && st.Incarnation == "8"
		})
		equal(t, "told", r.told(t, &after), []tenant.Change{{Kind: tenant.StreamChanged, Account: "acme", Stream: "a"}})
	})
}

// The file's streams are its own: a client deletes none, and makes none of another kind.
func TestAttemptAtDeclared(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		d := Declaration{
			Accounts: []Account{{ID: "acme", State: tenant.Active}},
			Streams:  []tenant.Stream{{Account: "acme", Name: "a", ContentType: "text/plain", Public: true}},
		}
		must(t, r.Declare(ctx, d))
		want := r.aStream("acme", "a")
		want.Doomed = Whatever
		_, err := r.Begin(ctx, someone(), want)
		wants(t, "deleted", err, ErrDeclared)
		for _, in := range []string{"7", "8"} {
			st := r.begin(t, "")
			must(t, r.End(ctx, someone(), st.ID, st.Attempts, Made, Sight{Incarnation: in, ContentType: "text/csv", TTL: 60}))
			r.is(t, "made", func(st Stream) bool {
				return st.Declared && st.Public && st.ContentType == "text/plain" && st.TTL == 0 && st.Incarnation == in && !st.Protocol
			})
		}
		r.begin(t, "")
		now, err := r.Stream(ctx, "acme", "a")
		must(t, err)
		must(t, r.Saw(ctx, now, nil, true))
		r.is(t, "missing at the node", func(st Stream) bool { return st.Declared && st.State == Live && st.Unanswered == 0 })
	})
}

// A DELETE of a public stream had no answer, or the stream was over, and a client made one of
// its name anew: strangers could read that until the answer was written down, and while the
// store was away for as long as that lasted.
func TestDoubtfulIsPrivateBeforeItIsMadeAnew(t *testing.T) {
	for what, doubt := range map[string]func(*testing.T, *rig){
		"deleted without an answer": func(t *testing.T, r *rig) { r.begin(t, Whatever) },
		"over":                      func(_ *testing.T, r *rig) { r.clock.pass(time.Hour) },
	} {
		t.Run(what, func(t *testing.T) {
			each(t, func(t *testing.T, r *rig) {
				ctx := t.Context()
				r.account(t, "acme")
				first := r.begin(t, "")
				end := r.clock.read().Add(time.Hour)
				must(t, r.End(ctx, someone(), first.ID, first.Attempts, Made, Sight{Incarnation: "7", ContentType: "text/plain", ExpiresAt: end}))
				_, err := r.SetPublic(ctx, someone(), "acme", "a", true)
				must(t, err)
				r.begin(t, "")
				r.is(t, "not in doubt", func(st Stream) bool { return st.Public })
				doubt(t, r)
				r.is(t, "not made anew", func(st Stream) bool { return st.Public })
				after, err := r.Revision(ctx)
				must(t, err)
				r.begin(t, "")
				r.is(t, "in doubt", func(st Stream) bool { return !st.Public && st.State == Live })
				equal(t, "told", r.told(t, &after), []tenant.Change{{Kind: tenant.StreamChanged, Account: "acme", Stream: "a"}})
			})
		})
	}
}

// The answer to the attempt begun last was believed though another, under way with it, was
// answered first: a stream that a client had been told of lost its row, and the row of one
// that was gone stayed. What a client had deleted was said to have expired.
func TestAnswersOutOfOrder(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.account(t, "acme")
		put, remove := r.begin(t, ""), r.begin(t, Whatever)
		must(t, r.End(ctx, someone(), put.ID, put.Attempts, Made, Sight{Incarnation: "7", ContentType: "text/plain"}))
		must(t, r.End(ctx, someone(), put.ID, remove.Attempts, Gone, Sight{}))
		r.is(t, "gone before it was made", func(st Stream) bool { return st.State == Live && st.Doomed == "" })
		if r.looks(t) != 1 {
			t.Error("nobody looks which came last")
		}
		remove, put = r.begin(t, Whatever), r.begin(t, "")
		must(t, r.End(ctx, someone(), put.ID, remove.Attempts, Deleted, Sight{}))
		must(t, r.End(ctx, someone(), put.ID, put.Attempts, Made, Sight{Incarnation: "7", ContentType: "text/plain"}))
		if r.looks(t) != 1 {
			t.Error("nobody looks whether it is gone")
		}
		now, err := r.Stream(ctx, "acme", "a")
		must(t, err)
		must(t, r.Saw(ctx, now, nil, true))
		records, _, err := r.Audit(ctx, AuditQuery{Limit: 1})
		must(t, err)
		if got := records[0]; got.Action != StreamDelete || got.Actor.Kind == ActorSystem {
			t.Errorf("recorded as %s by %v", got.Action, got.Actor)
		}
	})
}

// Another stream than the one that is public is private at once, also where it is not known
// which of two answers came last.
func TestMadeAnewBesideAnother(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.account(t, "acme")
		first := r.begin(t, "")
		must(t, r.End(ctx, someone(), first.ID, first.Attempts, Made, Sight{Incarnation: "7", ContentType: "text/plain"}))
		_, err := r.SetPublic(ctx, someone(), "acme", "a", true)
		must(t, err)
		put := r.begin(t, "")
		r.begin(t, "8")
		must(t, r.End(ctx, someone(), put.ID, put.Attempts, Made, Sight{Incarnation: "8", ContentType: "text/plain"}))
		r.is(t, "another", func(st Stream) bool { return !st.Public && st.Incarnation == "7" })
	})
}

// A look says what Begin then says, whatever the stream is, and begins nothing.
func TestLookBegin(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		is := func(what string, account tenant.AccountID, remove bool, want error) {
			t.Helper()
			_, err := r.LookBegin(ctx, account, "a", remove)
			wants(t, what, err, want)
			st := r.aStream(account, "a")
			if remove {
				st.Doomed = Whatever
			}
			if want != nil {
				_, err = r.Begin(ctx, someone(), st)
				wants(t, what+", begun", err, want)
			}
		}
		is("no account", "none", false, ErrNotFound)
		r.account(t, "acme")
		is("no stream", "acme", false, nil)
		is("no stream to delete", "acme", true, nil)
		r.is(t, "after the looks", nil)
		r.begin(t, "")
		is("a client's", "acme", true, nil)
		r.is(t, "after a look", func(st Stream) bool { return st.Attempts == 1 && st.Doomed == "" })
		_, err := r.DeleteStream(ctx, someone(), "acme", "a")
		must(t, err)
		is("being deleted", "acme", false, ErrGone)
		is("being deleted, deleted", "acme", true, ErrGone)

		must(t, r.CreateAccount(ctx, someone(), Account{ID: "beta", State: tenant.Active}, nil))
		must(t, r.CreateStream(ctx, someone(), r.aStream("beta", "a")))
		is("being created", "beta", true, ErrTaken)
		must(t, r.Declare(ctx, Declaration{
			Accounts: []Account{{ID: "gamma", State: tenant.Active}},
			Streams:  []tenant.Stream{{Account: "gamma", Name: "a", ContentType: "text/plain"}},
		}))
		is("declared", "gamma", false, nil)
		is("declared, deleted", "gamma", true, ErrDeclared)
	})
}
