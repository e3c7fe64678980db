package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/auth"
	"sluice/gateway/upstream"
	"sluice/internal/bubble"
	"sluice/internal/refusal"
	"sluice/internal/store/memory"
	"sluice/internal/tenant"
	"sluice/ratelimit"
)

// noChance is what chance says always.
func noChance() float64 { return 0.5 }

// bareTail is a tail without a request.
func bareTail(account tenant.AccountID, p *auth.Principal) *openTail {
	return &openTail{route: Route{Account: account, Stream: "s"}, principal: p, cancel: func(error) {}}
}

// What a change concerns is looked at, and nothing else: the tails of the account's
// streams, and those of its credentials elsewhere.
func TestChangesConcern(t *testing.T) {
	tails := map[string]*openTail{
		"stranger":  bareTail("acme", nil),
		"owner":     bareTail("acme", &auth.Principal{Account: "acme"}),
		"visitor":   bareTail("acme", &auth.Principal{Account: "other"}),
		"neighbour": bareTail("third", &auth.Principal{Account: "third"}),
	}
	for _, tc := range []struct {
		change tenant.Change
		want   string
	}{
		{tenant.Change{Kind: tenant.KeyChanged, Account: "acme", KeyID: "acme/x"}, "owner stranger visitor"},
		{tenant.Change{Kind: tenant.KeyChanged, Account: "other", KeyID: "other/x"}, "visitor"},
		{tenant.Change{Kind: tenant.AccountChanged, Account: "other"}, "visitor"},
		{tenant.Change{Kind: tenant.StreamChanged, Account: "third", Stream: "s"}, "neighbour"},
		{tenant.Change{Kind: tenant.StreamChanged, Account: "fourth", Stream: "s"}, ""},
		{tenant.Change{Kind: tenant.SigningKeysChanged}, "neighbour owner stranger visitor"},
		{tenant.Change{Kind: tenant.Everything}, "neighbour owner stranger visitor"},
		{tenant.Change{Kind: 99}, "neighbour owner stranger visitor"},
	} {
		var got []string
		for _, name := range []string{"neighbour", "owner", "stranger", "visitor"} {
			if tails[name].concerns(tc.change) {
				got = append(got, name)
			}
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%+v concerns %q, want %q", tc.change, got, tc.want)
		}
	}
}

// A tail ends once, for the first reason; not when its answer is over, and not where
// it is being answered as a whole.
func TestTailEndsOnce(t *testing.T) {
	first, second := errors.New("first"), errors.New("second")
	var causes []error
	open := func() *openTail {
		causes = nil
		return &openTail{cancel: func(err error) { causes = append(causes, err) }}
	}
	waits := open()
	waits.end(first)
	waits.end(second)
	if !errors.Is(waits.ended(), first) || len(causes) != 1 || !errors.Is(causes[0], first) || !errors.Is(waits.begin(nil), first) {
		t.Errorf("one that waits: %v, canceled for %v", waits.ended(), causes)
	}
	answered := open()
	if err := answered.begin(nil); err != nil {
		t.Fatal(err)
	}
	answered.end(first)
	if answered.ended() != nil || len(causes) != 0 {
		t.Errorf("one that is being answered: %v, canceled for %v", answered.ended(), causes)
	}
	left := open()
	left.leave()
	left.end(first)
	if left.ended() != nil || len(causes) != 0 {
		t.Errorf("one that is over: %v, canceled for %v", left.ended(), causes)
	}
	if err := (*openTail)(nil).ended(); err != nil {
		t.Errorf("none: %v", err)
	}
}

