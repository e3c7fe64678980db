package memory

import (
	"fmt"
	"testing"
	"time"

	"sluice/internal/tenant"
)

// A key that is gone has no end of its cutoff: a token's "iat" by another
// clock, a little ahead, must not pass it. One that is back has its cutoff where
// it came back.
func TestCutoffOfAKeyThatIsGone(t *testing.T) {
	r := newRig(t)
	far := r.clock().Add(1000 * time.Hour)
	if !r.Cutoff("acme/never-was").After(far) {
		t.Error("an id that no key has has no cutoff")
	}
	keys := r.content.Keys
	r.replace(t, func(c *Content) { c.Keys = c.Keys[1:] })
	if !r.Cutoff("acme/a").After(far) {
		t.Errorf("removed: %v", r.Cutoff("acme/a"))
	}
	r.pass(time.Minute)
	r.replace(t, func(c *Content) { c.Keys = keys })
	if got := r.Cutoff("acme/a"); !got.Equal(r.clock()) {
		t.Errorf("back: %v, want %v", got, r.clock())
	}
	if err := r.RevokeKey("acme/a"); err != nil || !r.Cutoff("acme/a").After(far) {
		t.Errorf("revoked: %v, %v", r.Cutoff("acme/a"), err)
	}
}

// Of two digests of one id, one that goes takes the tokens of both along, since
// they cannot be told apart; the key lives on.
func TestCutoffOfASecondSecret(t *testing.T) {
	r := newRig(t)
	r.replace(t, func(c *Content) {
		k := c.Keys[0]
		k.Digest[0] ^= 1
		c.Keys = append(c.Keys, k)
	})
	r.replace(t, func(c *Content) { c.Keys = c.Keys[1:] })
	if got := r.Cutoff("acme/a"); !got.Equal(r.clock()) {
		t.Errorf("got %v, want %v", got, r.clock())
	}
}

// Each cutoff lies behind every "iat" that could be given after the one before.
func TestCutoffsNeverMoveBack(t *testing.T) {
	r := newRig(t)
	narrow := func(i int) {
		r.replace(t, func(c *Content) { c.Keys[0].ExpiresAt = time.Unix(int64(4e9-i), 0) })
	}
	narrow(0)
	last := r.Cutoff("acme/a")
	for i, d := range []time.Duration{0, time.Millisecond, time.Second, -time.Hour, 3 * time.Hour, time.Millisecond} {
		r.pass(d)
		narrow(i + 1)
		got := r.Cutoff("acme/a")
		issued := last.Truncate(time.Second).Add(time.Second) // the first after last
		if now := r.clock(); got.Before(now) || i < 3 && got.Before(issued) {
			t.Errorf("%v later: %v, want it at %v and %v or later", d, got, now, issued)
		}
		last = got
	}
}

// Cutoffs are kept as long as a token can live, over any number of other
// changes, and forgotten then.
func TestCutoffsAreForgotten(t *testing.T) {
	r := newRig(t)
	r.replace(t, func(c *Content) {
		for i := range 50 {
			k := c.Keys[0]
			k.ID = fmt.Sprint("acme/", i)
			k.Digest = tenant.DigestOf(k.ID)
			c.Keys = append(c.Keys, k)
		}
	})
	r.replace(t, func(c *Content) {
		c.Keys = c.Keys[:3]
		c.Keys[0].Access = tenant.ReadAccess
	})
	r.pass(tenant.CutoffKept - time.Second)
	r.replace(t, func(c *Content) { c.Keys[1].Access = tenant.ReadAccess })
	if r.Cutoff("acme/a").IsZero() || len(r.current.Load().cutoffs) != 52 {
		t.Errorf("a second early: %v, %d cutoffs", r.Cutoff("acme/a"), len(r.current.Load().cutoffs))
	}
	r.pass(time.Second)
	r.replace(t, func(*Content) {})
	if !r.Cutoff("acme/a").IsZero() || r.Cutoff("acme/b").IsZero() || len(r.current.Load().cutoffs) != 1 {
		t.Errorf("at its end: %v, %v, %d cutoffs", r.Cutoff("acme/a"), r.Cutoff("acme/b"), len(r.current.Load().cutoffs))
	}
}
