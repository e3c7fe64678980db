package memory

import (
	"crypto/rand"
	"slices"
	"testing"
	"time"

	"sluice/internal/tenant"
)

func (r *rig) ids(t *testing.T) []string {
	t.Helper()
	keys, err := r.SigningKeys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]string, 0, len(keys))
	for _, k := range keys {
		ids = append(ids, k.ID)
	}
	return ids
}

func (r *rig) signer(t *testing.T) string {
	t.Helper()
	keys, err := r.SigningKeys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	k, ok := tenant.Signer(keys, r.clock())
	if !ok {
		t.Fatal("nothing signs")
	}
	return k.ID
}

func declaredKey(t *testing.T) tenant.SigningKey {
	t.Helper()
	k, err := tenant.GenerateSigningKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// A reload made a new key each time, and every token was void after it.
func TestOwnSigningKeyOutlivesReplace(t *testing.T) {
	r := newRig(t)
	first := r.ids(t)
	r.replace(t, func(c *Content) { c.Accounts[0].Limits.Burst = 3 })
	if got := r.ids(t); len(got) != 1 || !slices.Equal(got, first) {
		t.Errorf("got %v, want %v", got, first)
	}
	if told := r.told(t); told != nil {
		t.Errorf("told %v", told)
	}
}

func TestDeclaredSigningKeys(t *testing.T) {
	r := newRig(t)
	own := r.ids(t)[0]
	a, b := declaredKey(t), declaredKey(t)
	changed := func() bool { return slices.Contains(r.told(t), tenant.Change{Kind: tenant.SigningKeysChanged}) }
	r.replace(t, func(c *Content) { c.SigningKeys = []tenant.SigningKey{a, b} })
	if got := r.ids(t); !slices.Equal(got, []string{a.ID, b.ID, own}) || r.signer(t) != a.ID || !changed() {
		t.Errorf("declared: %v, signs %s", got, r.signer(t))
	}
	// Twice, since what is kept once must be kept again.
	for range 2 {
		r.pass(tenant.CutoffKept/2 - time.Second)
		r.replace(t, func(*Content) {})
		if got := r.ids(t); !slices.Equal(got, []string{a.ID, b.ID, own}) || changed() {
			t.Errorf("while its tokens may live: %v", got)
		}
	}
	r.pass(2 * time.Second)
	r.replace(t, func(*Content) {})
	if got := r.ids(t); !slices.Equal(got, []string{a.ID, b.ID}) || !changed() {
		t.Errorf("when they are dead: %v", got)
	}
	// One that is taken out is void at once.
	r.replace(t, func(c *Content) { c.SigningKeys = []tenant.SigningKey{b} })
	if got := r.ids(t); !slices.Equal(got, []string{b.ID}) || r.signer(t) != b.ID || !changed() {
		t.Errorf("one less: %v", got)
	}
	r.replace(t, func(c *Content) { c.SigningKeys = nil })
	if got := r.ids(t); len(got) != 1 || got[0] == b.ID || got[0] == own || !changed() {
		t.Errorf("none declared: %v", got)
	}
}

func TestRotateSigningKeys(t *testing.T) {
	r := newRig(t)
	first := r.signer(t)
	rotate := func() {
		t.Helper()
		if err := r.RotateSigningKeys(); err != nil {
			t.Fatal(err)
		}
	}
	rotate()
	if got := r.ids(t); len(got) != 1 || r.told(t) != nil {
		t.Errorf("at once: %v", got)
	}
	r.pass(29*24*time.Hour + time.Hour)
	rotate()
	if got := r.ids(t); len(got) != 2 || r.signer(t) != first || r.told(t) == nil {
		t.Errorf("published ahead: %v, signs %s", got, r.signer(t))
	}
	r.pass(24 * time.Hour)
	rotate()
	if got := r.ids(t); len(got) != 2 || r.signer(t) == first {
		t.Errorf("after 30 days: %v, signs %s", got, r.signer(t))
	}
	r.pass(2 * time.Hour)
	rotate()
	if got := r.ids(t); len(got) != 1 || got[0] == first {
		t.Errorf("when the old one's tokens are dead: %v", got)
	}
	declared := declaredKey(t)
	r.replace(t, func(c *Content) { c.SigningKeys = []tenant.SigningKey{declared} })
	r.pass(100 * 24 * time.Hour)
	rotate()
	if got := r.ids(t); !slices.Equal(got, []string{declared.ID}) {
		t.Errorf("declared ones: %v", got)
	}
}
