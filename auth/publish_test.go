package auth

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"

	"sluice/internal/tenant"
)

// publishing serves what a gateway publishes, from the rig as it is then.
func publishing(t *testing.T, r *tokenRig) (origin string) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc(JWKSPath, func(w http.ResponseWriter, req *http.Request) {
		set, err := r.JWKS(req.Context())
		if err != nil {
			t.Errorf("JWKS: %v", err)
		}
		_, _ = w.Write(set)
	})
	mux.HandleFunc(MetadataPath, func(w http.ResponseWriter, _ *http.Request) {
		if err := json.NewEncoder(w).Encode(r.Metadata(r.origin + "/v1/token")); err != nil {
			t.Errorf("metadata: %v", err)
		}
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// rigAt is a rig whose origin is a server that publishes its keys.
func rigAt(t *testing.T) *tokenRig {
	t.Helper()
	r := newTokenRig(t, nil)
	origin := publishing(t, r)
	r.Authenticator = New(Options{Directory: r.directory, Now: r.clock, Origin: origin})
	r.x = NewExchanger(ExchangeOptions{Authenticator: r.Authenticator})
	return r
}

// An unmodified verifier accepts our tokens by what is published, and refuses
// them after the key is gone.
func TestTokensVerifyElsewhere(t *testing.T) {
	r := rigAt(t)
	ctx := oidc.ClientContext(t.Context(), http.DefaultClient)
	verifierOf := func() *oidc.IDTokenVerifier {
		keys := oidc.NewRemoteKeySet(ctx, r.origin+JWKSPath)
		return oidc.NewVerifier(r.origin, keys, &oidc.Config{ClientID: r.origin, SupportedSigningAlgs: []string{oidc.ES256}, Now: r.clock})
	}
	verifier := verifierOf()
	check := func(v *oidc.IDTokenVerifier, token string) error {
		got, err := v.Verify(ctx, token)
		if err != nil {
			return err
		}
		var claims struct {
			ClientID string   `json:"client_id"`
			Account  string   `json:"account"`
			Streams  []string `json:"streams"`
		}
		if err := got.Claims(&claims); err != nil {
			return err
		}
		if claims.ClientID != "acme/full" || claims.Account != "acme" || !slices.Equal(claims.Streams, []string{"events"}) || got.Subject != "acme/full" {
			t.Errorf("read as %+v, %+v", got, claims)
		}
		return nil
	}
	token := func() string { return r.token(t, r.secrets["acme/full"], "resource", r.origin+"/acme/s.events") }
	first := token()
	if err := check(verifier, first); err != nil {
		t.Fatal(err)
	}
	// A rotation with overlap: published first, signing later, the old one gone last.
	fresh, err := tenant.GenerateSigningKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, keys := range [][]tenant.SigningKey{{r.signing, fresh}, {fresh, r.signing}, {fresh}} {
		r.content.SigningKeys = keys
		r.replace(t)
		for _, v := range []*oidc.IDTokenVerifier{verifier, verifierOf()} {
			if err := check(v, token()); err != nil {
				t.Errorf("%d keys: %v", len(keys), err)
			}
		}
	}
	if err := check(verifierOf(), first); err == nil {
		t.Error("a token of the key that is gone verifies by what is published")
	}
}

// The library, by itself and with its checks on, accepts our tokens too.
func TestTokensVerifyWithTheLibrary(t *testing.T) {
	r := newTokenRig(t, nil)
	parser := jwt.NewParser(jwt.WithValidMethods([]string{"ES256"}), jwt.WithAudience(rigOrigin), jwt.WithIssuer(rigOrigin),
		jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithTimeFunc(r.clock))
	token, err := parser.Parse(r.token(t, r.secrets["acme/full"]), func(*jwt.Token) (any, error) { return &r.signing.Private.PublicKey, nil })
	if err != nil || token.Header["typ"] != "at+jwt" || token.Header["kid"] != r.signing.ID {
		t.Errorf("got %+v, %v", token, err)
	}
}

// What is secret of a key must not be in what is published of it.
func TestJWKS(t *testing.T) {
	r := newTokenRig(t, nil)
	now := r.clock()
	keys := make([]tenant.SigningKey, 4)
	for i := range keys {
		var err error
		if keys[i], err = tenant.GenerateSigningKey(rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	keys[1].SignFrom = now.Add(time.Hour)
	keys[2].SignUntil, keys[2].VerifyUntil = now.Add(-time.Hour), now.Add(time.Minute)
	keys[3].SignUntil, keys[3].VerifyUntil = now.Add(-time.Hour), now
	r.content.SigningKeys = keys
	r.replace(t)
	text, err := r.JWKS(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var set struct{ Keys []map[string]string }
	if err := json.Unmarshal(text, &set); err != nil {
		t.Fatal(err)
	}
	ids := make([]string, 0, len(set.Keys))
	for _, k := range set.Keys {
		ids = append(ids, k["kid"])
		if len(k["x"]) != 43 || len(k["y"]) != 43 || k["kty"] != "EC" || k["crv"] != "P-256" || k["alg"] != "ES256" || k["use"] != "sig" || len(k) != 7 {
			t.Errorf("key: %v", k)
		}
	}
	if diff := cmp.Diff([]string{keys[0].ID, keys[1].ID, keys[2].ID}, ids); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
	// And what is published is read back, by our own reader of others' sets.
	read, err := readKeySet(text)
	if err != nil || len(read) != 3 || !keys[1].Private.PublicKey.Equal(read[1].public) {
		t.Errorf("read back: %v, %v", read, err)
	}
	broken := New(Options{Directory: &brokenDirectory{signing: true}, Origin: rigOrigin})
	if _, err := broken.JWKS(context.Background()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("out of reach: %v", err)
	}
	empty := New(Options{Directory: &brokenDirectory{none: true}, Origin: rigOrigin})
	if text, err := empty.JWKS(t.Context()); err != nil || string(text) != `{"keys":[]}` {
		t.Errorf("no keys: %s, %v", text, err)
	}
}

func TestMetadata(t *testing.T) {
	r := newTokenRig(t, nil)
	text := string(jsonOf(t, r.Metadata(rigOrigin+"/v1/token")))
	want := `{"issuer":"https://streams.example.com","token_endpoint":"https://streams.example.com/v1/token",` +
		`"jwks_uri":"https://streams.example.com/.well-known/jwks.json",` +
		`"grant_types_supported":["urn:ietf:params:oauth:grant-type:token-exchange"],` +
		`"token_endpoint_auth_methods_supported":["none"],"scopes_supported":["streams:read","streams:write"],"response_types_supported":[]}`
	if text != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
}

// J5: our own metadata leads another Sluice to our keys.
func TestJ5OwnMetadataIsDiscovered(t *testing.T) {
	r := rigAt(t)
	token := r.token(t, r.secrets["acme/full"])
	if !strings.HasPrefix(r.origin, "http://127.0.0.1:") {
		t.Fatal(r.origin)
	}
	issuers := NewIssuers(IssuersOptions{Now: r.clock, Transport: http.DefaultTransport})
	defer issuers.Close()
	if err := issuers.Set([]IssuerOptions{{
		Issuer: r.origin, Audience: r.origin, AccountClaim: "account", Accounts: []tenant.AccountID{"acme"},
	}}); err != nil {
		t.Fatal(err)
	}
	other := New(Options{Directory: r.directory, Now: r.clock, Origin: "https://other.example.com", Issuers: issuers})
	p, err := other.Authenticate(t.Context(), bearer(token))
	if err != nil || p.Account != "acme" || p.KeyID != r.origin+"#acme/full" {
		t.Errorf("got %+v, %v", p, err)
	}
}
