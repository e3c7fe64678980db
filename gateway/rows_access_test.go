package gateway

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sluice/internal/bubble"
	"sluice/internal/refusal"
	"sluice/internal/tenant"
)

// countingDirectory counts what is asked of a directory.
type countingDirectory struct {
	tenant.Directory
	keys, accounts, streams, signing *atomic.Int64
}

func (d countingDirectory) Key(ctx context.Context, digest tenant.Digest) (*tenant.Key, error) {
	d.keys.Add(1)
	return d.Directory.Key(ctx, digest)
}

func (d countingDirectory) Account(ctx context.Context, id tenant.AccountID) (*tenant.Account, error) {
	d.accounts.Add(1)
	return d.Directory.Account(ctx, id)
}

func (d countingDirectory) Stream(ctx context.Context, account tenant.AccountID, name tenant.StreamName) (*tenant.Stream, error) {
	d.streams.Add(1)
	return d.Directory.Stream(ctx, account, name)
}

func (d countingDirectory) SigningKeys(ctx context.Context) ([]tenant.SigningKey, error) {
	d.signing.Add(1)
	return d.Directory.SigningKeys(ctx)
}

// who and what: how often credentials were resolved, and access looked up.
func (d countingDirectory) take() (who, what int64) {
	return d.keys.Swap(0) + d.signing.Swap(0), d.accounts.Swap(0) + d.streams.Swap(0)
}

func counting(d *countingDirectory) rigOptions {
	return rigOptions{change: func(o *Options) {
		*d = countingDirectory{o.Directory, new(atomic.Int64), new(atomic.Int64), new(atomic.Int64), new(atomic.Int64)}
		o.Directory, o.Authenticator = d, newAuthenticator(d)
		o.Exchanger = newExchanger(o.Authenticator)
	}}
}

// What is decided when, and what is asked for it. Facts A2: paths that name nothing
// immutable are no reads; facts A5: a stranger's read of a public stream resolves no
// credential; facts A10: a credential of another scheme is refused before anything is
// looked up; facts A11: so is what is no stream's path, whoever asks.
func TestWhatIsAskedForARequest(t *testing.T) {
	var directory countingDirectory
	rg, u := newUpRig(t, respond(whole("200 OK", "", "x")), counting(&directory))
	full, token := "Bearer "+rg.Keys[key], "Bearer "+rg.token(t, key)
	for _, tc := range []struct {
		name, method, path, authorization string
		status                            int
		who, what                         bool // is asked
	}{
		{"A5 a stranger's read", "GET", "/acme/s.pub", "", 200, false, true},
		{"A5 a stranger's chunk", "GET", chunkURL, "", 200, false, true},
		{"A6 a key", "GET", "/acme/s.priv", full, 200, true, true},
		{"A6 a token", "GET", "/acme/s.priv", token, 200, true, true},
		{"A10 Basic", "GET", "/acme/s.pub", "Basic YTpi", 401, false, false},
		{"A10 Basic, private", "POST", "/acme/s.priv", "Basic YTpi", 401, false, false},
		{"a key that cannot be one", "GET", "/acme/s.priv", "Bearer tbo_nonsense", 401, false, false},
		{"A11 an operator's path", "GET", "/__ursula/metrics", full, 404, false, false},
		{"A11 an operator's path of three", "POST", "/__ursula/a/b", token, 404, false, false},
		{"A11 one segment", "GET", "/acme", full, 404, false, false},
		{"A11 making a bucket", "PUT", "/acme", full, 404, false, false},
		{"A11 three segments", "GET", "/acme/s.priv/nothing", full, 404, false, false},
		{"A11 nothing", "GET", "/", "", 404, false, false},
		{"A2 PUT of a chunk", "PUT", chunkURL, full, 405, false, false},
		{"A2 POST of an immutable snapshot", "POST", "/acme/s.pub/incarnation/7/snapshot/8", full, 405, false, false},
		{"A2 an unknown kind", "GET", "/acme/s.pub/incarnation/7/index/8", full, 404, false, false},
		{"A2 without an offset", "GET", "/acme/s.pub/incarnation/7/chunk", full, 404, false, false},
		{"A2 without a kind", "GET", "/acme/s.pub/incarnation/7", full, 404, false, false},
	} {
		directory.take()
		before := len(u.requests())
		var headers []string
		if tc.authorization != "" {
			headers = []string{"Authorization", tc.authorization}
		}
		res := rg.Do(t, tc.method, tc.path, "", "", headers...)
		who, what := directory.take()
		if res.StatusCode != tc.status || who > 0 != tc.who || what > 0 != tc.what {
			t.Errorf("%s: %d, %d questions who it is, %d what it reaches", tc.name, res.StatusCode, who, what)
		}
		if challenged := res.Header.Get("WWW-Authenticate") != ""; challenged != (tc.status == 401) {
			t.Errorf("%s: a challenge: %t", tc.name, challenged)
		}
		if reached := len(u.requests()) > before; reached != (tc.status == 200) {
			t.Errorf("%s: reached the node: %t", tc.name, reached)
		}
	}
	// Facts A6: what was resolved goes no further.
	for name, text := range map[string]string{"key": rg.Keys[key], "token": token[len("Bearer "):], "header": "uthorization"} {
		if strings.Contains(u.received(), text) {
			t.Errorf("the node got the %s", name)
		}
	}
}

