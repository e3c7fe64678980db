package memory

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"testing"

	"sluice/internal/tenant"
)

// O02: a reload of a file in which nothing had changed ended every open tail that
// used a token, since the declared signing keys were read anew. A key that is the
// same is the same value, and nothing is announced of it.
func TestReloadKeepsDeclaredSigningKeys(t *testing.T) {
	made, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalECPrivateKey(made)
	if err != nil {
		t.Fatal(err)
	}
	read := func() tenant.SigningKey {
		private, err := x509.ParseECPrivateKey(text)
		if err != nil {
			t.Fatal(err)
		}
		key, err := tenant.NewSigningKey(private)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	c := content()
	c.SigningKeys = []tenant.SigningKey{read()}
	d, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	before, err := d.SigningKeys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var heard []tenant.Change
	defer d.Watch(func(c tenant.Change) { heard = append(heard, c) })()
	c.SigningKeys = []tenant.SigningKey{read()}
	if err := d.Replace(c); err != nil {
		t.Fatal(err)
	}
	after, err := d.SigningKeys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if after[0].Private != before[0].Private || len(heard) != 0 {
		t.Errorf("another value for the same key, or announced: %v", heard)
	}
}
