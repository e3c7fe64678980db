package auth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/golang-jwt/jwt/v5"
)

// Bounds of another issuer's key set.
const (
	maxKeys    = 100  // usable keys kept of one set
	minModulus = 2048 // bits of an RSA key
	maxModulus = 8192 // bits; larger ones cost too much to verify with
)

// verifyKey is a public key of another issuer. It is compared by pointer: a
// refresh that brings the same key again keeps the value.
type verifyKey struct {
	id         string
	algorithms []string // those taken with it
	public     crypto.PublicKey
}

func (k *verifyKey) takes(m jwt.SigningMethod) bool { return slices.Contains(k.algorithms, m.Alg()) }

// same reports whether two values are the same key, for the same use.
func (k *verifyKey) same(other *verifyKey) bool {
	public, ok := k.public.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.id == other.id && slices.Equal(k.algorithms, other.algorithms) && public.Equal(other.public)
}

// jwk are the members of RFC 7517 §4 and RFC 7518 §6 that are read.
type jwk struct {
	Type      string   `json:"kty"`
	ID        string   `json:"kid"`
	Use       string   `json:"use"`
	Ops       []string `json:"key_ops"`
	Algorithm string   `json:"alg"`
	Curve     string   `json:"crv"`
	X         string   `json:"x"`
	Y         string   `json:"y"`
	N         string   `json:"n"`
	E         string   `json:"e"`
}

var (
	errKeySet    = errors.New("not a JSON Web Key Set")
	errNoKeys    = errors.New("no usable key in the set: it takes RSA from 2048 bits, P-256 or P-384, each with a kid, for signatures")
	errUnusable  = errors.New("key not usable")
	errPublicKey = errors.New("bad public key")
)

// readKeySet reads a JWK set (RFC 7517 §5) and keeps the keys that can verify:
// symmetric ones, weak ones, those without an id and those for another use are
// passed over, as the RFC wants it. None left is errNoKeys.
func readKeySet(text []byte) ([]*verifyKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, errKeySet // its text could be anything: not for a log
	}
	var keys []*verifyKey
	for _, raw := range set.Keys {
		var j jwk
		if json.Unmarshal(raw, &j) != nil {
			continue
		}
		if k, err := j.verifyKey(); err == nil {
			keys = append(keys, k)
		}
		if len(keys) == maxKeys {
			break
		}
	}
	if len(keys) == 0 {
		return nil, errNoKeys
	}
	return keys, nil
}

func (j *jwk) verifyKey() (*verifyKey, error) {
	if j.ID == "" || len(j.ID) > maxKID || j.Use != "" && j.Use != "sig" || len(j.Ops) > 0 && !slices.Contains(j.Ops, "verify") {
		return nil, errUnusable
	}
	k := &verifyKey{id: j.ID}
	var err error
	switch {
	case j.Type == "RSA":
		k.algorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
		k.public, err = j.rsa()
	case j.Type == "EC" && j.Curve == "P-256":
		k.algorithms = []string{"ES256"}
		k.public, err = j.ec(elliptic.P256())
	case j.Type == "EC" && j.Curve == "P-384":
		k.algorithms = []string{"ES384"}
		k.public, err = j.ec(elliptic.P384())
	default:
		err = errUnusable
	}
	if err != nil {
		return nil, err
	}
	if j.Algorithm != "" { // the key's own word goes before its type's (facts §6)
		if !slices.Contains(k.algorithms, j.Algorithm) {
			return nil, errUnusable
		}
		k.algorithms = []string{j.Algorithm}
	}
	return k, nil
}

// ec is a public key on the curve; a point that is not on it is refused.
func (j *jwk) ec(curve elliptic.Curve) (*ecdsa.PublicKey, error) {
	x, errX := decodeNumber(j.X)
	y, errY := decodeNumber(j.Y)
	size := (curve.Params().BitSize + 7) / 8
	if errX != nil || errY != nil || len(x) > size || len(y) > size {
		return nil, errPublicKey
	}
	point := make([]byte, 1+2*size)
	point[0] = 4 // both coordinates follow (SEC 1 §2.3.3)
	copy(point[1+size-len(x):], x)
	copy(point[1+2*size-len(y):], y)
	public, err := ecdsa.ParseUncompressedPublicKey(curve, point)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errPublicKey, err)
	}
	return public, nil
}

func (j *jwk) rsa() (*rsa.PublicKey, error) {
	modulus, errN := decodeNumber(j.N)
	exponent, errE := decodeNumber(j.E)
	if errN != nil || errE != nil {
		return nil, errPublicKey
	}
	n, e := new(big.Int).SetBytes(modulus), new(big.Int).SetBytes(exponent)
	if bits := n.BitLen(); bits < minModulus || bits > maxModulus || n.Bit(0) == 0 {
		return nil, errPublicKey
	}
	if e.BitLen() > 31 || e.Int64() < 3 || e.Bit(0) == 0 {
		return nil, errPublicKey
	}
	return &rsa.PublicKey{N: n, E: int(e.Int64())}, nil
}

// decodeNumber is base64url; some issuers pad it.
func decodeNumber(text string) ([]byte, error) {
	number, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(text, "="))
	if err != nil || len(number) == 0 {
		return nil, errPublicKey
	}
	return number, nil
}
