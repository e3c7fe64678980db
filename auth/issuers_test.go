package auth

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/bubble"
	"sluice/internal/tenant"
)

// idpRig is an Authenticator that takes tokens of one identity provider, at the
// bubble's time.
type idpRig struct {
	*Authenticator
	idp       *idp
	issuers   *Issuers
	directory *tokenRig
	x         *Exchanger

	mu      sync.Mutex
	changed []string
	failed  []error
}

// newIDPRig is to be made inside a bubble of synctest. Its provider serves keys.
func newIDPRig(t *testing.T, o IssuerOptions, keys ...otherKey) *idpRig {
	t.Helper()
	r := &idpRig{idp: newIDP(), directory: newTokenRig(t, nil)}
	r.directory.now = time.Now()
	if len(keys) > 0 {
		r.idp.serve(idpKeys, keysOK(t, keys...))
	}
	r.issuers = NewIssuers(IssuersOptions{
		Origin: rigOrigin, Transport: r.idp, Now: time.Now,
		Changed: func(issuer string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.changed = append(r.changed, issuer)
		},
		Failed: func(_ string, err error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.failed = append(r.failed, err)
		},
	})
	t.Cleanup(r.issuers.Close)
	r.set(t, o)
	r.Authenticator = New(Options{Directory: r.directory.directory, Now: time.Now, Origin: rigOrigin, Issuers: r.issuers})
	r.x = NewExchanger(ExchangeOptions{Authenticator: r.Authenticator})
	bubble.Wait()
	return r
}

func (r *idpRig) set(t *testing.T, list ...IssuerOptions) {
	t.Helper()
	if err := r.issuers.Set(list); err != nil {
		t.Fatal(err)
	}
	bubble.Wait()
}

func (r *idpRig) use(t *testing.T, token string) (*Principal, error) {
	t.Helper()
	return r.Authenticate(t.Context(), bearer(token))
}

func (r *idpRig) changes() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.changed)
}

func (r *idpRig) failures() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.failed)
}

func (r *idpRig) lastFailure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.failed) == 0 {
		return nil
	}
	return r.failed[len(r.failed)-1]
}

// J1: a valid access token becomes a principal with issuer, subject, client and
// scopes, under every algorithm that is taken.
func TestJ1OtherIssuersToken(t *testing.T) {
	for _, alg := range []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384"} {
		t.Run(alg, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				key := newOtherKey(t, "k1", alg)
				r := newIDPRig(t, idpOptions(), key)
				p, err := r.use(t, otherToken(t, key, time.Now()))
				if err != nil {
					t.Fatal(err)
				}
				if p.Issuer != idpName || p.Subject != "user-7" || p.KeyID != idpName+"#app-1" || p.Account != "acme" || p.TokenID != "other-1" ||
					p.Access != tenant.ReadAccess || p.Streams.Narrowed() || !p.IsToken() || !p.ExpiresAt.Equal(time.Now().Add(15*time.Minute)) {
					t.Errorf("got %+v", p)
				}
				if diff := cmp.Diff([]string{"openid", "streams:read"}, p.Scopes); diff != "" {
					t.Errorf("scopes (-want +got):\n%s", diff)
				}
				if _, err := r.use(t, otherToken(t, key, time.Now())); err != nil || r.idp.hits() != 1 {
					t.Errorf("again: %v, after %d fetches, want 1", err, r.idp.hits())
				}
			})
		})
	}
}

