package auth

import (
	"bytes"
	"crypto/rand"
	"errors"
	"hash/crc32"
	"io"
	"math/big"
	mathrand "math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"sluice/internal/tenant"
)

// keyVectors were made by another program (zlib's CRC-32, digits by hand), so
// that the form cannot drift together with the code.
func keyVectors() []string {
	return []string{
		"tbo_00000000000000000000000000000000000iqUEf",
		"tbo_zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz2Mm4wV",
		"tbo_0123456789ABCDEFGHIJKLMNOPQRSTUVWX0TeJoD",
		"tbo_abcdefghijklmnopqrstuvwxyz012345673aayDS",
		"tbo_ddxmdnIaKAhzxKxYadIFspCAvtI2981xR300FIhm", // the checksum has leading zeros
	}
}

func newKey(tb testing.TB) string {
	tb.Helper()
	key, err := GenerateKey(rand.Reader)
	if err != nil {
		tb.Fatalf("GenerateKey: %v", err)
	}
	return key.Reveal()
}

func TestCheckKeyVectors(t *testing.T) {
	for _, key := range keyVectors() {
		if err := CheckKey(key); err != nil {
			t.Errorf("CheckKey(%s) = %v, want nil", key, err)
		}
	}
}

func TestGeneratedKeyIsWellFormed(t *testing.T) {
	seen := make(map[string]bool)
	for range 2000 {
		key := newKey(t)
		if !oracleKey(key) || CheckKey(key) != nil {
			t.Fatalf("GenerateKey made %q, which is no key", key)
		}
		if seen[key] {
			t.Fatalf("GenerateKey made %q twice", key)
		}
		seen[key] = true
	}
}

// Each byte value below 248 stands for a character, 4 values for each; the
// other 8 would favour the alphabet's head and are thrown away.
func TestGenerateKeyIsUnbiased(t *testing.T) {
	counts := make(map[byte]int)
	var all [256]byte
	for i := range all {
		all[i] = byte(i)
	}
	// Every byte value stands in the first place of a draw once, so the first
	// character's distribution is seen whole.
	for v := range all {
		random := io.MultiReader(bytes.NewReader(all[v:v+1]), repeat(7))
		key, err := GenerateKey(random)
		if err != nil {
			t.Fatalf("GenerateKey: %v", err)
		}
		if v < 248 {
			counts[key.Reveal()[len(KeyPrefix)]]++
		} else if got := key.Reveal()[len(KeyPrefix)]; got != '7' {
			t.Errorf("byte %d became %q; want it thrown away", v, got)
		}
	}
	if len(counts) != 62 {
		t.Errorf("got %d characters, want 62", len(counts))
	}
	for c, n := range counts {
		if n != 4 {
			t.Errorf("%q is made by %d byte values, want 4", c, n)
		}
	}
}

func TestGenerateKeyFailsWithItsSource(t *testing.T) {
	broken := errors.New("no entropy")
	for _, tc := range []struct {
		name   string
		random io.Reader
		want   error
	}{
		{"broken", failing{broken}, broken},
		{"empty", strings.NewReader(""), io.EOF},
		{"short", strings.NewReader("abc"), io.ErrUnexpectedEOF},
		{"only rejected bytes", repeat(255), errRandom},
	} {
		t.Run(tc.name, func(t *testing.T) {
			key, err := GenerateKey(tc.random)
			if !errors.Is(err, tc.want) || !key.IsZero() {
				t.Errorf("got key %t, error %v; want none, %v", !key.IsZero(), err, tc.want)
			}
		})
	}
}

