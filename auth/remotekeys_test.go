package auth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/internal/bubble"
	"sluice/internal/tenant"
)

// unavailable checks that the answer is "we cannot tell", and not "wrong" (A11).
func unavailable(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
	onlyKind(t, err, ErrUnavailable)
}

// badAnswers are those of an issuer in trouble.
func badAnswers(t *testing.T) map[string]answer {
	t.Helper()
	weak := members{"keys": []members{{"kty": "oct", "k": "AAAA", "kid": "k1"}}}
	good := keySetOf(t, newOtherKey(t, "k1", "ES256"))
	return map[string]answer{
		"refuses":         {err: errNoRoute},
		"hangs":           {hangs: true},
		"500":             {status: http.StatusInternalServerError, body: `{"keys":[]}`},
		"503 with keys":   {status: http.StatusServiceUnavailable, body: good},
		"HTML":            {status: http.StatusOK, body: "<!doctype html><title>Maintenance</title>"},
		"empty body":      {status: http.StatusOK},
		"empty set":       {status: http.StatusOK, body: `{"keys":[]}`},
		"null":            {status: http.StatusOK, body: `null`},
		"keys null":       {status: http.StatusOK, body: `{"keys":null}`},
		"symmetric only":  {status: http.StatusOK, body: string(jsonOf(t, weak))},
		"cut short":       {status: http.StatusOK, body: good[:100]},
		"redirect":        {status: http.StatusFound, location: "https://elsewhere.example.com/keys"},
		"redirect inside": {status: http.StatusMovedPermanently, location: idpKeys + "2"},
		"100 MiB":         {status: http.StatusOK, bytes: 100 << 20},
		"a large set":     {status: http.StatusOK, body: strings.TrimSuffix(good, "}") + strings.Repeat(" ", maxDocument) + "}"},
	}
}