// Facts A1, A3, A14, A16, A17: every operation by every credential. An owner does all
// of it but for the lifecycle; a stranger, and another account's credential, reads
// what is public; a public stream gives nobody its writes. Appends that close are
// appends. Tokens are as their keys.
func TestWhoDoesWhat(t *testing.T) {
	rg, u := newUpRig(t, func(c *upConn, r *upRequest) {
		if r.Method == "HEAD" {
			c.say("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n")
			return
		}
		c.say(whole("200 OK", "", "x"))
	}, rigOptions{})
	for _, name := range []string{"full", "read", "other.full", "narrowed"} {
		rg.Keys[name+" token"] = rg.token(t, name)
	}
	reads := []string{
		"GET {s}", "GET {s}?live=long-poll", "HEAD {s}", "GET {s}/snapshot/7", "HEAD {s}/snapshot/7", "GET {s}/bootstrap", "HEAD {s}/bootstrap",
		"GET {s}/incarnation/7/chunk/8", "HEAD {s}/incarnation/7/chunk/8", "GET {s}/incarnation/7/snapshot/8",
	}
	writes := []string{"POST {s}", "POST {s} closing", "PUT {s}/snapshot/7", "POST {s}/snapshot/7/parts", "DELETE {s}/snapshot/parts", "PUT {s}/retention/7"}
	lifecycle := []string{"PUT {s}", "PUT {s} closing", "DELETE {s}"}
	for _, tc := range []struct {
		credentials                 []string
		stream                      string
		reads, writes, lifecycle    int
		readCode, writeCode, lfCode refusal.Code
	}{
		{[]string{"full", "full token", "covering"}, "/acme/s.priv", 200, 200, 403, "", "", refusal.StreamLifecycle},
		{[]string{"full", "full token"}, "/acme/s.pub", 200, 200, 403, "", "", refusal.StreamLifecycle},
		{[]string{"read", "read token"}, "/acme/s.priv", 200, 403, 403, "", refusal.Forbidden, refusal.Forbidden},
		{[]string{"narrowed", "narrowed token", "other.full", "other.full token"}, "/acme/s.priv", 403, 403, 403, refusal.Forbidden, refusal.Forbidden, refusal.Forbidden},
		{[]string{"narrowed", "narrowed token", "other.full", "other.full token"}, "/acme/s.pub", 200, 403, 403, "", refusal.Forbidden, refusal.Forbidden},
		{[]string{""}, "/acme/s.pub", 200, 401, 401, "", refusal.InvalidCredential, refusal.InvalidCredential},
		{[]string{""}, "/acme/s.priv", 401, 401, 401, refusal.InvalidCredential, refusal.InvalidCredential, refusal.InvalidCredential},
	} {
		for _, credential := range tc.credentials {
			for _, group := range []struct {
				requests []string
				status   int
				code     refusal.Code
			}{{reads, tc.reads, tc.readCode}, {writes, tc.writes, tc.writeCode}, {lifecycle, tc.lifecycle, tc.lfCode}} {
				for _, request := range group.requests {
					method, target, _ := strings.Cut(request, " ")
					target, closing := strings.CutSuffix(strings.ReplaceAll(target, "{s}", tc.stream), " closing")
					headers := []string{"Content-Type", rigType}
					if closing {
						headers = append(headers, "Stream-Closed", "true")
					}
					before := len(u.requests())
					res := rg.Do(t, method, target, credential, "", headers...)
					code := group.code
					if method == "HEAD" {
						code = ""
					}
					if res.StatusCode != group.status || res.code() != string(code) {
						t.Errorf("%s %s by %q: %d %s, want %d %s", request, tc.stream, credential, res.StatusCode, res.Text, group.status, group.code)
					}
					sent := u.requests()[before:]
					if (len(sent) == 1) != (group.status == 200) {
						t.Errorf("%s %s by %q: %d requests at the node", request, tc.stream, credential, len(sent))
					} else if closing && len(sent) == 1 && sent[0].Header.Get("Stream-Closed") != "true" {
						t.Errorf("%s: the node does not hear that it closes", request)
					}
				}
			}
		}
	}
}

