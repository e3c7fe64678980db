package auth

import "strings"

// scheme is the only one taken; its case does not matter (RFC 9110 §11.1).
const scheme = "Bearer"

// maxToken is the longest token read, in bytes; what is longer is refused before
// its characters are looked at (H07).
const maxToken = 8 << 10

// Bearer reads the values of a request's Authorization headers. None at all is
// "", false, nil: an anonymous request. Anything else is present, and is either
// one well-formed token or an error: ErrSeveralCredentials,
// ErrMalformedCredential or ErrScheme, all of which wrap ErrInvalidCredential.
// An empty header is broken, not absent, since a broken credential taken for
// none would be served as a stranger's (H06).
//
// The form is RFC 6750 §2.1: the scheme in any case, one or more spaces (RFC
// 9110 §11.4 has no tab there), and a b64token of at most 8 KiB. White space
// around the whole value is no part of it (RFC 9110 §5.5).
func Bearer(values []string) (token string, present bool, err error) {
	switch len(values) {
	case 0:
		return "", false, nil
	case 1:
		token, err = parseBearer(strings.Trim(values[0], " \t"))
		return token, true, err
	default:
		// Which of two a later reader would take is unknown, so neither counts (H05).
		return "", true, ErrSeveralCredentials
	}
}

func parseBearer(value string) (string, error) {
	end := 0
	for end < len(value) && schemeByte(value[end]) {
		end++
	}
	switch {
	case end == 0:
		return "", ErrMalformedCredential
	case !strings.EqualFold(value[:end], scheme):
		return "", ErrScheme
	}
	token := strings.TrimLeft(value[end:], " ")
	if len(token) == len(value)-end || len(token) > maxToken || !b64token(token) {
		return "", ErrMalformedCredential
	}
	return token, nil
}

// b64token is RFC 6750 §2.1: 1*( ALPHA / DIGIT / - . _ ~ + / ) *"=".
func b64token(s string) bool {
	body := strings.TrimRight(s, "=")
	if body == "" {
		return false
	}
	var differs byte
	for i := range len(body) {
		differs |= b64bytes[body[i]&0x7f] ^ body[i]
	}
	return differs == 0
}

// b64bytes has each byte of a b64token at its own place, and "A" at all others.
// A signed token has many hundreds of them, and this is the quickest way to look
// at each.
const b64bytes = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA" +
	"AAAAAAAAAAA+A-./0123456789AAAAAA" +
	"AABCDEFGHIJKLMNOPQRSTUVWXYZAAAA_" +
	"AabcdefghijklmnopqrstuvwxyzAAA~A"

// schemeByte is a token character of RFC 9110 §5.6.2.
func schemeByte(c byte) bool {
	return alphanumeric(c) || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}