// A11: while the issuer was in trouble good tokens were refused as wrong, or an
// empty set wiped the keys. What was known goes on, unknown is "try again", and
// when the issuer is back all is well within the retry.
func TestA11IssuerInTrouble(t *testing.T) {
	for name, bad := range badAnswers(t) {
		t.Run("after a good set, "+name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				key, next := newOtherKey(t, "k1", "ES256"), newOtherKey(t, "k2", "ES256")
				r := newIDPRig(t, idpOptions(), key)
				r.idp.serve(idpKeys, bad)
				r.idp.serve(idpKeys+"2", keysOK(t, next)) // where a redirect must not lead
				began := time.Now()
				time.Sleep(time.Hour)
				for i := range 3 {
					if _, err := r.use(t, otherToken(t, key, time.Now(), "jti", fmt.Sprint(i))); err != nil {
						t.Fatalf("a token of a known key: %v", err)
					}
				}
				asked := time.Now()
				_, err := r.use(t, otherToken(t, next, time.Now()))
				unavailable(t, err)
				if waited := time.Since(asked); waited > maxKeyWait {
					t.Errorf("waited %v", waited)
				}
				s := r.issuers.Stats()
				if len(s) != 1 || !s[0].Failing || s[0].Keys != 1 || !s[0].AskedAt.Equal(began) || s[0].Issuer != idpName || r.lastFailure() == nil {
					t.Errorf("stats %+v, failure %v", s, r.lastFailure())
				}
				if large := bad.bytes > 0 || len(bad.body) > maxDocument; large && !errors.Is(r.lastFailure(), errTooLarge) {
					t.Errorf("reported as %v, want errTooLarge", r.lastFailure())
				}
				if most := int(time.Since(began)/retryEvery) + 3; r.idp.hits() > most {
					t.Errorf("asked %d times, want %d at most", r.idp.hits(), most)
				}
				r.idp.serve(idpKeys, keysOK(t, key, next))
				time.Sleep(retryEvery + fetchTimeout)
				bubble.Wait()
				if _, err := r.use(t, otherToken(t, next, time.Now())); err != nil {
					t.Errorf("when it is back: %v", err)
				}
				if s := r.issuers.Stats(); s[0].Failing || s[0].Keys != 2 || r.lastFailure() != nil || r.changes() != 0 {
					t.Errorf("stats %+v, failure %v", s, r.lastFailure())
				}
			})
		})
		t.Run("from the start, "+name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				key := newOtherKey(t, "k1", "ES256")
				r := newIDPRig(t, idpOptions())
				r.idp.serve(idpKeys, bad)
				r.idp.serve(idpKeys+"2", keysOK(t, key))
				for range 20 {
					_, err := r.use(t, otherToken(t, key, time.Now()))
					unavailable(t, err)
					time.Sleep(time.Second)
				}
				// What is wrong by itself is wrong whatever the issuer does, and it is not asked.
				bubble.Wait()
				hits := r.idp.hits()
				if _, err := r.use(t, otherToken(t, key, time.Now(), "aud", "x")); !errors.Is(err, ErrTokenAudience) {
					t.Errorf("another audience: %v", err)
				}
				if _, err := r.use(t, otherToken(t, key, time.Now(), "org", "debt")); !errors.Is(err, ErrTokenAccount) {
					t.Errorf("another account: %v", err)
				}
				odd := key
				odd.kid = "k\n1"
				if _, err := r.use(t, otherToken(t, odd, time.Now())); !errors.Is(err, ErrTokenHeader) {
					t.Errorf("an odd kid: %v", err)
				}
				if r.idp.hits() != hits {
					t.Error("asked for tokens that no key can make good")
				}
				if _, err := r.use(t, otherToken(t, key, time.Now().Add(-time.Hour))); !errors.Is(err, ErrTokenKey) {
					t.Errorf("expired long ago: %v", err)
				}
				r.idp.serve(idpKeys, keysOK(t, key))
				time.Sleep(retryEvery + fetchTimeout)
				bubble.Wait()
				if _, err := r.use(t, otherToken(t, key, time.Now())); err != nil {
					t.Errorf("when it is back: %v", err)
				}
			})
		})
	}
}

// J4: keys rotate. A key that the issuer publishes only when it signs with it is
// known after one fetch, which the token itself causes.
func TestJ4Rotation(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		old, fresh := newOtherKey(t, "k1", "ES256"), newOtherKey(t, "k2", "ES256")
		r := newIDPRig(t, idpOptions(), old)
		p, err := r.use(t, otherToken(t, old, time.Now()))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(minInterval)
		r.idp.serve(idpKeys, keysOK(t, old, fresh))
		began := time.Now()
		if _, err := r.use(t, otherToken(t, fresh, time.Now())); err != nil || time.Since(began) > time.Second {
			t.Fatalf("the new key: %v after %v", err, time.Since(began))
		}
		if r.idp.hits() != 2 || r.changes() != 0 {
			t.Errorf("%d fetches, %d changes; want 2, 0", r.idp.hits(), r.changes())
		}
		// The same key, read again, is the same: what was verified stays so.
		if again, err := r.use(t, otherToken(t, old, p.ExpiresAt.Add(-15*time.Minute))); err != nil || again.Issuer != idpName {
			t.Errorf("the old key: %v", err)
		}
		if again, err := r.Recheck(t.Context(), p); again != p || err != nil {
			t.Errorf("recheck: %v, %v", again, err)
		}
	})
}

