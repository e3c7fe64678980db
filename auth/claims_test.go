package auth

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/tenant"
)

func raw(text string) json.RawMessage { return json.RawMessage(text) }

// A08: an "aud" that was a list, empty or no string at all was taken as if it
// named the verifier.
func TestA08Audience(t *testing.T) {
	r := newTokenRig(t, nil)
	for _, tc := range []struct {
		name string
		aud  any
		want error // nil: taken
	}{
		{"string", rigOrigin, nil},
		{"list", []string{"x", rigOrigin}, nil},
		{"list of one", []string{rigOrigin}, nil},
		{"another", "x", ErrTokenAudience},
		{"list of others", []string{"x", "y"}, ErrTokenAudience},
		{"other case", strings.ToUpper(rigOrigin), ErrTokenAudience},
		{"slash behind", rigOrigin + "/", ErrTokenAudience},
		{"prefix", rigOrigin[:len(rigOrigin)-1], ErrTokenAudience},
		{"two in one", rigOrigin + " x", ErrTokenAudience},
		{"empty list", []string{}, ErrTokenClaims},
		{"empty string", "", ErrTokenClaims},
		{"list with an empty string", []string{"", rigOrigin}, ErrTokenClaims},
		{"number", []any{1}, ErrTokenClaims},
		{"number beside ours", []any{rigOrigin, 1}, ErrTokenClaims},
		{"null beside ours", []any{rigOrigin, nil}, ErrTokenClaims},
		{"object", members{rigOrigin: 1}, ErrTokenClaims},
		{"list in a list", []any{[]string{rigOrigin}}, ErrTokenClaims},
		{"null", raw("null"), ErrTokenClaims},
		{"missing", nil, ErrTokenClaims},
		{"very many", strings.Split(rigOrigin+strings.Repeat(",x", 32), ","), ErrTokenClaims},
	} {
		t.Run(tc.name, func(t *testing.T) {
			token := mint(t, r.header(), r.claims().with("aud", tc.aud), r.signing.Private)
			if tc.want != nil {
				refusedToken(t, r, token, tc.want)
			} else if _, err := r.use(t, token); err != nil {
				t.Errorf("got %v", err)
			}
		})
	}
}

// A09: tokens were refused right after they were made, for a clock a second off;
// and a leeway for "exp" let dead ones go on.
func TestA09ClockSkew(t *testing.T) {
	r := newTokenRig(t, nil)
	now := r.clock().Unix()
	for _, tc := range []struct {
		name          string
		iat, nbf, exp any
		want          error
	}{
		{"made now", now, nil, now + 600, nil},
		{"issuer 2 s ahead", now + 2, now + 2, now + 602, nil},
		{"issuer 30 s ahead", now + 30, now + 30, now + 630, nil},
		{"iat 31 s ahead", now + 31, nil, now + 631, ErrTokenNotYet},
		{"iat 300 s ahead", now + 300, nil, now + 900, ErrTokenNotYet},
		{"nbf 31 s ahead", now, now + 31, now + 600, ErrTokenNotYet},
		{"nbf a part of a second over the leeway", now, float64(now) + 30.5, now + 600, ErrTokenNotYet},
		{"issuer 5 s behind", now - 5, now - 5, now + 595, nil},
		{"last second", now - 600, nil, now + 1, nil},
		{"exp now", now - 600, nil, now, ErrCredentialExpired},
		{"exp 2 s ago", now - 600, nil, now - 2, ErrCredentialExpired},
		{"exp a part of a second ahead", now - 600, nil, float64(now) + 0.9, ErrCredentialExpired},
		{"as long as may be", now, nil, now + 3600, nil},
		{"too long", now, nil, now + 3601, ErrTokenClaims},
		{"ten years", now, nil, now + 315360000, ErrTokenClaims},
		{"exp at iat", now, nil, now, ErrTokenClaims},
		{"exp before iat", now + 10, nil, now + 5, ErrTokenClaims},
	} {
		t.Run(tc.name, func(t *testing.T) {
			token := mint(t, r.header(), r.claims().with("iat", tc.iat, "nbf", tc.nbf, "exp", tc.exp), r.signing.Private)
			p, err := r.use(t, token)
			if (p != nil) != (tc.want == nil) || !errors.Is(err, tc.want) {
				t.Errorf("got %v, %v; want %v", p, err, tc.want)
			}
		})
	}
}

// The library's dates are floating point that may be absent, huge or no number.
func TestOddDates(t *testing.T) {
	r := newTokenRig(t, nil)
	odd := map[string]any{
		"missing": nil, "null": raw("null"), "string": "1780315200", "bool": true, "list": []int{1780315200}, "object": members{},
		"negative": -1, "minus zero": raw("-0"), "huge": raw("1e300"), "beyond floats": raw("1e999"), "year 10000": raw("253402300800"),
		"max int64": raw("9223372036854775807"), "beyond int64": raw("99999999999999999999999"), "negative exponent": raw("-1e9"),
	}
	for name, value := range odd {
		for _, claim := range []string{"exp", "iat", "nbf"} {
			if name == "missing" && claim == "nbf" {
				continue // it may be
			}
			t.Run(claim+" "+name, func(t *testing.T) {
				refusedToken(t, r, mint(t, r.header(), r.claims().with(claim, value), r.signing.Private), ErrTokenClaims)
			})
		}
	}
	t.Run("with an exponent", func(t *testing.T) {
		token := mint(t, r.header(), r.claims().with("iat", raw("1.7803152e9"), "exp", raw("1.7803154005e+9")), r.signing.Private)
		p, err := r.use(t, token)
		if err != nil || !p.ExpiresAt.Equal(time.Unix(1780315400, 0)) {
			t.Errorf("got %+v, %v", p, err)
		}
	})
}

