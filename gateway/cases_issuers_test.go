package gateway

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"sluice/auth"
	"sluice/internal/bubble"
	"sluice/internal/refusal"
)

// outages are what an issuer's keys come to.
func outages() map[string]*idpFault {
	return map[string]*idpFault{
		"refuses":           {err: errNoRoute},
		"hangs":             {hangs: true},
		"hangs in its body": {status: 200, endless: true},
		"500":               {status: 500, text: "{}"},
		"HTML":              {status: 200, text: "<!doctype html><title>Sign in</title>"},
		"an empty set":      {status: 200, text: `{"keys":[]}`},
		"null":              {status: 200, text: "null"},
		"a redirect":        {status: 302},
		"100 MiB":           {status: 200, text: `{"keys":[],"x":"`, more: 100 << 20},
	}
}

// issuerRig is a gateway in a bubble that takes an identity provider's tokens.
func issuerRig(t *testing.T, provider *idp) (*rig, func(path, credential string) answer) {
	t.Helper()
	rg, _, l := newBubbleRig(t, rigOptions{issuers: &auth.IssuersOptions{Transport: provider, Now: time.Now}})
	if err := rg.Issuers.Set(idpOptions()); err != nil {
		t.Fatal(err)
	}
	bubble.Wait()
	return rg, func(path, credential string) answer {
		t.Helper()
		return l.ask(t, rawGet("GET", path, "Authorization: Bearer "+credential))
	}
}

// A11: an outage of the keys was answered as "your token is wrong", so that clients
// threw good ones away; or took the last good keys with it. Known tokens go on; what
// cannot be told is 503, with a time to come back; keys of our own never wait.
func TestIssuerOutage(t *testing.T) {
	for name, outage := range outages() {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				provider := newIDP(t, "k1")
				rg, ask := issuerRig(t, provider)
				known := provider.token(t, "k1", "exp", time.Now().Add(24*time.Hour).Unix())
				if res := ask("/acme/s.priv", known); res.StatusCode != 204 {
					t.Fatalf("before: %d %s", res.StatusCode, res.Text)
				}
				provider.fail(outage)
				time.Sleep(time.Hour) // refreshes fail meanwhile
				provider.add(t, "k2")
				fresh := provider.token(t, "k2", "exp", time.Now().Add(24*time.Hour).Unix())
				for range 3 {
					for _, credential := range []string{known, provider.token(t, "k1"), rg.Keys[key]} {
						start := time.Now()
						if res := ask("/acme/s.priv", credential); res.StatusCode != 204 || time.Since(start) > 0 {
							t.Errorf("what is known: %d %s after %s", res.StatusCode, res.Text, time.Since(start))
						}
					}
					for _, path := range []string{"/acme/s.priv", "/acme/s.pub"} {
						start := time.Now()
						res := ask(path, fresh)
						if res.StatusCode != 503 || res.code() != string(refusal.AuthenticationUnavailable) || res.Header.Get("Retry-After") == "" || res.Header.Get("WWW-Authenticate") != "" || time.Since(start) > 5*time.Second {
							t.Errorf("%s with a key that cannot be asked for: %d %s %v after %s", path, res.StatusCode, res.Text, res.Header, time.Since(start))
						}
					}
					for name, broken := range map[string]string{"signature": known[:len(known)-6] + "AAAAAA", "form": "a.b.c", "another issuer": provider.token(t, "k1", "iss", "https://evil.example.com")} {
						if res := ask("/acme/s.priv", broken); res.StatusCode != 401 {
							t.Errorf("wrong by its %s: %d %s", name, res.StatusCode, res.Text)
						}
					}
					time.Sleep(10 * time.Second)
				}
				provider.fail(nil)
				time.Sleep(30 * time.Second)
				for _, credential := range []string{known, fresh} {
					if res := ask("/acme/s.priv", credential); res.StatusCode != 204 {
						t.Errorf("afterwards: %d %s", res.StatusCode, res.Text)
					}
				}
			})
		})
	}
}