// A key that its issuer took back dies here with the next refresh, for tokens
// that had been seen too, and open tails are told.
func TestRemovedKeyDies(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		old, fresh := newOtherKey(t, "k1", "ES256"), newOtherKey(t, "k2", "ES256")
		r := newIDPRig(t, idpOptions(), old, fresh)
		token := otherToken(t, old, time.Now())
		p, err := r.use(t, token)
		if err != nil {
			t.Fatal(err)
		}
		child := r.exchange(t, token)
		grandchild := r.exchange(t, child)
		ofChild, err := r.use(t, child)
		if err != nil {
			t.Fatal(err)
		}
		r.idp.serve(idpKeys, keysOK(t, fresh))
		time.Sleep(refreshEvery)
		bubble.Wait()
		if r.changes() != 1 {
			t.Errorf("%d announcements, want 1", r.changes())
		}
		hits := r.idp.hits()
		for name, token := range map[string]string{"seen": token, "unseen": otherToken(t, old, p.ExpiresAt.Add(-15*time.Minute), "jti", "x"), "child": child, "grandchild": grandchild} {
			for range 2 {
				if _, err := r.use(t, token); !errors.Is(err, ErrTokenKey) {
					t.Errorf("%s: got %v, want ErrTokenKey", name, err)
				}
			}
		}
		for name, p := range map[string]*Principal{"token": p, "child": ofChild} {
			if _, err := r.Recheck(t.Context(), p); !errors.Is(err, ErrTokenKey) {
				t.Errorf("recheck of the %s: %v", name, err)
			}
		}
		if r.idp.hits() != hits {
			t.Errorf("asked %d times about a key that was surely gone", r.idp.hits()-hits)
		}
		// The same id with another key behind it.
		impostor := newOtherKey(t, "k2", "ES256")
		seen := otherToken(t, fresh, time.Now())
		if _, err := r.use(t, seen); err != nil {
			t.Fatal(err)
		}
		r.idp.serve(idpKeys, keysOK(t, impostor))
		time.Sleep(refreshEvery)
		bubble.Wait()
		if _, err := r.use(t, seen); !errors.Is(err, ErrTokenSignature) {
			t.Errorf("after its key was replaced: %v", err)
		}
	})
}

// A flood of unknown ids kept an issuer busy, or used up what a true rotation
// needed. There is one fetch each interval at most, and the new key is known
// after the next one, though nobody but the flood asks.
func TestFloodOfUnknownKeys(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		key, fresh := newOtherKey(t, "k1", "ES256"), newOtherKey(t, "k2", "ES256")
		stranger := newOtherKey(t, "", "ES256")
		r := newIDPRig(t, idpOptions(), key)
		began := time.Now()
		flood := func(i int) {
			stranger.kid = fmt.Sprint("flood-", i)
			_, err := r.use(t, otherToken(t, stranger, time.Now()))
			if !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrTokenKey) {
				t.Errorf("flood: %v", err)
			}
		}
		for i := range 300 {
			flood(i)
			time.Sleep(100 * time.Millisecond)
		}
		if most := int(time.Since(began)/minInterval) + 1; r.idp.hits() > most {
			t.Errorf("asked %d times in %v, want %d at most", r.idp.hits(), time.Since(began), most)
		}
		// Right after a fetch, the worst moment.
		for hits := r.idp.hits(); r.idp.hits() == hits; time.Sleep(100 * time.Millisecond) {
			flood(0)
		}
		r.idp.serve(idpKeys, keysOK(t, key, fresh))
		rotated := time.Now()
		for i := 0; ; i++ {
			flood(i)
			_, err := r.use(t, otherToken(t, fresh, time.Now()))
			if err == nil {
				break
			}
			unavailable(t, err)
			if time.Since(rotated) > 2*minInterval {
				t.Fatal("the flood keeps the new key out")
			}
			time.Sleep(100 * time.Millisecond)
		}
		if waited := time.Since(rotated); waited > minInterval+time.Second {
			t.Errorf("the new key was known after %v, want %v at most", waited, minInterval)
		}
		// Those whose tokens are older than the set know at once, and nobody is asked.
		hits := r.idp.hits()
		if _, err := r.use(t, otherToken(t, stranger, time.Now().Add(-2*publishLag))); !errors.Is(err, ErrTokenKey) || r.idp.hits() != hits {
			t.Errorf("an old token of an unknown key: %v after %d fetches", err, r.idp.hits()-hits)
		}
	})
}

