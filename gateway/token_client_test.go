package gateway

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"sluice/auth"
	"sluice/internal/store/memory"
	"sluice/internal/tenant"
)

// front is the way to a gateway by its origin, as behind a load balancer that ends
// TLS: requests to anywhere else fail.
type front struct {
	to    string // host and port
	inner http.RoundTripper
}

func (f front) RoundTrip(r *http.Request) (*http.Response, error) {
	if origin := r.URL.Scheme + "://" + r.URL.Host; origin != rigOrigin {
		return nil, errors.New("not the gateway's: " + origin)
	}
	out := r.Clone(r.Context())
	out.URL.Scheme, out.URL.Host = "http", f.to
	return f.inner.RoundTrip(out)
}

func (rg *rig) front() *http.Client {
	return &http.Client{Transport: front{rg.Addr, client().Transport}}
}

// discover finds out what a client of RFC 8414 does.
func discover(t *testing.T, c *http.Client) (tokenURL, keysURL string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, rigOrigin+"/.well-known/oauth-authorization-server", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	var m struct {
		Issuer   string `json:"issuer"`
		Endpoint string `json:"token_endpoint"`
		Keys     string `json:"jwks_uri"`
	}
	if err := json.NewDecoder(res.Body).Decode(&m); err != nil || m.Issuer != rigOrigin {
		t.Fatalf("metadata of %q: %v", m.Issuer, err)
	}
	return m.Endpoint, m.Keys
}

// An OAuth client library as it is, which authenticates itself and finds out how,
// gets a token for a key, reads a stream with it, and gets the next when that one
// ends; what it is refused it understands.
func TestOAuthClientLibrary(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("200 OK", "", "x")), rigOptions{})
	ctx := context.WithValue(t.Context(), oauth2.HTTPClient, rg.front())
	tokenURL, _ := discover(t, rg.front())
	for name, style := range map[string]oauth2.AuthStyle{"finds out": oauth2.AuthStyleAutoDetect, "Basic": oauth2.AuthStyleInHeader, "in the form": oauth2.AuthStyleInParams} {
		t.Run(name, func(t *testing.T) {
			conf := clientcredentials.Config{
				ClientID: "some app", ClientSecret: "its: secret%", TokenURL: tokenURL, AuthStyle: style,
				Scopes: []string{auth.ScopeRead},
				EndpointParams: url.Values{
					"grant_type": {auth.GrantTokenExchange}, "subject_token": {rg.Keys["agent"]}, "subject_token_type": {auth.TypeAccessToken},
					"resource": {rigOrigin + "/acme/s.priv", rigOrigin + "/acme/s.pub"}, "expires_in": {"60"},
				},
			}
			token, err := conf.Token(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if left := time.Until(token.Expiry); token.Type() != "Bearer" || left > time.Minute || left < 50*time.Second ||
				token.Extra("issued_token_type") != auth.TypeAccessToken || token.Extra("scope") != auth.ScopeRead {
				t.Errorf("token: type %s, %s left, %v, %v", token.Type(), left, token.Extra("issued_token_type"), token.Extra("scope"))
			}
			before := len(u.requests())
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, rigOrigin+"/acme/s.priv", nil)
			if err != nil {
				t.Fatal(err)
			}
			res, err := conf.Client(ctx).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = res.Body.Close() }()
			if text, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusOK || string(text) != "x" || len(u.requests()) != before+1 {
				t.Errorf("a stream through the library: %d %q %v", res.StatusCode, text, err)
			}
			conf.EndpointParams["subject_token"] = []string{rg.Keys["revoked"]}
			var refused *oauth2.RetrieveError
			if _, err = conf.Token(ctx); !errors.As(err, &refused) || refused.ErrorCode != auth.CodeInvalidGrant || refused.ErrorDescription == "" {
				t.Errorf("a revoked key: %v", err)
			}
			conf.EndpointParams["subject_token"] = []string{rg.Keys["agent"]}
			conf.Scopes = []string{"admin"}
			if _, err = conf.Token(ctx); !errors.As(err, &refused) || refused.ErrorCode != auth.CodeInvalidScope {
				t.Errorf("another scope: %v", err)
			}
		})
	}
}

// A verifier library as it is takes our tokens by what the metadata and the key set
// say, over a rotation too, and refuses what is not ours. Facts J4, J5, the other
// way round: here others fetch our keys.
func TestVerifierLibrary(t *testing.T) {
	rg := newRig(t, rigOptions{noNodes: true})
	ctx := oidc.ClientContext(t.Context(), rg.front())
	_, keysURL := discover(t, rg.front())
	verifier := oidc.NewVerifier(rigOrigin, oidc.NewRemoteKeySet(ctx, keysURL), &oidc.Config{ClientID: rigOrigin, SupportedSigningAlgs: []string{oidc.ES256}})
	check := func(text string) {
		t.Helper()
		token, err := verifier.Verify(ctx, text)
		for range 5 { // it may answer from a fetch that was under way before the key came
			if err == nil {
				break
			}
			token, err = verifier.Verify(ctx, text)
		}
		if err != nil {
			t.Fatal(err)
		}
		var claims struct {
			Account  string   `json:"account"`
			ClientID string   `json:"client_id"`
			Scope    string   `json:"scope"`
			Streams  []string `json:"streams"`
			ID       string   `json:"jti"`
		}
		if err := token.Claims(&claims); err != nil {
			t.Fatal(err)
		}
		got := []any{token.Subject, claims.Account, claims.ClientID, claims.Scope, claims.Streams, token.Expiry.Sub(token.IssuedAt), claims.ID != ""}
		want := []any{"acme/full", "acme", "acme/full", "streams:read", []string{"priv"}, 5 * time.Minute, true}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("claims (-want +got):\n%s", diff)
		}
	}
	narrow := []string{"scope", auth.ScopeRead, "resource", rigOrigin + "/acme/s.priv", "expires_in", "300"}
	first := rg.token(t, "full", narrow...)
	check(first)
	if _, err := verifier.Verify(ctx, first[:len(first)-8]+"AAAAAAAA"); err == nil {
		t.Error("another signature is taken")
	}
	// The next key signs; what the first one signed is taken as long as it may live.
	declared, err := tenant.GenerateSigningKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rg.replace(t, func(c *memory.Content) { c.SigningKeys = []tenant.SigningKey{declared} })
	second := rg.token(t, "full", narrow...)
	if header(t, first) == header(t, second) {
		t.Error("both tokens have the same header: no rotation")
	}
	check(second)
	fresh := oidc.NewVerifier(rigOrigin, oidc.NewRemoteKeySet(ctx, keysURL), &oidc.Config{ClientID: rigOrigin, SupportedSigningAlgs: []string{oidc.ES256}})
	for name, text := range map[string]string{"first": first, "second": second} {
		if _, err := fresh.Verify(ctx, text); err != nil {
			t.Errorf("the %s token, by a verifier that came later: %v", name, err)
		}
	}
}

// header is the encoded header of a token: with one issuer it tells the key.
func header(t testing.TB, token string) string {
	t.Helper()
	head, _, ok := strings.Cut(token, ".")
	if !ok {
		t.Fatalf("not a token: %q", token)
	}
	return head
}
