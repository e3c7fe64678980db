package auth

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// refusedToken checks that a token is refused for that reason, as invalid.
func refusedToken(t *testing.T, r *tokenRig, token string, reason error) {
	t.Helper()
	p, err := r.use(t, token)
	if p != nil || !errors.Is(err, reason) {
		t.Errorf("got %v, %v; want nil, %v", p, err, reason)
	}
	onlyKind(t, err, ErrInvalidCredential)
}

func TestHandMadeTokenIsTaken(t *testing.T) {
	r := newTokenRig(t, nil)
	for name, typ := range map[string]string{"short": "at+jwt", "long": "application/at+jwt", "any case": "Application/AT+JWT"} {
		t.Run(name, func(t *testing.T) {
			token := mint(t, r.header().with("typ", typ), r.claims(), r.signing.Private)
			if p, err := r.use(t, token); err != nil || p.KeyID != "acme/full" {
				t.Errorf("got %v, %v", p, err)
			}
		})
	}
}

// A01: a token without a signature was taken, under spellings of "none" that a
// comparison did not know. It is refused before any key is looked up.
func TestA01NoSignature(t *testing.T) {
	r := newTokenRig(t, nil)
	good := mint(t, r.header(), r.claims(), r.signing.Private)
	other := mint(t, r.header(), r.claims().with("jti", "id-2"), r.signing.Private)
	cut := strings.LastIndexByte(good, '.') + 1
	for _, alg := range []any{"none", "None", "nOnE", "NONE", "", nil, "es256", "ES256 ", "ES512", "EdDSA", 1, []string{"ES256"}, true} {
		head := r.header().with("alg", alg)
		for _, token := range []string{
			mint(t, head, r.claims(), r.signing.Private),
			strings.TrimRight(mint(t, head, r.claims(), r.signing.Private), "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"),
		} {
			refusedToken(t, r, token, ErrTokenAlgorithm)
		}
	}
	refusedToken(t, r, good[:cut], ErrMalformedToken)   // no signature
	refusedToken(t, r, good[:cut-1], ErrMalformedToken) // no third part
	refusedToken(t, r, good[:cut]+other[strings.LastIndexByte(other, '.')+1:], ErrTokenSignature)
	refusedToken(t, r, good[:cut]+"AAAA", ErrTokenSignature)
	refusedToken(t, r, good[:cut]+strings.Repeat("A", 86), ErrTokenSignature) // r = s = 0
	refusedToken(t, r, mint(t, r.header(), r.claims(), newOtherKey(t, "x", "ES256").private), ErrTokenSignature)
	p384 := newOtherKey(t, "x", "ES384")
	refusedToken(t, r, mint(t, r.header().with("alg", "ES384"), r.claims(), p384.private), ErrTokenAlgorithm)
}

// A02: a verifier that let the token choose the algorithm took its own public
// key, which anybody has, for the secret of an HMAC.
func TestA02HMACWithThePublicKey(t *testing.T) {
	r := newTokenRig(t, nil)
	set, err := r.JWKS(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&r.signing.Private.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	var published struct{ Keys []json.RawMessage }
	if err := json.Unmarshal(set, &published); err != nil {
		t.Fatal(err)
	}
	point, err := r.signing.Private.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	for name, secret := range map[string][]byte{
		"PEM": pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), "DER": der, "set": set, "JWK": published.Keys[0],
		"x": point[1:33], "x in base64": []byte(base64.RawURLEncoding.EncodeToString(point[1:33])), "point": point, "empty": {},
	} {
		t.Run(name, func(t *testing.T) {
			for _, alg := range []string{"HS256", "HS384", "HS512"} {
				refusedToken(t, r, mint(t, r.header().with("alg", alg), r.claims(), secret), ErrTokenAlgorithm)
			}
			// The signature of HMAC under an algorithm that is taken.
			signed := mint(t, r.header(), r.claims(), r.signing.Private)
			signed = signed[:strings.LastIndexByte(signed, '.')]
			mac, err := jwt.SigningMethodHS256.Sign(signed, secret)
			if err != nil {
				t.Fatal(err)
			}
			refusedToken(t, r, signed+"."+base64.RawURLEncoding.EncodeToString(mac), ErrTokenSignature)
		})
	}
}