// A request whose key may be new asks once; the fetch is made at the end of the
// interval though it is the only one.
func TestScheduledFetch(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		key, fresh := newOtherKey(t, "k1", "ES256"), newOtherKey(t, "k2", "ES256")
		r := newIDPRig(t, idpOptions(), key)
		r.idp.serve(idpKeys, keysOK(t, key, fresh))
		time.Sleep(time.Second)
		_, err := r.use(t, otherToken(t, fresh, time.Now()))
		unavailable(t, err)
		if r.idp.hits() != 1 {
			t.Errorf("asked %d times within the interval", r.idp.hits())
		}
		time.Sleep(minInterval)
		bubble.Wait()
		if r.idp.hits() != 2 {
			t.Errorf("asked %d times, want 2", r.idp.hits())
		}
		if _, err := r.use(t, otherToken(t, fresh, time.Now())); err != nil {
			t.Error(err)
		}
		// What a fetch did not bring that began after the token came is refused.
		time.Sleep(minInterval)
		if _, err := r.use(t, otherToken(t, newOtherKey(t, "k3", "ES256"), time.Now())); !errors.Is(err, ErrTokenKey) || r.idp.hits() != 3 {
			t.Errorf("no such key: %v after %d fetches", err, r.idp.hits())
		}
	})
}

// Many that wait for one fetch make one; those over the bound do not wait, and
// one that leaves takes nobody along.
func TestWaitersShareOneFetch(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		key, fresh, third := newOtherKey(t, "k1", "ES256"), newOtherKey(t, "k2", "ES256"), newOtherKey(t, "k3", "ES256")
		r := newIDPRig(t, idpOptions(), key)
		time.Sleep(minInterval)
		release := make(chan struct{})
		r.idp.serve(idpKeys, answer{status: http.StatusOK, body: keySetOf(t, key, fresh), wait: release})
		token := otherToken(t, fresh, time.Now())
		leaving, leave := context.WithCancel(t.Context())
		const all = 200
		errs := make([]error, all)
		var group sync.WaitGroup
		for i := range all {
			ctx := t.Context()
			if i == 0 {
				ctx = leaving
			}
			group.Go(func() { _, errs[i] = r.Authenticate(ctx, bearer(token)) })
			if i == 0 {
				bubble.Wait()
			}
		}
		bubble.Wait()
		leave()
		bubble.Wait()
		close(release)
		group.Wait()
		good := 0
		for _, err := range errs {
			if err == nil {
				good++
			} else {
				unavailable(t, err)
			}
		}
		if good != maxKeyWaiters-1 || r.idp.hits() != 2 || !errors.Is(errs[0], context.Canceled) {
			t.Errorf("%d served after %d fetches; want %d after 2; the one that left: %v", good, r.idp.hits(), maxKeyWaiters-1, errs[0])
		}
		if _, err := r.use(t, token); err != nil {
			t.Errorf("afterwards: %v", err)
		}
		time.Sleep(minInterval)
		r.idp.serve(idpKeys, keysOK(t, key, fresh, third))
		if _, err := r.use(t, otherToken(t, third, time.Now())); err != nil {
			t.Errorf("another key: %v", err)
		}
	})
}

