package gateway

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/auth"
	"sluice/internal/refusal"
	"sluice/internal/store/memory"
	"sluice/internal/tenant"
)

// revocation is a change that takes from some what they read by.
type revocation struct {
	name    string
	victims []string // names of keys and tokens; "" = a stranger
	path    string   // of the victims
	others  []string
	other   string // path of the others
	change  func(t *testing.T, rigs [2]*rig)

	status    int // of a long-poll that waits, and of the next request
	code      refusal.Code
	challenge string
}

func revocations() []revocation {
	const priv, pub = "/acme/s.priv", "/acme/s.pub"
	revoked := func(r revocation) revocation {
		r.status, r.code, r.challenge = 401, refusal.InvalidCredential, challengeInvalid
		return r
	}
	content := func(edit func(*memory.Content)) func(*testing.T, [2]*rig) {
		return func(t *testing.T, rigs [2]*rig) {
			t.Helper()
			rigs[0].replace(t, edit)
		}
	}
	mine := func(edit func(*tenant.Key)) func(*memory.Content) {
		return func(c *memory.Content) {
			for i := range c.Keys {
				if c.Keys[i].ID == "acme/read" {
					edit(&c.Keys[i])
				}
			}
		}
	}
	state := func(s tenant.State) func(*testing.T, [2]*rig) {
		return func(t *testing.T, rigs [2]*rig) {
			t.Helper()
			if err := rigs[0].Directory.SetAccountState("acme", s); err != nil {
				t.Error(err)
			}
		}
	}
	return []revocation{
		revoked(revocation{
			name: "key revoked", victims: []string{"read", "read token", "read child"}, path: priv, others: []string{"full", "full token", "idp"}, other: priv,
			change: func(t *testing.T, rigs [2]*rig) {
				t.Helper()
				if err := rigs[0].Directory.RevokeKey("acme/read"); err != nil {
					t.Error(err)
				}
			},
		}),
		revoked(revocation{
			name: "declared key removed", victims: []string{"read", "read token"}, path: priv, others: []string{"full", "covering", "other.full"}, other: "/acme/s.pub",
			change: content(func(c *memory.Content) {
				c.Keys = slices.DeleteFunc(c.Keys, func(k tenant.Key) bool { return k.ID == "acme/read" })
			}),
		}),
		revoked(revocation{
			name: "key an agent's now", victims: []string{"read", "read token"}, path: priv, others: []string{"full"}, other: priv,
			change: content(mine(func(k *tenant.Key) { k.ActsAs = tenant.Agent })),
		}),
		{
			name: "key narrowed", victims: []string{"read"}, path: priv, others: []string{"full", "full token"}, other: priv,
			change: content(mine(func(k *tenant.Key) { k.Streams, _ = tenant.ParseStreamSet([]string{"x*"}) })),
			status: 403, code: refusal.Forbidden,
		},
		{
			name: "account unpaid", victims: []string{"full", "read token", "idp", ""}, path: pub, others: []string{"other.full", ""}, other: "/other/s.pub",
			change: state(tenant.Unpaid), status: 402, code: refusal.PaymentRequired,
		},
		{
			name: "account revoked", victims: []string{"full", "full token"}, path: priv, others: []string{"other.full"}, other: "/other/s.priv",
			change: state(tenant.Revoked), status: 403, code: refusal.AccountRevoked,
		},
		{
			name: "public stream made private", victims: []string{""}, path: pub, others: []string{"full", "read token", "idp"}, other: pub,
			change: func(t *testing.T, rigs [2]*rig) {
				t.Helper()
				if err := rigs[0].Directory.SetPublic("acme", "pub", false); err != nil {
					t.Error(err)
				}
			},
			status: 401, code: refusal.InvalidCredential, challenge: challenge,
		},
		{
			name: "the same, for those it did not reach else", victims: []string{"narrowed", "other.full"}, path: pub, others: []string{"full"}, other: pub,
			change: content(func(c *memory.Content) {
				for i := range c.Streams {
					c.Streams[i].Public = false
				}
			}),
			status: 403, code: refusal.Forbidden,
		},
		revoked(revocation{
			name: "signing key taken away", victims: []string{"full token", "read child"}, path: priv, others: []string{"full", "read", "idp"}, other: priv,
			change: content(func(c *memory.Content) { c.SigningKeys = c.SigningKeys[1:] }),
		}),
		revoked(revocation{
			name: "issuer removed", victims: []string{"idp", "idp child"}, path: priv, others: []string{"full", "read token"}, other: priv,
			change: func(t *testing.T, rigs [2]*rig) {
				t.Helper()
				for _, rg := range rigs {
					if err := rg.Issuers.Set(nil); err != nil {
						t.Error(err)
					}
				}
			},
		}),
	}
}

