package store

import (
	"bytes"
	"crypto/rand"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sluice/internal/tenant"
)

func TestSigningKeys(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		rotation := tenant.DefaultRotation()
		var after int64
		rotate := func(want bool) {
			t.Helper()
			changed, err := r.RotateSigningKeys(ctx, rotation)
			if err != nil || changed != want {
				t.Errorf("rotated %t, %v; want %t", changed, err, want)
			}
			var told []tenant.Change
			if want {
				told = []tenant.Change{{Kind: tenant.SigningKeysChanged}}
			}
			equal(t, "told", r.told(t, &after), told)
		}
		keys := func() []tenant.SigningKey {
			t.Helper()
			keys, err := r.SigningKeys(ctx)
			must(t, err)
			return keys
		}
		if got := keys(); len(got) != 0 {
			t.Errorf("at first: %v", got)
		}
		rotate(true)
		rotate(false)
		first := keys()
		if len(first) != 1 || !first[0].SignFrom.Equal(r.clock.read()) || !first[0].SignUntil.IsZero() {
			t.Fatalf("first: %+v", first)
		}
		// The same key, whoever reads it and however often.
		if again := keys(); !again[0].Private.Equal(first[0].Private) || again[0].ID != first[0].ID {
			t.Error("another key, read again")
		}
		r.clock.pass(rotation.Every - rotation.Ahead)
		rotate(true)
		both := keys()
		if len(both) != 2 || both[0].ID != first[0].ID || both[0].VerifyUntil.IsZero() || !both[0].VerifyUntil.Equal(both[1].SignFrom.Add(tenant.CutoffKept)) {
			t.Fatalf("published ahead: %v", both)
		}
		if !both[0].Private.Equal(first[0].Private) {
			t.Error("the first key is another after a rotation")
		}
		r.clock.pass(rotation.Ahead + 2*time.Hour)
		rotate(true)
		if left := keys(); len(left) != 1 || left[0].ID != both[1].ID {
			t.Errorf("when the first one's tokens are dead: %v", left)
		}
	})
}

// A sealed key in the place of another would sign as it: what is sealed is bound to its id.
func TestSealedKeyIsBoundToItsID(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		if _, err := r.RotateSigningKeys(ctx, tenant.DefaultRotation()); err != nil {
			t.Fatal(err)
		}
		must(t, run(ctx, r.write, `UPDATE signing_keys SET id = 'other'`))
		if keys, err := r.SigningKeys(ctx); err == nil {
			t.Errorf("opened: %v", keys)
		} else {
			wants(t, "under another id", err, ErrUnavailable)
		}
		must(t, run(ctx, r.write, `UPDATE signing_keys SET sealed = $1`, []byte("short")))
		_, err := r.SigningKeys(ctx)
		wants(t, "too short", err, ErrUnavailable)
	})
}

// The file of a store that somebody copied gives nobody a key to sign with.
func TestSigningKeysAreSealedOnDisk(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "sluice.db")
	s := open(t, Options{URL: "sqlite:" + path, SealingKey: randomSealingKey(t), Random: rand.Reader})
	if _, err := s.RotateSigningKeys(t.Context(), tenant.DefaultRotation()); err != nil {
		t.Fatal(err)
	}
	keys, err := s.SigningKeys(t.Context())
	must(t, err)
	d, err := keys[0].Private.Bytes()
	must(t, err)
	found := false
	for _, end := range []string{"", "-wal"} {
		content, err := os.ReadFile(path + end)
		must(t, err)
		if bytes.Contains(content, d) {
			t.Errorf("the private key is in %s", path+end)
		}
		found = found || bytes.Contains(content, []byte(keys[0].ID))
	}
	if !found {
		t.Error("the key's id is in neither file: this test looks in the wrong place")
	}
}