func (r *idpRig) exchange(t *testing.T, subject string, pairs ...string) string {
	t.Helper()
	req, err := ParseExchange(exchangeForm(subject, pairs...))
	if err != nil {
		t.Fatal(err)
	}
	res, err := r.x.Exchange(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return res.AccessToken.Reveal()
}

// A token of another issuer may be exchanged, for less and no longer, and its
// children end with the issuer's right to name the account.
func TestExchangeOfAnotherIssuersToken(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		key := newOtherKey(t, "k1", "ES256")
		r := newIDPRig(t, idpOptions(), key)
		parent := otherToken(t, key, time.Now(), "exp", time.Now().Add(5*time.Minute).Unix())
		child := r.exchange(t, parent, "resource", rigOrigin+"/acme/s.events")
		grandchild := r.exchange(t, child)
		for name, token := range map[string]string{"child": child, "grandchild": grandchild} {
			p, err := r.use(t, token)
			if err != nil {
				t.Fatal(err)
			}
			if p.Issuer != rigOrigin || p.KeyID != idpName+"#app-1" || p.Subject != "user-7" || p.Access != tenant.ReadAccess ||
				p.Streams.Covers("other") || !p.ExpiresAt.Equal(time.Now().Add(5*time.Minute)) || strings.Join(p.Scopes, " ") != "streams:read" {
				t.Errorf("%s: %+v", name, p)
			}
		}
		req, refused := ParseExchange(exchangeForm(parent, "scope", "streams:write"))
		if refused != nil {
			t.Fatal(refused)
		}
		if _, refused := r.x.Exchange(t.Context(), req); refused == nil || refused.Code != CodeInvalidScope {
			t.Errorf("wider: %v", refused)
		}
		p, err := r.use(t, parent)
		if err != nil {
			t.Fatal(err)
		}
		narrower := func(edit func(*IssuerOptions)) []IssuerOptions {
			o := idpOptions()
			edit(&o)
			return []IssuerOptions{o}
		}
		for _, step := range []struct {
			name          string
			list          []IssuerOptions
			parent, child error
			told          bool
		}{
			{"one account less", narrower(func(o *IssuerOptions) { o.Accounts = o.Accounts[:1] }), nil, nil, true},
			{"as before", narrower(func(*IssuerOptions) {}), nil, nil, false},
			{"not this account", narrower(func(o *IssuerOptions) { o.Accounts = o.Accounts[1:] }), ErrTokenAccount, ErrTokenAccount, true},
			{"another audience", narrower(func(o *IssuerOptions) { o.Audience = "x" }), ErrTokenAudience, nil, true},
			{"another claim", narrower(func(o *IssuerOptions) { o.AccountClaim = "x" }), ErrTokenAccount, nil, true},
			{"gone", nil, ErrTokenIssuer, ErrTokenIssuer, true},
		} {
			told := r.changes()
			r.set(t, step.list...)
			if (r.changes() > told) != step.told {
				t.Errorf("%s: %d announcements, want some: %t", step.name, r.changes()-told, step.told)
			}
			if _, err := r.Recheck(t.Context(), p); !errors.Is(err, step.parent) {
				t.Errorf("%s: recheck of the parent: %v, want %v", step.name, err, step.parent)
			}
			for _, token := range []string{child, grandchild} {
				if _, err := r.use(t, token); !errors.Is(err, step.child) {
					t.Errorf("%s: child: %v, want %v", step.name, err, step.child)
				}
			}
			_, err := r.use(t, parent)
			if (err != nil) != (step.parent != nil) {
				t.Errorf("%s: parent: %v, want %v", step.name, err, step.parent)
			}
		}
	})
}

// After a start while the issuer is down, children of its tokens cannot be told
// good from bad.
func TestChildOfAnIssuerWithoutKeys(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		key := newOtherKey(t, "k1", "ES256")
		r := newIDPRig(t, idpOptions(), key)
		child := r.exchange(t, otherToken(t, key, time.Now()))
		r.idp.serve(idpKeys, answer{status: http.StatusBadGateway})
		r.set(t)
		r.set(t, idpOptions())
		_, err := r.use(t, child)
		unavailable(t, err)
	})
}