// J2, J3, A05: tokens of the issuer that are not for this gateway.
func TestJ3OtherIssuersTokenRefused(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		key := newOtherKey(t, "k1", "RS256")
		r := newIDPRig(t, idpOptions(), key)
		now := time.Now()
		for _, tc := range []struct {
			name  string
			pairs []any
			want  error
		}{
			{"J3 expired", []any{"iat", now.Unix() - 100, "exp", now.Unix() - 1}, ErrCredentialExpired},
			{"J3 other audience", []any{"aud", "another"}, ErrTokenAudience},
			{"our origin is not how this issuer calls us", []any{"aud", rigOrigin}, ErrTokenAudience},
			{"J3 no client_id", []any{"client_id", nil}, ErrTokenClaims},
			{"no sub", []any{"sub", nil}, ErrTokenClaims},
			{"no jti", []any{"jti", nil}, ErrTokenClaims},
			{"no iat", []any{"iat", nil}, ErrTokenClaims},
			{"longer than a day", []any{"exp", now.Unix() + 86401}, ErrTokenClaims},
			{"not yet", []any{"nbf", now.Unix() + 31}, ErrTokenNotYet},
			{"another issuer", []any{"iss", idpName + "/"}, ErrTokenIssuer},
			{"claims to be ours", []any{"iss", rigOrigin}, ErrTokenAlgorithm},
			{"no account", []any{"org", nil}, ErrTokenClaims},
			{"account no string", []any{"org", []string{"acme"}}, ErrTokenClaims},
			{"account in another case", []any{"org", "ACME"}, ErrTokenAccount},
			{"account not this issuer's", []any{"org", "debt"}, ErrTokenAccount},
			{"account by our claim's name", []any{"org", nil, "account", "acme"}, ErrTokenClaims},
			{"client_id not printable", []any{"client_id", "é"}, ErrTokenClaims},
			{"client_id too long for a child", []any{"client_id", strings.Repeat("x", 490)}, ErrTokenClaims},
			{"streams no list", []any{"streams", "events"}, ErrTokenClaims},
		} {
			p, err := r.use(t, otherToken(t, key, now, tc.pairs...))
			if p != nil || !errors.Is(err, tc.want) {
				t.Errorf("%s: got %v, %v; want %v", tc.name, p, err, tc.want)
			}
		}
		claims := members{"iss": idpName, "aud": "sluice", "sub": "u", "client_id": "c", "org": "acme", "iat": now.Unix(), "exp": now.Unix() + 60, "jti": "j"}
		if _, err := r.use(t, mint(t, members{"alg": "RS256", "typ": "JWT", "kid": "k1"}, claims, key.private)); !errors.Is(err, ErrTokenType) {
			t.Errorf("J2 ID token: got %v", err)
		}
		// A claim of ours that no other issuer can state.
		if p, err := r.use(t, otherToken(t, key, now, "root", members{"iss": "https://x", "kid": "y"})); err != nil || p.grounds.root != nil {
			t.Errorf("root: got %+v, %v", p, err)
		}
		if _, err := r.use(t, otherToken(t, key, now, "exp", now.Unix()+86400)); err != nil {
			t.Errorf("a day: %v", err)
		}
		p, err := r.use(t, otherToken(t, key, now, "streams", []string{"events"}))
		if err != nil || p.Streams.Covers("other") || !p.Streams.Covers("events") {
			t.Errorf("narrowed by its own claim: got %+v, %v", p, err)
		}
		if r.idp.hits() != 1 {
			t.Errorf("%d fetches, want the first only", r.idp.hits())
		}
	})
}

// J7: equal subjects of two issuers are two. One issuer's key signs nothing of
// the other's.
func TestJ7IssuersAreApart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		one, two := newOtherKey(t, "same", "ES256"), newOtherKey(t, "same", "ES256")
		second := idpOptions()
		second.Issuer, second.JWKSURL, second.Accounts = "https://two.example.com", "https://two.example.com/keys", []tenant.AccountID{"other"}
		r := newIDPRig(t, idpOptions(), one)
		r.idp.serve(second.JWKSURL, keysOK(t, two))
		r.set(t, idpOptions(), second)
		a, errA := r.use(t, otherToken(t, one, time.Now()))
		b, errB := r.use(t, otherToken(t, two, time.Now(), "iss", second.Issuer, "org", "other"))
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		if a.Subject != b.Subject || a.Issuer == b.Issuer || a.KeyID == b.KeyID {
			t.Errorf("not told apart: %+v, %+v", a, b)
		}
		if _, err := r.use(t, otherToken(t, two, time.Now())); !errors.Is(err, ErrTokenSignature) {
			t.Errorf("the other's key: %v", err)
		}
		if _, err := r.use(t, otherToken(t, two, time.Now(), "iss", second.Issuer)); !errors.Is(err, ErrTokenAccount) {
			t.Errorf("the other's account: %v", err)
		}
	})
}

