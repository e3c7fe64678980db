package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"testing"

	"sluice/internal/tenant"
)

func TestParseSigningKey(t *testing.T) {
	want, err := tenant.GenerateSigningKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	block := func(kind string, der []byte, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	of := func(key any) string {
		der, err := x509.MarshalPKCS8PrivateKey(key)
		return block("PRIVATE KEY", der, err)
	}
	sec1 := func(key *ecdsa.PrivateKey) string {
		der, err := x509.MarshalECPrivateKey(key)
		return block("EC PRIVATE KEY", der, err)
	}
	public, err := x509.MarshalPKIXPublicKey(&want.Private.PublicKey)
	for _, tc := range []struct {
		name, text string
		good       bool
	}{
		{"PKCS 8", of(want.Private), true},
		{"SEC 1", sec1(want.Private), true},
		{"as openssl writes it", block("EC PARAMETERS", []byte{6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7}, nil) + sec1(want.Private), true},
		{"words before", "a key:\n" + of(want.Private), true},
		{"empty", "", false},
		{"no PEM", "abc", false},
		{"P-384", of(p384), false},
		{"P-384, SEC 1", sec1(p384), false},
		{"RSA", of(rsaKey), false},
		{"public", block("PUBLIC KEY", public, err), false},
		{"broken", block("PRIVATE KEY", []byte("abc"), nil), false},
		{"broken, SEC 1", block("EC PRIVATE KEY", []byte("abc"), nil), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ParseSigningKey(secretOf(tc.text))
			if tc.good && (err != nil || got.ID != want.ID || !got.Private.Equal(want.Private)) {
				t.Errorf("got %v, %v", got, err)
			}
			if !tc.good && !errors.Is(err, tenant.ErrSigningKey) {
				t.Errorf("got %v, %v; want ErrSigningKey", got, err)
			}
		})
	}
}