// A storm of changes is looked at once for each tail and moment, not once for each
// change, and holds up nobody who tells of one. 10,000 tails, 1,000 changes.
func TestRecheckStorm(t *testing.T) {
	var looks atomic.Int64
	open := openTails{now: time.Now, random: noChance, check: func(_ context.Context, t *openTail) (*auth.Principal, error) {
		looks.Add(1)
		return t.principal, nil
	}}
	const tails, changes = 10_000, 1000
	all := make([]*openTail, tails)
	for i := range all {
		account := tenant.AccountID(fmt.Sprint("acct-", i%100))
		all[i] = bareTail(account, &auth.Principal{Account: account, ExpiresAt: time.Now().Add(time.Hour)})
		open.add(all[i])
	}
	start := time.Now()
	var tellers sync.WaitGroup
	for teller := range 4 {
		tellers.Go(func() {
			for i := range changes / 4 {
				open.changed(tenant.Change{Kind: tenant.AccountChanged, Account: tenant.AccountID(fmt.Sprint("acct-", (teller*changes/4+i)%100))})
			}
			open.changed(tenant.Change{Kind: tenant.Everything})
		})
	}
	tellers.Wait()
	told := time.Since(start)
	open.close()
	if n := looks.Load(); n < tails || n > tails*20 {
		t.Errorf("%d looks at %d tails for %d changes", n, tails, changes)
	}
	if took := time.Since(start); took > 15*time.Second {
		t.Errorf("told in %s, looked at in %s", told, took)
	}
	for _, tl := range all {
		open.remove(tl)
	}
	open.close()
	if len(open.all)+len(open.due) != 0 {
		t.Errorf("%d open, %d due", len(open.all), len(open.due))
	}
}

// Changes, expiries, ends and new tails all at one time. Run with the race detector.
func TestOpenTailsConcurrently(t *testing.T) {
	refused := refusal.New(refusal.AccountRevoked, nil)
	var n atomic.Int64
	open := openTails{now: time.Now, random: noChance, check: func(context.Context, *openTail) (*auth.Principal, error) {
		switch n.Add(1) % 4 {
		case 0:
			return nil, refused
		case 1:
			return nil, auth.ErrUnavailable
		default:
			return &auth.Principal{Account: "acme", ExpiresAt: time.Now().Add(time.Millisecond)}, nil
		}
	}}
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			for range 500 {
				tl := bareTail("acme", &auth.Principal{Account: "acme", ExpiresAt: time.Now().Add(time.Microsecond)})
				open.add(tl)
				open.changed(tenant.Change{Kind: tenant.Everything})
				_ = tl.ended()
				_ = tl.begin(nil)
				open.remove(tl)
				tl.leave()
			}
		})
		wait.Go(func() {
			for range 500 {
				open.changed(tenant.Change{Kind: tenant.AccountChanged, Account: "acme"})
				open.set(time.Now, noChance, time.Hour)
				open.close()
			}
		})
	}
	wait.Wait()
	open.close()
	if len(open.all)+len(open.due) != 0 || open.looking {
		t.Errorf("%d open, %d due, looking %t", len(open.all), len(open.due), open.looking)
	}
}

// oddNodes answer live reads in ways that break the gateway's own part.
type oddNodes struct {
	*liveNodes
	identity func()
}

func (n oddNodes) Identity() (upstream.Identity, error) {
	n.identity()
	return n.liveNodes.Identity()
}

// A fault of the gateway's own between an answer's head and its way to the client
// left the tail known, its slot taken, or the node's exchange open; and what ends
// it later must not touch a connection that is another request's.
func TestFaultWhileATailBegins(t *testing.T) {
	for _, proto := range []string{"h1", "h2"} {
		t.Run(proto, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				nodes := oddNodes{newLiveNodes(), func() { panic("broken part") }}
				rg, _, l := bubbleTails(t, rigOptions{change: func(o *Options) { o.Upstream = nodes }})
				got := <-follow(t.Context(), l.clients(t)[proto], liveURL, rg.Keys["full"])
				if got.status != http.StatusInternalServerError || (answer{Text: got.text}).code() != string(refusal.Internal) {
					t.Errorf("%d %q %v", got.status, got.text, got.err)
				}
				node := <-nodes.opened
				if err := rg.Directory.RevokeKey("acme/full"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * eventTime)
				if !node.gone() {
					t.Error("the node's exchange goes on")
				}
				if rg.Limits.OpenTails() != 0 || rg.known() != 0 || !rg.counts(t, "sluice_panics_total 1") {
					t.Errorf("%d slots, %d known tails", rg.Limits.OpenTails(), rg.known())
				}
			})
		})
	}
}

