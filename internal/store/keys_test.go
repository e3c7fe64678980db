package store

import (
	"fmt"
	"testing"
	"time"

	"sluice/internal/tenant"
)

func TestCreateKey(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.account(t, "acme")
		r.account(t, "other")
		k := r.aKey("acme", "k1")
		k.Access, k.ActsAs, k.ExpiresAt = tenant.ReadAccess, tenant.Agent, r.clock.read().Add(time.Hour)
		k.Streams = streamsOf(t, "events", "logs.*")
		must(t, r.CreateKey(ctx, someone(), k))
		got, err := r.Key(ctx, "acme", "k1")
		must(t, err)
		equal(t, "key", got, k)
		of, err := r.KeyOf(ctx, k.Digest)
		must(t, err)
		equal(t, "key by its digest", of, k.Key)

		for name, edit := range map[string]func(*Key){
			"its name":               func(k *Key) { k.Name = "name of k1" },
			"its id":                 func(k *Key) { k.ID = "k1" },
			"its id, another's":      func(k *Key) { k.ID, k.Account = "k1", "other" },
			"its digest":             func(k *Key) { k.Digest = tenant.DigestOf("k1") },
			"its digest, another's ": func(k *Key) { k.Digest, k.Account = tenant.DigestOf("k1"), "other" },
		} {
			second := r.aKey("acme", "k2")
			edit(&second)
			wants(t, name, r.CreateKey(ctx, someone(), second), ErrTaken)
		}
		_, err = r.Key(ctx, "acme", "k2")
		wants(t, "a key that could not be made", err, ErrNotFound)
		wants(t, "an account that is none", r.CreateKey(ctx, someone(), r.aKey("none", "k2")), ErrNotFound)
		_, err = r.Key(ctx, "other", "k1")
		wants(t, "another's", err, ErrNotFound)
		_, err = r.KeyOf(ctx, tenant.DigestOf("none"))
		wants(t, "a digest of none", err, ErrNotFound)

		same := r.aKey("other", "k3")
		same.Name = k.Name
		must(t, r.CreateKey(ctx, someone(), same))
		must(t, r.RevokeKey(ctx, someone(), "acme", "k1"))
		second := r.aKey("acme", "k2")
		second.Name = k.Name
		must(t, r.CreateKey(ctx, someone(), second))
		keys, err := r.Keys(ctx, "acme", Page{Limit: 9})
		must(t, err)
		k.RevokedAt = r.clock.read()
		equal(t, "both", keys, []Key{k, second})
		page, err := r.Keys(ctx, "acme", Page{After: "k1", Limit: 1})
		must(t, err)
		equal(t, "second page", page, []Key{second})
	})
}

// A set that was stored in a way that reads as another one would widen a key.
func TestKeyStreamsAreStoredAsTheyAre(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.account(t, "acme")
		for name, set := range map[string]tenant.StreamSet{
			"all": tenant.AllStreams(), "star": streamsOf(t, "*"), "none": {}, "called all": streamsOf(t, "all", "a*"),
		} {
			k := r.aKey("acme", name)
			k.Streams = set
			must(t, r.CreateKey(t.Context(), someone(), k))
			got, err := r.Key(t.Context(), "acme", name)
			must(t, err)
			equal(t, name, got, k)
		}
	})
}

