package auth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/tenant"
)

func TestExchangeOfAKey(t *testing.T) {
	r := newTokenRig(t, nil)
	res, refused := r.exchange(t, r.secrets["acme/full"])
	if refused != nil {
		t.Fatal(refused)
	}
	text, err := res.JSON()
	if err != nil {
		t.Fatal(err)
	}
	var body members
	if err := json.Unmarshal(text, &body); err != nil {
		t.Fatal(err)
	}
	want := members{
		"access_token": res.AccessToken.Reveal(), "issued_token_type": TypeAccessToken, "token_type": "Bearer",
		"expires_in": 600.0, "scope": "streams:read streams:write",
	}
	if diff := cmp.Diff(want, body); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
	p, err := r.use(t, res.AccessToken.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	end := r.clock().Truncate(time.Second).Add(10 * time.Minute)
	if p.KeyID != "acme/full" || p.Subject != "acme/full" || p.Issuer != rigOrigin || p.Account != "acme" || !p.IsToken() ||
		p.TokenID != res.TokenID || p.Access != tenant.WriteAccess || p.Streams.Narrowed() || !p.ExpiresAt.Equal(end) || p.ActsAs != tenant.User {
		t.Errorf("principal: %+v", p)
	}
	c, err := readCompact(res.AccessToken.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, 0, len(c.claims))
	for _, m := range c.claims {
		names = append(names, m.name)
	}
	slices.Sort(names)
	if diff := cmp.Diff([]string{"account", "aud", "client_id", "exp", "iat", "iss", "jti", "scope", "sub"}, names); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
	other, refused := r.exchange(t, r.secrets["acme/full"])
	if refused != nil || other.TokenID == res.TokenID {
		t.Errorf("two tokens of one id: %v, %v", other, refused)
	}
}

// An agent's key is good for the exchange only.
func TestExchangeOfAnAgentsKey(t *testing.T) {
	r := newTokenRig(t, nil)
	secret := r.key(t, "acme/agent", func(k *tenant.Key) { k.ActsAs = tenant.Agent })
	if _, err := r.use(t, secret); !errors.Is(err, ErrAgentKey) {
		t.Errorf("used directly: %v, want ErrAgentKey", err)
	}
	p, err := r.use(t, r.token(t, secret))
	if err != nil || p.KeyID != "acme/agent" {
		t.Errorf("its token: %+v, %v", p, err)
	}
}

// A15: the exchange took requests that it could read in two ways, and answered
// what was wrong with them in a way that OAuth clients could not read.
func TestA15ParseExchange(t *testing.T) {
	key := newKey(t)
	with := func(edit func(url.Values)) url.Values {
		form := exchangeForm(key)
		edit(form)
		return form
	}
	for _, tc := range []struct {
		name string
		form url.Values
		want string // "": taken
	}{
		{"good", exchangeForm(key), ""},
		{"everything", exchangeForm(key, "scope", "streams:read streams:write", "resource", rigOrigin+"/acme/s.a", "audience", rigOrigin, "expires_in", "30", "requested_token_type", TypeAccessToken, "client_id", "x", "client_secret", "y"), ""},
		{"no value is as if omitted", exchangeForm(key, "scope", "", "expires_in", "", "requested_token_type", "", "actor_token", "", "audience", ""), ""},
		{"a token as JWT", exchangeForm("a.b.c", "subject_token_type", TypeJWT, "requested_token_type", TypeJWT), ""},
		{"nothing", nil, CodeInvalidRequest},
		{"no grant type", with(func(f url.Values) { f.Del("grant_type") }), CodeInvalidRequest},
		{"another grant", exchangeForm(key, "grant_type", "client_credentials"), CodeUnsupportedGrantType},
		{"grant in another case", exchangeForm(key, "grant_type", strings.ToUpper(GrantTokenExchange)), CodeUnsupportedGrantType},
		{"no subject", with(func(f url.Values) { f.Del("subject_token") }), CodeInvalidRequest},
		{"empty subject", exchangeForm(""), CodeInvalidRequest},
		{"no subject type", with(func(f url.Values) { f.Del("subject_token_type") }), CodeInvalidRequest},
		{"refresh token", exchangeForm(key, "subject_token_type", "urn:ietf:params:oauth:token-type:refresh_token"), CodeInvalidRequest},
		{"ID token", exchangeForm(key, "subject_token_type", "urn:ietf:params:oauth:token-type:id_token"), CodeInvalidRequest},
		{"a key as JWT", exchangeForm(key, "subject_token_type", TypeJWT), CodeInvalidRequest},
		{"asks for a refresh token", exchangeForm(key, "requested_token_type", "urn:ietf:params:oauth:token-type:refresh_token"), CodeInvalidRequest},
		{"actor", exchangeForm(key, "actor_token", "x"), CodeInvalidRequest},
		{"actor's type", exchangeForm(key, "actor_token_type", TypeJWT), CodeInvalidRequest},
		{"unknown scope", exchangeForm(key, "scope", "streams:read openid"), CodeInvalidScope},
		{"scope in another case", exchangeForm(key, "scope", "STREAMS:READ"), CodeInvalidScope},
		{"scopes with a comma", exchangeForm(key, "scope", "streams:read,streams:write"), CodeInvalidScope},
		{"blank scope", exchangeForm(key, "scope", " "), CodeInvalidScope},
		{"29 s", exchangeForm(key, "expires_in", "29"), CodeInvalidRequest},
		{"3601 s", exchangeForm(key, "expires_in", "3601"), CodeInvalidRequest},
		{"ten years", exchangeForm(key, "expires_in", "315360000"), CodeInvalidRequest},
		{"0 s", exchangeForm(key, "expires_in", "0"), CodeInvalidRequest},
		{"negative", exchangeForm(key, "expires_in", "-60"), CodeInvalidRequest},
		{"fraction", exchangeForm(key, "expires_in", "60.5"), CodeInvalidRequest},
		{"signed", exchangeForm(key, "expires_in", "+60"), CodeInvalidRequest},
		{"overflow", exchangeForm(key, "expires_in", "18446744073709551676"), CodeInvalidRequest},
		{"overflow of the duration", exchangeForm(key, "expires_in", "4294967295"), CodeInvalidRequest},
		{"a word", exchangeForm(key, "expires_in", "ten"), CodeInvalidRequest},
		{"many resources", with(func(f url.Values) { f["resource"] = make([]string, 257) }), CodeInvalidTarget},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req, err := ParseExchange(tc.form)
			if (err == nil) != (tc.want == "") || err != nil && err.Code != tc.want {
				t.Fatalf("got %v, want %q", err, tc.want)
			}
			if err == nil && req.issuedType == "" {
				t.Errorf("no type is issued")
			}
			describes(t, err, key)
		})
	}
	for name := range exchangeForm(key, "scope", "streams:read", "expires_in", "60", "requested_token_type", TypeJWT, "client_id", "x", "foo", "x", "actor_token", "") {
		t.Run(name+" twice", func(t *testing.T) {
			form := exchangeForm(key, "expires_in", "60")
			form[name] = []string{form.Get(name), form.Get(name)}
			if _, err := ParseExchange(form); err == nil || err.Code != CodeInvalidRequest {
				t.Errorf("got %v, want invalid_request", err)
			}
		})
	}
	t.Run("expires_in is kept", func(t *testing.T) {
		if req, err := ParseExchange(exchangeForm(key, "expires_in", "45")); err != nil || req.lifetime != 45*time.Second {
			t.Errorf("got %v, %v", req.lifetime, err)
		}
	})
}

