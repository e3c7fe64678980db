package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/auth"
	"sluice/internal/bubble"
	"sluice/internal/tenant"
	"sluice/ratelimit"
)

// A15: an exchange gave more than was given. What comes back says what the token
// can do, and the token can do exactly that.
func TestExchange(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("200 OK", "", "x")), rigOptions{})
	const both = "streams:read streams:write"
	for _, tc := range []struct {
		name, key string
		pairs     []string
		scope     string
		lives     int
		read      int // GET of priv
		write     int // POST to priv
		elsewhere int // GET of elsewhere
	}{
		{"a key", "full", nil, both, 600, 200, 200, 200},
		{"a key that reads", "read", nil, "streams:read", 600, 200, 403, 200},
		{"an agent's", "agent", nil, both, 600, 200, 200, 200},
		{"a narrowed key", "narrowed", nil, both, 600, 403, 403, 200},
		{"to reading", "full", []string{"scope", "streams:read"}, "streams:read", 600, 200, 403, 200},
		{"to one stream", "full", []string{"resource", rigOrigin + "/acme/s.priv"}, both, 600, 200, 200, 403},
		{"to two and a pattern", "full", []string{"resource", rigOrigin + "/acme/s.x*", "resource", rigOrigin + "/acme/s.elsewhere"}, both, 600, 403, 403, 200},
		{"within a pattern", "covering", []string{"resource", rigOrigin + "/acme/s.priv"}, both, 600, 200, 200, 403},
		{"shorter", "full", []string{"expires_in", "30"}, both, 30, 200, 200, 200},
		{"longest", "full", []string{"expires_in", "3600"}, both, 3600, 200, 200, 200},
		{"as a JWT", "full", []string{"requested_token_type", auth.TypeJWT}, both, 600, 200, 200, 200},
		{"for us", "full", []string{"audience", rigOrigin}, both, 600, 200, 200, 200},
		{"with a client's id", "full", []string{"client_id", "app", "client_secret", "s3cret"}, both, 600, 200, 200, 200},
	} {
		t.Run(tc.name, func(t *testing.T) {
			res := rg.exchange(t, exchangeForm(rg.Keys[tc.key], tc.pairs...))
			got := res.exchanged(t)
			want := exchanged{Token: got.Token, Issued: auth.TypeAccessToken, Type: "Bearer", ExpiresIn: tc.lives, Scope: tc.scope}
			if tc.name == "as a JWT" {
				want.Issued = auth.TypeJWT
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
			checkOAuthHead(t, res)
			for path, want := range map[[2]string]int{
				{"GET", "/acme/s.priv"}: tc.read, {"POST", "/acme/s.priv"}: tc.write, {"GET", "/acme/s.elsewhere"}: tc.elsewhere,
				{"GET", "/other/s.priv"}: 403, {"POST", "/acme/s.pub"}: map[bool]int{true: 200, false: 403}[tc.write == 200 && tc.elsewhere == 200],
				{"GET", "/acme/s.pub"}: 200,
			} {
				if res := send(t, path[0], rg.URL+path[1], got.Token, nil, "Content-Type", rigType); res.StatusCode != want {
					t.Errorf("%s: %d, want %d: %s", path, res.StatusCode, want, res.Text)
				}
			}
		})
	}
	for _, r := range u.requests() {
		if strings.HasPrefix(r.Target, "/v1") {
			t.Errorf("%s reached the node", r.Target)
		}
	}
	lines := rg.requestLines(t)
	if lines[0]["operation"] != "exchange_token" || lines[0]["key_id"] == nil {
		t.Errorf("access line %v", lines[0])
	}
}

