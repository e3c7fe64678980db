package auth

import (
	"errors"
	"regexp"
	"strings"
	"testing"
)

// H05: one part checked the first of two Authorization lines and another used
// the second. H06: valid spellings of the scheme were refused, and broken ones
// were taken for "no credential". H07: giant and strange tokens cost CPU and
// memory.
func TestBearer(t *testing.T) {
	const key = "tbo_0123456789ABCDEFGHIJKLMNOPQRSTUVWX0TeJoD"
	good := func(name, value string) bearerCase { return bearerCase{name, []string{value}, key, nil} }
	bad := func(name string, want error, values ...string) bearerCase {
		return bearerCase{name, values, "", want}
	}
	for _, tc := range []bearerCase{
		{"no header", nil, "", nil},
		good("plain", "Bearer "+key),
		good("H06 lower case", "bearer "+key),
		good("H06 upper case", "BEARER "+key),
		good("H06 several spaces", "Bearer   "+key),
		good("H06 outer space", " Bearer "+key+" "),
		good("H06 outer tab", "\tBearer "+key+"\t"),
		{"every character of a b64token", []string{"Bearer aZ09-._~+/=="}, "aZ09-._~+/==", nil},
		{"H07 longest", []string{"Bearer " + strings.Repeat("a", 8<<10)}, strings.Repeat("a", 8<<10), nil},

		bad("H05 two keys", ErrSeveralCredentials, "Bearer "+key, "Bearer "+key),
		bad("H05 key and basic", ErrSeveralCredentials, "Bearer "+key, "Basic YTpi"),
		bad("H05 key and empty", ErrSeveralCredentials, "Bearer "+key, ""),
		bad("H05 two empty", ErrSeveralCredentials, "", ""),
		bad("H05 two in one line", ErrMalformedCredential, "Bearer "+key+", Bearer "+key),
		bad("H05 parameter", ErrMalformedCredential, "Bearer "+key+",x=1"),
		bad("H06 tab", ErrMalformedCredential, "Bearer\t"+key),
		bad("H06 space and tab", ErrMalformedCredential, "Bearer \t"+key),
		bad("H06 no space", ErrScheme, "Bearer"+key),
		bad("H06 scheme alone", ErrMalformedCredential, "Bearer"),
		bad("H06 scheme and space", ErrMalformedCredential, "Bearer "),
		bad("H06 two tokens", ErrMalformedCredential, "Bearer "+key+" "+key),
		bad("H06 quoted", ErrMalformedCredential, `Bearer "`+key+`"`),
		bad("H06 empty header", ErrMalformedCredential, ""),
		bad("H06 blank header", ErrMalformedCredential, "  "),
		bad("H06 token alone", ErrScheme, key),
		bad("other scheme", ErrScheme, "Basic YTpi"),
		bad("scheme that only looks like it", ErrScheme, "Bearers "+key),
		bad("scheme with a long s for no letter of it", ErrScheme, "Bea\u017fer "+key),
		bad("slash", ErrMalformedCredential, "Bearer/ "+key),
		bad("pad alone", ErrMalformedCredential, "Bearer =="),
		bad("pad inside", ErrMalformedCredential, "Bearer a=b"),
		bad("H07 one byte too long", ErrMalformedCredential, "Bearer "+strings.Repeat("a", 8<<10+1)),
		bad("H07 900 KiB", ErrMalformedCredential, "Bearer "+strings.Repeat("a", 900<<10)),
		bad("H07 500,000 dots", ErrMalformedCredential, "Bearer "+strings.Repeat(".", 500_000)),
		bad("H07 NUL", ErrMalformedCredential, "Bearer "+key+"\x00"),
		bad("H07 non-ASCII", ErrMalformedCredential, "Bearer "+key+"é"),
		bad("H07 escape", ErrMalformedCredential, "Bearer "+key+"%0a"),
		bad("H07 line feed", ErrMalformedCredential, "Bearer "+key+"\n"),
		bad("zero-width byte", ErrMalformedCredential, "Bearer "+key+"\u200b"),
		bad("no-break space", ErrMalformedCredential, "Bearer\u00a0"+key),
	} {
		t.Run(tc.name, tc.run)
	}
}

type bearerCase struct {
	name   string
	values []string
	token  string
	err    error
}

func (tc bearerCase) run(t *testing.T) {
	token, present, err := Bearer(tc.values)
	if token != tc.token || present != (len(tc.values) > 0) || !errors.Is(err, tc.err) {
		t.Errorf("Bearer = %.60q, %t, %v; want %.60q, %t, %v", token, present, err, tc.token, len(tc.values) > 0, tc.err)
	}
	if err != nil && !errors.Is(err, ErrInvalidCredential) {
		t.Errorf("%v does not wrap ErrInvalidCredential", err)
	}
}

// H07: refusing a giant token must not cost memory either.
func TestBearerDoesNotAllocate(t *testing.T) {
	for _, value := range []string{"Bearer " + keyVectors()[0], "Bearer " + strings.Repeat(".", 500_000), "Basic YTpi", ""} {
		values := []string{value}
		if n := testing.AllocsPerRun(100, func() { _, _, _ = Bearer(values) }); n != 0 {
			t.Errorf("%.20q: got %v allocations, want 0", value, n)
		}
	}
}

func FuzzBearer(f *testing.F) {
	for _, value := range []string{
		"Bearer abc", "bearer  abc== ", "Bearer\tabc", "Bearer", "Bearer ", "", " ", "Basic YTpi", "Bearer a b",
		"Bearer a,b", "Bearer \"a\"", "Bearer =", "\tBEARER a\t", "Bearer " + strings.Repeat("a", 8193), "Bearer a\x00",
		"Bearer \u200ba", "BEAR\u00cbR a",
	} {
		f.Add(value, value, 1)
		f.Add(value, "Bearer x", 2)
	}
	// RFC 6750 §2.1 and RFC 9110 §5.5, §11.1 as one expression. Its repetition is
	// counted apart, since an expression counts to 1,000 only.
	form := regexp.MustCompile(`\A[ \t]*[Bb][Ee][Aa][Rr][Ee][Rr] +([A-Za-z0-9._~+/-]+=*)[ \t]*\z`)
	f.Fuzz(func(t *testing.T, first, second string, n int) {
		values := []string{first, second}[:min(max(n, 0), 2)]
		token, present, err := Bearer(values)
		wantToken, wantOK := "", len(values) == 0
		if len(values) == 1 {
			if m := form.FindStringSubmatch(first); m != nil && len(m[1]) <= 8192 {
				wantToken, wantOK = m[1], true
			}
		}
		if token != wantToken || (err == nil) != wantOK || present != (len(values) > 0) {
			t.Errorf("Bearer(%.80q) = %.80q, %t, %v; want %.80q, ok %t", values, token, present, err, wantToken, wantOK)
		}
		if err != nil && !errors.Is(err, ErrInvalidCredential) {
			t.Errorf("%v does not wrap ErrInvalidCredential", err)
		}
	})
}

// The table must hold what RFC 6750 §2.1 says, byte by byte.
func TestB64TokenBytes(t *testing.T) {
	for c := range 256 {
		want := strings.IndexByte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/", byte(c)) >= 0
		if got := b64token("a" + string([]byte{byte(c)}) + "a"); got != want {
			t.Errorf("byte %#x: %t, want %t", c, got, want)
		}
	}
}