// describes holds an error to RFC 6749 §5.2's characters, and to not repeating
// what was sent.
func describes(t *testing.T, err *ExchangeError, sent ...string) {
	t.Helper()
	if err == nil {
		return
	}
	if !regexp.MustCompile(`^[\x20\x21\x23-\x5B\x5D-\x7E]+$`).MatchString(err.Description) {
		t.Errorf("description %q", err.Description)
	}
	for _, s := range sent {
		if strings.Contains(err.Error(), s) || strings.Contains(fmt.Sprintf("%+v", err), s) {
			t.Errorf("the error repeats what was sent: %v", err)
		}
	}
}

// A15: a bad subject was told as a fault of the server, or as a good one.
func TestA15BadSubjects(t *testing.T) {
	r := newTokenRig(t, nil)
	expiring := r.key(t, "acme/expired", func(k *tenant.Key) { k.ExpiresAt = r.clock().Add(20 * time.Minute) })
	short := r.token(t, r.secrets["acme/full"], "expires_in", "30")
	r.pass(20 * time.Minute)
	for name, subject := range map[string]string{
		"unknown key":        newKey(t),
		"typo":               r.secrets["acme/full"][:43] + "-",
		"expired key":        expiring,
		"revoked key":        r.key(t, "acme/revoked", func(k *tenant.Key) { k.RevokedAt = r.clock() }),
		"unpaid account":     r.key(t, "debt/a", nil),
		"revoked account":    r.key(t, "gone/a", nil),
		"expired token":      short,
		"ID token":           mint(t, r.header().with("typ", "JWT"), r.claims(), r.signing.Private),
		"another audience":   mint(t, r.header(), r.claims().with("aud", "x"), r.signing.Private),
		"another issuer":     mint(t, r.header(), r.claims().with("iss", "https://x"), r.signing.Private),
		"a digest":           tenant.DigestOf(r.secrets["acme/full"]).String(),
		"two keys":           r.secrets["acme/full"] + " " + r.secrets["acme/full"],
		"line break":         r.secrets["acme/full"] + "\n",
		"line break inside":  strings.Replace(r.token(t, r.secrets["acme/full"]), ".", ".\n", 1),
		"with a scheme":      "Bearer " + r.secrets["acme/full"],
		"giant":              strings.Repeat("a", 1<<20),
		"unpaid, by a token": mint(t, r.header(), r.claims().with("account", "debt"), r.signing.Private),
		"account unknown":    mint(t, r.header(), r.claims().with("account", "nobody"), r.signing.Private),
	} {
		t.Run(name, func(t *testing.T) {
			res, err := r.exchange(t, subject)
			if res != nil || err == nil || err.Code != CodeInvalidGrant {
				t.Fatalf("got %v, %v; want invalid_grant", res, err)
			}
			describes(t, err, subject)
			if name == "giant" && !errors.Is(err, ErrMalformedCredential) {
				t.Errorf("got %v; want it refused unread", err)
			}
		})
	}
}