// checkOAuthHead checks what every answer of the exchange has (RFC 6749 §5).
func checkOAuthHead(t testing.TB, res answer) {
	t.Helper()
	for name, want := range map[string]string{
		"Content-Type": "application/json", "Cache-Control": "no-store", "Www-Authenticate": "", "Ursula-Protocol": "", "Ursula-Cluster-Id": "",
		"X-Content-Type-Options": "nosniff",
	} {
		if got := res.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if res.Header.Get(requestIDHeader) == "" {
		t.Error("no request id")
	}
}

// A15: what is more than the parent's, or badly asked, came back as a token, or in
// a shape that OAuth clients do not read. Every error is OAuth's; none repeats what
// was sent; and nothing of a key that is not good is told (A16).
func TestExchangeRefuses(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("200 OK", "", "x")), rigOptions{})
	rg.Keys["child"] = rg.token(t, "full", "scope", "streams:read", "resource", rigOrigin+"/acme/s.priv", "expires_in", "60")
	rg.Keys["forged"] = rg.Keys["child"][:len(rg.Keys["child"])-4] + "AAAA"
	const request, grant, scope, target = auth.CodeInvalidRequest, auth.CodeInvalidGrant, auth.CodeInvalidScope, auth.CodeInvalidTarget
	for _, tc := range []struct {
		name, key string
		pairs     []string
		code      string
	}{
		{"unknown key", "unknown", nil, grant},
		{"malformed key", "malformed", nil, grant},
		{"revoked key", "revoked", nil, grant},
		{"expired key", "expired", nil, grant},
		{"unpaid account", "poor.full", nil, grant},
		{"revoked account", "gone.full", nil, grant},
		{"a token of another signature", "forged", nil, grant},
		{"more scope than a key has", "read", []string{"scope", "streams:write"}, scope},
		{"more scope than a token has", "child", []string{"scope", "streams:read streams:write"}, scope},
		{"unknown scope", "full", []string{"scope", "admin"}, scope},
		{"blank scope", "full", []string{"scope", " "}, scope},
		{"another account's stream", "full", []string{"resource", rigOrigin + "/other/s.priv"}, target},
		{"a missing account's stream", "full", []string{"resource", rigOrigin + "/nobody/s.priv"}, target},
		{"beyond the key", "narrowed", []string{"resource", rigOrigin + "/acme/s.priv"}, target},
		{"beyond the token", "child", []string{"resource", rigOrigin + "/acme/s.pub"}, target},
		{"a pattern beyond the token", "child", []string{"resource", rigOrigin + "/acme/s.p*"}, target},
		{"another origin's stream", "full", []string{"resource", "https://evil.example/acme/s.priv"}, target},
		{"a resource that is no stream", "full", []string{"resource", rigOrigin}, target},
		{"an empty resource", "full", []string{"resource", ""}, target},
		{"dots in a resource", "full", []string{"resource", rigOrigin + "/acme/s.priv/../s.pub"}, target},
		{"one good, one bad resource", "covering", []string{"resource", rigOrigin + "/acme/s.priv", "resource", rigOrigin + "/acme/s.zzz"}, target},
		{"another audience", "full", []string{"audience", "https://evil.example"}, target},
		{"10 years", "full", []string{"expires_in", "315360000"}, request},
		{"29 s", "full", []string{"expires_in", "29"}, request},
		{"no number", "full", []string{"expires_in", "1h"}, request},
		{"no grant type", "full", []string{"grant_type", ""}, request},
		{"another grant type", "full", []string{"grant_type", "client_credentials"}, auth.CodeUnsupportedGrantType},
		{"no subject", "full", []string{"subject_token", ""}, request},
		{"no subject type", "full", []string{"subject_token_type", ""}, request},
		{"an id token", "full", []string{"subject_token_type", "urn:ietf:params:oauth:token-type:id_token"}, request},
		{"a key as a JWT", "full", []string{"subject_token_type", auth.TypeJWT}, request},
		{"for a refresh token", "full", []string{"requested_token_type", "urn:ietf:params:oauth:token-type:refresh_token"}, request},
		{"on behalf", "full", []string{"actor_token", "x", "actor_token_type", auth.TypeJWT}, request},
	} {
		t.Run(tc.name, func(t *testing.T) {
			res := rg.exchange(t, exchangeForm(rg.Keys[tc.key], tc.pairs...))
			code, description := res.oauth()
			if res.StatusCode != http.StatusBadRequest || code != tc.code || description == "" {
				t.Errorf("%d %s, want 400 %s", res.StatusCode, res.Text, tc.code)
			}
			checkOAuthHead(t, res)
			if strings.ContainsAny(description, `"\`) || strings.Contains(res.Text, "evil") || strings.Contains(res.Text, "nobody") {
				t.Errorf("description %q", description)
			}
		})
	}
	if n := len(u.requests()); n != 0 {
		t.Errorf("%d requests reached the node", n)
	}
	for name, text := range rg.Keys {
		if strings.Contains(rg.Log.String(), text) {
			t.Errorf("the key or token %s is in the log", name)
		}
	}
	rg.awaitCount(t, `sluice_refusals_total{code="INVALID_CREDENTIAL"} 7`)
}

// A16: the exchange told which keys had been there. Unknown, malformed, revoked
// and forged are one answer, byte for byte.
func TestExchangeTellsNoExistence(t *testing.T) {
	rg := newRig(t, rigOptions{noNodes: true})
	rg.Keys["token"] = rg.token(t, "full")
	if err := rg.Directory.RevokeKey("acme/full"); err != nil {
		t.Fatal(err)
	}
	answerTo := func(subject string) string {
		body := exchangeForm(subject).Encode()
		raw := rg.raw(t, fmt.Sprintf("POST /v1/token HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", formType, len(body), body))
		return withoutChance(raw, "no path")
	}
	want := answerTo(rg.Keys["unknown"])
	if !strings.HasPrefix(want, "HTTP/1.1 400") || !strings.Contains(want, `{"error":"invalid_grant"`) {
		t.Fatalf("unknown: %q", want)
	}
	for name, subject := range map[string]string{
		"revoked": rg.Keys["revoked"], "revoked now": rg.Keys["full"], "its token": rg.Keys["token"],
		"malformed": rg.Keys["malformed"], "a digest": tenant.DigestOf(rg.Keys["full"]).String(), "a word": "x",
		"no token": "a.b.c", "not ASCII": "tbo_\xc3\xbc", "long": strings.Repeat("x", 20<<10),
	} {
		if got := answerTo(subject); got != want {
			t.Errorf("%s: %q, unknown %q", name, got, want)
		}
	}
}

// An agent's key is good for the exchange and for nothing else.
func TestAgentKeyIsForTheExchangeOnly(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("200 OK", "", "x")), rigOptions{})
	for _, path := range []string{"/acme/s.priv", "/acme/s.pub"} {
		if res := rg.Do(t, http.MethodGet, path, "agent", ""); res.StatusCode != http.StatusUnauthorized || res.Header.Get("WWW-Authenticate") != challengeInvalid {
			t.Errorf("%s with the key: %d %q", path, res.StatusCode, res.Header.Get("WWW-Authenticate"))
		}
	}
	u.untouched(t)
	if res := send(t, http.MethodGet, rg.URL+"/acme/s.priv", rg.token(t, "agent"), nil); res.StatusCode != http.StatusOK {
		t.Errorf("with its token: %d %s", res.StatusCode, res.Text)
	}
}

// A15: by exchanging a token again and again before its end, its holder went on
// for ever, or came to more than it had been given. No child outlives its parent,
// and each may have less, never more.
func TestExchangeChain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		rg, _, l := newBubbleRig(t, rigOptions{})
		made := time.Now()
		ask := func(subject string, pairs ...string) answer {
			body := exchangeForm(subject, pairs...).Encode()
			return l.ask(t, fmt.Sprintf("POST /v1/token HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", formType, len(body), body))
		}
		subject := ask(rg.Keys["full"], "expires_in", "60").exchanged(t).Token
		for i := range 5 {
			time.Sleep(10 * time.Second)
			res := ask(subject, "expires_in", "3600").exchanged(t)
			if want := 50 - 10*i; res.ExpiresIn != want {
				t.Errorf("child %d lives %d s, want the %d s that its parent has left", i, res.ExpiresIn, want)
			}
			subject = res.Token
		}
		narrow := ask(subject, "scope", auth.ScopeRead).exchanged(t).Token
		if res := ask(narrow, "scope", auth.ScopeWrite); res.StatusCode != http.StatusBadRequest {
			t.Errorf("a child of a reading token writes: %d %s", res.StatusCode, res.Text)
		}
		time.Sleep(10*time.Second - time.Since(made)%(10*time.Second))
		for name, text := range map[string]string{"last": subject, "narrow": narrow} {
			if code, description := ask(text).oauth(); code != auth.CodeInvalidGrant || !strings.Contains(description, "expired") {
				t.Errorf("%s at its root's end: %s %s", name, code, description)
			}
			if res := l.ask(t, rawGet("GET", "/acme/s.priv", "Authorization: Bearer "+text)); res.code() != "CREDENTIAL_EXPIRED" {
				t.Errorf("%s at its root's end: %d %s", name, res.StatusCode, res.Text)
			}
		}
	})
}

// L16: the exchange and the streams shared a bucket, so that hammering the one shut
// the other; and one key shut all others.
func TestExchangeHasItsOwnRate(t *testing.T) {
	now := time.Now()
	rg, _ := newUpRig(t, respond(whole("200 OK", "", "x")), rigOptions{
		limits: func(l *tenant.Limits) { l.RequestsPerSecond, l.Burst = 1, 5 },
		change: func(o *Options) {
			still := ratelimit.NewMemory(ratelimit.MemoryOptions{Now: func() time.Time { return now }})
			o.Exchanges, o.Limiter, o.ExchangesPerSecond = still, ratelimit.NewMemory(ratelimit.MemoryOptions{Now: func() time.Time { return now }}), 3
		},
	})
	rg.Keys["child"] = rg.token(t, "full") // one of the six
	for i := range 5 {
		rg.exchange(t, exchangeForm(rg.Keys[[]string{"full", "child"}[i%2]])).exchanged(t)
	}
	for _, subject := range []string{"full", "child"} { // a token counts as its key
		res := rg.exchange(t, exchangeForm(rg.Keys[subject]))
		code, description := res.oauth()
		if res.StatusCode != http.StatusTooManyRequests || code != auth.CodeTemporarilyUnavailable || description == "" || res.Header.Get("Retry-After") != "1" {
			t.Errorf("over its rate, %s: %d %s %v", subject, res.StatusCode, res.Text, res.Header)
		}
		checkOAuthHead(t, res)
	}
	rg.exchange(t, exchangeForm(rg.Keys["read"])).exchanged(t)
	rg.exchange(t, exchangeForm(rg.Keys["other.full"])).exchanged(t)
	// What is refused before the key is known costs it nothing, nor does it cost the
	// account's rate: all five requests are there.
	for range 5 {
		if res := rg.Do(t, http.MethodGet, "/acme/s.priv", key, ""); res.StatusCode != http.StatusOK {
			t.Errorf("a stream while the exchange is over its rate: %d %s", res.StatusCode, res.Text)
		}
	}
	if res := rg.Do(t, http.MethodGet, "/acme/s.priv", key, ""); res.StatusCode != http.StatusTooManyRequests {
		t.Fatalf("the account's rate: %d", res.StatusCode)
	}
	rg.exchange(t, exchangeForm(rg.Keys["covering"])).exchanged(t)
}

// The metadata leads an OAuth client to the exchange and a verifier to the keys;
// HEAD is as GET, and neither asks who asks.
func TestMetadata(t *testing.T) {
	rg := newRig(t, rigOptions{noNodes: true})
	res := rg.Do(t, http.MethodGet, auth.MetadataPath, "", "")
	var got map[string]any
	if err := json.Unmarshal([]byte(res.Text), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"issuer": rigOrigin, "token_endpoint": rigOrigin + "/v1/token", "jwks_uri": rigOrigin + "/.well-known/jwks.json",
		"grant_types_supported": []any{auth.GrantTokenExchange}, "token_endpoint_auth_methods_supported": []any{"none"},
		"scopes_supported": []any{"streams:read", "streams:write"}, "response_types_supported": []any{},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metadata (-want +got):\n%s", diff)
	}
	for _, path := range []string{auth.MetadataPath, auth.JWKSPath} {
		get := rg.Do(t, http.MethodGet, path, "malformed", "")
		head := rg.Do(t, http.MethodHead, path, "", "", "Authorization", "Basic x")
		checkOAuthHead(t, get)
		if get.StatusCode != 200 || head.StatusCode != 200 || head.Text != "" || head.ContentLength != int64(len(get.Text)) {
			t.Errorf("%s: %d, HEAD %d with %d of %d bytes", path, get.StatusCode, head.StatusCode, head.ContentLength, len(get.Text))
		}
		if strings.Contains(get.Text, `"d"`) {
			t.Errorf("%s holds a private key", path)
		}
		if res := rg.Do(t, http.MethodPost, path, "", "x"); res.StatusCode != 405 || res.Header.Get("Allow") != "GET, HEAD" {
			t.Errorf("POST %s: %d %q", path, res.StatusCode, res.Header.Get("Allow"))
		}
	}
	for _, path := range []string{"/v1/token/", "/v1//token", "/v1/Token", "/v1/token/x", "/v1", "/.well-known/jwks.json/", "/.well-known/jwks", "/.well-known/openid-configuration", "/.well-known/../v1/token", "/v1/%74oken"} {
		if res := send(t, http.MethodPost, rg.URL+path, "", strings.NewReader(exchangeForm(rg.Keys[key]).Encode()), "Content-Type", formType); res.StatusCode != 404 && res.StatusCode != 400 {
			t.Errorf("POST %s: %d", path, res.StatusCode)
		}
	}
}
