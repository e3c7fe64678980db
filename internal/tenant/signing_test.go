package tenant

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"
)

func at(s string) time.Time {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		panic(err)
	}
	return t
}

func generate(t *testing.T) SigningKey {
	t.Helper()
	k, err := GenerateSigningKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestNewSigningKey(t *testing.T) {
	k := generate(t)
	again, err := NewSigningKey(k.Private)
	if err != nil || again.ID != k.ID || len(k.ID) != 43 {
		t.Errorf("id %q, read again %q, %v", k.ID, again.ID, err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, private := range map[string]*ecdsa.PrivateKey{"nil": nil, "P-384": p384, "empty": {}} {
		if _, err := NewSigningKey(private); !errors.Is(err, ErrSigningKey) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// M02: a key was printed whole by a value that held it.
func TestSigningKeyIsNotPrinted(t *testing.T) {
	k := generate(t)
	text, err := json.Marshal(map[string]any{"key": k, "list": []SigningKey{k}})
	if err != nil {
		t.Fatal(err)
	}
	all := string(text) + fmt.Sprintf("%v %+v %#v %s %v", k, k, k, k, []SigningKey{k})
	if secret, err := k.Private.Bytes(); err != nil || strings.Contains(all, new(big.Int).SetBytes(secret).String()) || strings.Contains(all, fmt.Sprintf("%x", secret)) {
		t.Errorf("printed: %s, %v", all, err)
	}
}

// The id is RFC 7638's thumbprint; the vector was made by another program.
func TestThumbprintVector(t *testing.T) {
	decode := func(s string) []byte {
		b, err := base64.RawURLEncoding.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	point := append([]byte{4}, decode(vectorX)...)
	public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), append(point, decode(vectorY)...))
	if err != nil {
		t.Fatal(err)
	}
	if id, err := thumbprint(public); err != nil || id != vectorID {
		t.Errorf("got %s, %v; want %s", id, err, vectorID)
	}
}

func TestSigner(t *testing.T) {
	now := at("2026-06-01T12:00:00Z")
	first, second := generate(t), generate(t)
	for name, tc := range map[string]struct {
		edit func(a, b *SigningKey)
		want *SigningKey
	}{
		"the first of equals":   {func(_, _ *SigningKey) {}, &first},
		"the later":             {func(_, b *SigningKey) { b.SignFrom = now.Add(-time.Hour) }, &second},
		"at its time":           {func(_, b *SigningKey) { b.SignFrom = now }, &second},
		"not before its time":   {func(_, b *SigningKey) { b.SignFrom = now.Add(1) }, &first},
		"not after its end":     {func(a, _ *SigningKey) { a.SignUntil = now }, &second},
		"not while it is void":  {func(a, _ *SigningKey) { a.VerifyUntil = now }, &second},
		"up to its end":         {func(a, _ *SigningKey) { a.SignUntil = now.Add(1) }, &first},
		"none":                  {func(a, b *SigningKey) { a.SignUntil, b.SignUntil = now, now }, nil},
		"the later, whose turn": {func(a, b *SigningKey) { a.SignFrom, b.SignFrom = now.Add(-2), now.Add(-1) }, &second},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := first, second
			tc.edit(&a, &b)
			got, ok := Signer([]SigningKey{a, b}, now)
			if ok != (tc.want != nil) || ok && got.ID != tc.want.ID {
				t.Errorf("got %s, %t", got.ID, ok)
			}
		})
	}
}

// A rotation that is asked every hour, and one that is asked late: there is
// always one key that signs, it was published Ahead before, and what it signed
// verifies until it is dead.
func TestRotation(t *testing.T) {
	for name, step := range map[string]time.Duration{"hourly": time.Hour, "every 20 hours": 20 * time.Hour, "every 50 days": 50 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			rotation := DefaultRotation()
			now := at("2026-06-01T12:00:00Z")
			published := make(map[string]time.Time)
			used := make(map[string]bool)
			var keys []SigningKey
			started := now
			for now.Before(started.Add(400 * 24 * time.Hour)) {
				var err error
				if keys, _, err = rotation.Next(keys, now, rand.Reader); err != nil {
					t.Fatal(err)
				}
				if len(keys) > 3 {
					t.Fatalf("%d keys", len(keys))
				}
				for _, k := range keys {
					if _, ok := published[k.ID]; !ok {
						published[k.ID] = now
					}
				}
				for _, moment := range []time.Time{now, now.Add(step - 1)} {
					k, ok := Signer(keys, moment)
					if !ok {
						t.Fatalf("nothing signs at %v: %+v", moment, keys)
					}
					used[k.ID] = true
					if since := moment.Sub(published[k.ID]); since < rotation.Ahead && len(used) > 1 {
						t.Fatalf("a key signs %v after it was published", since)
					}
					if last := moment.Add(MaxTokenLife); !k.Verifies(last) {
						t.Fatalf("what is signed at %v does not verify at its end", moment)
					}
				}
				now = now.Add(step)
			}
			if most := 400/30 + 2; len(used) > most || len(used) < 4 {
				t.Errorf("%d keys signed in 400 days", len(used))
			}
		})
	}
}

func TestRotationChangesNothingInBetween(t *testing.T) {
	now := at("2026-06-01T12:00:00Z")
	first, changed, err := DefaultRotation().Next(nil, now, rand.Reader)
	if err != nil || !changed || len(first) != 1 {
		t.Fatal(first, changed, err)
	}
	kept := first[0]
	again, changed, err := DefaultRotation().Next(first, now.Add(28*24*time.Hour), rand.Reader)
	if err != nil || changed || len(again) != 1 || again[0] != kept {
		t.Errorf("after 28 days: %v, %t, %v", again, changed, err)
	}
	next, changed, err := DefaultRotation().Next(first, now.Add(29*24*time.Hour), rand.Reader)
	if err != nil || !changed || len(next) != 2 || first[0] != kept {
		t.Errorf("after 29 days: %v, %t, %v; the list given was changed: %t", next, changed, err, first[0] != kept)
	}
	if _, changed, err := DefaultRotation().Next(next, now.Add(29*24*time.Hour+time.Minute), rand.Reader); err != nil || changed {
		t.Errorf("a minute later: %t, %v", changed, err)
	}
}

// The key is the one of RFC 7517 appendix A.1.
const (
	vectorX  = "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4"
	vectorY  = "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"
	vectorID = "cn-I_WNMClehiVp51i_0VpOENW1upEerA8sEam5hn-s"
)