// A03: the header's "kid" was a path, a query or a URL to whoever read it, and
// "jku", "x5u" and "jwk" brought the attacker's own key. Nothing is opened,
// nobody is called, and no error repeats them.
func TestA03KeyChosenByTheToken(t *testing.T) {
	var lc net.ListenConfig
	listener, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	called := make(chan struct{}, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
			called <- struct{}{}
		}
	}()
	r := newTokenRig(t, nil)
	own := newOtherKey(t, "mine", "ES256")
	address := "http://" + listener.Addr().String() + "/"
	for _, tc := range []struct {
		name string
		kid  any
		want error
	}{
		{"path", "../../dev/null", ErrTokenKey},
		{"SQL", "' OR 1=1--", ErrTokenKey},
		{"URL", address + "x", ErrTokenKey},
		{"another", own.kid, ErrTokenKey},
		{"other case", strings.ToUpper(r.signing.ID), ErrTokenKey},
		{"giant", strings.Repeat("k", 256), ErrTokenHeader},
		{"empty", "", ErrTokenHeader},
		{"number", 1, ErrTokenHeader},
		{"array", []string{r.signing.ID}, ErrTokenHeader},
		{"object", members{"a": 1}, ErrTokenHeader},
		{"null", json.RawMessage("null"), ErrTokenHeader},
		{"missing", nil, ErrTokenHeader},
		{"newline", r.signing.ID + "\n", ErrTokenHeader},
		{"NUL", "\x00", ErrTokenHeader},
		{"non-ASCII", "ключ", ErrTokenHeader},
	} {
		t.Run(tc.name, func(t *testing.T) {
			head := r.header().with("kid", tc.kid, "jku", address, "x5u", address, "jwk", own.public, "x5c", []string{"MIIB"})
			token := mint(t, head, r.claims(), own.private)
			refusedToken(t, r, token, tc.want)
			_, err := r.use(t, token)
			if text, ok := tc.kid.(string); ok && len(text) > 5 && strings.Contains(fmt.Sprintf("%+v", err), text[:5]) {
				t.Errorf("the error repeats the kid: %v", err)
			}
		})
	}
	t.Run("64 KiB", func(t *testing.T) {
		token := mint(t, r.header().with("kid", strings.Repeat("k", 64<<10)), r.claims(), own.private)
		refusedToken(t, r, token, ErrMalformedCredential) // by its size, unread
		if _, err := readCompact(token); !errors.Is(err, ErrMalformedToken) {
			t.Errorf("readCompact: %v", err)
		}
	})
	t.Run("a key of its own beside a good kid", func(t *testing.T) {
		head := r.header().with("jku", address, "jwk", own.public)
		refusedToken(t, r, mint(t, head, r.claims(), own.private), ErrTokenSignature)
		// They do not disturb a good token either.
		if _, err := r.use(t, mint(t, head, r.claims(), r.signing.Private)); err != nil {
			t.Errorf("a good token with jku is refused: %v", err)
		}
	})
	_ = listener.Close()
	<-ended
	select {
	case <-called:
		t.Error("somebody followed a URL in a header")
	default:
	}
}

// A05: any JWT of the same issuer was taken for an access token.
func TestA05WrongKindOfToken(t *testing.T) {
	r := newTokenRig(t, nil)
	for name, typ := range map[string]any{
		"ID token": "JWT", "lower case": "jwt", "missing": nil, "empty": "", "logout": "logout+jwt", "refresh": "rt+jwt",
		"with a parameter": "at+jwt; x=1", "number": 1, "list": []string{"at+jwt"}, "other long": "application/jwt",
	} {
		t.Run(name, func(t *testing.T) {
			refusedToken(t, r, mint(t, r.header().with("typ", typ), r.claims(), r.signing.Private), ErrTokenType)
		})
	}
}