// A11, at the exchange: an outage must not read as "this key is wrong".
func TestExchangeDuringAnOutage(t *testing.T) {
	r := newTokenRig(t, nil)
	key, token := r.secrets["acme/full"], r.token(t, r.secrets["acme/full"])
	broken := &brokenDirectory{Directory: r.directory}
	r.x = NewExchanger(ExchangeOptions{Authenticator: New(Options{Directory: broken, Now: r.clock, Origin: rigOrigin})})
	for name, set := range map[string]func(){
		"keys":         func() { *broken = brokenDirectory{Directory: r.directory, keys: true} },
		"accounts":     func() { *broken = brokenDirectory{Directory: r.directory, accounts: true} },
		"signing keys": func() { *broken = brokenDirectory{Directory: r.directory, signing: true} },
		"none of them": func() { *broken = brokenDirectory{Directory: r.directory, none: true} },
	} {
		t.Run(name, func(t *testing.T) {
			set()
			for _, subject := range []string{key, token} {
				if name == "keys" && subject == token || name == "none of them" && subject == token {
					continue // not asked for, or no key verifies
				}
				if _, err := r.exchange(t, subject); err == nil || err.Code != CodeTemporarilyUnavailable || !errors.Is(err, ErrUnavailable) {
					t.Errorf("got %v, want temporarily_unavailable", err)
				}
			}
		})
	}
	t.Run("no randomness", func(t *testing.T) {
		x := NewExchanger(ExchangeOptions{Authenticator: r.Authenticator, Random: failing{errNoRoute}})
		req, err := ParseExchange(exchangeForm(key))
		if err != nil {
			t.Fatal(err)
		}
		if res, err := x.Exchange(t.Context(), req); err == nil || err.Code != CodeTemporarilyUnavailable {
			t.Errorf("got %v, %v; want temporarily_unavailable", res, err)
		}
	})
}

// brokenDirectory is a directory part of which is out of reach.
type brokenDirectory struct {
	tenant.Directory
	keys, accounts, signing, none bool
}

func (d *brokenDirectory) Key(ctx context.Context, digest tenant.Digest) (*tenant.Key, error) {
	if d.keys {
		return nil, tenant.ErrUnavailable
	}
	return d.Directory.Key(ctx, digest)
}

func (d *brokenDirectory) Account(ctx context.Context, id tenant.AccountID) (*tenant.Account, error) {
	if d.accounts {
		return nil, tenant.ErrUnavailable
	}
	return d.Directory.Account(ctx, id)
}