// A02, for other issuers: the key says which algorithms it is for.
func TestA02AlgorithmOfTheKey(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		rsaKey, ec := newOtherKey(t, "rsa", "RS256"), newOtherKey(t, "ec", "ES256")
		fixed := newOtherKey(t, "fixed", "PS256")
		fixed.public = fixed.public.with("alg", "RS256")
		symmetric := otherKey{kid: "oct", alg: "HS256", private: []byte("secret"), public: members{"kty": "oct", "k": base64.RawURLEncoding.EncodeToString([]byte("secret")), "kid": "oct"}}
		r := newIDPRig(t, idpOptions(), rsaKey, ec, fixed, symmetric)
		// Made well before the keys were asked for: no doubt remains.
		old := time.Now().Add(-2 * publishLag)
		with := func(k otherKey, alg string) string {
			k.alg = alg
			return otherToken(t, k, old)
		}
		for name, tc := range map[string]struct {
			token string
			want  error
		}{
			"the key's":           {with(rsaKey, "PS512"), nil},
			"fixed by the key":    {with(fixed, "RS256"), nil},
			"another than fixed":  {with(fixed, "PS256"), ErrTokenKey},
			"RSA with an EC's id": {otherToken(t, otherKey{kid: "ec", alg: "RS256", private: rsaKey.private}, old), ErrTokenKey},
			"symmetric":           {with(symmetric, "HS256"), ErrTokenAlgorithm},
		} {
			if _, err := r.use(t, tc.token); !errors.Is(err, tc.want) {
				t.Errorf("%s: got %v, want %v", name, err, tc.want)
			}
		}
	})
}

func TestReadKeySet(t *testing.T) {
	ec, rsaKey := newOtherKey(t, "ec", "ES256"), newOtherKey(t, "rsa", "RS256")
	small, err := rsa.GenerateKey(rand.Reader, 1024) //nolint:gosec // weak on purpose
	if err != nil {
		t.Fatal(err)
	}
	number := base64.RawURLEncoding.EncodeToString
	for name, tc := range map[string]struct {
		key  members
		want []string // algorithms; nil: passed over
	}{
		"P-256":              {ec.public, []string{"ES256"}},
		"P-384":              {newOtherKey(t, "k", "ES384").public, []string{"ES384"}},
		"RSA":                {rsaKey.public, []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}},
		"RSA with alg":       {rsaKey.public.with("alg", "PS384"), []string{"PS384"}},
		"use missing":        {ec.public.with("use", nil), []string{"ES256"}},
		"to verify":          {ec.public.with("key_ops", []string{"sign", "verify"}), []string{"ES256"}},
		"padded":             {rsaKey.public.with("e", "AQAB=="), []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}},
		"to encrypt":         {ec.public.with("use", "enc"), nil},
		"to wrap":            {ec.public.with("key_ops", []string{"wrapKey"}), nil},
		"no kid":             {ec.public.with("kid", nil), nil},
		"long kid":           {ec.public.with("kid", strings.Repeat("k", 256)), nil},
		"kid no string":      {ec.public.with("kid", 1), nil},
		"alg of another":     {ec.public.with("alg", "RS256"), nil},
		"alg HMAC":           {rsaKey.public.with("alg", "HS256"), nil},
		"alg to encrypt":     {rsaKey.public.with("alg", "RSA-OAEP"), nil},
		"symmetric":          {members{"kty": "oct", "k": "AAAA", "kid": "k"}, nil},
		"Ed25519":            {members{"kty": "OKP", "crv": "Ed25519", "x": "AAAA", "kid": "k"}, nil},
		"P-521":              {ec.public.with("crv", "P-521"), nil},
		"secp256k1":          {ec.public.with("crv", "secp256k1"), nil},
		"not on the curve":   {ec.public.with("y", ec.public["x"]), nil},
		"x too long":         {ec.public.with("x", number(make([]byte, 33))), nil},
		"infinity":           {ec.public.with("x", "AA", "y", "AA"), nil},
		"no y":               {ec.public.with("y", nil), nil},
		"1024 bits":          {rsaKey.public.with("n", number(small.N.Bytes())), nil},
		"8201 bits":          {rsaKey.public.with("n", number(slices.Concat([]byte{1}, make([]byte, 1024), []byte{1}))), nil},
		"even modulus":       {rsaKey.public.with("n", number(append([]byte{255}, make([]byte, 255)...))), nil},
		"exponent 1":         {rsaKey.public.with("e", "AQ"), nil},
		"even exponent":      {rsaKey.public.with("e", "BA"), nil},
		"exponent of 5 byte": {rsaKey.public.with("e", number([]byte{1, 0, 0, 0, 1})), nil},
		"not base64":         {rsaKey.public.with("n", "!!!"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			keys, err := readKeySet(jsonOf(t, members{"keys": []any{1, tc.key, nil, "x"}}))
			switch {
			case tc.want == nil && !errors.Is(err, errNoKeys):
				t.Errorf("got %v, %v; want it passed over", keys, err)
			case tc.want != nil && (err != nil || len(keys) != 1 || !slices.Equal(keys[0].algorithms, tc.want)):
				t.Errorf("got %v, %v; want %v", keys, err, tc.want)
			}
		})
	}
	t.Run("many", func(t *testing.T) {
		all := make([]any, 150)
		for i := range all {
			all[i] = ec.public
		}
		if keys, err := readKeySet(jsonOf(t, members{"keys": all})); err != nil || len(keys) != maxKeys {
			t.Errorf("got %d, %v; want %d", len(keys), err, maxKeys)
		}
	})
}