func TestChangeKey(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.account(t, "acme")
		now := r.clock.read()
		change := func(to KeyChange) (Key, error) { return r.ChangeKey(ctx, someone(), "acme", "k", to) }
		for _, tc := range []struct {
			name   string
			before func(*Key)
			to     KeyChange
			after  func(*Key)
			err    error
			cut    bool
		}{
			{"nothing", nil, KeyChange{}, func(*Key) {}, nil, false},
			{"name", nil, KeyChange{Name: pointer("x")}, func(k *Key) { k.Name = "x" }, nil, false},
			{"read only", nil, KeyChange{Access: pointer(tenant.ReadAccess)}, func(k *Key) { k.Access = tenant.ReadAccess }, nil, true},
			{"agent", nil, KeyChange{ActsAs: pointer(tenant.Agent)}, func(k *Key) { k.ActsAs = tenant.Agent }, nil, true},
			{"streams", nil, KeyChange{Streams: pointer(streamsOf(t, "a"))}, func(k *Key) { k.Streams = streamsOf(t, "a") }, nil, true},
			{"all to star", nil, KeyChange{Streams: pointer(streamsOf(t, "*"))}, func(k *Key) { k.Streams = streamsOf(t, "*") }, nil, false},
			{"an end", nil, KeyChange{ExpiresAt: pointer(now.Add(time.Hour))}, func(k *Key) { k.ExpiresAt = now.Add(time.Hour) }, nil, true},
			{"write", func(k *Key) { k.Access = tenant.ReadAccess }, KeyChange{Access: pointer(tenant.WriteAccess)}, nil, ErrWider, false},
			{"user", func(k *Key) { k.ActsAs = tenant.Agent }, KeyChange{ActsAs: pointer(tenant.User)}, nil, ErrWider, false},
			{"more streams", func(k *Key) { k.Streams = streamsOf(t, "a") }, KeyChange{Streams: pointer(streamsOf(t, "a", "b"))}, nil, ErrWider, false},
			{"all streams", func(k *Key) { k.Streams = streamsOf(t, "a") }, KeyChange{Streams: pointer(tenant.AllStreams())}, nil, ErrWider, false},
			{"a later end", func(k *Key) { k.ExpiresAt = now.Add(time.Hour) }, KeyChange{ExpiresAt: pointer(now.Add(2 * time.Hour))}, nil, ErrWider, false},
			{"no end", func(k *Key) { k.ExpiresAt = now.Add(time.Hour) }, KeyChange{ExpiresAt: &time.Time{}}, nil, ErrWider, false},
			{"narrower and wider", func(k *Key) { k.Access = tenant.ReadAccess }, KeyChange{Access: pointer(tenant.WriteAccess), Streams: pointer(streamsOf(t, "a"))}, nil, ErrWider, false},
		} {
			k := r.aKey("acme", "k")
			if tc.before != nil {
				tc.before(&k)
			}
			must(t, run(ctx, r.write, `DELETE FROM key_secrets`))
			must(t, run(ctx, r.write, `DELETE FROM api_keys`))
			must(t, run(ctx, r.write, `DELETE FROM cutoffs`))
			must(t, r.CreateKey(ctx, someone(), k))
			got, err := change(tc.to)
			wants(t, tc.name, err, tc.err)
			if tc.err == nil {
				tc.after(&k)
				equal(t, tc.name, got, k)
			}
			stored, err := r.Key(ctx, "acme", "k")
			must(t, err)
			equal(t, tc.name+", as it is stored", stored, k)
			want := time.Time{}
			if tc.cut {
				want = now.Add(r.skew())
			}
			if got := r.cutoff(t, "k"); !got.Equal(want) {
				t.Errorf("%s: cutoff %v, want %v", tc.name, got, want)
			}
		}
		must(t, r.CreateKey(ctx, someone(), r.aKey("acme", "k2")))
		_, err := change(KeyChange{Name: pointer("name of k2")})
		wants(t, "another's name", err, ErrTaken)
		_, err = r.ChangeKey(ctx, someone(), "acme", "none", KeyChange{})
		wants(t, "none", err, ErrNotFound)
		must(t, r.RevokeKey(ctx, someone(), "acme", "k"))
		_, err = change(KeyChange{Name: pointer("y")})
		wants(t, "revoked", err, ErrGone)
		_, err = r.RotateKey(ctx, someone(), "acme", "k", NewSecret{Digest: tenant.DigestOf("new"), OldUntil: now})
		wants(t, "rotation of a revoked one", err, ErrGone)
	})
}

func TestRevokeKey(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.account(t, "acme")
		must(t, r.CreateKey(ctx, someone(), r.aKey("acme", "k")))
		after, err := r.Revision(ctx)
		must(t, err)
		at := r.clock.read()
		for range 2 {
			must(t, r.RevokeKey(ctx, someone(), "acme", "k"))
			r.clock.pass(time.Second)
		}
		k, err := r.KeyOf(ctx, tenant.DigestOf("k"))
		if err != nil || !k.RevokedAt.Equal(at) {
			t.Errorf("revoked at %v, %v", k.RevokedAt, err)
		}
		// No clock's skew lets a token of it live.
		if got := r.cutoff(t, "k"); !got.Equal(never()) {
			t.Errorf("cutoff %v", got)
		}
		equal(t, "told", r.told(t, &after), []tenant.Change{{Kind: tenant.KeyChanged, KeyID: "k", Account: "acme"}})
		wants(t, "none", r.RevokeKey(ctx, someone(), "acme", "none"), ErrNotFound)
		r.clock.pass(tenant.CutoffKept - 3*time.Second)
		if got := r.cutoff(t, "k"); got.IsZero() {
			t.Error("the cutoff is forgotten while a token may live")
		}
		r.clock.pass(time.Minute)
		if got := r.cutoff(t, "k"); !got.IsZero() {
			t.Errorf("long after, the cutoff is %v", got)
		}
	})
}