// Issue 5, design §5: a credential that ends takes its open tails with it, on every
// gateway, within a second: streams of events by the last event between two others,
// long-polls by the refusal that the next request gets too, and the node's exchange
// with them. Everybody else's go on. What Ursula's own gateway has of this is none.
func TestTailsEndWithTheirCredential(t *testing.T) {
	for _, rv := range revocations() {
		t.Run(rv.name, rv.run)
	}
}

const tailsEach = 100 // of the victims, at each gateway

func (rv revocation) run(t *testing.T) {
	deliver := make(chan struct{})
	var left atomic.Int64
	rigs := revocationRigs(t, deliver, &left)
	victims, others := openTailsOf(t, rigs, rv.victims, rv.path, tailsEach), openTailsOf(t, rigs, rv.others, rv.other, tailsEach/5)
	for _, rg := range rigs {
		poll(t, "all tails open", func() bool {
			return rg.Limits.OpenTails() == tailsEach+tailsEach/5 && rg.known() == tailsEach+tailsEach/5
		})
	}
	poll(t, "all at the node", func() bool { return rigs[0].atNode() == 2*(tailsEach+tailsEach/5) })
	start := time.Now()
	rv.change(t, rigs)
	slowest := time.Duration(0)
	sse := 0
	for _, v := range victims {
		got := <-v.end
		slowest = max(slowest, got.at.Sub(start))
		if v.sse {
			sse++
			if got.status != 200 || got.text != "data: 1\n\n"+credentialExpired || got.err != nil {
				t.Errorf("%s: %d %q %v", v.name, got.status, got.text, got.err)
			}
			continue
		}
		rv.checkRefused(t, v.name, got)
	}
	if slowest > time.Second {
		t.Errorf("the last tail ended after %s", slowest)
	}
	poll(t, "the node left by the victims", func() bool { return left.Load() == 2*tailsEach })
	for i, rg := range rigs {
		poll(t, "the slots", func() bool { return rg.Limits.OpenTails() == tailsEach/5 && rg.known() == tailsEach/5 })
		rg.awaitCount(t, fmt.Sprintf(`sluice_answers_ended_total{end="credential"} %d`, sse/2))
		for _, name := range rv.victims {
			rv.checkRefused(t, "next request of "+name, <-follow(t.Context(), client(), rg.URL+rv.path+"?offset=-1", rg.Keys[name]))
			rv.checkRefused(t, "next tail of "+name, <-follow(t.Context(), client(), rg.URL+rv.path+"?live=sse", rg.Keys[name]))
		}
		for _, o := range others {
			if len(o.end) > 0 {
				t.Errorf("gateway %d: the tail of %s has ended: %+v", i, o.name, <-o.end)
			}
		}
	}
	close(deliver)
	for _, o := range others {
		want := "late"
		if o.sse {
			want = "data: 1\n\ndata: 2\n\n"
		}
		if got := <-o.end; got.status != 200 || got.text != want || got.err != nil {
			t.Errorf("%s: %d %q %v, want %q", o.name, got.status, got.text, got.err, want)
		}
	}
	for _, rg := range rigs {
		poll(t, "all slots", func() bool { return rg.Limits.OpenTails() == 0 && rg.known() == 0 })
	}
}

