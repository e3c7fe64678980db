package auth

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"sluice/internal/tenant"
)

// A12: a token went on after the key that it was made from was revoked. Whatever
// takes something away from a key ends its tokens, whether they were seen before
// or not, and at the recheck of what is open.
func TestA12TokensEndWithTheirKey(t *testing.T) {
	narrow := func(edit func(*tenant.Key)) func(*testing.T, *tokenRig) {
		return func(t *testing.T, r *tokenRig) { r.key(t, "acme/a", edit) }
	}
	for _, tc := range []struct {
		name   string
		change func(*testing.T, *tokenRig)
		ends   bool
	}{
		{"revoked", func(t *testing.T, r *tokenRig) {
			if err := r.directory.RevokeKey("acme/a"); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"revoked in the file", narrow(func(k *tenant.Key) { k.RevokedAt = time.Unix(1, 0) }), true},
		{"removed", func(t *testing.T, r *tokenRig) {
			r.content.Keys = slices.DeleteFunc(r.content.Keys, func(k tenant.Key) bool { return k.ID == "acme/a" })
			r.replace(t)
		}, true},
		{"removed and back", func(t *testing.T, r *tokenRig) {
			all := slices.Clone(r.content.Keys)
			r.content.Keys = nil
			r.replace(t)
			r.content.Keys = all
			r.replace(t)
		}, true},
		{"another digest", narrow(func(k *tenant.Key) { k.Digest[0] ^= 1 }), true},
		{"reads only", narrow(func(k *tenant.Key) { k.Access = tenant.ReadAccess }), true},
		{"fewer streams", narrow(func(k *tenant.Key) { k.Streams = mustStreams(t, "events") }), true},
		{"now expires", narrow(func(k *tenant.Key) { k.ExpiresAt = time.Unix(4e9, 0) }), true},
		{"for an agent", narrow(func(k *tenant.Key) { k.ActsAs = tenant.Agent }), true},
		{"of another account", narrow(func(k *tenant.Key) { k.Account = "other" }), true},
		{"nothing", narrow(nil), false},
		{"another name", narrow(func(k *tenant.Key) { k.Name = "x" }), false},
		{"another key revoked", func(t *testing.T, r *tokenRig) {
			if err := r.directory.RevokeKey("acme/full"); err != nil {
				t.Fatal(err)
			}
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newTokenRig(t, nil)
			secret := r.key(t, "acme/a", nil)
			seen, unseen := r.token(t, secret), r.token(t, secret)
			grandchild := r.token(t, seen)
			p, err := r.use(t, seen)
			if err != nil {
				t.Fatal(err)
			}
			r.pass(time.Minute)
			tc.change(t, r)
			for name, token := range map[string]string{"seen": seen, "unseen": unseen, "grandchild": grandchild} {
				_, err := r.use(t, token)
				if errors.Is(err, ErrRevokedToken) != tc.ends || (err == nil) == tc.ends {
					t.Errorf("%s: got %v, want its end: %t", name, err, tc.ends)
				}
			}
			if again, err := r.Recheck(t.Context(), p); errors.Is(err, ErrRevokedToken) != tc.ends || (again == p) == tc.ends {
				t.Errorf("recheck: got %v, %v, want its end: %t", again, err, tc.ends)
			}
			if _, err := r.exchange(t, seen); (err != nil) != tc.ends {
				t.Errorf("exchange: got %v, want its end: %t", err, tc.ends)
			}
		})
	}
}

// A token made in the same second as its key's cutoff, but after it, was dead
// when it was made; and one that was made so outlived the next cutoff of the
// same second.
func TestCutoffsWithinOneSecond(t *testing.T) {
	r := newTokenRig(t, nil)
	sets := [][]string{{"a*"}, {"ab*"}, {"abc*"}}
	secret := r.key(t, "acme/a", nil)
	before := r.token(t, secret)
	for _, set := range sets {
		r.pass(time.Millisecond)
		r.key(t, "acme/a", func(k *tenant.Key) { k.Streams = mustStreams(t, set...) })
		if _, err := r.use(t, before); !errors.Is(err, ErrRevokedToken) {
			t.Fatalf("%v: the token made before it: %v, want ErrRevokedToken", set, err)
		}
		r.pass(time.Millisecond)
		after := r.token(t, secret)
		if p, err := r.use(t, after); err != nil || p.Streams.Patterns()[0] != set[0] {
			t.Fatalf("%v: the token made after it: %+v, %v", set, p, err)
		}
		before = after
	}
	if err := r.directory.RevokeKey("acme/a"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.use(t, before); !errors.Is(err, ErrRevokedToken) {
		t.Errorf("after the revocation: %v, want ErrRevokedToken", err)
	}
}

// A key that changes many times a second must not get tokens that nobody takes.
func TestCutoffsThatRunAhead(t *testing.T) {
	r := newTokenRig(t, nil)
	secret := r.key(t, "acme/a", nil)
	for i := range 40 {
		r.key(t, "acme/a", func(k *tenant.Key) { k.ExpiresAt = time.Unix(int64(4e9-i), 0) })
	}
	if _, err := r.exchange(t, secret); err == nil || err.Code != CodeTemporarilyUnavailable {
		t.Errorf("got %v, want temporarily_unavailable", err)
	}
	r.pass(20 * time.Second)
	if _, err := r.use(t, r.token(t, secret)); err != nil {
		t.Errorf("20 s later: %v", err)
	}
}

// A key was narrowed between the check of the subject and the making of the
// token, which then had the old rights and lived on.
func TestKeyNarrowedDuringTheExchange(t *testing.T) {
	for name, subject := range map[string]func(*tokenRig, string) string{
		"key":   func(_ *tokenRig, secret string) string { return secret },
		"token": func(r *tokenRig, secret string) string { return r.token(t, secret) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newTokenRig(t, nil)
			req, refused := ParseExchange(exchangeForm(subject(r, r.key(t, "acme/a", nil))))
			if refused != nil {
				t.Fatal(refused)
			}
			parent, refused := r.x.Subject(t.Context(), req)
			if refused != nil {
				t.Fatal(refused)
			}
			r.key(t, "acme/a", func(k *tenant.Key) { k.Access, k.Streams = tenant.ReadAccess, mustStreams(t, "events") })
			res, refused := r.x.Issue(t.Context(), parent, req)
			if parent.IsToken() {
				if refused == nil || refused.Code != CodeInvalidGrant {
					t.Errorf("got %v, %v; want invalid_grant", res, refused)
				}
				return
			}
			if refused != nil {
				t.Fatal(refused)
			}
			p, err := r.use(t, res.AccessToken.Reveal())
			if err != nil || p.Access != tenant.ReadAccess || p.Streams.Covers("other") {
				t.Errorf("got %+v, %v; want the rights as they are now", p, err)
			}
			if err := r.directory.RevokeKey("acme/a"); err != nil {
				t.Fatal(err)
			}
			if _, refused := r.x.Issue(t.Context(), parent, req); refused == nil || refused.Code != CodeInvalidGrant {
				t.Errorf("after the revocation: %v, want invalid_grant", refused)
			}
		})
	}
}

// A signing key that leaked is taken out of the list, and tokens that had been
// seen before went on from the memory of them.
func TestSigningKeyRemoved(t *testing.T) {
	r := newTokenRig(t, nil)
	token := r.token(t, r.secrets["acme/full"])
	p, err := r.use(t, token)
	if err != nil {
		t.Fatal(err)
	}
	fresh, err := tenant.GenerateSigningKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	// A rotation first: the new key is behind the old one, which signs.
	r.content.SigningKeys = []tenant.SigningKey{r.signing, fresh}
	r.replace(t)
	if _, err := r.use(t, token); err != nil {
		t.Errorf("after a key was added: %v", err)
	}
	r.content.SigningKeys = []tenant.SigningKey{fresh, r.signing}
	r.replace(t)
	if _, err := r.use(t, token); err != nil {
		t.Errorf("after the new key signs: %v", err)
	}
	second := r.token(t, r.secrets["acme/full"])
	r.content.SigningKeys = []tenant.SigningKey{fresh}
	r.replace(t)
	for range 2 {
		refusedToken(t, r, token, ErrTokenKey)
	}
	if _, err := r.Recheck(t.Context(), p); !errors.Is(err, ErrTokenKey) {
		t.Errorf("recheck: %v, want ErrTokenKey", err)
	}
	if _, err := r.use(t, second); err != nil {
		t.Errorf("a token of the new key: %v", err)
	}
	// The same id with another key behind it.
	impostor := fresh
	impostor.Private = r.signing.Private
	r.content.SigningKeys = []tenant.SigningKey{impostor}
	r.replace(t)
	refusedToken(t, r, second, ErrTokenSignature)
}

// A key that verifies no more ends what it signed, though it is in the list.
func TestSigningKeyPastItsEnd(t *testing.T) {
	r := newTokenRig(t, nil)
	token := r.token(t, r.secrets["acme/full"])
	r.content.SigningKeys[0].VerifyUntil = r.clock().Add(time.Minute)
	r.replace(t)
	if _, err := r.use(t, token); err != nil {
		t.Fatal(err)
	}
	r.pass(time.Minute)
	refusedToken(t, r, token, ErrTokenKey)
}

// A11: what was verified is not forgotten over an outage, nor served as good
// during one.
func TestTokenSeenDuringAnOutage(t *testing.T) {
	r := newTokenRig(t, nil)
	token := r.token(t, r.secrets["acme/full"])
	broken := &brokenDirectory{Directory: r.directory}
	r.Authenticator = New(Options{Directory: broken, Now: r.clock, Origin: rigOrigin})
	p, err := r.use(t, token)
	if err != nil {
		t.Fatal(err)
	}
	broken.signing = true
	_, err = r.use(t, token)
	onlyKind(t, err, ErrUnavailable)
	_, err = r.Recheck(t.Context(), p)
	onlyKind(t, err, ErrUnavailable)
	broken.signing = false
	if again, err := r.use(t, token); again != p || err != nil || r.TokenStats().Misses != 1 {
		t.Errorf("after it: %v, %v, %+v", again, err, r.TokenStats())
	}
}

func TestTokenExpires(t *testing.T) {
	r := newTokenRig(t, nil)
	token := r.token(t, r.secrets["acme/full"], "expires_in", "60")
	p, err := r.use(t, token)
	if err != nil {
		t.Fatal(err)
	}
	r.pass(59 * time.Second)
	if _, err := r.use(t, token); err != nil {
		t.Errorf("at 59 s: %v", err)
	}
	if again, err := r.Recheck(t.Context(), p); again != p || err != nil {
		t.Errorf("recheck at 59 s: %v, %v", again, err)
	}
	r.pass(time.Second)
	for range 2 { // from memory, then from the token itself
		_, err := r.use(t, token)
		onlyKind(t, err, ErrCredentialExpired)
	}
	_, err = r.Recheck(t.Context(), p)
	onlyKind(t, err, ErrCredentialExpired)
	// What can never be good again goes before expiry.
	if err := r.directory.RevokeKey("acme/full"); err != nil {
		t.Fatal(err)
	}
	_, err = r.use(t, token)
	onlyKind(t, err, ErrInvalidCredential)
}

// A13: random tokens filled the memory, and what was refused once stayed so.
func TestA13TokenMemoryIsBounded(t *testing.T) {
	r := newTokenRig(t, nil)
	r.Authenticator = New(Options{Directory: r.directory, Now: r.clock, Origin: rigOrigin, TokenCache: 8})
	later, err := tenant.GenerateSigningKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	early := mint(t, r.header().with("kid", later.ID), r.claims(), later.Private)
	for i := range 50 {
		refusedToken(t, r, mint(t, r.header(), r.claims().with("jti", fmt.Sprint(i)), later.Private), ErrTokenSignature)
		refusedToken(t, r, early, ErrTokenKey)
	}
	if s := r.TokenStats(); s.Entries != 0 || s.Capacity != 8 || s.Hits != 0 || s.Misses != 100 {
		t.Errorf("after refusals: %+v", s)
	}
	r.content.SigningKeys = append(r.content.SigningKeys, later)
	r.replace(t)
	if _, err := r.use(t, early); err != nil {
		t.Errorf("a token that was refused before its key was known: %v", err)
	}
	for i := range 50 {
		token := mint(t, r.header(), r.claims().with("jti", fmt.Sprint(i)), r.signing.Private)
		for range 2 {
			if _, err := r.use(t, token); err != nil {
				t.Fatal(err)
			}
		}
	}
	if s := r.TokenStats(); s.Entries != 8 || s.Hits != 50 {
		t.Errorf("after good ones: %+v", s)
	}
}

func TestRecheckKeys(t *testing.T) {
	r := newTokenRig(t, nil)
	p, err := r.use(t, r.key(t, "acme/a", nil))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := r.Recheck(t.Context(), nil); again != nil || err != nil {
		t.Errorf("a stranger: %v, %v", again, err)
	}
	r.key(t, "acme/a", func(k *tenant.Key) { k.Access, k.ExpiresAt = tenant.ReadAccess, r.clock().Add(time.Minute) })
	again, err := r.Recheck(t.Context(), p)
	if err != nil || again.Access != tenant.ReadAccess || again.ExpiresAt.IsZero() {
		t.Errorf("narrowed: %+v, %v", again, err)
	}
	r.pass(time.Minute)
	_, err = r.Recheck(t.Context(), p)
	onlyKind(t, err, ErrCredentialExpired)
	r.key(t, "acme/a", func(k *tenant.Key) { k.ActsAs = tenant.Agent })
	if _, err := r.Recheck(t.Context(), p); !errors.Is(err, ErrAgentKey) {
		t.Errorf("an agent's now: %v", err)
	}
	r.content.Keys = nil
	r.replace(t)
	if _, err := r.Recheck(t.Context(), p); !errors.Is(err, ErrUnknownKey) {
		t.Errorf("removed: %v", err)
	}
	for _, made := range []*Principal{{}, {KeyID: "acme/a"}, {TokenID: "x"}, {TokenID: "x", Issuer: rigOrigin}} {
		if _, err := r.Recheck(t.Context(), made); !errors.Is(err, ErrInvalidCredential) {
			t.Errorf("%+v, made by hand: %v", made, err)
		}
	}
}
