package auth

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"sluice/internal/secret"
)

// The form of an API key (design §5): the prefix, 34 random characters of
// 0-9A-Za-z, and their CRC-32 as 6 digits of the same alphabet.
const (
	// KeyPrefix opens every API key.
	KeyPrefix = "tbo_"
	// KeyLength is the length of a whole key in bytes.
	KeyLength = 44

	alphabet   = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	base       = len(alphabet)
	randomEnd  = len(KeyPrefix) + 34
	checkLen   = KeyLength - randomEnd
	hintLength = 4
)

// rejectFrom is the first byte value that would favour the alphabet's head: 248
// values make 4 whole rounds of 62, the remaining 8 are thrown away.
const rejectFrom = 256 / base * base

// maxDraws bounds GenerateKey against a source that only ever yields rejected
// bytes. A true source needs a second draw less than once in 10^28 keys.
const maxDraws = 16

// errRandom is a source of randomness that is none.
var errRandom = errors.New("the source of randomness yields no usable bytes")

// GenerateKey makes a new API key from random, which is crypto/rand.Reader
// outside tests. Each of the 34 characters is uniform over the 62 of the
// alphabet (rejection sampling), about 202 bits in all. It fails only when
// random fails; it is as safe for concurrent use as random is.
func GenerateKey(random io.Reader) (secret.Secret, error) {
	var key [KeyLength]byte
	var draw [64]byte
	n := copy(key[:], KeyPrefix)
	for round := 0; n < randomEnd; round++ {
		if round == maxDraws {
			return secret.Secret{}, fmt.Errorf("generate an API key: %w", errRandom)
		}
		if _, err := io.ReadFull(random, draw[:]); err != nil {
			return secret.Secret{}, fmt.Errorf("generate an API key: %w", err)
		}
		for _, b := range draw {
			if int(b) < rejectFrom && n < randomEnd {
				key[n] = alphabet[int(b)%base]
				n++
			}
		}
	}
	digits := checkDigits(string(key[len(KeyPrefix):randomEnd]))
	copy(key[randomEnd:], digits[:])
	return secret.New(string(key[:])), nil
}

// CheckKey reports whether token has the form of an API key, checksum included,
// so that a typo or a scanner is refused without a look-up (A13). It says
// nothing of whether the key exists. The only error is ErrMalformedKey. Its work
// is the same for every token of the right length and prefix, and it does not
// allocate.
func CheckKey(token string) error {
	if len(token) != KeyLength || token[:len(KeyPrefix)] != KeyPrefix {
		return ErrMalformedKey
	}
	ok := true
	for i := len(KeyPrefix); i < KeyLength; i++ {
		ok = alphanumeric(token[i]) && ok
	}
	digits := checkDigits(token[len(KeyPrefix):randomEnd])
	for i, d := range digits {
		ok = token[randomEnd+i] == d && ok
	}
	if !ok {
		return ErrMalformedKey
	}
	return nil
}

// Hint is what may be shown of a key to tell it from others: its last 4
// characters, which are digits of the checksum. It is empty for a text too short
// to be a key, of which it would give away too much.
func Hint(key string) string {
	if len(key) < KeyLength {
		return ""
	}
	return key[len(key)-hintLength:]
}

// checkDigits is the CRC-32 (IEEE) of text as base62 digits, most significant
// first. The loop is written out because crc32.ChecksumIEEE wants a []byte that
// escapes to the heap, once a request.
func checkDigits(text string) [checkLen]byte {
	crc := ^uint32(0)
	for i := range len(text) {
		crc = crc32.IEEETable[(crc^uint32(text[i]))&0xff] ^ crc>>8
	}
	crc = ^crc
	var digits [checkLen]byte
	for i := checkLen - 1; i >= 0; i-- {
		digits[i] = alphabet[crc%uint32(base)]
		crc /= uint32(base)
	}
	return digits
}

func alphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z'
}