// A header that demands an extension was taken by readers that did not know it.
func TestCriticalHeaderIsRefused(t *testing.T) {
	r := newTokenRig(t, nil)
	for name, crit := range map[string]any{"known name": []string{"exp"}, "b64": []string{"b64"}, "empty": []string{}, "null": json.RawMessage("null")} {
		t.Run(name, func(t *testing.T) {
			refusedToken(t, r, mint(t, r.header().with("crit", crit, "b64", false), r.claims(), r.signing.Private), ErrTokenHeader)
		})
	}
}

// Two readers of one text took different ones of two members of a name.
func TestMembersThatStandTwice(t *testing.T) {
	r := newTokenRig(t, nil)
	twice := func(text []byte, more string) []byte {
		return []byte(strings.TrimSuffix(string(text), "}") + "," + more + "}")
	}
	head, body := jsonOf(t, r.header()), jsonOf(t, r.claims())
	for name, tc := range map[string]struct{ head, body []byte }{
		"alg":            {twice(head, `"alg":"ES256"`), body},
		"kid":            {twice(head, `"kid":"x"`), body},
		"unknown":        {twice(head, `"a":1,"a":1`), body},
		"exp":            {head, twice(body, `"exp":99999999999`)},
		"escaped":        {head, twice(body, `"\u0065xp":99999999999`)},
		"nested":         {head, twice(body, `"a":{"b":[{"c":1,"c":2}]}`)},
		"list in a list": {head, twice(body, `"a":[[{"b":1,"b":1}]]`)},
	} {
		t.Run(name, func(t *testing.T) {
			refusedToken(t, r, mintText(t, tc.head, tc.body, r.signing.Private), ErrMalformedToken)
		})
	}
	// A name in another case is another member, which nobody reads.
	t.Run("other case", func(t *testing.T) {
		token := mintText(t, head, twice(body, `"EXP":99999999999,"Account":"other"`), r.signing.Private)
		p, err := r.use(t, token)
		if err != nil || p.Account != "acme" || p.ExpiresAt.Sub(r.clock()) > 10*time.Minute {
			t.Errorf("got %+v, %v", p, err)
		}
	})
	t.Run("other case only", func(t *testing.T) {
		refusedToken(t, r, mint(t, r.header(), r.claims().with("exp", nil, "EXP", r.clock().Unix()+60), r.signing.Private), ErrTokenClaims)
	})
}

