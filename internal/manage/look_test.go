package manage

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/zap"

	"sluice/internal/refusal"
	"sluice/internal/tenant"
)

// A look at the owner's API says what a call is refused for by its head, as the call is, and
// counts nothing; what only the store can tell it leaves open.
func TestLookAtACall(t *testing.T) {
	g := newRig(t)
	o := g.options
	o.Allow = func(tenant.AccountID) Allowance {
		t.Error("a look counts a call")
		return Allowance{OK: true}
	}
	for _, tc := range []struct {
		method, target, key string
		want                int // 0 = the store decides
	}{
		{http.MethodGet, "/v1/streams", g.key, 0},
		{http.MethodGet, "/v1/openapi.yaml", "", 0},
		{http.MethodGet, "/v1/streams/none", g.key, 0},
		{http.MethodGet, "/v1/streams", "", http.StatusUnauthorized},
		{http.MethodGet, "/v1/streams", "tbo_nonsense", http.StatusUnauthorized},
		{http.MethodGet, "/v1/streams?x=1", g.key, http.StatusBadRequest},
		{http.MethodGet, "/v1/nothing", g.key, http.StatusNotFound},
		{http.MethodPatch, "/v1/streams", g.key, http.StatusMethodNotAllowed},
	} {
		_, err := NewOwner(o).Look(g.request(tc.key, tc.method, tc.target, ""))
		var r *refusal.Refusal
		switch {
		case errors.As(err, &r):
			if got := g.ask(g.owner, tc.key, tc.method, tc.target, ""); r.Status() != tc.want || got.status != tc.want || got.text("error", "code") != string(r.Code) {
				t.Errorf("%s %s: a look says %d %s, the call %d %s", tc.method, tc.target, r.Status(), r.Code, got.status, got.body)
			}
		case err != nil || tc.want != 0:
			t.Errorf("%s %s: %v", tc.method, tc.target, err)
		}
	}
}

// A look at a client's own change of a stream says what beginning it says, and begins nothing.
func TestLookAtAChange(t *testing.T) {
	g := newRig(t)
	p := NewProtocol(ProtocolOptions{Streams: g.options.Streams, Reconciler: g.options.Reconciler, Log: zap.NewNop(), Random: g.options.Random, Region: "eu"})
	look := func(name string, remove bool) refusal.Code {
		t.Helper()
		c := StreamChange{
			Account: testAccount, Stream: tenant.StreamName(name), Remove: remove, ContentType: "text/plain", Deadline: time.Now().Add(time.Second),
			KeyID: "key_1", Client: netip.MustParseAddr("192.0.2.1"), RequestID: "r1",
		}
		var looked, begun *refusal.Refusal
		if err := p.Look(context.Background(), c); err != nil && !errors.As(err, &looked) {
			t.Fatal(err)
		}
		if looked == nil {
			return ""
		}
		if _, err := p.Begin(context.Background(), c); !errors.As(err, &begun) || begun.Code != looked.Code || begun.Header.Get("Retry-After") != looked.Header.Get("Retry-After") {
			t.Errorf("%s: a look says %v, it is told %v", name, looked, err)
		}
		return looked.Code
	}
	if got := look("new", false); got != "" {
		t.Errorf("a new one: %s", got)
	}
	if got := g.own(http.MethodGet, "/v1/streams/new", ""); got.status != http.StatusNotFound {
		t.Errorf("a look has begun it: %d %s", got.status, got.body)
	}
	g.own(http.MethodPost, "/v1/streams", `{"name":"old","content_type":"text/plain"}`)
	if got := look("old", true); got != "" {
		t.Errorf("one that is there: %s", got)
	}
	g.own(http.MethodDelete, "/v1/streams/old", "")
	if got := g.own(http.MethodGet, "/v1/streams/old", ""); got.status == http.StatusOK {
		if code := look("old", false); code != refusal.StreamTaken {
			t.Errorf("one that goes: %q", code)
		}
	}
}
