package auth

import (
	"fmt"
	mathrand "math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"time"

	"sluice/internal/tenant"
)

// draw makes parents, requests and routes whose names overlap often.
type draw struct{ *mathrand.Rand }

func (d draw) oneOf(words ...string) string { return words[d.IntN(len(words))] }

func (d draw) name() string {
	name := d.oneOf("a", "b", "1")
	for range d.IntN(3) {
		name += d.oneOf("a", "b", ".a", "-", "A")
	}
	return name
}

func (d draw) pattern() string { return d.oneOf("", d.name(), d.name(), d.name()) + d.oneOf("*", "") }

func (d draw) streams() tenant.StreamSet {
	for {
		list := make([]string, d.IntN(4))
		for i := range list {
			list[i] = d.pattern()
		}
		if len(list) == 0 {
			return tenant.AllStreams()
		}
		if set, err := tenant.ParseStreamSet(list); err == nil {
			return set
		}
	}
}

func (d draw) key(now time.Time) func(*tenant.Key) {
	return func(k *tenant.Key) {
		k.Access, k.Streams = tenant.Access(d.oneOf("read", "write")), d.streams()
		k.ActsAs = tenant.ActsAs(d.oneOf("user", "agent"))
		if d.IntN(2) == 0 {
			k.ExpiresAt = now.Add(time.Duration(d.IntN(7200)) * time.Second).Add(time.Duration(d.IntN(1000)) * time.Millisecond)
		}
	}
}

// request asks for what is often within the parent and often not.
func (d draw) request(subject string) url.Values {
	form := exchangeForm(subject)
	if d.IntN(2) == 0 {
		form.Set("scope", d.oneOf("streams:read", "streams:write", "streams:read streams:write", ""))
	}
	for range d.IntN(3) {
		account := d.oneOf("acme", "acme", "acme", "acme", "other")
		form.Add("resource", d.oneOf(rigOrigin, rigOrigin, rigOrigin, "http://x")+"/"+account+"/s."+d.pattern())
	}
	if d.IntN(2) == 0 {
		form.Set("expires_in", fmt.Sprint(30+d.IntN(3571)))
	}
	return form
}

// A15: whatever is asked, a child never does what its parent may not, and never
// lives longer, over chains of exchanges.
func TestA15ChildIsSubsetOfParent(t *testing.T) {
	issued, narrower := 0, 0
	for seed := range uint64(400) {
		d := draw{mathrand.New(mathrand.NewPCG(seed, 7))} //nolint:gosec // the same each run
		r := newTokenRig(t, nil)
		subject := r.key(t, "acme/a", d.key(r.clock()))
		parent, refused := r.x.Subject(t.Context(), ExchangeRequest{SubjectToken: secretOf(subject)})
		for range 6 {
			if refused != nil {
				break // expired at once
			}
			form := d.request(subject)
			res, err := exchangeBy(t, r.x, form)
			r.pass(time.Duration(d.IntN(300)) * time.Second)
			if err != nil {
				continue
			}
			child, useErr := r.use(t, res.AccessToken.Reveal())
			if useErr != nil {
				continue // over, since time went by
			}
			issued++
			if compare(t, d, seed, parent, child, form) {
				narrower++
			}
			if d.IntN(3) > 0 { // go on from the child, else ask the parent again
				subject, parent = res.AccessToken.Reveal(), child
			}
		}
	}
	t.Logf("%d children, %d of them narrower", issued, narrower)
	if issued < 300 || narrower < 100 {
		t.Errorf("only %d children, %d of them narrower: the draw is too poor", issued, narrower)
	}
}

func exchangeBy(t *testing.T, x *Exchanger, form url.Values) (*ExchangeResponse, *ExchangeError) {
	t.Helper()
	req, err := ParseExchange(form)
	if err != nil {
		return nil, err
	}
	return x.Exchange(t.Context(), req)
}

// compare holds a child against its parent on random resources, and against
// what was asked. It reports whether the child may less somewhere.
func compare(t *testing.T, d draw, seed uint64, parent, child *Principal, form url.Values) (narrower bool) {
	t.Helper()
	if child.KeyID != parent.KeyID || child.Account != parent.Account {
		t.Fatalf("seed %d: child of %s, %s is %s, %s", seed, parent.KeyID, parent.Account, child.KeyID, child.Account)
	}
	if !parent.ExpiresAt.IsZero() && child.ExpiresAt.After(parent.ExpiresAt) {
		t.Fatalf("seed %d: child ends at %v, parent at %v", seed, child.ExpiresAt, parent.ExpiresAt)
	}
	asked := make(map[string]bool)
	for _, resource := range form["resource"] {
		asked[resource] = true
	}
	for range 60 {
		s := Resource{Account: tenant.AccountID(d.oneOf("acme", "acme", "other")), Name: tenant.StreamName(d.name()), Public: d.IntN(4) == 0}
		write := d.IntN(2) == 0
		have, parentErr := Decide(parent, s, write)
		got, childErr := Decide(child, s, write)
		switch {
		case childErr == nil && (parentErr != nil || got == Owner && have != Owner):
			t.Fatalf("seed %d: child may %v (write %t), parent: %v\nparent %+v\nchild %+v\nasked %v", seed, s, write, parentErr, parent, child, form)
		case got == Owner && len(asked) > 0 && !wasAsked(asked, s):
			t.Fatalf("seed %d: child owns %v, which nobody asked for: %v", seed, s, form)
		case childErr != nil && parentErr == nil:
			narrower = true
		}
	}
	return narrower
}

// wasAsked is what resources mean, in other words than the code's.
func wasAsked(asked map[string]bool, s Resource) bool {
	at := rigOrigin + "/" + string(s.Account) + "/s." + string(s.Name)
	for resource := range asked {
		if resource == at || strings.HasSuffix(resource, "*") && strings.HasPrefix(at, resource[:len(resource)-1]) {
			return true
		}
	}
	return false
}
