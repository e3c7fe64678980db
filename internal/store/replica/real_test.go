package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sluice/internal/postgrestest"
	"sluice/internal/store"
	"sluice/internal/tenant"
)

// postgres is the server that the tests of this package share.
var postgres postgrestest.Shared

func TestMain(m *testing.M) {
	code := m.Run()
	postgres.Close()
	os.Exit(code)
}

// soon is how long a test waits for what is to happen.
const soon = 20 * time.Second

// eventually waits until ok says so.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	tick, end := time.NewTicker(2*time.Millisecond), time.NewTimer(soon)
	defer tick.Stop()
	defer end.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-end.C:
			tb.Fatalf("%s: not within %v", what, soon)
		}
	}
}

// deaf is a store of which no notification arrives.
type deaf struct{ *store.Store }

func (deaf) Notified(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return ctx.Err()
}

// fleet is a store in which changes are made, and the replicas that follow it, each over
// connections of its own where it is shared.
type fleet struct {
	*store.Store
	t        *testing.T
	replicas []*Replica
	heard    []chan tenant.Change
}

func newFleet(t *testing.T, url string, replicas int, hears bool, staleFor time.Duration) *fleet {
	t.Helper()
	open := func() *store.Store {
		s, err := store.Open(t.Context(), store.Options{URL: url, SealingKey: bytes.Repeat([]byte{7}, 32)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s
	}
	f := &fleet{t: t, Store: open()}
	f.do("create an account", f.CreateAccount(t.Context(), store.BySystem(), store.Account{ID: "acme", State: tenant.Active}, &store.Key{Key: named("a")}))
	f.do("create a stream", f.CreateStream(t.Context(), store.BySystem(), store.Stream{Stream: tenant.Stream{Account: "acme", Name: "s", Public: true}, ID: "id-of-s"}))
	for i := range replicas {
		s := f.Store
		if i > 0 {
			s = open()
		}
		var source Source = s
		if !hears {
			source = deaf{s}
		}
		r := New(t.Context(), Options{Source: source, StaleFor: staleFor, Defaults: tenant.DefaultLimits()})
		t.Cleanup(func() { _ = r.Close() })
		heard := make(chan tenant.Change, 1000)
		r.Watch(func(c tenant.Change) { heard <- c })
		f.replicas, f.heard = append(f.replicas, r), append(f.heard, heard)
		eventually(t, "the first reading", func() bool { return r.Ready() == nil })
	}
	return f
}

func named(secret string) tenant.Key {
	k := key("acme/"+secret, secret)
	k.Name, k.Hint = secret, secret
	return k
}

func (f *fleet) do(what string, err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatalf("%s: %v", what, err)
	}
}

// within wants a change to be told by all replicas within a time of its being made, and
// what holds of each replica then to be in force: at once.
func (f *fleet) within(most time.Duration, what string, change func() error, told tenant.Change, holds func(*Replica) error) {
	f.t.Helper()
	begun := time.Now()
	f.do(what, change())
	for i, r := range f.replicas {
		limit := time.NewTimer(soon)
		for heard := (tenant.Change{}); heard != told; {
			select {
			case heard = <-f.heard[i]:
			case <-limit.C:
				f.t.Fatalf("%s: never told", what)
			}
		}
		limit.Stop()
		if took := time.Since(begun); took > most {
			f.t.Errorf("%s: told by replica %d after %v", what, i, took)
		}
		if err := holds(r); err != nil {
			f.t.Errorf("%s: told by replica %d, and not in force: %v", what, i, err)
		}
	}
	f.t.Logf("%s: in force after %v", what, time.Since(begun))
}

// TestRealStores is every change that matters to a request, made in a store and waited for
// in its replicas (A12, A13): within a second, within two where notifications are lost.
func TestRealStores(t *testing.T) {
	t.Parallel()
	for _, hears := range []bool{true, false} {
		t.Run(fmt.Sprintf("SQLite/notified=%t", hears), func(t *testing.T) {
			t.Parallel()
			url := "sqlite:" + filepath.Join(t.TempDir(), "sluice.db")
			newFleet(t, url, 1, hears, DefaultStaleFor).play(hears)
		})
		t.Run(fmt.Sprintf("Postgres/notified=%t", hears), func(t *testing.T) {
			t.Parallel()
			newFleet(t, postgres.Database(t), 2, hears, DefaultStaleFor).play(hears)
		})
	}
}

func (f *fleet) play(hears bool) {
	most := 2 * time.Second
	if hears {
		most = time.Second
	}
	ctx := f.t.Context()
	for _, r := range f.replicas {
		_, known := r.Key(ctx, tenant.DigestOf("a"))
		_, unknown := r.Key(ctx, tenant.DigestOf("new"))
		if known != nil || !errors.Is(unknown, tenant.ErrNotFound) {
			f.t.Fatalf("known: %v; unknown: %v", known, unknown)
		}
	}
	f.within(most, "create a key", func() error { return f.CreateKey(ctx, store.BySystem(), store.Key{Key: named("new")}) }, keyChanged("acme/new"), f.key("new", func(k *tenant.Key) bool {
		return k.RevokedAt.IsZero() && k.ExpiresAt.IsZero()
	}))
	until := time.Now().Add(time.Hour)
	f.within(most, "rotate a key", func() error {
		_, err := f.RotateKey(ctx, store.BySystem(), "acme", "acme/new", store.NewSecret{Digest: tenant.DigestOf("newer"), Hint: "ewer", OldUntil: until})
		return err
	}, keyChanged("acme/new"), func(r *Replica) error {
		return errors.Join(
			f.key("new", func(k *tenant.Key) bool { return !k.ExpiresAt.IsZero() && k.ExpiresAt.Sub(until).Abs() < time.Second })(r),
			f.key("newer", func(k *tenant.Key) bool { return k.ExpiresAt.IsZero() && k.Digest == tenant.DigestOf("newer") })(r),
		)
	})
	read := tenant.ReadAccess
	f.within(most, "narrow a key", func() error {
		_, err := f.ChangeKey(ctx, store.BySystem(), "acme", "acme/new", store.KeyChange{Access: &read})
		return err
	}, keyChanged("acme/new"), func(r *Replica) error {
		if at := r.Cutoff("acme/new"); at.IsZero() || at.Equal(never()) {
			return fmt.Errorf("cutoff %v", at)
		}
		return f.key("new", func(k *tenant.Key) bool { return k.Access == tenant.ReadAccess })(r)
	})
	f.within(most, "revoke a key", func() error { return f.RevokeKey(ctx, store.BySystem(), "acme", "acme/new") }, keyChanged("acme/new"), func(r *Replica) error {
		if at := r.Cutoff("acme/new"); !at.Equal(never()) {
			return fmt.Errorf("cutoff %v", at)
		}
		return f.key("newer", func(k *tenant.Key) bool { return !k.RevokedAt.IsZero() })(r)
	})
	f.playStreams(most)
	f.playAccounts(most)
	f.playSigning()
	f.playUses()
}

func (f *fleet) key(secret string, holds func(*tenant.Key) bool) func(*Replica) error {
	return func(r *Replica) error {
		k, err := r.Key(f.t.Context(), tenant.DigestOf(secret))
		if err == nil && !holds(k) {
			err = fmt.Errorf("key %+v", k)
		}
		return err
	}
}

func (f *fleet) playStreams(most time.Duration) {
	ctx := f.t.Context()
	stream := func(public bool) func(*Replica) error {
		return func(r *Replica) error {
			s, err := r.Stream(ctx, "acme", "s")
			if err == nil && s.Public != public {
				err = fmt.Errorf("public: %t", s.Public)
			}
			return err
		}
	}
	for _, r := range f.replicas {
		f.do("ask for a stream", stream(true)(r))
	}
	f.within(most, "make a stream private", func() error {
		_, err := f.SetPublic(ctx, store.BySystem(), "acme", "s", false)
		return err
	}, streamChanged("s"), stream(false))
	f.within(most, "delete a stream", func() error {
		_, err := f.DeleteStream(ctx, store.BySystem(), "acme", "s")
		return err
	}, streamChanged("s"), func(r *Replica) error {
		if err := stream(false)(r); !errors.Is(err, tenant.ErrNotFound) {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
}

func (f *fleet) playAccounts(most time.Duration) {
	ctx := f.t.Context()
	burst, unpaid := 7, tenant.Unpaid
	account := func(state tenant.State, burst int) func(*Replica) error {
		return func(r *Replica) error {
			a, err := r.Account(ctx, "acme")
			if err == nil && (a.State != state || a.Limits.Burst != burst || a.Limits.OpenTails != tenant.DefaultLimits().OpenTails) {
				err = fmt.Errorf("account %+v", a)
			}
			return err
		}
	}
	for _, r := range f.replicas {
		f.do("ask for an account", account(tenant.Active, tenant.DefaultLimits().Burst)(r))
	}
	f.within(most, "change an account", func() error {
		_, err := f.ChangeAccount(ctx, store.BySystem(), "acme", store.AccountChange{State: &unpaid, Limits: func(l *store.OwnLimits) { l.Burst = &burst }})
		return err
	}, accountChanged(), account(unpaid, burst))
	f.within(most, "delete an account", func() error { return f.DeleteAccount(ctx, store.BySystem(), "acme") }, keyChanged("acme/a"), func(r *Replica) error {
		if err := account(unpaid, burst)(r); !errors.Is(err, tenant.ErrNotFound) {
			return fmt.Errorf("got %w", err)
		}
		if at := r.Cutoff("acme/a"); !at.Equal(never()) {
			return fmt.Errorf("cutoff %v", at)
		}
		return nil
	})
}

// playSigning: replicas agree on the keys that sign, and keep their values.
func (f *fleet) playSigning() {
	var first []tenant.SigningKey
	for i, r := range f.replicas {
		keys, err := r.SigningKeys(f.t.Context())
		if err != nil || len(keys) == 0 {
			f.t.Fatalf("signing keys: %v, %v", keys, err)
		}
		if i > 0 && (len(keys) != len(first) || keys[0].ID != first[0].ID) {
			f.t.Errorf("replicas sign with %v and %v", first, keys)
		}
		first = keys
	}
	// A rotation that publishes the next key at once.
	f.within(soon, "rotate signing keys", func() error {
		_, err := f.RotateSigningKeys(f.t.Context(), tenant.Rotation{Every: time.Hour, Ahead: time.Hour})
		return err
	}, tenant.Change{Kind: tenant.SigningKeysChanged}, func(r *Replica) error {
		keys, err := r.SigningKeys(f.t.Context())
		if err == nil && len(keys) != 2 {
			err = fmt.Errorf("keys %v", keys)
		}
		return err
	})
	last := f.replicas[len(f.replicas)-1]
	keys, err := last.SigningKeys(f.t.Context())
	if err != nil || keys[0].Private != first[0].Private {
		f.t.Errorf("another value for the key that was there before: %v", err)
	}
}

func (f *fleet) playUses() {
	ctx := f.t.Context()
	f.do("create an account", f.CreateAccount(ctx, store.BySystem(), store.Account{ID: "used", State: tenant.Active}, nil))
	k := named("used")
	k.Account = "used"
	f.do("create a key", f.CreateKey(ctx, store.BySystem(), store.Key{Key: k}))
	begun := time.Now().Truncate(time.Minute)
	for _, r := range f.replicas {
		r.Used(k.ID)
		r.Used("acme/long gone")
		f.do("close", r.Close())
	}
	got, err := f.Key(ctx, "used", k.ID)
	if err != nil || got.LastUsedAt.Before(begun) || got.LastUsedAt.Sub(begun) > time.Minute {
		f.t.Errorf("last used %v, want %v: %v", got.LastUsedAt, begun, err)
	}
}

// A12, as a client sees it: a key that is used a hundred times a second through each of
// two replicas is good for the last time within the bound of its revocation, and so is a
// token that was made from it.
func TestLastUseOfRevokedKey(t *testing.T) {
	t.Parallel()
	for hears, most := range map[bool]time.Duration{true: time.Second, false: 2 * time.Second} {
		t.Run(fmt.Sprintf("notified=%t", hears), func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, postgres.Database(t), 2, hears, DefaultStaleFor)
			issued := time.Now()
			ended := make(chan time.Time, 2*len(f.replicas)) // when something was good last
			use := func(good func() bool) {
				tick := time.NewTicker(10 * time.Millisecond)
				defer tick.Stop()
				last := time.Now()
				for good() {
					last = time.Now()
					<-tick.C
				}
				ended <- last
			}
			for _, r := range f.replicas {
				go use(func() bool {
					k, err := r.Key(t.Context(), tenant.DigestOf("a"))
					if err != nil {
						t.Errorf("key: %v", err)
					}
					return err == nil && k.RevokedAt.IsZero() && t.Context().Err() == nil
				})
				go use(func() bool { return issued.After(r.Cutoff("acme/a")) && t.Context().Err() == nil })
			}
			for _, r := range f.replicas { // all are at it
				eventually(t, "the first use", func() bool { return r.Stats().Keys == 1 })
			}
			revoked := time.Now()
			f.do("revoke a key", f.RevokeKey(t.Context(), store.BySystem(), "acme", "acme/a"))
			for range cap(ended) {
				if after := (<-ended).Sub(revoked); after > most {
					t.Errorf("good for the last time %v after it was revoked", after)
				}
			}
		})
	}
}

// A11: PostgreSQL is stopped and comes back, and is frozen and thawed. What is known goes
// on, nothing unknown is "not found", and what changed meanwhile is in force within two
// seconds of its being back.
func TestPostgresGone(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	f := newFleet(t, server.Database(t, ""), 2, true, time.Minute)
	ctx := t.Context()
	for _, r := range f.replicas {
		f.do("ask for a key", f.key("a", func(*tenant.Key) bool { return true })(r))
	}
	for name, fault := range map[string]struct{ gone, back func() }{
		"stopped": {server.Stop, func() { server.Restart(t) }},
		"frozen":  {func() { server.Pause(t) }, func() { server.Cont(t) }},
	} {
		fault.gone()
		for i, r := range f.replicas {
			eventually(t, name+": noticed", func() bool { return !r.Stats().LostSince.IsZero() })
			begun := time.Now()
			_, known := r.Key(ctx, tenant.DigestOf("a"))
			_, unknown := r.Key(ctx, tenant.DigestOf("unknown"+name))
			if took := time.Since(begun); known != nil || !errors.Is(unknown, tenant.ErrUnavailable) || took > 100*time.Millisecond {
				t.Errorf("%s, replica %d: known %v, unknown %v, after %v", name, i, known, unknown, took)
			}
		}
		fault.back()
		begun := time.Now()
		for i, r := range f.replicas {
			eventually(t, name+": back", func() bool { return r.Stats().LostSince.IsZero() })
			if _, err := r.Key(ctx, tenant.DigestOf("unknown"+name)); !errors.Is(err, tenant.ErrNotFound) {
				t.Errorf("%s, replica %d, back: %v", name, i, err)
			}
		}
		t.Logf("%s: back after %v", name, time.Since(begun))
		k := named("after-" + name)
		f.within(2*time.Second, "create a key", func() error { return f.CreateKey(ctx, store.BySystem(), store.Key{Key: k}) }, keyChanged(k.ID), f.key("after-"+name, func(*tenant.Key) bool { return true }))
	}
}