// A11: without any key from the start, nothing of that issuer can be told; all else
// can, the gateway is not held up by it, and its tokens work as soon as it is there.
// An exchange says so in OAuth's words.
func TestIssuerDownAtTheStart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		provider := newIDP(t, "k1")
		provider.fail(outages()["hangs"])
		rg, _, l := newBubbleRig(t, rigOptions{issuers: &auth.IssuersOptions{Transport: provider, Now: time.Now}})
		if err := rg.Issuers.Set(idpOptions()); err != nil {
			t.Fatal(err)
		}
		token := provider.token(t, "k1")
		ask := func(credential string) answer {
			return l.ask(t, rawGet("GET", "/acme/s.priv", "Authorization: Bearer "+credential))
		}
		if res := ask(token); res.StatusCode != 503 || res.Header.Get("Retry-After") == "" {
			t.Errorf("its token: %d %s", res.StatusCode, res.Text)
		}
		body := exchangeForm(token).Encode()
		res := l.ask(t, fmt.Sprintf("POST /v1/token HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", formType, len(body), body))
		if code, _ := res.oauth(); res.StatusCode != 503 || code != auth.CodeTemporarilyUnavailable || res.Header.Get("Retry-After") == "" {
			t.Errorf("its exchange: %d %s %v", res.StatusCode, res.Text, res.Header)
		}
		checkOAuthHead(t, res)
		if res := ask(rg.Keys[key]); res.StatusCode != 204 {
			t.Errorf("a key: %d", res.StatusCode)
		}
		provider.fail(nil)
		time.Sleep(30 * time.Second)
		if res := ask(token); res.StatusCode != 204 {
			t.Errorf("afterwards: %d %s", res.StatusCode, res.Text)
		}
	})
}

// A11, A13: invented key ids made a gateway ask its issuer with each request. 2,000
// of them, over a minute: one fetch in ten seconds; and known tokens go on at once.
func TestInventedKeysTroubleNobody(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		provider := newIDP(t, "k1")
		_, ask := issuerRig(t, provider)
		known := provider.token(t, "k1")
		forged := make([]string, 2000)
		elsewhere := newIDP(t)
		for i := range forged {
			kid := fmt.Sprint("invented-", i)
			elsewhere.add(t, kid)
			forged[i] = elsewhere.token(t, kid)
		}
		before := provider.hits()
		for _, text := range forged {
			if res := ask("/acme/s.priv", text); res.StatusCode != 401 && res.StatusCode != 503 {
				t.Fatalf("invented: %d %s", res.StatusCode, res.Text)
			}
			start := time.Now()
			if res := ask("/acme/s.priv", known); res.StatusCode != 204 || time.Since(start) > 0 {
				t.Fatalf("known: %d after %s", res.StatusCode, time.Since(start))
			}
			time.Sleep(30 * time.Millisecond)
		}
		if asked := provider.hits() - before; asked > 7 {
			t.Errorf("the issuer was asked %d times in a minute", asked)
		}
	})
}

// A11: a key set of 100 MiB was read whole, by each request that wanted a key. What
// is read of it is bounded, whoever asks.
func TestGiantKeySetCostsLittle(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		provider := newIDP(t, "k1")
		_, ask := issuerRig(t, provider)
		provider.fail(outages()["100 MiB"])
		provider.add(t, "k2")
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		const fetches = 5
		for range fetches {
			time.Sleep(10 * time.Second)
			if res := ask("/acme/s.priv", provider.token(t, "k2")); res.StatusCode != 503 {
				t.Errorf("%d %s", res.StatusCode, res.Text)
			}
		}
		runtime.ReadMemStats(&after)
		if grown := after.TotalAlloc - before.TotalAlloc; grown > fetches*8<<20 {
			t.Errorf("%d MiB were allocated for %d key sets", grown>>20, fetches)
		}
	})
}
