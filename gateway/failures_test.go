package gateway

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice/auth"
	"sluice/internal/bubble"
	"sluice/internal/refusal"
	"sluice/ratelimit"
)

// failureRig is a gateway on a bubble's clock behind a proxy that says who asks.
func failureRig(t *testing.T, perMinute int) (*rig, func(client, credential string) answer) {
	t.Helper()
	rg, _, l := newBubbleRig(t, rigOptions{change: func(o *Options) {
		o.FailedPerMinute = perMinute
		o.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}
	}})
	return rg, func(client, credential string) answer {
		t.Helper()
		return l.ask(t, "GET /acme/s.priv HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Forwarded-For: "+client+"\r\n"+bearer(credential)+"\r\n")
	}
}

// A19: clients with a dead credential spin for ever. A gateway lets an address have
// some failures, then says when to come back; L11: an address is one in all its
// spellings, and an IPv6 client has its whole /64.
func TestTooManyFailures(t *testing.T) {
	for _, tc := range []struct {
		name         string
		same, others []string // as the first, and apart
	}{
		{"IPv4", []string{"203.0.113.7", "::ffff:203.0.113.7", "203.0.113.7:4711", "[::ffff:cb00:7107]:80"}, []string{"203.0.113.8"}},
		{"IPv6", []string{"2001:db8:1:2::7", "2001:db8:1:2:ffff::1", "[2001:DB8:1:2::8]:443", "2001:0db8:0001:0002:0:0:0:9"}, []string{"2001:db8:1:3::7", "2001:db8::7"}},
		{"a zone", []string{"fe80::1%eth0", "fe80::1%eth1", "fe80::2"}, []string{"fe80:0:0:1::1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				const limit = 30
				rg, ask := failureRig(t, limit)
				bad := []string{rg.Keys["unknown"], rg.Keys["malformed"], rg.Keys["revoked"], rg.Keys["agent"], "a.b.c", "x"}
				for i := range limit {
					if res := ask(tc.same[i%len(tc.same)], bad[i%len(bad)]); res.StatusCode != http.StatusUnauthorized || res.Header.Get("WWW-Authenticate") != challengeInvalid {
						t.Fatalf("failure %d: %d %s", i+1, res.StatusCode, res.Text)
					}
				}
				for _, client := range tc.same {
					res := ask(client, bad[0])
					if res.StatusCode != http.StatusTooManyRequests || res.code() != string(refusal.RateLimited) || res.Header.Get("Retry-After") != "1" || res.Header.Get("WWW-Authenticate") != "" ||
						res.Header.Get("RateLimit-Policy") != `"failures";q=30;w=30` || res.Header.Get("RateLimit") != `"failures";r=0;t=1` {
						t.Errorf("%s, over the limit: %d %s %v", client, res.StatusCode, res.Text, res.Header)
					}
					// Nobody behind the address is locked out with it.
					for credential, want := range map[string]int{rg.Keys[key]: 204, rg.Keys["narrowed"]: 403, "": 401} {
						if res := ask(client, credential); res.StatusCode != want {
							t.Errorf("%s beside it: %d %s, want %d", client, res.StatusCode, res.Text, want)
						}
					}
				}
				for _, client := range tc.others {
					if res := ask(client, bad[0]); res.StatusCode != http.StatusUnauthorized {
						t.Errorf("%s: %d", client, res.StatusCode)
					}
				}
				time.Sleep(time.Second)
				for i, want := range []int{401, 429} {
					if res := ask(tc.same[0], bad[0]); res.StatusCode != want {
						t.Errorf("a second later, failure %d: %d, want %d", i+1, res.StatusCode, want)
					}
				}
				rg.awaitCount(t, fmt.Sprintf(`sluice_refusals_total{code="RATE_LIMITED"} %d`, len(tc.same)+1))
			})
		})
	}
}

// H08: who makes up an address for each try was never held. The key is the peer, unless a
// trusted proxy says otherwise.
func TestForgedAddressesAreOneKey(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const limit = 10
		rg, _, l := newBubbleRig(t, rigOptions{change: func(o *Options) {
			o.FailedPerMinute = limit
			o.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		}})
		for i := range limit + 1 {
			forged := fmt.Sprintf("203.0.113.%d", i)
			res := l.ask(t, "GET /acme/s.priv HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Forwarded-For: "+forged+"\r\nX-Forwarded-For: "+forged+"\r\nForwarded: for="+forged+
				"\r\nX-Real-IP: "+forged+"\r\nTrue-Client-IP: "+forged+"\r\nX_Forwarded_For: "+forged+"\r\n"+bearer(rg.Keys["unknown"])+"\r\n")
			if want := map[bool]int{false: http.StatusUnauthorized, true: http.StatusTooManyRequests}[i == limit]; res.StatusCode != want {
				t.Errorf("failure %d: %d, want %d", i+1, res.StatusCode, want)
			}
		}
	})
}