func (d *brokenDirectory) SigningKeys(ctx context.Context) ([]tenant.SigningKey, error) {
	switch {
	case d.signing:
		return nil, tenant.ErrUnavailable
	case d.none:
		return nil, nil
	}
	return d.Directory.SigningKeys(ctx)
}

// A15: scope and resource of the child were wider than the parent's.
func TestA15Narrowing(t *testing.T) {
	r := newTokenRig(t, nil)
	at := func(name string) string { return rigOrigin + "/acme/s." + name }
	full := r.secrets["acme/full"]
	reads := r.key(t, "acme/reads", func(k *tenant.Key) { k.Access = tenant.ReadAccess })
	logs := r.key(t, "acme/logs", func(k *tenant.Key) { k.Streams = mustStreams(t, "logs.*", "events") })
	writer := r.token(t, full, "scope", "streams:write", "resource", at("events"))
	nothing := mint(t, r.header(), r.claims().with("scope", "openid"), r.signing.Private)
	for _, tc := range []struct {
		name    string
		subject string
		pairs   []string
		want    string // the scope, or the code of the error
		streams []string
	}{
		{"all", full, nil, "streams:read streams:write", nil},
		{"read", full, []string{"scope", "streams:read"}, "streams:read", nil},
		{"write", full, []string{"scope", "streams:write"}, "streams:write", nil},
		{"order kept", full, []string{"scope", "streams:write streams:read"}, "streams:write streams:read", nil},
		{"twice", full, []string{"scope", "streams:read streams:read"}, "streams:read", nil},
		{"reader's own", reads, nil, "streams:read", nil},
		{"reader asks to write", reads, []string{"scope", "streams:write"}, CodeInvalidScope, nil},
		{"reader asks for both", reads, []string{"scope", "streams:read streams:write"}, CodeInvalidScope, nil},
		{"write includes reading", writer, []string{"scope", "streams:read"}, "streams:read", []string{"events"}},
		{"write stays write", writer, nil, "streams:write", []string{"events"}},
		{"no scope at all", nothing, nil, CodeInvalidScope, nil},
		{"no scope, asks for one", nothing, []string{"scope", "streams:read"}, CodeInvalidScope, nil},
		{"one stream", full, []string{"resource", at("a")}, "streams:read streams:write", []string{"a"}},
		{"several", full, []string{"resource", at("b"), "resource", at("a"), "resource", at("a")}, "streams:read streams:write", []string{"a", "b"}},
		{"pattern", full, []string{"resource", at("a*")}, "streams:read streams:write", []string{"a*"}},
		{"every stream", full, []string{"resource", at("*")}, "streams:read streams:write", []string{"*"}},
		{"the parent's list", logs, nil, "streams:read streams:write", []string{"logs.*", "events"}},
		{"of a pattern", logs, []string{"resource", at("logs.a"), "resource", at("logs.b*")}, "streams:read streams:write", []string{"logs.a", "logs.b*"}},
		{"the parent's pattern", logs, []string{"resource", at("logs.*")}, "streams:read streams:write", []string{"logs.*"}},
		{"beyond", logs, []string{"resource", at("other")}, CodeInvalidTarget, nil},
		{"beyond beside within", logs, []string{"resource", at("events"), "resource", at("other")}, CodeInvalidTarget, nil},
		{"wider pattern", logs, []string{"resource", at("log*")}, CodeInvalidTarget, nil},
		{"pattern over a name", logs, []string{"resource", at("events*")}, CodeInvalidTarget, nil},
		{"all of the account", logs, []string{"resource", at("*")}, CodeInvalidTarget, nil},
		{"back from a token", writer, []string{"resource", at("a")}, CodeInvalidTarget, nil},
		{"another account", full, []string{"resource", rigOrigin + "/other/s.events"}, CodeInvalidTarget, nil},
		{"another origin", full, []string{"resource", "https://evil.example.com/acme/s.events"}, CodeInvalidTarget, nil},
		{"origin as a prefix", full, []string{"resource", rigOrigin + ".evil/acme/s.events"}, CodeInvalidTarget, nil},
		{"http", full, []string{"resource", "http://streams.example.com/acme/s.events"}, CodeInvalidTarget, nil},
		{"path alone", full, []string{"resource", "/acme/s.events"}, CodeInvalidTarget, nil},
		{"name alone", full, []string{"resource", "events"}, CodeInvalidTarget, nil},
		{"origin alone", full, []string{"resource", rigOrigin}, CodeInvalidTarget, nil},
		{"no name", full, []string{"resource", at("")}, CodeInvalidTarget, nil},
		{"empty never widens", logs, []string{"resource", ""}, CodeInvalidTarget, nil},
		{"query", full, []string{"resource", at("a?x=1")}, CodeInvalidTarget, nil},
		{"fragment", full, []string{"resource", at("a#x")}, CodeInvalidTarget, nil},
		{"dots", full, []string{"resource", rigOrigin + "/acme/../other/s.a"}, CodeInvalidTarget, nil},
		{"encoded", full, []string{"resource", at("%61")}, CodeInvalidTarget, nil},
		{"sub-path", full, []string{"resource", at("a/snapshot/1")}, CodeInvalidTarget, nil},
		{"star inside", full, []string{"resource", at("a*b")}, CodeInvalidTarget, nil},
		{"too long", full, []string{"resource", at(strings.Repeat("x", 101))}, CodeInvalidTarget, nil},
		{"our audience", full, []string{"audience", rigOrigin}, "streams:read streams:write", nil},
		{"another audience", full, []string{"audience", "https://x"}, CodeInvalidTarget, nil},
		{"another audience beside ours", full, []string{"audience", rigOrigin, "audience", "x"}, CodeInvalidTarget, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			res, err := r.exchange(t, tc.subject, tc.pairs...)
			if err != nil {
				describes(t, err, tc.subject)
				if err.Code != tc.want {
					t.Errorf("got %v, want %s", err, tc.want)
				}
				return
			}
			p, useErr := r.use(t, res.AccessToken.Reveal())
			if res.Scope != tc.want || useErr != nil || strings.Join(p.Scopes, " ") != tc.want {
				t.Fatalf("got %q, %+v, %v; want %q", res.Scope, p, useErr, tc.want)
			}
			if diff := cmp.Diff(tc.streams, p.Streams.Patterns()); diff != "" || p.Streams.Narrowed() != (tc.streams != nil) {
				t.Errorf("streams (-want +got):\n%s", diff)
			}
		})
	}
}