// A credential that ends in the very moment in which the node's head comes: from
// within the proxy, so that the moment is met each time.
func TestEndInTheMomentOfTheHead(t *testing.T) {
	for _, query := range []string{"live=sse", "live=long-poll"} {
		for _, proto := range []string{"h1", "h2"} {
			t.Run(proto+" "+query, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					rg := (*rig)(nil)
					nodes := endingNodes{newLiveNodes(), func() {
						if err := rg.Directory.RevokeKey("acme/full"); err != nil {
							t.Error(err)
						}
						rg.Gateway.open.close() // it has been looked at
					}}
					var l *pipeListener
					rg, _, l = bubbleTails(t, rigOptions{change: func(o *Options) { o.Upstream = nodes }})
					got := <-follow(t.Context(), l.clients(t)[proto], "http://gw/acme/s.priv?"+query, rg.Keys["full"])
					if got.status != http.StatusUnauthorized || (answer{Text: got.text}).code() != string(refusal.InvalidCredential) || got.err != nil {
						t.Errorf("%d %q %v", got.status, got.text, got.err)
					}
					bubble.Wait()
					if rg.Limits.OpenTails() != 0 || rg.known() != 0 {
						t.Errorf("%d slots, %d known tails", rg.Limits.OpenTails(), rg.known())
					}
				})
			})
		}
	}
}

// endingNodes have an answer, and then the credential ends, before it is there.
type endingNodes struct {
	*liveNodes
	end func()
}

func (n endingNodes) Send(ctx context.Context, r *http.Request, m upstream.Meta) (*http.Response, error) {
	m.LongPoll, m.Live = false, true
	res, err := n.liveNodes.Send(context.WithoutCancel(ctx), r, m)
	n.end()
	return res, err
}

// revokingTails have a credential end between the decision on a request and its
// being known as a tail.
type revokingTails struct {
	ratelimit.Tails
	revoke func()
}

func (r revokingTails) Acquire(ctx context.Context, s ratelimit.Subject, limit int) (ratelimit.Lease, error) {
	r.revoke()
	return r.Tails.Acquire(ctx, s, limit)
}

// A change that falls between the decision on a tail and its being known was told to
// all others, and that tail was open for ever. It is looked at once more.
func TestChangeBeforeATailIsKnown(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*testing.T, *rig)
		status int
	}{
		{"revoked", func(t *testing.T, rg *rig) {
			t.Helper()
			if err := rg.Directory.RevokeKey("acme/full"); err != nil {
				t.Error(err)
			}
		}, 401},
		{"unpaid", func(t *testing.T, rg *rig) {
			t.Helper()
			if err := rg.Directory.SetAccountState("acme", tenant.Unpaid); err != nil {
				t.Error(err)
			}
		}, 402},
		{"another directory", func(t *testing.T, rg *rig) {
			t.Helper()
			empty, err := memory.New(memory.Content{})
			if err != nil {
				t.Error(err)
			}
			o := rg.Options
			o.Directory, o.Authenticator = empty, newAuthenticator(empty)
			rg.Gateway.Swap(o)
		}, 401},
	} {
		for _, query := range []string{"live=sse", "live=long-poll"} {
			t.Run(tc.name+" "+query, func(t *testing.T) {
				rg, u := (*rig)(nil), (*up)(nil)
				rg, u = newUpRig(t, respond(whole("200 OK", "", "x")), rigOptions{change: func(o *Options) {
					o.Tails = revokingTails{o.Tails, func() { tc.change(t, rg) }}
				}})
				if res := rg.Do(t, http.MethodGet, "/acme/s.priv?"+query, key, ""); res.StatusCode != tc.status {
					t.Errorf("%d %s, want %d", res.StatusCode, res.Text, tc.status)
				}
				u.untouched(t)
				if rg.Limits.OpenTails() != 0 || rg.known() != 0 {
					t.Errorf("%d slots, %d known tails", rg.Limits.OpenTails(), rg.known())
				}
			})
		}
	}
}