// J5: the metadata's well-known part goes before the issuer's path; OpenID
// Connect's goes behind. Metadata that names another issuer is not believed.
func TestJ5Discovery(t *testing.T) {
	const (
		oauth = "https://idp.example.com/.well-known/oauth-authorization-server/tenant-1"
		oidc  = "https://idp.example.com/tenant-1/.well-known/openid-configuration"
	)
	good := `{"issuer":"` + idpName + `","jwks_uri":"` + idpKeys + `"}`
	for _, tc := range []struct {
		name   string
		answer map[string]string
		asked  []string
		works  bool
	}{
		{"RFC 8414", map[string]string{oauth: good}, []string{oauth, idpKeys}, true},
		{"OpenID Connect", map[string]string{oidc: good}, []string{oauth, oidc, idpKeys}, true},
		{"first is HTML", map[string]string{oauth: "<html>", oidc: good}, []string{oauth, oidc, idpKeys}, true},
		{"another issuer", map[string]string{oauth: strings.ReplaceAll(good, "tenant-1\"", "tenant-2\"")}, []string{oauth, oidc}, false},
		{"slash behind", map[string]string{oidc: strings.Replace(good, idpName+`"`, idpName+`/"`, 1)}, []string{oauth, oidc}, false},
		{"no keys named", map[string]string{oauth: `{"issuer":"` + idpName + `"}`}, []string{oauth, oidc}, false},
		{"keys over http", map[string]string{oauth: strings.Replace(good, "\""+idpKeys, "\"http://idp.example.com/keys", 1)}, []string{oauth, oidc}, false},
		{"keys in a file", map[string]string{oauth: `{"issuer":"` + idpName + `","jwks_uri":"file:///etc/passwd"}`}, []string{oauth, oidc}, false},
		{"nothing there", nil, []string{oauth, oidc}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				key := newOtherKey(t, "k1", "ES256")
				o := idpOptions()
				o.JWKSURL = ""
				r := newIDPRig(t, idpOptions(), key)
				r.set(t) // the rig's own fetch is not meant
				r.idp.reset()
				for at, text := range tc.answer {
					r.idp.serve(at, answer{status: http.StatusOK, body: text})
				}
				r.set(t, o)
				if diff := cmp.Diff(tc.asked, r.idp.log()); diff != "" {
					t.Errorf("asked (-want +got):\n%s", diff)
				}
				_, err := r.use(t, otherToken(t, key, time.Now()))
				if (err == nil) != tc.works || !tc.works && !errors.Is(err, ErrUnavailable) {
					t.Errorf("got %v, want it to work: %t", err, tc.works)
				}
				if failed := r.lastFailure(); (failed == nil) != tc.works {
					t.Errorf("reported: %v", failed)
				}
			})
		})
	}
	t.Run("once an hour", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			o := idpOptions()
			o.JWKSURL = ""
			r := newIDPRig(t, idpOptions(), newOtherKey(t, "k1", "ES256"))
			r.idp.serve(oauth, answer{status: http.StatusOK, body: good})
			r.set(t)
			r.idp.reset()
			r.set(t, o)
			time.Sleep(59*time.Minute + time.Second)
			if n := strings.Count(strings.Join(r.idp.log(), " "), oauth); n != 1 {
				t.Errorf("metadata fetched %d times within the hour, want 1", n)
			}
			time.Sleep(5 * time.Minute)
			if n := strings.Count(strings.Join(r.idp.log(), " "), oauth); n != 2 {
				t.Errorf("metadata fetched %d times after it, want 2", n)
			}
		})
	})
}

