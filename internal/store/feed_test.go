package store

import (
	"context"
	"fmt"
	"testing"
	"time"

	"sluice/internal/tenant"
)

func TestChanges(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		changes, whole, err := r.Changes(ctx, 0, 9)
		if err != nil || !whole || len(changes) != 0 {
			t.Errorf("of nothing: %v, %t, %v", changes, whole, err)
		}
		for i := range 5 {
			r.account(t, tenant.AccountID(fmt.Sprintf("acc%d", i)))
		}
		newest, err := r.Revision(ctx)
		if err != nil || newest != 5 {
			t.Errorf("revision %d, %v", newest, err)
		}
		changes, whole, err = r.Changes(ctx, 1, 2)
		must(t, err)
		equal(t, "a part", changes, []Change{
			{2, tenant.Change{Kind: tenant.AccountChanged, Account: "acc1"}}, {3, tenant.Change{Kind: tenant.AccountChanged, Account: "acc2"}},
		})
		if !whole {
			t.Error("a part is not whole")
		}
		// One who knows more than there is, as before a restore from a copy.
		if _, whole, err := r.Changes(ctx, 6, 9); err != nil || whole {
			t.Errorf("behind the end: whole %t, %v", whole, err)
		}
		// What failed left nothing.
		wants(t, "taken", r.CreateAccount(ctx, someone(), Account{ID: "acc0", State: tenant.Active}, nil), ErrTaken)
		if got, err := r.Revision(ctx); err != nil || got != newest {
			t.Errorf("after a failure: %d, %v", got, err)
		}
	})
}

// Who was away for longer than the log tells has to look at everything again, and must be
// told so: a revocation that he does not hear of would never end a tail.
func TestForgottenChanges(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		for i := range pruneEvery - 4 {
			r.account(t, tenant.AccountID(fmt.Sprintf("acc%d", i)))
		}
		r.clock.pass(changesKept)
		for i := range 2 * pruneEvery {
			r.account(t, tenant.AccountID(fmt.Sprintf("new%d", i)))
			if i == 0 {
				r.clock.pass(time.Minute)
			}
		}
		newest, err := r.Revision(ctx)
		must(t, err)
		for after, want := range map[int64]bool{0: false, pruneEvery - 5: false, pruneEvery - 4: true, newest: true} {
			_, whole, err := r.Changes(ctx, after, 9)
			if err != nil || whole != want {
				t.Errorf("after %d: whole %t, %v; want %t", after, whole, err, want)
			}
		}
		r.clock.pass(2 * changesKept)
		for i := range pruneEvery {
			r.account(t, tenant.AccountID(fmt.Sprintf("last%d", i)))
		}
		changes, whole, err := r.Changes(ctx, 0, 1000)
		if err != nil || whole || len(changes) > pruneEvery {
			t.Errorf("%d are left, whole %t, %v", len(changes), whole, err)
		}
	})
}

// One change of very many things is one entry: look at everything.
func TestManyChangesAreEverything(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		var d Declaration
		for i := range maxTold + 1 {
			d.Accounts = append(d.Accounts, Account{ID: tenant.AccountID(fmt.Sprintf("acc%d", i)), State: tenant.Active})
		}
		must(t, r.Declare(t.Context(), d))
		var after int64
		equal(t, "told", r.told(t, &after), []tenant.Change{{Kind: tenant.Everything}})
	})
}

// listen calls Notified and gives what it wakes and how it ends.
func listen(ctx context.Context, t *testing.T, s *Store) (woken <-chan struct{}, ended <-chan error) {
	t.Helper()
	w, e := make(chan struct{}, 1000), make(chan error, 1)
	go func() { e <- s.Notified(ctx, func() { w <- struct{}{} }) }()
	receive(t, "the first call", w)
	return w, e
}

// patience bounds waits that end by themselves.
const patience = 30 * time.Second

func receive[T any](t *testing.T, what string, from <-chan T) (value T) {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case value = <-from:
	case <-timer.C:
		t.Fatalf("%s: not within %v", what, patience)
	}
	return value
}

func TestNotified(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithCancel(t.Context())
		first, ended := listen(ctx, t, r.Store)
		second, closed := listen(t.Context(), t, r.Store)
		for i := range 3 {
			r.account(t, tenant.AccountID(fmt.Sprintf("acc%d", i)))
			receive(t, "the first hears", first)
			receive(t, "the second hears", second)
		}
		cancel()
		wants(t, "ended by its context", receive(t, "its end", ended), context.Canceled)
		r.account(t, "acc9")
		receive(t, "the second hears", second)
		must(t, r.Close())
		wants(t, "ended by the store", receive(t, "its end", closed), ErrUnavailable)
		wants(t, "of a closed store", r.Notified(t.Context(), func() {}), ErrUnavailable)
	})
}