func TestMalformedTokens(t *testing.T) {
	r := newTokenRig(t, nil)
	good := mint(t, r.header(), r.claims(), r.signing.Private)
	parts := strings.Split(good, ".")
	encode := base64.RawURLEncoding.EncodeToString
	deep := strings.Repeat(`{"a":`, 40) + "1" + strings.Repeat("}", 40)
	for name, token := range map[string]string{
		"one part":          "abc",
		"two parts":         parts[0] + "." + parts[1],
		"four parts":        good + ".x",
		"five parts (JWE)":  good + ".a.b",
		"dots":              "..",
		"a dot before":      "." + good,
		"a dot behind":      good + ".",
		"no claims":         parts[0] + ".." + parts[2],
		"standard base64":   parts[0] + "." + encode([]byte(`{"a":"??>>"}`)) + "+." + parts[2],
		"header no JSON":    encode([]byte("abc")) + "." + parts[1] + "." + parts[2],
		"header a list":     encode([]byte("[]")) + "." + parts[1] + "." + parts[2],
		"header null":       encode([]byte("null")) + "." + parts[1] + "." + parts[2],
		"claims a string":   parts[0] + "." + encode([]byte(`"x"`)) + "." + parts[2],
		"claims null":       parts[0] + "." + encode([]byte("null")) + "." + parts[2],
		"two values":        parts[0] + "." + encode([]byte("{}{}")) + "." + parts[2],
		"not UTF-8":         parts[0] + "." + encode([]byte("{\"a\":\"\xff\"}")) + "." + parts[2],
		"nested deeply":     parts[0] + "." + encode([]byte(deep)) + "." + parts[2],
		"NaN":               parts[0] + "." + encode([]byte(`{"exp":NaN}`)) + "." + parts[2],
		"a comment":         parts[0] + "." + encode([]byte(`{}//`)) + "." + parts[2],
		"giant header":      encode(jsonOf(t, r.header().with("x", strings.Repeat("x", 3000)))) + "." + parts[1] + "." + parts[2],
		"loose last bits":   good[:len(good)-1] + string(good[len(good)-1]+1),
		"signature padding": good + "==",
	} {
		t.Run(name, func(t *testing.T) { refusedToken(t, r, token, ErrMalformedToken) })
	}
	// The header's own rules refuse these before; a form field has none.
	for name, token := range map[string]string{
		"line break": parts[0] + ".\n" + parts[1] + "." + parts[2],
		"padding":    parts[0] + "=." + parts[1] + "." + parts[2],
		"giant":      good + strings.Repeat("A", 9000),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := readCompact(token); !errors.Is(err, ErrMalformedToken) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestTokenOfMaximalSize(t *testing.T) {
	r := newTokenRig(t, nil)
	fill := 5000
	token := mint(t, r.header(), r.claims().with("x", strings.Repeat("x", fill)), r.signing.Private)
	if p, err := r.use(t, token); p == nil || err != nil {
		t.Errorf("%d bytes: %v", len(token), err)
	}
	refusedToken(t, r, mint(t, r.header(), r.claims().with("x", strings.Repeat("x", fill+1500)), r.signing.Private), ErrMalformedCredential)
}

// FuzzReadCompact holds that the reader never fails in another way than by its
// own errors, and that what it takes is what the library reads too.
func FuzzReadCompact(f *testing.F) {
	r := newTokenRig(f, nil)
	good := mint(f, r.header(), r.claims(), r.signing.Private)
	f.Add(good)
	f.Add(good[:len(good)-2])
	f.Add(strings.Replace(good, ".", "..", 1))
	f.Add(mint(f, r.header().with("crit", []string{"exp"}), r.claims(), r.signing.Private))
	f.Add(mint(f, r.header(), r.claims().with("exp", "1", "nbf", -1.5, "aud", []any{"a", 1}), r.signing.Private))
	f.Add("eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.")
	f.Fuzz(func(t *testing.T, token string) {
		c, err := readCompact(token)
		if err != nil {
			if c != nil || !errors.Is(err, ErrInvalidCredential) {
				t.Fatalf("got %v, %v", c, err)
			}
			return
		}
		parsed, _, err := jwt.NewParser().ParseUnverified(token, jwt.MapClaims{})
		if err != nil {
			t.Fatalf("taken, but the library cannot read it: %v", err)
		}
		if parsed.Header["kid"] != c.header.kid || parsed.Method.Alg() != c.header.method.Alg() {
			t.Errorf("header read as %v, %s", parsed.Header, c.header.kid)
		}
		claims, err := readClaims(c.claims)
		if err != nil {
			if !errors.Is(err, ErrTokenClaims) {
				t.Errorf("claims: %v", err)
			}
			return
		}
		subject, err := parsed.Claims.GetSubject()
		if err != nil || subject != claims.subject {
			t.Errorf("sub %q, the library reads %q, %v", claims.subject, subject, err)
		}
		audience, err := parsed.Claims.GetAudience()
		if err != nil || strings.Join(audience, "\x00") != strings.Join(claims.audience, "\x00") {
			t.Errorf("aud %q, the library reads %q, %v", claims.audience, audience, err)
		}
		if at, err := parsed.Claims.GetExpirationTime(); err != nil || claims.expires.After(at.Time) || at.Sub(claims.expires) >= 2*time.Second {
			t.Errorf("exp %v, the library reads %v, %v", claims.expires, at, err)
		}
	})
}