// A key set that moved was asked for at its old place for ever.
func TestDiscoveryOfAMovedKeySet(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const at, moved = "https://idp.example.com/.well-known/oauth-authorization-server/tenant-1", idpKeys + "/moved"
		key := newOtherKey(t, "k1", "ES256")
		o := idpOptions()
		o.JWKSURL = ""
		r := newIDPRig(t, idpOptions(), key)
		r.idp.serve(at, answer{status: http.StatusOK, body: `{"issuer":"` + idpName + `","jwks_uri":"` + idpKeys + `"}`})
		r.set(t, o)
		fresh := newOtherKey(t, "k2", "ES256")
		r.idp.serve(idpKeys, answer{status: http.StatusNotFound})
		r.idp.serve(moved, keysOK(t, fresh))
		r.idp.serve(at, answer{status: http.StatusOK, body: `{"issuer":"` + idpName + `","jwks_uri":"` + moved + `"}`})
		time.Sleep(refreshEvery + retryEvery)
		bubble.Wait()
		if _, err := r.use(t, otherToken(t, fresh, time.Now())); err != nil {
			t.Error(err)
		}
	})
}

func TestIssuerOptionsCheck(t *testing.T) {
	for name, edit := range map[string]func(*IssuerOptions){
		"no issuer":        func(o *IssuerOptions) { o.Issuer = "" },
		"http":             func(o *IssuerOptions) { o.Issuer = "http://idp.example.com" },
		"query":            func(o *IssuerOptions) { o.Issuer += "?x=1" },
		"empty query":      func(o *IssuerOptions) { o.Issuer += "?" },
		"fragment":         func(o *IssuerOptions) { o.Issuer += "#x" },
		"user":             func(o *IssuerOptions) { o.Issuer = "https://u:p@idp.example.com" },
		"relative":         func(o *IssuerOptions) { o.Issuer = "/idp" },
		"no host":          func(o *IssuerOptions) { o.Issuer = "https:///x" },
		"keys over http":   func(o *IssuerOptions) { o.JWKSURL = "http://idp.example.com/keys" },
		"keys on ftp":      func(o *IssuerOptions) { o.JWKSURL = "ftp://127.0.0.1/keys" },
		"looks like local": func(o *IssuerOptions) { o.JWKSURL = "http://127.0.0.1.example.com/keys" },
		"no audience":      func(o *IssuerOptions) { o.Audience = "" },
		"no claim":         func(o *IssuerOptions) { o.AccountClaim = "" },
		"no accounts":      func(o *IssuerOptions) { o.Accounts = nil },
		"bad account":      func(o *IssuerOptions) { o.Accounts = []tenant.AccountID{"A"} },
	} {
		t.Run(name, func(t *testing.T) {
			o := idpOptions()
			edit(&o)
			if err := o.Check(); !errors.Is(err, ErrIssuerOptions) {
				t.Errorf("got %v", err)
			}
		})
	}
	for name, edit := range map[string]func(*IssuerOptions){
		"as it is":        func(*IssuerOptions) {},
		"discovery":       func(o *IssuerOptions) { o.JWKSURL = "" },
		"loopback":        func(o *IssuerOptions) { o.Issuer, o.JWKSURL = "http://127.0.0.1:8080", "http://[::1]:8080/keys" },
		"localhost":       func(o *IssuerOptions) { o.Issuer = "http://localhost:8080/x" },
		"keys by a query": func(o *IssuerOptions) { o.JWKSURL += "?tenant=1" },
	} {
		t.Run(name, func(t *testing.T) {
			o := idpOptions()
			edit(&o)
			if err := o.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}