func (rv revocation) checkRefused(t *testing.T, who string, got tailEnd) {
	t.Helper()
	if a := (answer{Text: got.text}); got.status != rv.status || a.code() != string(rv.code) || got.err != nil || got.header.Get("WWW-Authenticate") != rv.challengeFor(who) {
		t.Errorf("%s: %d %s %q %v, want %d %s", who, got.status, got.text, got.header.Get("WWW-Authenticate"), got.err, rv.status, rv.code)
	}
}

// challengeFor is the challenge: one of a token that has not the right says so.
func (rv revocation) challengeFor(who string) string {
	if rv.code == refusal.Forbidden && (strings.Contains(who, "token") || strings.Contains(who, "idp")) {
		return insufficient(false)
	}
	return rv.challenge
}

// openedTail is one of those that a test has open.
type openedTail struct {
	name string
	sse  bool
	end  <-chan tailEnd
}

// openTailsOf opens n tails at each gateway, by turns of kind, protocol and
// credential.
func openTailsOf(t *testing.T, rigs [2]*rig, names []string, path string, n int) []openedTail {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	opened := make([]openedTail, 0, n*len(rigs))
	var first sync.WaitGroup // bytes of each stream of events
	for _, rg := range rigs {
		clients := protocols(t)
		for i := range n {
			name, proto, query := names[i/4%len(names)], "h1", "?offset=now&live=sse"
			if i%2 == 1 {
				proto = "h2"
			}
			if i/2%2 == 1 {
				query = "?offset=now&live=long-poll&timeout_ms=30000"
			}
			begun := func() {}
			if i/2%2 == 0 {
				first.Add(1)
				begun = first.Done
			}
			opened = append(opened, openedTail{name + " over " + proto + query, i/2%2 == 0, followFrom(ctx, clients[proto], rg.URL+path+query, rg.Keys[name], begun)})
		}
	}
	first.Wait()
	return opened
}

// known is how many tails the gateway could end.
func (rg *rig) known() int {
	rg.Gateway.open.mu.Lock()
	defer rg.Gateway.open.mu.Unlock()
	return len(rg.Gateway.open.all)
}

// revocationRigs are two gateways before one node, which delivers to all live reads
// at the word, and counts those that were given up before.
func revocationRigs(t *testing.T, deliver <-chan struct{}, left *atomic.Int64) [2]*rig {
	t.Helper()
	u := newUp(t, func(c *upConn, r *upRequest) {
		sse := strings.Contains(r.Target, "live=sse")
		if sse {
			c.say(sseHead + chunk("data: 1\n\n"))
		}
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			c.hold()
		}()
		select {
		case <-gone:
			left.Add(1)
			return
		case <-deliver:
		}
		if sse {
			c.say(chunk("data: 2\n\n") + "0\r\n\r\n")
		} else {
			c.say(whole("200 OK", "", "late"))
		}
		<-gone
	})
	provider := newIDP(t, "k1")
	o := rigOptions{nodes: []string{u.URL}, limits: roomyTails, issuers: &auth.IssuersOptions{Transport: provider, Now: time.Now}}
	first := newRig(t, o)
	first.atNode = func() int { return len(u.requests()) }
	for range 2 {
		k, err := tenant.GenerateSigningKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		first.replace(t, func(c *memory.Content) { c.SigningKeys = append(c.SigningKeys, k) })
	}
	o.beside = first
	rigs := [2]*rig{first, newRig(t, o)}
	for _, rg := range rigs {
		if err := rg.Issuers.Set(idpOptions()); err != nil {
			t.Fatal(err)
		}
		poll(t, "the issuer's keys", func() bool { return rg.Issuers.Stats()[0].Keys == 1 })
		poll(t, "the node's identity", func() bool { _, err := rg.Pool.Identity(); return err == nil })
	}
	first.Keys["full token"], first.Keys["read token"] = first.token(t, "full"), first.token(t, "read")
	first.Keys["read child"] = first.token(t, "read token", "resource", rigOrigin+"/acme/s.p*")
	first.Keys["idp"] = provider.token(t, "k1")
	first.Keys["idp child"] = first.token(t, "idp")
	return rigs
}