func TestRequiredStrings(t *testing.T) {
	r := newTokenRig(t, nil)
	for _, claim := range []string{"iss", "sub", "client_id", "jti"} {
		for name, value := range map[string]any{
			"missing": nil, "null": raw("null"), "empty": "", "number": 1, "list": []string{"a"}, "object": members{}, "true": true,
			"long": strings.Repeat("x", 513), "control character": "a\nb", "NUL": "a\x00", "C1": "a\u0085b",
		} {
			t.Run(claim+" "+name, func(t *testing.T) {
				refusedToken(t, r, mint(t, r.header(), r.claims().with(claim, value), r.signing.Private), ErrTokenClaims)
			})
		}
	}
	for name, value := range map[string]any{
		"missing": nil, "null": raw("null"), "number": 1, "upper case": "ACME", "empty": "", "list": []string{"acme"}, "reserved": "snapshots",
	} {
		t.Run("account "+name, func(t *testing.T) {
			refusedToken(t, r, mint(t, r.header(), r.claims().with("account", value), r.signing.Private), ErrTokenClaims)
		})
	}
	for name, iss := range map[string]string{"another": "https://evil.example.com", "slash behind": rigOrigin + "/", "other case": strings.ToUpper(rigOrigin)} {
		t.Run("iss "+name, func(t *testing.T) {
			refusedToken(t, r, mint(t, r.header(), r.claims().with("iss", iss), r.signing.Private), ErrTokenIssuer)
		})
	}
}

// An empty list reaches nothing, and never means "all".
func TestStreamsClaim(t *testing.T) {
	r := newTokenRig(t, nil)
	for name, value := range map[string]any{
		"empty": []string{}, "null": raw("null"), "string": "events", "number in it": []any{"events", 1}, "null in it": []any{nil},
		"bad name": []string{"a/b"}, "star inside": []string{"a*b"}, "object": members{"events": 1}, "empty name": []string{""},
	} {
		t.Run(name, func(t *testing.T) {
			refusedToken(t, r, mint(t, r.header(), r.claims().with("streams", value), r.signing.Private), ErrTokenClaims)
		})
	}
	p, err := r.use(t, mint(t, r.header(), r.claims().with("streams", []string{"events", "logs.*"}), r.signing.Private))
	if err != nil {
		t.Fatal(err)
	}
	for stream, want := range map[tenant.StreamName]bool{"events": true, "logs.a": true, "event": false, "logs": false} {
		if _, err := Decide(p, Resource{Account: "acme", Name: stream}, true); (err == nil) != want {
			t.Errorf("%s: %v, want it reached: %t", stream, err, want)
		}
	}
}

// J6: scopes are split on spaces, each once. What they allow is only what is
// known of them.
func TestJ6Scope(t *testing.T) {
	r := newTokenRig(t, nil)
	for _, tc := range []struct {
		name   string
		scope  any
		scopes []string
		access tenant.Access
	}{
		{"both", "streams:read streams:write", []string{ScopeRead, ScopeWrite}, tenant.WriteAccess},
		{"write includes reading", "streams:write", []string{ScopeWrite}, tenant.WriteAccess},
		{"read", "streams:read", []string{ScopeRead}, tenant.ReadAccess},
		{"twice, with more spaces", " streams:read  streams:read x ", []string{ScopeRead, "x"}, tenant.ReadAccess},
		{"other case", "Streams:Read", []string{"Streams:Read"}, ""},
		{"neither", "openid profile", []string{"openid", "profile"}, ""},
		{"empty", "", nil, ""},
		{"missing", nil, nil, ""},
		{"a tab is no space", "streams:read\tx", []string{"streams:read\tx"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := r.use(t, mint(t, r.header(), r.claims().with("scope", tc.scope), r.signing.Private))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.scopes, p.Scopes); diff != "" || p.Access != tc.access {
				t.Errorf("access %q, want %q; scopes (-want +got):\n%s", p.Access, tc.access, diff)
			}
			if _, err := Decide(p, Resource{Account: "acme", Name: "events"}, false); tc.access == "" && !errors.Is(err, ErrNoAccess) {
				t.Errorf("Decide: %v, want ErrNoAccess", err)
			}
		})
	}
	many := strings.Join(strings.Fields(strings.Repeat("x ", 128)), " ")
	for i := range 128 {
		many = strings.Replace(many, "x", string(rune(0x4e00+i)), 1)
	}
	if _, err := r.use(t, mint(t, r.header(), r.claims().with("scope", many), r.signing.Private)); err != nil {
		t.Errorf("128 scopes: %v", err)
	}
	for name, scope := range map[string]any{"too many": many + " y", "list": []string{ScopeRead}, "number": 1, "null": raw("null")} {
		t.Run(name, func(t *testing.T) {
			refusedToken(t, r, mint(t, r.header(), r.claims().with("scope", scope), r.signing.Private), ErrTokenClaims)
		})
	}
}