// Facts A13: where it cannot be told who asks, or what they reach, the answer is 503
// and not "no"; where it is no, 403. The node hears of none.
func TestUnsureIsNotNo(t *testing.T) {
	for name, tc := range map[string]struct {
		rig    rigOptions
		key    string
		status int
		code   refusal.Code
	}{
		"who":                 {without(faultyDirectory{keys: true}), key, 503, refusal.AuthenticationUnavailable},
		"what, by its stream": {without(faultyDirectory{streams: true}), key, 503, refusal.AuthorizationUnavailable},
		"what, by its owner":  {without(faultyDirectory{accounts: true}), key, 503, refusal.AuthorizationUnavailable},
		"no":                  {rigOptions{}, "other.full", 403, refusal.Forbidden},
	} {
		rg, u := newUpRig(t, respond(whole("200 OK", "", "x")), tc.rig)
		for _, target := range []string{"/acme/s.priv", "/acme/s.priv?live=sse", "/acme/s.priv?live=long-poll"} {
			res := rg.Do(t, http.MethodGet, target, tc.key, "")
			if res.StatusCode != tc.status || res.code() != string(tc.code) || (res.Header.Get("Retry-After") != "") != (tc.status == 503) {
				t.Errorf("%s, %s: %d %s %v", name, target, res.StatusCode, res.Text, res.Header)
			}
		}
		u.untouched(t)
		if rg.Limits.OpenTails() != 0 {
			t.Errorf("%s: a slot is taken", name)
		}
	}
}