// A credential that ends while the head of its tail is on its way: the tail begins
// and ends with the last event, or is refused; it is never left open, and no
// long-poll waits. Raced over and over; run with the race detector.
func TestTailEndsWhileItBegins(t *testing.T) {
	heads := make(chan struct{})
	rg, u := newUpRig(t, func(c *upConn, r *upRequest) {
		<-heads
		if strings.Contains(r.Target, "live=sse") {
			c.say(sseHead + chunk("data: 1\n\n"))
			c.hold()
			return
		}
		c.say(whole("200 OK", "", "late"))
	}, rigOptions{limits: roomyTails})
	for round := range 40 {
		name := fmt.Sprint("round", round)
		rg.addKey(t, name, nil)
		ends := make([]<-chan tailEnd, 0, 8)
		before := len(u.requests())
		for proto, c := range protocols(t) {
			for range 2 {
				ends = append(ends, follow(t.Context(), c, rg.URL+"/acme/s.priv?live=sse&"+proto, rg.Keys[name]),
					follow(t.Context(), c, rg.URL+"/acme/s.priv?live=long-poll&"+proto, rg.Keys[name]))
			}
		}
		u.await(t, before+len(ends))
		revoked := make(chan error, 1)
		go func() { revoked <- rg.Directory.RevokeKey("acme/" + name) }()
		for range ends {
			heads <- struct{}{}
		}
		if err := <-revoked; err != nil {
			t.Fatal(err)
		}
		for _, end := range ends {
			got := <-end
			refused := got.status == http.StatusUnauthorized && (answer{Text: got.text}).code() == string(refusal.InvalidCredential)
			whole := got.status == http.StatusOK && (got.text == "late" || strings.HasSuffix(got.text, credentialExpired) && between(got.text))
			if got.err != nil || !refused && !whole {
				t.Fatalf("%d %q %v", got.status, got.text, got.err)
			}
		}
		poll(t, "the slots", func() bool { return rg.Limits.OpenTails() == 0 && rg.known() == 0 })
	}
}

// Heartbeats and the last event are written by turns: the client gets whole events,
// heartbeats between them, and the last event; one event under way is neither broken
// by a heartbeat nor by the end. Over real connections, where heartbeats come from.
func TestExpiryAmongHeartbeats(t *testing.T) {
	const at = "event: control\ndata:{}\n\n"
	const one, half, rest = "event: data\ndata:1\n\n" + at, "event: data\ndata:", "2\n\n" + at
	expired := make(chan struct{})
	rg, _ := newUpRig(t, func(c *upConn, r *upRequest) {
		c.say(sseHead + chunk(one))
		if strings.Contains(r.Target, "half") {
			c.say(chunk(half))
			<-expired
			c.say(chunk(rest))
		}
		c.hold()
	}, rigOptions{change: func(o *Options) { o.Heartbeat = 20 * time.Millisecond }})
	expiry := time.Now().Add(400 * time.Millisecond)
	rg.addKey(t, "dying", func(k *tenant.Key) { k.ExpiresAt = expiry })
	ends := map[string]<-chan tailEnd{}
	for name, c := range protocols(t) {
		ends["whole "+name] = follow(t.Context(), c, rg.URL+sseTail, rg.Keys["dying"])
		ends["half "+name] = follow(t.Context(), c, rg.URL+sseTail+"&half=1", rg.Keys["dying"])
	}
	<-time.After(time.Until(expiry.Add(100 * time.Millisecond)))
	close(expired)
	for name, end := range ends {
		got := <-end
		head, beats := one, ""
		if strings.HasPrefix(name, "half") {
			head += half + rest
		}
		text, ok := strings.CutSuffix(got.text, credentialExpired)
		if ok {
			beats, ok = strings.CutPrefix(strings.ReplaceAll(text, heartbeat, ""), head)
		}
		if !ok || beats != "" || got.err != nil || !strings.HasPrefix(name, "half") && !strings.Contains(text, heartbeat) {
			t.Errorf("%s: %q %v, %s after the expiry", name, got.text, got.err, got.at.Sub(expiry))
		}
	}
}
