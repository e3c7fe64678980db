package tenant

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// SigningKey signs our own tokens (ES256). Values handed out by a Directory are
// shared between goroutines and never changed.
//
// It is published, and what it signed is taken, from when it is in the
// Directory's list until VerifyUntil. It signs from SignFrom until SignUntil. A
// rotation overlaps at both ends: a new key is published before it signs, so
// that whoever keeps a copy of the list has it in time, and an old one is
// published until the last token that it signed is dead. A key taken out of the
// list is void at once, and with it every token that it signed.
type SigningKey struct {
	ID          string            // the "kid"; KeyIDOf(Private)
	Private     *ecdsa.PrivateKey // on P-256
	SignFrom    time.Time         // zero = since ever
	SignUntil   time.Time         // zero = no end
	VerifyUntil time.Time         // zero = no end; else at least SignUntil + CutoffKept
}

// String is the id: printers and encoders never reach what is secret.
func (k SigningKey) String() string { return k.ID }

// GoString is the id.
func (k SigningKey) GoString() string { return k.ID }

// MarshalText is the id.
func (k SigningKey) MarshalText() ([]byte, error) { return []byte(k.ID), nil }

// ErrSigningKey says that a key cannot sign ES256.
var ErrSigningKey = errors.New("bad signing key: it is an ECDSA key on P-256")

// NewSigningKey makes a SigningKey of a private key, good without end. The error
// is ErrSigningKey.
func NewSigningKey(private *ecdsa.PrivateKey) (SigningKey, error) {
	if private == nil || private.Curve != elliptic.P256() {
		return SigningKey{}, ErrSigningKey
	}
	id, err := thumbprint(&private.PublicKey)
	if err != nil {
		return SigningKey{}, ErrSigningKey
	}
	return SigningKey{ID: id, Private: private}, nil
}

// GenerateSigningKey makes a new key, good without end. random is
// crypto/rand.Reader; Go takes its own source in place of any other.
func GenerateSigningKey(random io.Reader) (SigningKey, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), random)
	if err != nil {
		return SigningKey{}, fmt.Errorf("generate a signing key: %w", err)
	}
	return NewSigningKey(private)
}

// thumbprint is RFC 7638's, so that a key has the same id wherever it is read,
// and no two keys share one.
func thumbprint(public *ecdsa.PublicKey) (string, error) {
	point, err := public.Bytes() // 4, then both coordinates at full width
	if err != nil {
		return "", err
	}
	encode := base64.RawURLEncoding.EncodeToString
	sum := sha256.Sum256([]byte(`{"crv":"P-256","kty":"EC","x":"` + encode(point[1:33]) + `","y":"` + encode(point[33:]) + `"}`))
	return encode(sum[:]), nil
}

// Signs reports whether the key may sign at that time.
func (k SigningKey) Signs(now time.Time) bool {
	return !now.Before(k.SignFrom) && (k.SignUntil.IsZero() || now.Before(k.SignUntil)) && k.Verifies(now)
}

// Verifies reports whether the key is published, and what it signed taken.
func (k SigningKey) Verifies(now time.Time) bool {
	return k.VerifyUntil.IsZero() || now.Before(k.VerifyUntil)
}

// Signer is the key that signs at that time: of those that may, the one whose
// SignFrom is latest, and the first of several. There may be none.
func Signer(keys []SigningKey, now time.Time) (SigningKey, bool) {
	var best SigningKey
	for _, k := range keys {
		if k.Signs(now) && (best.Private == nil || k.SignFrom.After(best.SignFrom)) {
			best = k
		}
	}
	return best, best.Private != nil
}

// SigningKeysAsBefore is next, in which keys that were there before have the very
// values that they had: a token is known by the value that it was verified with, and
// keys that are read twice must end none (O02). Where nothing differs it is before
// itself. Neither slice is changed.
func SigningKeysAsBefore(next, before []SigningKey) []SigningKey {
	keys := slices.Clone(next)
	for i, k := range keys {
		for _, old := range before {
			if old.ID == k.ID && old.Private.Equal(k.Private) {
				keys[i].Private = old.Private
			}
		}
	}
	if slices.EqualFunc(keys, before, sameSigningKey) {
		return before
	}
	return keys
}

func sameSigningKey(a, b SigningKey) bool {
	return a.ID == b.ID && a.Private == b.Private && a.SignFrom.Equal(b.SignFrom) &&
		a.SignUntil.Equal(b.SignUntil) && a.VerifyUntil.Equal(b.VerifyUntil)
}

// Rotation is when signing keys are replaced.
type Rotation struct {
	Every time.Duration // how long a key signs
	Ahead time.Duration // how long it is published before; at most Every
}

// DefaultRotation replaces a key after 30 days, and publishes the next a day
// before it signs.
func DefaultRotation() Rotation {
	return Rotation{Every: 30 * 24 * time.Hour, Ahead: 24 * time.Hour}
}

// Next is the list that follows keys at that time, and whether it is another
// one: dead keys are gone, the next key is there where it is time to publish it,
// and there is one that signs. It is to be asked at least as often as Ahead;
// asked late, it publishes late, but leaves no time without a key that signs.
// keys is not changed. The error is that of the randomness.
func (r Rotation) Next(keys []SigningKey, now time.Time, random io.Reader) ([]SigningKey, bool, error) {
	next := slices.DeleteFunc(slices.Clone(keys), func(k SigningKey) bool { return !k.Verifies(now) })
	changed := len(next) != len(keys)
	signer, ok := Signer(next, now)
	from := now
	if ok {
		from = signer.SignFrom.Add(r.Every)
		waiting := slices.ContainsFunc(next, func(k SigningKey) bool { return k.SignFrom.After(signer.SignFrom) })
		if waiting || now.Before(from.Add(-r.Ahead)) {
			return next, changed, nil
		}
		if earliest := now.Add(r.Ahead); from.Before(earliest) {
			from = earliest
		}
	}
	fresh, err := GenerateSigningKey(random)
	if err != nil {
		return nil, false, err
	}
	fresh.SignFrom = from
	for i, k := range next {
		if k.SignUntil.IsZero() {
			next[i].SignUntil, next[i].VerifyUntil = from, from.Add(CutoffKept)
		}
	}
	return append(next, fresh), true, nil
}