// A15: by exchanging a token again and again before its end, a client went on
// for ever.
func TestA15ChainNeverPassesItsRoot(t *testing.T) {
	for name, first := range map[string]func(*tokenRig, string) string{
		"key":   func(_ *tokenRig, key string) string { return key },
		"token": func(r *tokenRig, key string) string { return r.token(t, key, "expires_in", "3600") },
	} {
		t.Run(name, func(t *testing.T) {
			r := newTokenRig(t, nil)
			end := r.clock().Add(50 * time.Minute)
			next := first(r, r.key(t, "acme/a", func(k *tenant.Key) { k.ExpiresAt = end }))
			for range 100 {
				res, err := r.exchange(t, next, "expires_in", "3600")
				if err != nil {
					if err.Code != CodeInvalidGrant || end.Sub(r.clock()) > 10*time.Minute {
						t.Errorf("ended with %v, %v before the root's end", err, end.Sub(r.clock()))
					}
					return
				}
				p, useErr := r.use(t, res.AccessToken.Reveal())
				if useErr != nil || p.ExpiresAt.After(end) || res.ExpiresIn > end.Sub(r.clock().Truncate(time.Second)) {
					t.Fatalf("%+v, %v; want its end at %v at most", p, useErr, end)
				}
				next = res.AccessToken.Reveal()
				r.pass(9*time.Minute + 7*time.Second)
			}
			t.Error("the chain has no end")
		})
	}
}

func TestLifetimeOfTheChild(t *testing.T) {
	r := newTokenRig(t, nil)
	ends := func(d time.Duration) string {
		return r.key(t, fmt.Sprint("acme/", d), func(k *tenant.Key) { k.ExpiresAt = r.clock().Add(d) })
	}
	for _, tc := range []struct {
		name    string
		subject string
		ask     string
		want    time.Duration // 0: invalid_grant
	}{
		{"default", r.secrets["acme/full"], "", 10 * time.Minute},
		{"shortest", r.secrets["acme/full"], "30", 30 * time.Second},
		{"longest", r.secrets["acme/full"], "3600", time.Hour},
		{"ends with its parent", ends(time.Minute), "3600", time.Minute},
		{"shorter than may be asked for", ends(5 * time.Second), "30", 5 * time.Second},
		{"a second left", ends(time.Second), "", time.Second},
		{"less than a second left", ends(999 * time.Millisecond), "", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			res, err := r.exchange(t, tc.subject, "expires_in", tc.ask)
			if (err != nil) != (tc.want == 0) || err != nil && err.Code != CodeInvalidGrant {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			if err == nil && res.ExpiresIn != tc.want {
				t.Errorf("got %v, want %v", res.ExpiresIn, tc.want)
			}
		})
	}
}

