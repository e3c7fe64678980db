package manage

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/bubble"
	"sluice/internal/store"
	"sluice/internal/tenant"
)

// works reports whether a key opens the account.
func (g *rig) works(key string) bool {
	g.tb.Helper()
	got := g.ask(g.owner, key, http.MethodGet, "/v1/account", "")
	if got.status != http.StatusOK && got.status != http.StatusUnauthorized {
		g.tb.Errorf("%d %s", got.status, got.body)
	}
	return got.status == http.StatusOK
}

// A key is shown once, and works from the answer on; what is shown later opens nothing.
func TestKeyIsShownOnce(t *testing.T) {
	g := newRig(t)
	got := g.own(http.MethodPost, "/v1/api-keys", `{"name":"ci"}`)
	key, id := got.text("key"), got.text("id")
	if !g.works(key) || got.text("hint") != key[len(key)-4:] {
		t.Errorf("the key does not work, or has hint %q", got.text("hint"))
	}
	for _, r := range []answered{
		g.own(http.MethodGet, "/v1/api-keys", ""), g.own(http.MethodGet, "/v1/api-keys/"+id, ""), g.own(http.MethodPatch, "/v1/api-keys/"+id, `{"name":"other"}`),
	} {
		if r.status != http.StatusOK || strings.Contains(r.body, "tbo_") || strings.Contains(r.body, "sha256") {
			t.Errorf("%d %s", r.status, r.body)
		}
	}
	if got := g.own(http.MethodDelete, "/v1/api-keys/"+id, ""); got.status != http.StatusNoContent || g.works(key) {
		t.Errorf("revoke: %d %s", got.status, got.body)
	}
	if got := g.own(http.MethodGet, "/v1/api-keys/"+id, ""); got.text("revoked_at") == "" {
		t.Errorf("not shown as revoked: %s", got.body)
	}
}

// Both secrets work while they overlap. A rotation that is repeated, since its answer was
// lost, ends neither; where it is meant so, the older ends at once.
func TestRotation(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := newRig(t)
		got := g.own(http.MethodPost, "/v1/api-keys", `{"name":"ci"}`)
		first, path := got.text("key"), "/v1/api-keys/"+got.text("id")+"/rotate"
		got = g.own(http.MethodPost, path, `{"overlap_seconds":3600}`)
		second := got.text("key")
		if got.text("hint") != second[len(second)-4:] || got.text("old_hint") != first[len(first)-4:] || got.text("old_until") != "2000-01-01T01:00:00Z" {
			t.Errorf("%s", got.body)
		}
		if got = g.own(http.MethodPost, path, ""); got.refused() != "API_KEY_ROTATION_CONFLICT" || !g.works(first) || !g.works(second) {
			t.Errorf("repeated: %d %s; first works %t, second %t", got.status, got.body, g.works(first), g.works(second))
		}
		third := g.own(http.MethodPost, path, `{"end_older":true,"overlap_seconds":60}`).text("key")
		if g.works(first) || !g.works(second) || !g.works(third) {
			t.Errorf("end_older: first works %t, second %t, third %t", g.works(first), g.works(second), g.works(third))
		}
		time.Sleep(time.Minute)
		if g.works(second) || !g.works(third) {
			t.Errorf("after the overlap: second works %t, third %t", g.works(second), g.works(third))
		}
		fourth := g.own(http.MethodPost, path, `{"overlap_seconds":0}`).text("key")
		if g.works(third) || !g.works(fourth) {
			t.Errorf("no overlap: third works %t, fourth %t", g.works(third), g.works(fourth))
		}
	})
}

// What narrows and what widens, for each right by itself.
func TestWider(t *testing.T) {
	set := func(list ...string) *tenant.StreamSet {
		s, err := tenant.ParseStreamSet(list)
		if err != nil {
			t.Fatal(err)
		}
		return &s
	}
	all := tenant.AllStreams()
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	later := now.Add(time.Hour)
	read, write, user, agent := tenant.ReadAccess, tenant.WriteAccess, tenant.User, tenant.Agent
	key := func(access tenant.Access, actsAs tenant.ActsAs, streams tenant.StreamSet, expires time.Time) store.Key {
		return store.Key{Key: tenant.Key{Access: access, ActsAs: actsAs, Streams: streams, ExpiresAt: expires}}
	}
	for _, tt := range []struct {
		name string
		k    store.Key
		c    store.KeyChange
		want string
	}{
		{"read to write", key(read, user, all, now), store.KeyChange{Access: &write}, "access"},
		{"write to read", key(write, user, all, now), store.KeyChange{Access: &read}, ""},
		{"read to read", key(read, user, all, now), store.KeyChange{Access: &read}, ""},
		{"agent to user", key(write, agent, all, now), store.KeyChange{ActsAs: &user}, "acts_as"},
		{"user to agent", key(write, user, all, now), store.KeyChange{ActsAs: &agent}, ""},
		{"all to some", key(write, user, all, now), store.KeyChange{Streams: set("a*")}, ""},
		{"some to fewer", key(write, user, *set("a*", "b"), now), store.KeyChange{Streams: set("ab")}, ""},
		{"some to others", key(write, user, *set("a*"), now), store.KeyChange{Streams: set("ab", "b")}, "streams"},
		{"some to all", key(write, user, *set("a*"), now), store.KeyChange{Streams: &all}, "streams"},
		{"star to all, which would manage", key(write, user, *set("*"), now), store.KeyChange{Streams: &all}, "streams"},
		{"earlier", key(write, user, all, later), store.KeyChange{ExpiresAt: &now}, ""},
		{"later", key(write, user, all, now), store.KeyChange{ExpiresAt: &later}, "expires_at"},
		{"never to a time", key(write, user, all, time.Time{}), store.KeyChange{ExpiresAt: &now}, ""},
		{"a time to never", key(write, user, all, now), store.KeyChange{ExpiresAt: &time.Time{}}, "expires_at"},
		{"never to never", key(write, user, all, time.Time{}), store.KeyChange{ExpiresAt: &time.Time{}}, ""},
	} {
		if diff := cmp.Diff(tt.want, wider(tt.k, tt.c)); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
}

// A call beyond the rate said when to come back, and not what the rate is, which design §4
// has of every RATE_LIMITED.
func TestRateIsTold(t *testing.T) {
	g := newRig(t)
	o := g.options
	o.Allow = func(tenant.AccountID) Allowance {
		return Allowance{RetryAfter: 1500 * time.Millisecond, PerSecond: 20, Burst: 50}
	}
	got := g.ask(NewOwner(o), g.key, http.MethodGet, "/v1/account", "")
	for name, want := range map[string]string{
		"Retry-After": "2", "RateLimit-Policy": `"management";q=50;w=3`, "RateLimit": `"management";r=0;t=2`,
	} {
		if value := got.header.Get(name); got.refused() != "RATE_LIMITED" || value != want {
			t.Errorf("%d %s: %s: %s, want %s", got.status, got.body, name, value, want)
		}
	}
}

// Without randomness there is no key and no stream, rather than one that can be guessed.
func TestNoRandomness(t *testing.T) {
	g := newRig(t)
	o := g.options
	o.Random = bytes.NewReader(nil)
	for target, body := range map[string]string{"/v1/api-keys": `{"name":"ci"}`, "/v1/streams": events} {
		r := g.request(g.key, http.MethodPost, target, body)
		r.Header.Set(requestIDHeader, "mine")
		got := g.send(NewOwner(o), r)
		if got.refused() != "INTERNAL" || got.header.Get(requestIDHeader) != "mine" {
			t.Errorf("%s: %d %s %v", target, got.status, got.body, got.header)
		}
	}
}