func TestCheckKeyRefuses(t *testing.T) {
	good := keyVectors()[2]
	for _, tc := range []struct{ name, in string }{
		{"empty", ""},
		{"prefix alone", "tbo_"},
		{"no prefix", strings.Repeat("0", KeyLength)},
		{"prefix in upper case", "TBO_" + good[4:]},
		{"another prefix", "tba_" + good[4:]},
		{"one short", good[:KeyLength-1]},
		{"one long", good + "0"},
		{"space behind", good + " "},
		{"space inside", good[:20] + " " + good[21:]},
		{"hyphen", good[:20] + "-" + good[21:]},
		{"NUL", good[:20] + "\x00" + good[21:]},
		{"two-byte letter", good[:20] + "é" + good[22:]},
		{"checksum of zeros", good[:38] + "000000"},
		{"two neighbours swapped", good[:10] + good[11:12] + good[10:11] + good[12:]},
		{"a hyphen with its own checksum", withChecksum("-" + good[5:38])},
		{"the checksum's digits turned about", good[:38] + reverse(good[38:])},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := CheckKey(tc.in); !errors.Is(err, ErrMalformedKey) || !errors.Is(err, ErrInvalidCredential) {
				t.Errorf("CheckKey(%q) = %v, want ErrMalformedKey", tc.in, err)
			}
		})
	}
}

// Every change of one character is caught: CRC-32 sees each burst of up to 32
// bits, and the digits are compared whole.
func TestCheckKeySeesEveryOneCharacterChange(t *testing.T) {
	good := newKey(t)
	for i := range good {
		for c := range 256 {
			if byte(c) == good[i] {
				continue
			}
			bad := good[:i] + string([]byte{byte(c)}) + good[i+1:]
			if CheckKey(bad) == nil {
				t.Fatalf("%q passes with its character %d changed to %q", good, i, byte(c))
			}
		}
	}
}

func TestCheckKeyDoesNotAllocate(t *testing.T) {
	good := newKey(t)
	bad := good[:43] + "-"
	if n := testing.AllocsPerRun(100, func() { _, _ = CheckKey(good), CheckKey(bad) }); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

func TestHint(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"key", keyVectors()[0], "qUEf"},
		{"too short to be a key", "tbo_abcd", ""},
		{"empty", "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := Hint(tc.in); got != tc.want {
				t.Errorf("Hint = %q, want %q", got, tc.want)
			}
		})
	}
}

func FuzzCheckKey(f *testing.F) {
	for _, key := range keyVectors() {
		f.Add(key)
		f.Add(key[:43])
		f.Add(key + "=")
		f.Add(strings.ToLower(key))
		f.Add(tenant.DigestOf(key).String())
	}
	f.Add("")
	f.Add("tbo_\u200b" + keyVectors()[0][4:])
	f.Fuzz(func(t *testing.T, token string) {
		err := CheckKey(token)
		if got, want := err == nil, oracleKey(token); got != want {
			t.Errorf("CheckKey(%q) passes %t, want %t", token, got, want)
		}
		if err != nil && !errors.Is(err, ErrMalformedKey) {
			t.Errorf("CheckKey(%q) = %v, want ErrMalformedKey", token, err)
		}
		// What is made into a key is one, whatever the random part.
		if body := onlyAlphabet(token); len(body) >= 34 {
			if key := withChecksum(body[:34]); CheckKey(key) != nil {
				t.Errorf("CheckKey(%q) refuses a good key", key)
			}
		}
	})
}

// oracleKey is design §5 in other words: a regular expression, the standard
// library's CRC-32 and its big integers' base 62.
func oracleKey(s string) bool {
	return regexp.MustCompile(`\Atbo_[0-9A-Za-z]{40}\z`).MatchString(s) && withChecksum(s[4:38]) == s
}

func withChecksum(random string) string {
	sum := big.NewInt(int64(crc32.ChecksumIEEE([]byte(random)))).Text(62)
	// big.Int counts 0-9a-zA-Z, a key counts 0-9A-Za-z.
	return "tbo_" + random + strings.Repeat("0", 6-len(sum)) + swapCase(sum)
}

func swapCase(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z':
			return r - 'a' + 'A'
		case 'A' <= r && r <= 'Z':
			return r - 'A' + 'a'
		}
		return r
	}, s)
}

func onlyAlphabet(s string) string {
	return regexp.MustCompile(`[^0-9A-Za-z]`).ReplaceAllString(s, "")
}

func reverse(s string) string {
	var out []byte
	for i := len(s) - 1; i >= 0; i-- {
		out = append(out, s[i])
	}
	return string(out)
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// repeat yields one byte for ever.
type repeat byte

func (r repeat) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(r)
	}
	return len(p), nil
}

// seeded is a source of randomness that gives the same keys each run.
func seeded() io.Reader { return mathrand.NewChaCha8([32]byte{1}) }
