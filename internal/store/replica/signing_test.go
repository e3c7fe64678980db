package replica

import (
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"sluice/internal/store"
	"sluice/internal/tenant"
)

// O02: keys that were read from the store once more were other values, and every open
// tail that used a token ended. The list is the same slice while nothing changes; and a
// key that was there before has the very value that it had.
func TestSigningKeysStayTheSame(t *testing.T) {
	var first, second tenant.SigningKey
	inBubble(t, func(s *script, _ *Options) {
		first, second = signingKey(t), signingKey(t)
		s.signing = []tenant.SigningKey{first}
	}, func(t *testing.T, r *rig) {
		read := func() []tenant.SigningKey {
			t.Helper()
			keys, err := r.SigningKeys(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return keys
		}
		before := read()
		// Read again, and nothing is different.
		r.store.change(func(*script) {}, tenant.Change{Kind: tenant.SigningKeysChanged})
		r.store.change(func(*script) {}, tenant.Change{Kind: tenant.Everything})
		r.pass(2 * time.Second)
		if after := read(); len(after) != 1 || &after[0] != &before[0] {
			t.Error("another slice, and nothing has changed")
		}
		r.store.change(func(s *script) {
			s.signing[0].SignUntil = time.Unix(5e9, 0)
			s.signing = append(s.signing, second)
		}, tenant.Change{Kind: tenant.SigningKeysChanged})
		r.settled()
		after := read()
		if len(after) != 2 || after[0].Private != before[0].Private || !after[0].SignUntil.Equal(time.Unix(5e9, 0)) || after[1].ID != second.ID {
			t.Errorf("with another: %v", after)
		}
		if !before[0].SignUntil.IsZero() {
			t.Error("a slice that was handed out has changed")
		}
		if s := r.Stats(); s.SigningKeys != 2 {
			t.Errorf("stats: %+v", s)
		}
	})
}

// A new store has no signing key: the replica that comes first makes one, before
// anything is answered. After that they are rotated once an hour, and where that fails,
// soon again.
func TestRotation(t *testing.T) {
	inBubble(t, func(s *script, o *Options) {
		o.Rotation = tenant.Rotation{Every: 2 * time.Hour, Ahead: time.Hour}
		s.rotate = func(s *script) bool {
			s.signing = append(s.signing, signingKey(t))
			s.revision++
			s.log = append(s.log, store.Change{Revision: s.revision, Change: tenant.Change{Kind: tenant.SigningKeysChanged}})
			return true
		}
	}, func(t *testing.T, r *rig) {
		count := func() int {
			keys, err := r.SigningKeys(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return len(keys)
		}
		if n := count(); n != 1 {
			t.Errorf("at first %d keys", n)
		}
		r.pass(rotateEvery - usesEvery)
		if n := count(); n != 1 || r.store.count("RotateSigningKeys") != 1 {
			t.Errorf("within the hour %d keys", n)
		}
		r.told()
		r.pass(usesEvery + pollEvery)
		if n := count(); n != 2 {
			t.Errorf("after an hour %d keys", n)
		}
		if diff := gocmp.Diff([]tenant.Change{{Kind: tenant.SigningKeysChanged}}, r.told()); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
		r.store.set(func(s *script) { s.failing["RotateSigningKeys"] = errDown })
		r.pass(rotateEvery)
		r.store.set(func(s *script) { delete(s.failing, "RotateSigningKeys") })
		r.pass(usesEvery + pollEvery)
		if n := count(); n != 3 {
			t.Errorf("after a failure %d keys", n)
		}
	})
}

// A store that cannot be written, as its disk is full, is read all the same where it has
// a key that signs; the keys are rotated as soon as it can be.
func TestRotationThatFailsAtFirst(t *testing.T) {
	inBubble(t, func(s *script, _ *Options) {
		s.failing["RotateSigningKeys"] = errDown
		s.signing = []tenant.SigningKey{signingKey(t)}
	}, func(t *testing.T, r *rig) {
		r.wantAll(true)
		if err := r.Ready(); err != nil || len(r.lost) != 0 {
			t.Errorf("ready: %v, lost: %v", err, r.lost)
		}
		r.store.set(func(s *script) { delete(s.failing, "RotateSigningKeys") })
		r.store.count("RotateSigningKeys")
		r.pass(10 * usesEvery)
		if n := r.store.count("RotateSigningKeys"); n != 1 {
			t.Errorf("rotated %d times", n)
		}
	})
	// One that has signed its last is not enough.
	inBubble(t, func(s *script, _ *Options) {
		s.failing["RotateSigningKeys"] = errDown
		old := signingKey(t)
		old.SignUntil = time.Unix(1, 0)
		s.signing = []tenant.SigningKey{old}
	}, func(_ *testing.T, r *rig) { r.wantAll(false) })
}

// Cutoffs follow the log; those that the store has forgotten, since no token can live
// that they would end, are forgotten here too, though no change says so.
func TestCutoffsFollow(t *testing.T) {
	at := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	inBubble(t, func(s *script, _ *Options) {
		s.cutoffs["acme/old"] = store.Cutoff{KeyID: "acme/old", At: at}
	}, func(t *testing.T, r *rig) {
		want := func(id string, want time.Time) {
			t.Helper()
			if got := r.Cutoff(id); !got.Equal(want) {
				t.Errorf("cutoff of %s: %v, want %v", id, got, want)
			}
		}
		want("acme/old", at)
		want("acme/a", time.Time{})
		r.store.change(func(s *script) { s.cutoffs["acme/a"] = store.Cutoff{KeyID: "acme/a", At: at.Add(1)} }, keyChanged("acme/a"))
		r.settled()
		want("acme/a", at.Add(1))
		r.store.set(func(s *script) { delete(s.cutoffs, "acme/old") })
		r.pass(rotateEvery + pollEvery)
		want("acme/old", time.Time{})
		want("acme/a", at.Add(1))
		if s := r.Stats(); s.Cutoffs != 1 {
			t.Errorf("stats: %+v", s)
		}
		if n := r.store.count("Cutoffs"); n != 3 {
			t.Errorf("read %d times", n)
		}
	})
}