func TestIssuersSet(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		key := newOtherKey(t, "k1", "ES256")
		r := newIDPRig(t, idpOptions(), key)
		own := idpOptions()
		own.Issuer = rigOrigin
		bad := idpOptions()
		bad.Accounts = nil
		for name, list := range map[string][]IssuerOptions{
			"twice": {idpOptions(), idpOptions()}, "our own": {own}, "bad": {bad}, "too many": make([]IssuerOptions, maxIssuers+1),
		} {
			if err := r.issuers.Set(list); !errors.Is(err, ErrIssuerOptions) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := r.use(t, otherToken(t, key, time.Now())); err != nil {
			t.Errorf("after refused lists: %v", err)
		}
		moved := idpOptions()
		moved.JWKSURL = idpKeys + "2"
		r.idp.serve(moved.JWKSURL, keysOK(t, key))
		for range 100 { // reloads leak nothing, and keep what is known
			r.set(t, moved)
			r.set(t, moved)
		}
		if r.idp.hits() != 2 {
			t.Errorf("asked %d times, want 2", r.idp.hits())
		}
		r.idp.reset()
		time.Sleep(time.Hour)
		if slices.Contains(r.idp.log(), idpKeys) {
			t.Error("the old place is still asked")
		}
		if _, err := r.use(t, otherToken(t, key, time.Now())); err != nil {
			t.Errorf("after it moved: %v", err)
		}
		var none *Issuers
		if none.find(idpName) != nil {
			t.Error("nil has issuers")
		}
	})
}

// The process must be able to end while the issuer hangs.
func TestIssuersCloseDuringAFetch(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newIDPRig(t, idpOptions())
		r.set(t)
		r.idp.serve(idpKeys, badAnswers(t)["hangs"])
		r.set(t, idpOptions())
		key := newOtherKey(t, "k1", "ES256")
		ended := make(chan error)
		go func() {
			_, err := r.use(t, otherToken(t, key, time.Now()))
			ended <- err
		}()
		bubble.Wait()
		failures := r.failures()
		r.issuers.Close()
		unavailable(t, <-ended)
		if r.failures() != failures {
			t.Errorf("the end is told as a failure: %v", r.lastFailure())
		}
		hits := r.idp.hits()
		second := idpOptions()
		second.Issuer = "https://two.example.com"
		r.set(t, idpOptions(), second)
		time.Sleep(minInterval)
		began := time.Now()
		_, err := r.use(t, otherToken(t, key, time.Now()))
		unavailable(t, err)
		if time.Since(began) > 0 || r.idp.hits() != hits {
			t.Errorf("after the end: waited %v, asked %d times", time.Since(began), r.idp.hits()-hits)
		}
	})
}

// A request that joined a fetch begun before it came cannot be sure of what that
// did not bring; the next fetch comes by itself.
func TestJoinedFetchBringsNothing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		key, fresh := newOtherKey(t, "k1", "ES256"), newOtherKey(t, "k2", "ES256")
		r := newIDPRig(t, idpOptions(), key)
		time.Sleep(minInterval)
		release := make(chan struct{})
		slow := keysOK(t, key)
		slow.wait = release
		r.idp.serve(idpKeys, slow)
		errs := make(chan error)
		ask := func(k otherKey) {
			_, err := r.use(t, otherToken(t, k, time.Now()))
			errs <- err
		}
		go ask(newOtherKey(t, "k3", "ES256"))
		time.Sleep(time.Second)
		go ask(fresh)
		bubble.Wait()
		r.idp.serve(idpKeys, keysOK(t, key, fresh))
		close(release)
		first, second := <-errs, <-errs
		if errors.Is(first, ErrUnavailable) {
			first, second = second, first
		}
		if !errors.Is(first, ErrTokenKey) {
			t.Errorf("the one that asked: %v", first)
		}
		unavailable(t, second)
		time.Sleep(minInterval)
		bubble.Wait()
		if r.idp.hits() != 3 {
			t.Errorf("%d fetches an interval later, want 3", r.idp.hits())
		}
		if _, err := r.use(t, otherToken(t, fresh, time.Now())); err != nil {
			t.Errorf("an interval later: %v", err)
		}
	})
}
