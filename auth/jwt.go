package auth

import (
	"encoding/base64"
	"strings"

	"github.com/golang-jwt/jwt/v5"
)

// Bounds of a token's parts. A whole token has at most maxToken bytes.
const (
	maxHeader   = 2 << 10 // bytes of the header as it is sent
	maxKID      = 255     // bytes of a "kid"
	maxSegments = 3
)

// header is what is read of a JOSE header (RFC 7515 §4.1). Members that could
// name a key by other ways than its id ("jku", "x5u", "jwk", "x5c") are never
// looked at (A03).
type header struct {
	method jwt.SigningMethod
	kid    string
}

// compact is a token whose parts were read and not verified.
type compact struct {
	header    header
	claims    object
	signed    string // what the signature is over
	signature []byte
}

// method is the table of the algorithms taken from anybody (facts §6). HMAC is
// not among them: its key would be a public one (A02).
func method(alg string) jwt.SigningMethod {
	switch alg {
	case "RS256":
		return jwt.SigningMethodRS256
	case "RS384":
		return jwt.SigningMethodRS384
	case "RS512":
		return jwt.SigningMethodRS512
	case "PS256":
		return jwt.SigningMethodPS256
	case "PS384":
		return jwt.SigningMethodPS384
	case "PS512":
		return jwt.SigningMethodPS512
	case "ES256":
		return jwt.SigningMethodES256
	case "ES384":
		return jwt.SigningMethodES384
	}
	return nil
}

// readCompact reads a token in compact form (RFC 7515 §7.1) without believing
// it. The errors are reasons that wrap ErrInvalidCredential.
func readCompact(token string) (*compact, error) {
	if len(token) > maxToken || strings.Count(token, ".") != maxSegments-1 {
		return nil, ErrMalformedToken
	}
	head, rest, _ := strings.Cut(token, ".")
	body, signature, _ := strings.Cut(rest, ".")
	if len(head) > maxHeader {
		return nil, ErrMalformedToken
	}
	members, err := readSegment(head)
	if err != nil {
		return nil, err
	}
	c := &compact{signed: token[:len(head)+1+len(body)]}
	if c.header, err = readHeader(members); err != nil {
		return nil, err
	}
	if c.claims, err = readSegment(body); err != nil {
		return nil, err
	}
	if c.signature, err = decodeSegment(signature); err != nil {
		return nil, err
	}
	return c, nil
}

func readHeader(members object) (header, error) {
	var h header
	// An extension that must be understood is one that is not (RFC 7515 §4.1.11).
	if members.get("crit") != nil {
		return h, ErrTokenHeader
	}
	alg, ok := readString(members.get("alg"))
	if h.method = method(alg); !ok || h.method == nil {
		return h, ErrTokenAlgorithm
	}
	typ, ok := readString(members.get("typ"))
	if !ok || !strings.EqualFold(typ, "at+jwt") && !strings.EqualFold(typ, "application/at+jwt") {
		return h, ErrTokenType
	}
	h.kid, ok = readString(members.get("kid"))
	if !ok || h.kid == "" || len(h.kid) > maxKID || !printable(h.kid) {
		return h, ErrTokenHeader
	}
	return h, nil
}

// readSegment decodes one JSON object.
func readSegment(segment string) (object, error) {
	text, err := decodeSegment(segment)
	if err != nil {
		return nil, err
	}
	return readObject(text)
}

// decodeSegment is base64url without padding. It is strict, so that one token
// has one spelling, and knows no line breaks, which the decoder would pass over.
func decodeSegment(segment string) ([]byte, error) {
	if segment == "" || strings.ContainsAny(segment, "\r\n") {
		return nil, ErrMalformedToken
	}
	text, err := base64.RawURLEncoding.Strict().DecodeString(segment)
	if err != nil {
		return nil, ErrMalformedToken
	}
	return text, nil
}

// printable reports whether s has visible ASCII characters and spaces only
// (VSCHAR, RFC 6749 appendix A).
func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