// A19: the holder of a credential that has expired must hear that, whatever others
// behind its address do, or it never gets a new one. It is counted by itself.
func TestExpiredIsToldBesideOneThatSpins(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const limit, client = 10, "203.0.113.7"
		rg, ask := failureRig(t, limit)
		dead := rg.expiredToken(t)
		for range 3 * limit {
			ask(client, rg.Keys["unknown"])
		}
		for i, credential := range []string{dead, rg.Keys["expired"], rg.mint(t, "exp", time.Now().Add(-time.Hour).Unix(), "iat", time.Now().Add(-2*time.Hour+time.Minute).Unix())} {
			for n := range limit + 1 {
				res := ask(client, credential)
				switch {
				case n < limit && (res.StatusCode != 401 || res.code() != string(refusal.CredentialExpired) || res.Header.Get("WWW-Authenticate") != challengeExpired):
					t.Errorf("%d, time %d: %d %s", i, n+1, res.StatusCode, res.Text)
				case n == limit && res.StatusCode != 429:
					t.Errorf("%d spins too: %d %s", i, res.StatusCode, res.Text)
				}
			}
		}
		if res := ask("203.0.113.8", dead); res.StatusCode != 429 {
			t.Errorf("the same from elsewhere: %d", res.StatusCode)
		}
		if res := ask(client, rg.Keys["other.expired"]); res.code() != string(refusal.CredentialExpired) {
			t.Errorf("another one: %d %s", res.StatusCode, res.Text)
		}
	})
}

// The exchange counts with the streams, in OAuth's words; what is the gateway's own
// fault, or no credential's, counts nothing; 0 counts nobody.
func TestWhatCountsAsAFailure(t *testing.T) {
	o := rigOptions{change: func(o *Options) { stopClock(o); o.FailedPerMinute = 2 }}
	rg, _ := newUpRig(t, respond(whole("200 OK", "", "x")), o)
	for range 5 { // none of these is one
		rg.Do(t, "GET", "/acme/s.priv", "", "")
		rg.Do(t, "GET", "/acme/s.priv", "narrowed", "")
		rg.Do(t, "GET", "/gone/s.priv", "gone.full", "")
		rg.exchange(t, exchangeForm(rg.Keys["full"], "scope", "admin"))
		rg.exchange(t, exchangeForm(rg.Keys["full"], "grant_type", ""))
		rg.exchange(t, exchangeForm(rg.Keys["gone.full"]))
	}
	rg.Do(t, "GET", "/acme/s.priv", "unknown", "")
	if code, _ := rg.exchange(t, exchangeForm(rg.Keys["revoked"])).oauth(); code != auth.CodeInvalidGrant {
		t.Errorf("second failure: %s", code)
	}
	res := rg.exchange(t, exchangeForm(rg.Keys["unknown"]))
	if code, description := res.oauth(); res.StatusCode != 429 || code != auth.CodeTemporarilyUnavailable || description == "" || res.Header.Get("Retry-After") != "1" {
		t.Errorf("an exchange over the limit: %d %s", res.StatusCode, res.Text)
	}
	checkOAuthHead(t, res)
	if res := rg.Do(t, "GET", "/acme/s.pub", "revoked", ""); res.StatusCode != 429 {
		t.Errorf("a read over the limit: %d %s", res.StatusCode, res.Text)
	}
	if res := rg.Do(t, "POST", "/acme/s.priv", "revoked", strings.Repeat("x", 1<<20), "Content-Type", rigType); res.StatusCode != 429 {
		t.Errorf("a write over the limit: %d %s", res.StatusCode, res.Text)
	}
	rg.exchange(t, exchangeForm(rg.Keys["full"])).exchanged(t)

	down := without(faultyDirectory{keys: true})
	change := down.change
	down.change = func(o *Options) { change(o); stopClock(o); o.FailedPerMinute = 1 }
	faulty := newRig(t, down)
	for range 5 {
		if res := faulty.Do(t, "GET", "/acme/s.priv", key, ""); res.StatusCode != 503 {
			t.Errorf("an outage: %d %s", res.StatusCode, res.Text)
		}
	}
	open := newRig(t, rigOptions{noNodes: true})
	for range 200 {
		if res := open.Do(t, "GET", "/acme/s.priv", "malformed", ""); res.StatusCode != 401 {
			t.Fatalf("without a limit: %d %s", res.StatusCode, res.Text)
		}
	}
}

// L12, L11: a flood from everywhere filled the memory, or pushed an abuser's count
// out of it. 500,000 networks at 10,000 a second, and one that spins among them.
func TestFailuresAreBounded(t *testing.T) {
	now := time.Now()
	rg := newRig(t, rigOptions{noNodes: true, change: func(o *Options) {
		o.FailedPerMinute = 60
		o.Failures = ratelimit.NewMemory(ratelimit.MemoryOptions{Now: func() time.Time { return now }})
	}})
	c, failures := rg.Gateway.current.Load(), rg.Options.Failures.(*ratelimit.Memory) //nolint:errcheck // set above
	fail := func(a netip.Addr) bool {
		err := c.failed(&Scope{Client: a}, "x", auth.ErrUnknownKey)
		return asRefusal(err).Code == refusal.RateLimited
	}
	spinner := netip.MustParseAddr("2001:db8:dead:beef::1")
	for range 60 {
		fail(spinner)
	}
	most, again := 0, 0
	for i := range 500_000 {
		var raw [16]byte
		raw[0], raw[1], raw[4], raw[5], raw[6] = 0x20, 0x01, byte(i>>16), byte(i>>8), byte(i)
		if fail(netip.AddrFrom16(raw)) {
			t.Fatalf("network %d: refused at its first failure", i)
		}
		if i%10 == 0 { // 1,000 a second
			if !fail(spinner) {
				again++
			}
		}
		now = now.Add(100 * time.Microsecond)
		if i%1000 == 0 {
			most = max(most, failures.Subjects())
		}
	}
	if most > 40_000 {
		t.Errorf("%d addresses were in memory at one time", most)
	}
	if again > 51 {
		t.Errorf("the one that spins was let fail %d times in 50 s, want one a second", again)
	}
	if got := addressKey(netip.Addr{}); got == "" {
		t.Error("an address that is not known is counted as none")
	}
}