// Another issuer's tokens, through the whole gateway.
//
// Facts J1: a good one is its subject, client and scopes; facts J2: an ID token is
// none; facts J3: expired is told apart, another audience and a missing client are
// not; facts J6: scopes are words, however often they stand.
func TestOtherIssuersTokens(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		provider := newIDP(t, "k1")
		rg, ask := issuerRig(t, provider)
		for _, tc := range []struct {
			name   string
			pairs  []any
			status int
			code   refusal.Code
		}{
			{"J1 good", nil, 204, ""},
			{"J1 its account", []any{"org", "other"}, 403, refusal.Forbidden},
			{"an account that it may not name", []any{"org", "gone"}, 401, refusal.InvalidCredential},
			{"J2 an ID token", []any{"typ", "JWT"}, 401, refusal.InvalidCredential},
			{"J2 no type", []any{"typ", ""}, 401, refusal.InvalidCredential},
			{"the long name of the type", []any{"typ", "application/at+jwt"}, 204, ""},
			{"J3 expired", []any{"iat", time.Now().Add(-time.Minute).Unix(), "exp", time.Now().Add(-time.Second).Unix()}, 401, refusal.CredentialExpired},
			{"J3 another audience", []any{"aud", "others"}, 401, refusal.InvalidCredential},
			{"among its audiences", []any{"aud", []string{"others", idpAudience}}, 204, ""},
			{"J3 no client", []any{"client_id", nil}, 401, refusal.InvalidCredential},
			{"J6 scopes", []any{"scope", "x streams:read  streams:read y"}, 204, ""},
			{"J6 a scope within a word", []any{"scope", "streams:reader,streams:read"}, 403, refusal.Forbidden},
			{"J6 no scope", []any{"scope", nil}, 403, refusal.Forbidden},
		} {
			res := ask("/acme/s.priv", provider.token(t, "k1", tc.pairs...))
			if res.StatusCode != tc.status || res.code() != string(tc.code) {
				t.Errorf("%s: %d %s, want %d %s", tc.name, res.StatusCode, res.Text, tc.status, tc.code)
			}
			if narrow := res.Header.Get("WWW-Authenticate") == insufficient(false); narrow != (tc.status == 403) {
				t.Errorf("%s: challenge %q", tc.name, res.Header.Get("WWW-Authenticate"))
			}
		}
		bubble.Wait()
		if line := rg.requestLines(t)[0]; line["key_id"] != idpIssuer+"#app-1" {
			t.Errorf("J1: the line names %v", line["key_id"])
		}
	})
}

// Facts J4: a token whose key is not known has the key set asked for, and a new key
// works from then on, the old one as long as it is published. Facts J7: two issuers'
// equal subjects and clients are two: each has a rate of its own.
func TestOtherIssuersKeys(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		provider := newIDP(t, "k1")
		rg, ask := issuerRig(t, provider)
		old := provider.token(t, "k1", "exp", time.Now().Add(time.Hour).Unix())
		time.Sleep(10 * time.Second)
		provider.add(t, "k2")
		for _, text := range []string{provider.token(t, "k2"), old} {
			if res := ask("/acme/s.priv", text); res.StatusCode != 204 {
				t.Errorf("J4: %d %s", res.StatusCode, res.Text)
			}
		}
		if provider.hits() != 2 {
			t.Errorf("J4: asked %d times, want at the start and once more", provider.hits())
		}
		provider.mu.Lock()
		delete(provider.keys, "k1")
		provider.mu.Unlock()
		time.Sleep(6 * time.Minute)
		if res := ask("/acme/s.priv", old); res.StatusCode != 401 {
			t.Errorf("J4: a token whose key was taken back: %d %s", res.StatusCode, res.Text)
		}

		second := idpOptions()[0]
		second.Issuer = "https://login.example.org"
		if err := rg.Issuers.Set(append(idpOptions(), second)); err != nil {
			t.Fatal(err)
		}
		bubble.Wait()
		rg.Options.ExchangesPerSecond = 1 // two at once
		rg.Gateway.Swap(rg.Options)
		statuses := map[string][]int{}
		for range 3 {
			for _, issuer := range []string{idpIssuer, second.Issuer} {
				_, refused := rg.exchangeInside(t, provider.token(t, "k2", "iss", issuer))
				statuses[issuer] = append(statuses[issuer], refused)
			}
		}
		if got := fmt.Sprint(statuses[idpIssuer], statuses[second.Issuer]); got != "[200 200 429] [200 200 429]" {
			t.Errorf("J7: exchanges of two issuers' equal clients: %s", got)
		}
	})
}

// exchangeInside makes an exchange without a connection.
func (rg *rig) exchangeInside(t testing.TB, subject string) (text string, status int) {
	t.Helper()
	rec := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, TokenPath, strings.NewReader(exchangeForm(subject).Encode()))
	r.Header.Set("Content-Type", formType)
	rg.Gateway.ServeHTTP(rec, r)
	return rec.Body.String(), rec.Code
}
