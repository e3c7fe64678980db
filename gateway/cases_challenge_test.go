package gateway

import (
	"slices"
	"testing"

	"sluice/internal/refusal"
)

// A21: missing, wrong and too narrow looked the same, so that clients renewed
// what was good and retried what was not. The challenge of RFC 6750 is bare without
// a credential, and says why with one; what a token lacks it names, while a key's
// 403 has no challenge: there is no scope that would widen a key.
func TestMissingWrongAndNarrowDiffer(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("200 OK", "", "x")), rigOptions{})
	const (
		bare    = `Bearer realm="streams"`
		invalid = bare + `, error="invalid_token", error_description="The credential is malformed, unknown or revoked"`
		expired = bare + `, error="invalid_token", error_description="The credential has expired"`
		several = bare + `, error="invalid_request", error_description="Send one Authorization header"`
		narrow  = bare + `, error="insufficient_scope", error_description="The token does not reach this stream with this operation", scope="streams:`
		toWrite = narrow + `write"`
		toRead  = narrow + `read"`
		priv    = "/acme/s.priv"
		unpaid  = "/poor/s.priv"
		barred  = "/gone/s.priv"
		pub     = "/acme/s.pub"
	)
	token := func(keyName string, pairs ...string) string { return "Bearer " + rg.token(t, keyName, pairs...) }
	goneToken := "Bearer " + rg.mint(t, "account", "gone", "client_id", "gone/full", "sub", "gone/full")
	poorToken := "Bearer " + rg.mint(t, "account", "poor", "client_id", "poor/full", "sub", "poor/full")
	rg.addKey(t, "lost", nil)
	lostToken := token("lost")
	if err := rg.Directory.RevokeKey("acme/lost"); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, method, path, header string
		status                     int
		code                       refusal.Code
		challenge                  string
	}{
		{"none", "POST", priv, "", 401, refusal.InvalidCredential, bare},
		{"none, public write", "POST", pub, "", 401, refusal.InvalidCredential, bare},
		{"bad", "POST", priv, "Bearer " + rg.Keys["unknown"], 401, refusal.InvalidCredential, invalid},
		{"revoked", "POST", priv, "Bearer " + rg.Keys["revoked"], 401, refusal.InvalidCredential, invalid},
		{"an agent's", "POST", priv, "Bearer " + rg.Keys["agent"], 401, refusal.InvalidCredential, invalid},
		{"expired", "POST", priv, "Bearer " + rg.Keys["expired"], 401, refusal.CredentialExpired, expired},
		{"injects a quote", "POST", priv, `Bearer x", error="insufficient_scope`, 401, refusal.InvalidCredential, invalid},
		{"another scheme", "POST", priv, "Basic YTpi", 401, refusal.InvalidCredential, invalid},
		{"bad token", "POST", priv, "Bearer a.b.c", 401, refusal.InvalidCredential, invalid},
		{"revoked key's token", "POST", priv, lostToken, 401, refusal.InvalidCredential, invalid},
		{"another audience's token", "POST", priv, "Bearer " + rg.mint(t, "aud", "x"), 401, refusal.InvalidCredential, invalid},
		{"expired token", "POST", priv, "Bearer " + rg.expiredToken(t), 401, refusal.CredentialExpired, expired},
		{"reads only", "POST", priv, "Bearer " + rg.Keys["read"], 403, refusal.Forbidden, ""},
		{"narrowed to others", "GET", priv, "Bearer " + rg.Keys["narrowed"], 403, refusal.Forbidden, ""},
		{"token that reads", "POST", priv, token("read"), 403, refusal.Forbidden, toWrite},
		{"token scoped to reading", "PUT", priv, token("full", "scope", "streams:read"), 403, refusal.Forbidden, toWrite},
		{"token for others", "GET", priv, token("narrowed"), 403, refusal.Forbidden, toRead},
		{"token for others, a tail", "GET", priv + "?live=sse", token("narrowed"), 403, refusal.Forbidden, toRead},
		{"token for others, HEAD", "HEAD", priv, token("narrowed"), 403, refusal.Forbidden, toRead},
		{"another account's token", "GET", priv, token("other.full"), 403, refusal.Forbidden, toRead},
		{"another account's token, missing stream", "GET", "/acme/s.none", token("other.full"), 403, refusal.Forbidden, toRead},
		{"token without a scope", "GET", priv, "Bearer " + rg.mint(t, "scope", "openid"), 403, refusal.Forbidden, toRead},
		{"token, lifecycle", "PUT", priv, token("full"), 403, refusal.StreamLifecycle, ""},
		{"unpaid", "POST", unpaid, "Bearer " + rg.Keys["poor.full"], 402, refusal.PaymentRequired, ""},
		{"unpaid, a token", "POST", unpaid, poorToken, 402, refusal.PaymentRequired, ""},
		{"revoked account", "POST", barred, "Bearer " + rg.Keys["gone.full"], 403, refusal.AccountRevoked, ""},
		{"revoked account, a token", "POST", barred, goneToken, 403, refusal.AccountRevoked, ""},
	} {
		var headers []string
		if tc.header != "" {
			headers = []string{"Authorization", tc.header}
		}
		res := rg.Do(t, tc.method, tc.path, "", "", headers...)
		got := res.Header.Values("WWW-Authenticate")
		if tc.challenge == "" && len(got) != 0 || tc.challenge != "" && !slices.Equal(got, []string{tc.challenge}) {
			t.Errorf("%s: challenge %q, want %q", tc.name, got, tc.challenge)
		}
		if tc.method == "HEAD" {
			tc.code = ""
		}
		if res.StatusCode != tc.status || res.code() != string(tc.code) || res.Header.Get("Content-Type") != "application/json" || res.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d %s %v, want %d %s", tc.name, res.StatusCode, res.Text, res.Header, tc.status, tc.code)
		}
	}
	if got := answers(t, rg.raw(t, rawGet("GET", priv, "Authorization: "+lostToken, "Authorization: "+lostToken))); got[0].StatusCode != 401 || got[0].Header.Get("WWW-Authenticate") != several {
		t.Errorf("two headers: %d %q", got[0].StatusCode, got[0].Header.Get("WWW-Authenticate"))
	}
	u.untouched(t)
}