// Two secrets of one id: both are good until the old one's time is over.
func TestRotateKey(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.account(t, "acme")
		must(t, r.CreateKey(ctx, someone(), r.aKey("acme", "k")))
		must(t, r.CreateKey(ctx, someone(), r.aKey("acme", "other")))
		rotate := func(secret string, until time.Time) Key {
			t.Helper()
			k, err := r.RotateKey(ctx, someone(), "acme", "k", NewSecret{tenant.DigestOf(secret), "of " + secret, until, true})
			must(t, err)
			return k
		}
		expiry := func(secret string) time.Time {
			t.Helper()
			k, err := r.KeyOf(ctx, tenant.DigestOf(secret))
			must(t, err)
			if k.ID != "k" || k.Digest != tenant.DigestOf(secret) {
				t.Errorf("%s is of %v", secret, k)
			}
			return k.ExpiresAt
		}
		start := r.clock.read()
		until := start.Add(time.Hour)
		want := r.aKey("acme", "k")
		want.Digest, want.Hint, want.OldHint, want.OldUntil = tenant.DigestOf("two"), "of two", "hint", until
		equal(t, "rotated", rotate("two", until), want)
		if !expiry("k").Equal(until) || !expiry("two").IsZero() {
			t.Errorf("the old one expires at %v, the new at %v", expiry("k"), expiry("two"))
		}
		// The overlap is there so that nothing ends: no token is cut.
		if got := r.cutoff(t, "k"); !got.IsZero() {
			t.Errorf("cutoff %v", got)
		}
		// The key's own end counts where it is earlier.
		_, err := r.ChangeKey(ctx, someone(), "acme", "k", KeyChange{ExpiresAt: pointer(start.Add(30 * time.Minute))})
		must(t, err)
		if !expiry("k").Equal(start.Add(30 * time.Minute)) {
			t.Errorf("the old one expires at %v, behind its key", expiry("k"))
		}

		// A third: the first is over now, and what was made from it.
		r.clock.pass(time.Second)
		rotate("three", until)
		_, err = r.KeyOf(ctx, tenant.DigestOf("k"))
		wants(t, "the oldest", err, ErrNotFound)
		cut := r.cutoff(t, "k")
		if want := r.clock.read().Add(r.skew()).Truncate(time.Second); cut.Before(want) {
			t.Errorf("cutoff %v, want %v at least", cut, want)
		}
		// One without overlap; a cutoff never moves back and lies a second on at least.
		rotate("four", r.clock.read())
		_, err = r.KeyOf(ctx, tenant.DigestOf("three"))
		wants(t, "one that ended at once", err, ErrNotFound)
		if got, want := r.cutoff(t, "k"), cut.Truncate(time.Second).Add(time.Second); !got.Equal(want) {
			t.Errorf("cutoff %v, want %v", got, want)
		}
		// An old one that is over is shown no more, and loses nothing.
		rotate("five", r.clock.read().Add(time.Second))
		r.clock.pass(time.Minute)
		cut = r.cutoff(t, "k")
		k, err := r.Key(ctx, "acme", "k")
		if err != nil || k.OldHint != "" || !k.OldUntil.IsZero() {
			t.Errorf("shown of the old one: %q until %v, %v", k.OldHint, k.OldUntil, err)
		}
		rotate("six", r.clock.read().Add(time.Hour))
		if got := r.cutoff(t, "k"); !got.Equal(cut) {
			t.Errorf("cutoff %v, want %v as before", got, cut)
		}

		for _, secret := range []string{"six", "other"} {
			_, err = r.RotateKey(ctx, someone(), "acme", "k", NewSecret{Digest: tenant.DigestOf(secret), OldUntil: r.clock.read(), EndOlder: true})
			wants(t, "a secret that is "+secret+"'s", err, ErrTaken)
		}
		if !expiry("six").Equal(start.Add(30 * time.Minute)) {
			t.Error("a rotation that failed took a secret")
		}
		_, err = r.RotateKey(ctx, someone(), "acme", "none", NewSecret{Digest: tenant.DigestOf("x"), OldUntil: until})
		wants(t, "none", err, ErrNotFound)
	})
}

func TestUseKeys(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.account(t, "acme")
		must(t, r.CreateKey(ctx, someone(), r.aKey("acme", "k")))
		used := func() time.Time {
			t.Helper()
			k, err := r.Key(ctx, "acme", "k")
			must(t, err)
			return k.LastUsedAt
		}
		if !used().IsZero() {
			t.Errorf("never used: %v", used())
		}
		at := r.clock.read()
		// More than one statement, and keys of two minutes.
		many := map[string]time.Time{"k": at.Add(59 * time.Second)}
		for i := range 2*usedAtOnce + 1 {
			id := fmt.Sprint("used", i)
			if i%100 == 0 {
				must(t, r.CreateKey(ctx, someone(), r.aKey("acme", id)))
			}
			many[id] = at.Add(time.Duration(i%2) * time.Minute)
		}
		after, err := r.Revision(ctx)
		must(t, err)
		must(t, r.UseKeys(ctx, many))
		must(t, r.UseKeys(ctx, nil))
		for i := 0; i < 2*usedAtOnce+1; i += 100 {
			id := fmt.Sprint("used", i)
			if k, err := r.Key(ctx, "acme", id); err != nil || !k.LastUsedAt.Equal(many[id].Truncate(time.Minute)) {
				t.Errorf("%s: used at %v, %v", id, k.LastUsedAt, err)
			}
		}
		if !used().Equal(at.Truncate(time.Minute)) {
			t.Errorf("used at %v", used())
		}
		must(t, r.UseKeys(ctx, map[string]time.Time{"k": at.Add(-time.Hour)}))
		if !used().Equal(at.Truncate(time.Minute)) {
			t.Errorf("it moved back to %v", used())
		}
		equal(t, "told", r.told(t, &after), nil)
	})
}