// A token whose "iat" is put behind its key's cutoff has no life left where the
// key ends in that second.
func TestNoLifeBehindTheCutoff(t *testing.T) {
	r := newTokenRig(t, nil)
	key := r.key(t, "acme/a", nil)
	r.key(t, "acme/a", func(k *tenant.Key) { k.ExpiresAt = r.clock().Add(1200 * time.Millisecond) })
	if res, err := r.exchange(t, key); err == nil || err.Code != CodeInvalidGrant {
		t.Errorf("got %+v, %v; want invalid_grant", res, err)
	}
}

func TestDefaultLifetimeIsBounded(t *testing.T) {
	r := newTokenRig(t, nil)
	for ask, want := range map[time.Duration]time.Duration{0: DefaultTokenLifetime, time.Minute: time.Minute, 2 * time.Hour: time.Hour} {
		r.x = NewExchanger(ExchangeOptions{Authenticator: r.Authenticator, TokenLifetime: ask})
		if res, err := r.exchange(t, r.secrets["acme/full"]); err != nil || res.ExpiresIn != want {
			t.Errorf("%v: got %+v, %v; want %v", ask, res, err, want)
		}
	}
}

// A token larger than what Bearer reads would be made and refused for ever.
func TestTokenWithTooManyStreams(t *testing.T) {
	r := newTokenRig(t, nil)
	names := make([]string, 100)
	for i := range names {
		names[i] = fmt.Sprintf("%03d%s", i, strings.Repeat("x", 90))
	}
	key := r.key(t, "acme/a", func(k *tenant.Key) { k.Streams = mustStreams(t, names...) })
	if _, err := r.exchange(t, key); err == nil || err.Code != CodeInvalidTarget {
		t.Errorf("got %v, want invalid_target", err)
	}
	if _, err := r.use(t, r.token(t, key, "resource", rigOrigin+"/acme/s."+names[7])); err != nil {
		t.Errorf("narrowed: %v", err)
	}
}

// A key whose list of streams was lost reaches nothing; its token must not reach
// all, for want of a list.
func TestExchangeOfAKeyThatReachesNothing(t *testing.T) {
	r := newTokenRig(t, nil)
	key := r.key(t, "acme/none", func(k *tenant.Key) { k.Streams = tenant.StreamSet{} })
	for _, pairs := range [][]string{nil, {"resource", rigOrigin + "/acme/s.events"}, {"resource", rigOrigin + "/acme/s.*"}} {
		if res, err := r.exchange(t, key, pairs...); err == nil || err.Code != CodeInvalidTarget {
			t.Errorf("%v: got %v, %v; want invalid_target", pairs, res, err)
		}
	}
}

// A name that is good by itself can be too long for its account.
func TestResourceTooLongForItsAccount(t *testing.T) {
	r := newTokenRig(t, nil)
	long := strings.Repeat("a", 64)
	r.content.Accounts = append(r.content.Accounts, tenant.Account{ID: tenant.AccountID(long), State: tenant.Active})
	key := r.key(t, long+"/a", nil)
	at := rigOrigin + "/" + long + "/s."
	fits := strings.Repeat("x", tenant.MaxStreamPath-64-3)
	if _, err := r.exchange(t, key, "resource", at+fits); err != nil {
		t.Errorf("%d bytes: %v", len(fits), err)
	}
	if _, err := r.exchange(t, key, "resource", at+fits+"x"); err == nil || err.Code != CodeInvalidTarget {
		t.Errorf("one more: %v", err)
	}
}

// M02: a token was printed by the value that carries it.
func TestExchangeValuesHideTheToken(t *testing.T) {
	r := newTokenRig(t, nil)
	req, err := ParseExchange(exchangeForm(r.secrets["acme/full"]))
	if err != nil {
		t.Fatal(err)
	}
	res, err := r.x.Exchange(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("%v %+v %#v %v %+v %#v", req, req, req, res, *res, *res)
	if strings.Contains(text, r.secrets["acme/full"]) || strings.Contains(text, res.AccessToken.Reveal()) {
		t.Errorf("printed: %s", text)
	}
}
