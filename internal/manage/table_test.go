package manage

import (
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/auth"
	"sluice/internal/bubble"
	"sluice/internal/store"
	"sluice/internal/tenant"
)

// world is what the calls of the tables meet: an account with streams and keys of all
// kinds, one that is stated in the operator's file, and accounts that may not.
func world(t *testing.T, change ...func(*ReconcilerOptions, *Options)) *rig {
	g := newRig(t, change...)
	must := func(got answered, status int) answered {
		t.Helper()
		if got.status != status {
			t.Fatalf("%d %s, want %d", got.status, got.body, status)
		}
		return got
	}
	g.declare(t)
	for name, body := range map[string]string{
		"reads": `{"name":"reads","access":"read"}`, "narrowed": `{"name":"narrowed","streams":["orders*"]}`,
		"star": `{"name":"star","streams":["*"]}`, "agent": `{"name":"agent","acts_as":"agent"}`,
		"expired": `{"name":"expired","expires_at":"` + time.Now().Add(time.Second).UTC().Format(time.RFC3339Nano) + `"}`,
		"revoked": `{"name":"revoked"}`, "rotated": `{"name":"rotated"}`, "spare": `{"name":"spare"}`,
	} {
		got := must(g.own(http.MethodPost, "/v1/api-keys", body), http.StatusCreated)
		g.keys[name], g.ids[name] = got.text("key"), got.text("id")
	}
	must(g.own(http.MethodDelete, "/v1/api-keys/"+g.ids["revoked"], ""), http.StatusNoContent)
	must(g.own(http.MethodPost, "/v1/api-keys/"+g.ids["rotated"]+"/rotate", ""), http.StatusOK)
	must(g.own(http.MethodPost, "/v1/streams", `{"name":"orders","content_type":"application/json"}`), http.StatusCreated)
	for _, state := range []string{"unpaid", "revoked"} {
		g.keys[state+" account"] = g.newAccount(tenant.AccountID("is-" + state))
		must(g.ask(g.operator, "", http.MethodPatch, "/v1/accounts/is-"+state, `{"state":"`+state+`"}`), http.StatusOK)
	}
	time.Sleep(2 * time.Second) // "expired" is
	return g
}

// declare applies an operator's file that states an account with a stream and a key.
func (g *rig) declare(t *testing.T) {
	t.Helper()
	key, err := auth.GenerateKey(g.options.Random)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.store.Declare(t.Context(), store.Declaration{
		Accounts: []store.Account{{ID: "stated", State: tenant.Active}},
		Streams:  []tenant.Stream{{Account: "stated", Name: "orders", ContentType: "text/plain"}},
		Keys: []tenant.Key{{
			ID: "stated/ci", Account: "stated", Name: "ci", Digest: tenant.DigestOf(key.Reveal()),
			Access: tenant.WriteAccess, Streams: tenant.AllStreams(), ActsAs: tenant.User, Declared: true,
		}},
	}); err != nil {
		t.Fatal(err)
	}
	g.keys[""], g.keys["good"], g.keys["stated"] = "", g.key, key.Reveal()
}

// row is a call and what it is answered.
type row struct {
	key, method, target, body string
	status                    int
	refused                   string // code and field
}

// play makes a call of a table; {kind} stands for the id of a key.
func (g *rig) play1(a *API, r row) answered {
	for name, id := range g.ids {
		r.target = strings.ReplaceAll(r.target, "{"+name+"}", id)
	}
	key, known := g.keys[r.key]
	if !known {
		key = r.key
	}
	got := g.ask(a, key, r.method, r.target, r.body)
	if got.status != r.status || got.refused() != r.refused {
		g.tb.Errorf("%s %s %s with key %q: %d %s, want %d %s", r.method, r.target, r.body, r.key, got.status, got.body, r.status, r.refused)
	}
	return got
}

// What each kind of credential is told, in the order of the request path.
func whoMayManage(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := world(t)
		list := row{"", "GET", "/v1/streams", "", 200, ""}
		for _, r := range []row{
			{key: "good", status: 200},
			{key: "stated", status: 200},
			{key: "", status: 401, refused: "INVALID_CREDENTIAL"},
			{key: "tbo_nonsense", status: 401, refused: "INVALID_CREDENTIAL"},
			{key: "revoked", status: 401, refused: "INVALID_CREDENTIAL"},
			{key: "expired", status: 401, refused: "CREDENTIAL_EXPIRED"},
			{key: "reads", status: 403, refused: "FORBIDDEN"},
			{key: "narrowed", status: 403, refused: "FORBIDDEN"},
			{key: "star", status: 403, refused: "FORBIDDEN"},
			{key: "agent", status: 403, refused: "FORBIDDEN"},
			{key: "unpaid account", status: 402, refused: "PAYMENT_REQUIRED"},
			{key: "revoked account", status: 403, refused: "ACCOUNT_REVOKED"},
		} {
			list.key, list.status, list.refused = r.key, r.status, r.refused
			got := g.play1(g.owner, list)
			if challenged := got.header.Get("WWW-Authenticate") != ""; challenged != (r.status == 401) {
				t.Errorf("%s: challenge %q", r.key, got.header.Get("WWW-Authenticate"))
			}
		}
		two := g.request(g.key, http.MethodGet, "/v1/streams", "")
		two.Header.Add("Authorization", "Bearer "+g.key)
		if got := g.send(g.owner, two); got.refused() != "INVALID_CREDENTIAL" {
			t.Errorf("two credentials: %d %s", got.status, got.body)
		}
	})
}

// A token does not manage, whatever it reaches.
func TestTokenDoesNotManage(t *testing.T) {
	err := mayManage(&auth.Principal{TokenID: "x", ActsAs: tenant.User, Access: tenant.WriteAccess, Streams: tenant.AllStreams()})
	ref := asRefusal(err)
	if ref.Status() != http.StatusForbidden || !strings.Contains(ref.Header.Get("WWW-Authenticate"), "insufficient_scope") {
		t.Errorf("%v %v", ref, ref.Header)
	}
}

// Every call of the owner's, in order: each row meets what those before it left.
func ownersCalls(t *testing.T) {
	const later = `2099-01-01T00:00:00Z`
	bubble.Test(t, func(t *testing.T) {
		g := world(t)
		for _, r := range []row{
			{"good", "GET", "/v1/account", "", 200, ""},
			{"good", "HEAD", "/v1/account", "", 200, ""},
			{"", "GET", "/v1/openapi.yaml", "", 200, ""},
			{"", "GET", "/v1/openapi.yaml?x=1", "", 400, "INVALID_QUERY x"},
			{"good", "GET", "/v1/usage?from=2026-01-01T00:00:00Z&to=2026-02-01T00:00:00Z", "", 200, ""},
			{"good", "GET", "/v1/usage?from=1999-01-01T02:00:00%2B02:00", "", 400, "INVALID_QUERY from"}, // of a year ago
			{"good", "GET", "/v1/usage?from=2026-01-01T00:00:00Z&to=2026-02-01T01:00:00Z", "", 400, "INVALID_QUERY from"},
			{"good", "GET", "/v1/usage?from=2026-01-01T00:00:00Z&to=2026-01-01T00:00:00Z", "", 400, "INVALID_QUERY to"},
			{"good", "GET", "/v1/usage?from=2026-01-01T00:30:00Z", "", 400, "INVALID_QUERY from"},
			{"good", "GET", "/v1/usage?to=2026-01-01", "", 400, "INVALID_QUERY to"},
			{"good", "GET", "/v1/usage?class=admin", "", 400, "INVALID_QUERY class"},
			{"good", "GET", "/v1/usage?class=append&limit=0", "", 400, "INVALID_QUERY limit"},
			{"good", "GET", "/v1/usage?cursor=dXNhZ2U6MSAyIDM", "", 400, "INVALID_QUERY cursor"}, // usage:1 2 3
			{"good", "GET", "/v1/usage/batches", "", 404, "NOT_FOUND"},

			{"good", "GET", "/v1/audit?limit=2&action=stream.create&since=2000-01-01T00:00:00Z&until=2099-01-01T00:00:00z&actor=key_1&target=events", "", 200, ""},
			{"good", "HEAD", "/v1/audit", "", 200, ""},
			{"good", "GET", "/v1/audit?since=yesterday", "", 400, "INVALID_QUERY since"},
			{"good", "GET", "/v1/audit?until=2027-06-01", "", 400, "INVALID_QUERY until"},
			{"good", "GET", "/v1/audit?action=stream.eat", "", 400, "INVALID_QUERY action"},
			{"good", "GET", "/v1/audit?actor=", "", 400, "INVALID_QUERY actor"},
			{"good", "GET", "/v1/audit?target=%00", "", 400, "INVALID_QUERY target"},
			{"good", "GET", "/v1/audit?target=%ff", "", 400, "INVALID_QUERY target"},
			{"good", "GET", "/v1/audit?cursor=YXVkaXQ6eA", "", 400, "INVALID_QUERY cursor"},
			{"good", "GET", "/v1/audit?cursor=YXVkaXQ6LTE", "", 400, "INVALID_QUERY cursor"},
			{"good", "GET", "/v1/audit?limit=201", "", 400, "INVALID_QUERY limit"},
			{"good", "GET", "/v1/audit?prefix=x", "", 400, "INVALID_QUERY prefix"},
			{"good", "POST", "/v1/audit", "", 405, "METHOD_NOT_ALLOWED"},
			{"good", "GET", "/v1/audit/1", "", 404, "NOT_FOUND"},
			{"good", "GET", "/v1/audit?account=acme", "", 400, "INVALID_QUERY account"},

			{"good", "POST", "/v1/streams", `{"name":"events","content_type":"application/json","public":true,"region":"eu","expires_at":"` + later + `"}`, 201, ""},
			{"good", "POST", "/v1/streams", `{"name":"events","content_type":"Application/JSON","public":true,"expires_at":"2098-12-31T23:00:00-01:00"}`, 409, "STREAM_ALREADY_EXISTS_CONFLICT"},
			{"good", "POST", "/v1/streams", `{"name":"events","content_type":"text/plain","public":true,"expires_at":"` + later + `"}`, 409, "STREAM_ALREADY_EXISTS_CONFLICT content_type"},
			{"good", "POST", "/v1/streams", `{"name":"events","content_type":"application/json","expires_at":"` + later + `"}`, 409, "STREAM_ALREADY_EXISTS_CONFLICT public"},
			{"good", "POST", "/v1/streams", `{"name":"events","content_type":"application/json","public":true,"expires_at":null}`, 409, "STREAM_ALREADY_EXISTS_CONFLICT expires_at"},
			{"good", "POST", "/v1/streams", `{"name":".x","content_type":"text/plain"}`, 400, "INVALID_REQUEST name"},
			{"good", "POST", "/v1/streams", `{"name":"` + strings.Repeat("x", 101) + `","content_type":"text/plain"}`, 400, "INVALID_REQUEST name"},
			{"good", "POST", "/v1/streams", `{"name":"x","content_type":"json"}`, 400, "INVALID_REQUEST content_type"},
			{"good", "POST", "/v1/streams", `{"name":"x","content_type":"text/plain\r\nA: b"}`, 400, "INVALID_REQUEST content_type"},
			{"good", "POST", "/v1/streams", `{"name":"x","content_type":"a/` + strings.Repeat("b", 254) + `"}`, 400, "INVALID_REQUEST content_type"},
			{"good", "POST", "/v1/streams", `{"name":"x"}`, 400, "INVALID_REQUEST content_type"},
			{"good", "POST", "/v1/streams", `{"content_type":"text/plain"}`, 400, "INVALID_REQUEST name"},
			{"good", "POST", "/v1/streams", `{"name":"x","content_type":"text/plain","region":"us"}`, 400, "INVALID_REQUEST region"},
			{"good", "POST", "/v1/streams", `{"name":"x","content_type":"text/plain","expires_at":"2000-01-01T00:00:30Z"}`, 400, "INVALID_REQUEST expires_at"},
			{"good", "POST", "/v1/streams", `{"name":"x","content_type":"text/plain","expires_at":"tomorrow"}`, 400, "INVALID_REQUEST expires_at"},
			{"good", "POST", "/v1/streams", `{"name":"x","content_type":"text/plain","public":"yes"}`, 400, "INVALID_REQUEST public"},
			{"good", "POST", "/v1/streams", `{"name":"x","content_type":"text/plain","expires_at":"0001-01-01T00:00:00Z"}`, 400, "INVALID_REQUEST expires_at"},
			{"good", "POST", "/v1/streams", `{"name":"x","content_type":"text/plain","expires_at":"9999-12-31T23:59:59-23:59"}`, 400, "INVALID_REQUEST expires_at"},
			{"good", "GET", "/v1/streams", "", 200, ""},
			{"good", "GET", "/v1/streams?prefix=ev&limit=1", "", 200, ""},
			{"good", "GET", "/v1/streams?prefix=.", "", 400, "INVALID_QUERY prefix"},
			{"good", "GET", "/v1/streams?limit=0", "", 400, "INVALID_QUERY limit"},
			{"good", "GET", "/v1/streams?limit=201", "", 400, "INVALID_QUERY limit"},
			{"good", "GET", "/v1/streams?limit=", "", 400, "INVALID_QUERY limit"},
			{"good", "GET", "/v1/streams?limit=1&limit=2", "", 400, "INVALID_QUERY limit"},
			{"good", "GET", "/v1/streams?cursor=x", "", 400, "INVALID_QUERY cursor"},
			{"good", "GET", "/v1/streams?a;b", "", 400, "INVALID_QUERY"},
			{"good", "GET", "/v1/streams", "{}", 400, "INVALID_REQUEST"},
			{"good", "GET", "/v1/streams/events", "", 200, ""},
			// One thing had as many paths as its name can be escaped.
			{"good", "GET", "/v1/streams/%65vents", "", 400, "INVALID_REQUEST"},
			{"good", "GET", "/v1/streams/event%73", "", 400, "INVALID_REQUEST"},
			{"good", "DELETE", "/v1/%73treams/events", "", 404, "NOT_FOUND"},
			{"good", "GET", "/v1/streams/..%2Fevents", "", 400, "INVALID_REQUEST name"},
			{"good", "GET", "/v1/%6eone", "", 404, "NOT_FOUND"},
			{"good", "GET", "/v1/streams/none", "", 404, "STREAM_NOT_FOUND"},
			{"good", "GET", "/v1/streams/.x", "", 400, "INVALID_REQUEST name"},
			{"good", "PATCH", "/v1/streams/events", `{"public":false}`, 200, ""},
			{"good", "PATCH", "/v1/streams/events", `{}`, 400, "INVALID_REQUEST public"},
			{"good", "PATCH", "/v1/streams/events", `{"public":false,"name":"x"}`, 400, "INVALID_REQUEST name"},
			{"good", "PATCH", "/v1/streams/none", `{"public":false}`, 404, "STREAM_NOT_FOUND"},
			{"stated", "PATCH", "/v1/streams/orders", `{"public":true}`, 409, "DECLARED_CONFLICT"},
			{"stated", "DELETE", "/v1/streams/orders", "", 409, "DECLARED_CONFLICT"},
			{"good", "DELETE", "/v1/streams/events", "", 202, ""},
			{"good", "DELETE", "/v1/streams/events", "", 404, "STREAM_NOT_FOUND"},
			{"good", "PATCH", "/v1/streams/events", `{"public":true}`, 404, "STREAM_NOT_FOUND"},

			{"good", "POST", "/v1/api-keys", `{"name":"ci","access":"read","streams":["orders","a.*"],"acts_as":"agent","expires_at":"` + later + `"}`, 201, ""},
			{"good", "POST", "/v1/api-keys", `{"name":"ci"}`, 409, "API_KEY_ALREADY_EXISTS_CONFLICT"},
			{"good", "POST", "/v1/api-keys", `{"name":"revoked"}`, 201, ""},
			{"good", "POST", "/v1/api-keys", `{"name":"all","streams":null,"expires_at":null}`, 201, ""},
			{"good", "POST", "/v1/api-keys", `{}`, 400, "INVALID_REQUEST name"},
			{"good", "POST", "/v1/api-keys", `{"name":""}`, 400, "INVALID_REQUEST name"},
			{"good", "POST", "/v1/api-keys", `{"name":" x"}`, 400, "INVALID_REQUEST name"},
			{"good", "POST", "/v1/api-keys", `{"name":"x\u200b"}`, 400, "INVALID_REQUEST name"},
			// It was stored as U+FFFD.
			{"good", "POST", "/v1/api-keys", `{"name":"\ud800"}`, 400, "INVALID_REQUEST"},
			{"good", "POST", "/v1/api-keys", `{"name":"` + strings.Repeat("é", 101) + `"}`, 400, "INVALID_REQUEST name"},
			{"good", "POST", "/v1/api-keys", `{"name":"x","access":"admin"}`, 400, "INVALID_REQUEST access"},
			{"good", "POST", "/v1/api-keys", `{"name":"x","acts_as":null}`, 400, "INVALID_REQUEST acts_as"},
			{"good", "POST", "/v1/api-keys", `{"name":"x","streams":[]}`, 400, "INVALID_REQUEST streams"},
			{"good", "POST", "/v1/api-keys", `{"name":"x","streams":["a*b"]}`, 400, "INVALID_REQUEST streams"},
			{"good", "POST", "/v1/api-keys", `{"name":"x","streams":[1]}`, 400, "INVALID_REQUEST streams"},
			{"good", "POST", "/v1/api-keys", `{"name":"x","streams":"a"}`, 400, "INVALID_REQUEST streams"},
			{"good", "POST", "/v1/api-keys", `{"name":"x","streams":["a"` + strings.Repeat(`,"a"`, 100) + `]}`, 400, "INVALID_REQUEST streams"},
			{"good", "POST", "/v1/api-keys", `{"name":"x","expires_at":"2000-01-01T00:00:00Z"}`, 400, "INVALID_REQUEST expires_at"},
			{"good", "POST", "/v1/api-keys", `{"name":"x","expires_at":"0001-01-01T01:00:00+01:00"}`, 400, "INVALID_REQUEST expires_at"},
			{"good", "POST", "/v1/api-keys", `{"name":"x","expires_at":"9999-12-31T23:59:59-23:59"}`, 400, "INVALID_REQUEST expires_at"},
			{"good", "POST", "/v1/api-keys/{expired}/rotate", "", 409, "API_KEY_ROTATION_CONFLICT"},
			{"good", "GET", "/v1/api-keys?limit=2", "", 200, ""},
			{"good", "GET", "/v1/api-keys?prefix=x", "", 400, "INVALID_QUERY prefix"},
			{"good", "GET", "/v1/api-keys/{reads}", "", 200, ""},
			{"good", "GET", "/v1/api-keys/none", "", 404, "API_KEY_NOT_FOUND"},
			{"good", "GET", "/v1/api-keys/%00", "", 404, "API_KEY_NOT_FOUND"},
			{"good", "GET", "/v1/api-keys/%ff", "", 404, "API_KEY_NOT_FOUND"},
			{"good", "GET", "/v1/api-keys/stated%2Fci", "", 404, "API_KEY_NOT_FOUND"},
			{"stated", "GET", "/v1/api-keys/stated%2Fci", "", 200, ""},
			{"stated", "PATCH", "/v1/api-keys/stated%2Fci", `{"access":"read"}`, 409, "DECLARED_CONFLICT"},
			{"stated", "POST", "/v1/api-keys/stated%2Fci/rotate", "", 409, "DECLARED_CONFLICT"},
			{"stated", "DELETE", "/v1/api-keys/stated%2Fci", "", 409, "DECLARED_CONFLICT"},
			{"good", "PATCH", "/v1/api-keys/{spare}", `{}`, 400, "INVALID_REQUEST"},
			{"good", "PATCH", "/v1/api-keys/{spare}", `{"name":"ci"}`, 409, "API_KEY_ALREADY_EXISTS_CONFLICT"},
			{"good", "PATCH", "/v1/api-keys/{spare}", `{"name":"renamed","streams":["orders","a*"],"expires_at":"` + later + `"}`, 200, ""},
			{"good", "PATCH", "/v1/api-keys/{spare}", `{"streams":["b"]}`, 400, "INVALID_REQUEST streams"},
			{"good", "PATCH", "/v1/api-keys/{spare}", `{"streams":null}`, 400, "INVALID_REQUEST streams"},
			{"good", "PATCH", "/v1/api-keys/{star}", `{"streams":null}`, 400, "INVALID_REQUEST streams"},
			{"good", "PATCH", "/v1/api-keys/{spare}", `{"expires_at":null}`, 400, "INVALID_REQUEST expires_at"},
			{"good", "PATCH", "/v1/api-keys/{spare}", `{"expires_at":"2099-01-01T00:00:01Z"}`, 400, "INVALID_REQUEST expires_at"},
			{"good", "PATCH", "/v1/api-keys/{spare}", `{"access":"read","acts_as":"agent","streams":["ab"]}`, 200, ""},
			{"good", "PATCH", "/v1/api-keys/{spare}", `{"access":"write"}`, 400, "INVALID_REQUEST access"},
			{"good", "PATCH", "/v1/api-keys/{spare}", `{"acts_as":"user"}`, 400, "INVALID_REQUEST acts_as"},
			{"good", "PATCH", "/v1/api-keys/none", `{"access":"read"}`, 404, "API_KEY_NOT_FOUND"},
			{"good", "PATCH", "/v1/api-keys/{revoked}", `{"access":"read"}`, 409, "API_KEY_REVOKED_CONFLICT"},
			{"good", "POST", "/v1/api-keys/{spare}/rotate", `{"overlap_seconds":0}`, 200, ""},
			{"good", "POST", "/v1/api-keys/{spare}/rotate", `{"overlap_seconds":60}`, 200, ""},
			{"good", "POST", "/v1/api-keys/{spare}/rotate", "", 409, "API_KEY_ROTATION_CONFLICT"},
			{"good", "POST", "/v1/api-keys/{spare}/rotate", `{"end_older":true}`, 200, ""},
			{"good", "POST", "/v1/api-keys/{rotated}/rotate", `{"overlap_seconds":2592001}`, 400, "INVALID_REQUEST overlap_seconds"},
			{"good", "POST", "/v1/api-keys/{rotated}/rotate", `{"overlap_seconds":1.5}`, 400, "INVALID_REQUEST overlap_seconds"},
			{"good", "POST", "/v1/api-keys/{rotated}/rotate", `{"overlap_seconds":null}`, 400, "INVALID_REQUEST overlap_seconds"},
			{"good", "POST", "/v1/api-keys/{revoked}/rotate", "", 409, "API_KEY_REVOKED_CONFLICT"},
			{"good", "POST", "/v1/api-keys/none/rotate", "", 404, "API_KEY_NOT_FOUND"},
			{"good", "DELETE", "/v1/api-keys/{spare}", "", 204, ""},
			{"good", "DELETE", "/v1/api-keys/{spare}", "", 204, ""},
			{"good", "DELETE", "/v1/api-keys/none", "", 404, "API_KEY_NOT_FOUND"},

			{"", "GET", "/v1/", "", 404, "NOT_FOUND"},
			{"", "GET", "/v1/streams/", "", 404, "NOT_FOUND"},
			{"", "GET", "/v1/streams/a/b", "", 404, "NOT_FOUND"},
			{"", "GET", "/v1/api-keys/a/b", "", 404, "NOT_FOUND"},
			{"", "GET", "/v1//streams", "", 404, "NOT_FOUND"},
			{"", "GET", "/v2/streams", "", 404, "NOT_FOUND"},
			{"", "GET", "/v1/accounts", "", 404, "NOT_FOUND"},
			{"", "GET", "/v1/accounts/acme/streams", "", 404, "NOT_FOUND"},
			{"", "PUT", "/v1/streams", "", 405, "METHOD_NOT_ALLOWED"},
			{"", "OPTIONS", "/v1/streams", "", 405, "METHOD_NOT_ALLOWED"},
		} {
			g.play1(g.owner, r)
		}
	})
}

// Every call of the operator's, in order.
func operatorsCalls(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := world(t)
		for _, r := range []row{
			{"", "POST", "/v1/accounts", `{"id":"zeta","state":"active","limits":{"burst":0,"open_tails":null},"api_key":{"name":"boss","access":"write"}}`, 201, ""},
			{"", "POST", "/v1/accounts", `{"id":"zeta"}`, 409, "ACCOUNT_ALREADY_EXISTS_CONFLICT"},
			{"", "POST", "/v1/accounts", `{"id":"snapshots"}`, 400, "INVALID_REQUEST id"},
			{"", "POST", "/v1/accounts", `{}`, 400, "INVALID_REQUEST id"},
			{"", "POST", "/v1/accounts", `{"id":"other","state":"deleted"}`, 400, "INVALID_REQUEST state"},
			{"", "POST", "/v1/accounts", `{"id":"other","limits":{"burst":-1}}`, 400, "INVALID_REQUEST limits.burst"},
			{"", "POST", "/v1/accounts", `{"id":"other","limits":{"request_bytes":33554433}}`, 400, "INVALID_REQUEST limits.request_bytes"},
			{"", "POST", "/v1/accounts", `{"id":"other","limits":{"bursts":1}}`, 400, "INVALID_REQUEST limits.bursts"},
			{"", "POST", "/v1/accounts", `{"id":"other","limits":{"burst":1,"burst":2}}`, 400, "INVALID_REQUEST limits.burst"},
			{"", "POST", "/v1/accounts", `{"id":"other","limits":[]}`, 400, "INVALID_REQUEST limits"},
			{"", "POST", "/v1/accounts", `{"id":"other","api_key":{}}`, 400, "INVALID_REQUEST api_key.name"},
			{"", "POST", "/v1/accounts", `{"id":"other","api_key":{"name":"x","streams":[]}}`, 400, "INVALID_REQUEST api_key.streams"},
			{"", "POST", "/v1/accounts", `{"id":"other","api_key":null}`, 400, "INVALID_REQUEST api_key"},
			{"", "GET", "/v1/accounts?prefix=is-&limit=1", "", 200, ""},
			{"", "GET", "/v1/accounts?prefix=A", "", 400, "INVALID_QUERY prefix"},
			{"", "GET", "/v1/accounts/zeta", "", 200, ""},
			{"", "GET", "/v1/accounts/zeta/usage?from=2026-01-01T00:00:00Z&to=2026-02-01T00:00:00Z&class=live_read&limit=1", "", 200, ""},
			{"", "GET", "/v1/accounts/zeta/usage?from=x", "", 400, "INVALID_QUERY from"},
			{"", "GET", "/v1/accounts/none/usage", "", 404, "ACCOUNT_NOT_FOUND"},
			{"", "GET", "/v1/usage/batches?after=7&limit=200", "", 200, ""},
			{"", "GET", "/v1/usage/batches?after=-1", "", 400, "INVALID_QUERY after"},
			{"", "GET", "/v1/usage/batches?after=01", "", 400, "INVALID_QUERY after"},
			{"", "GET", "/v1/usage/batches?after=99999999999999999999", "", 400, "INVALID_QUERY after"},
			{"", "GET", "/v1/usage/batches?limit=201", "", 400, "INVALID_QUERY limit"},
			{"", "GET", "/v1/usage", "", 404, "NOT_FOUND"},
			{"", "GET", "/v1/accounts/none", "", 404, "ACCOUNT_NOT_FOUND"},
			{"", "GET", "/v1/audit?account=none", "", 404, "ACCOUNT_NOT_FOUND"},
			{"", "GET", "/v1/accounts/A", "", 400, "INVALID_REQUEST account"},
			{"", "PATCH", "/v1/accounts/zeta", `{"state":"unpaid","limits":{"burst":null,"uploads":2.0}}`, 200, ""},
			{"", "PATCH", "/v1/accounts/zeta", `{}`, 400, "INVALID_REQUEST"},
			{"", "PATCH", "/v1/accounts/zeta", `{"limits":{"burst":"1"}}`, 400, "INVALID_REQUEST limits.burst"},
			{"", "PATCH", "/v1/accounts/none", `{"state":"unpaid"}`, 404, "ACCOUNT_NOT_FOUND"},
			{"", "PATCH", "/v1/accounts/none", `{"limits":{}}`, 404, "ACCOUNT_NOT_FOUND"},
			{"", "PATCH", "/v1/accounts/stated", `{"state":"unpaid"}`, 409, "DECLARED_CONFLICT"},
			{"", "DELETE", "/v1/accounts/stated", "", 409, "DECLARED_CONFLICT"},

			{"", "POST", "/v1/accounts/zeta/streams", `{"name":"a","content_type":"text/plain"}`, 201, ""},
			{"", "POST", "/v1/accounts/zeta/streams", `{"name":"a","content_type":"text/plain"}`, 409, "STREAM_ALREADY_EXISTS_CONFLICT"},
			{"", "POST", "/v1/accounts/zeta/streams", `{"name":"a"}`, 400, "INVALID_REQUEST content_type"},
			{"", "POST", "/v1/accounts/none/streams", `{"name":"a","content_type":"text/plain"}`, 404, "ACCOUNT_NOT_FOUND"},
			{"", "GET", "/v1/accounts/zeta/streams", "", 200, ""},
			{"", "GET", "/v1/accounts/zeta/streams?x=1", "", 400, "INVALID_QUERY x"},
			{"", "GET", "/v1/accounts/none/streams", "", 404, "ACCOUNT_NOT_FOUND"},
			{"", "GET", "/v1/accounts/zeta/streams/a", "", 200, ""},
			{"", "GET", "/v1/accounts/zeta/streams/..", "", 400, "INVALID_REQUEST name"},
			{"", "GET", "/v1/accounts/zeta/streams/b", "", 404, "STREAM_NOT_FOUND"},
			{"", "PATCH", "/v1/accounts/zeta/streams/a", `{"public":true}`, 200, ""},
			{"", "PATCH", "/v1/accounts/zeta/streams/a", `{"public":1}`, 400, "INVALID_REQUEST public"},
			{"", "PATCH", "/v1/accounts/zeta/streams/b", `{"public":true}`, 404, "STREAM_NOT_FOUND"},
			{"", "PATCH", "/v1/accounts/stated/streams/orders", `{"public":true}`, 409, "DECLARED_CONFLICT"},
			{"", "DELETE", "/v1/accounts/stated/streams/orders", "", 409, "DECLARED_CONFLICT"},
			{"", "DELETE", "/v1/accounts/zeta/streams/a?x=1", "", 400, "INVALID_QUERY x"},
			{"", "DELETE", "/v1/accounts/zeta/streams/a", "", 202, ""},
			{"", "DELETE", "/v1/accounts/zeta/streams/a", "", 404, "STREAM_NOT_FOUND"},

			{"", "POST", "/v1/accounts/acme/api-keys", `{"name":"operator's"}`, 201, ""},
			{"", "POST", "/v1/accounts/acme/api-keys", `{"name":"operator's"}`, 409, "API_KEY_ALREADY_EXISTS_CONFLICT"},
			{"", "POST", "/v1/accounts/acme/api-keys", `{"name":1}`, 400, "INVALID_REQUEST name"},
			{"", "POST", "/v1/accounts/none/api-keys", `{"name":"x"}`, 404, "ACCOUNT_NOT_FOUND"},
			{"", "GET", "/v1/accounts/acme/api-keys", "", 200, ""},
			{"", "GET", "/v1/accounts/acme/api-keys?limit=x", "", 400, "INVALID_QUERY limit"},
			{"", "GET", "/v1/accounts/none/api-keys", "", 404, "ACCOUNT_NOT_FOUND"},
			{"", "GET", "/v1/accounts/acme/api-keys/{reads}", "", 200, ""},
			{"", "GET", "/v1/accounts/acme/api-keys/{reads}?x=1", "", 400, "INVALID_QUERY x"},
			{"", "GET", "/v1/accounts/zeta/api-keys/{reads}", "", 404, "API_KEY_NOT_FOUND"},
			{"", "PATCH", "/v1/accounts/acme/api-keys/{reads}", `{"acts_as":"agent"}`, 200, ""},
			{"", "PATCH", "/v1/accounts/acme/api-keys/{reads}", `{"acts_as":"user"}`, 400, "INVALID_REQUEST acts_as"},
			{"", "PATCH", "/v1/accounts/acme/api-keys/none", `{"acts_as":"user"}`, 404, "API_KEY_NOT_FOUND"},
			{"", "PATCH", "/v1/accounts/acme/api-keys/{revoked}", `{"access":"read"}`, 409, "API_KEY_REVOKED_CONFLICT"},
			{"", "POST", "/v1/accounts/acme/api-keys/{reads}/rotate", "", 200, ""},
			{"", "POST", "/v1/accounts/acme/api-keys/{reads}/rotate", "", 409, "API_KEY_ROTATION_CONFLICT"},
			{"", "POST", "/v1/accounts/acme/api-keys/{reads}/rotate", `{"x":1}`, 400, "INVALID_REQUEST x"},
			{"", "POST", "/v1/accounts/acme/api-keys/none/rotate", "", 404, "API_KEY_NOT_FOUND"},
			{"", "DELETE", "/v1/accounts/acme/api-keys/{reads}", "", 204, ""},
			{"", "DELETE", "/v1/accounts/acme/api-keys/{reads}", "{}", 400, "INVALID_REQUEST"},
			{"", "DELETE", "/v1/accounts/acme/api-keys/none", "", 404, "API_KEY_NOT_FOUND"},
			{"", "DELETE", "/v1/accounts/stated/api-keys/stated%2Fci", "", 409, "DECLARED_CONFLICT"},

			{"", "DELETE", "/v1/accounts/zeta?x=1", "", 400, "INVALID_QUERY x"},
			{"", "DELETE", "/v1/accounts/zeta", "", 204, ""},
			{"", "DELETE", "/v1/accounts/zeta", "", 404, "ACCOUNT_NOT_FOUND"},
			{"", "POST", "/v1/accounts", `{"id":"zeta"}`, 409, "ACCOUNT_ALREADY_EXISTS_CONFLICT"},
			{"", "GET", "/v1/openapi.yaml", "", 200, ""},

			{"", "GET", "/v1/audit?limit=2&action=stream.create&since=2000-01-01T00:00:00Z&until=2099-01-01T00:00:00z&actor=key_1&target=events", "", 200, ""},
			{"", "HEAD", "/v1/audit", "", 200, ""},
			{"", "GET", "/v1/audit?since=yesterday", "", 400, "INVALID_QUERY since"},
			{"", "GET", "/v1/audit?until=2027-06-01", "", 400, "INVALID_QUERY until"},
			{"", "GET", "/v1/audit?action=stream.eat", "", 400, "INVALID_QUERY action"},
			{"", "GET", "/v1/audit?actor=", "", 400, "INVALID_QUERY actor"},
			{"", "GET", "/v1/audit?target=%00", "", 400, "INVALID_QUERY target"},
			{"", "GET", "/v1/audit?target=%ff", "", 400, "INVALID_QUERY target"},
			{"", "GET", "/v1/audit?cursor=YXVkaXQ6eA", "", 400, "INVALID_QUERY cursor"},
			{"", "GET", "/v1/audit?cursor=YXVkaXQ6LTE", "", 400, "INVALID_QUERY cursor"},
			{"", "GET", "/v1/audit?limit=201", "", 400, "INVALID_QUERY limit"},
			{"", "GET", "/v1/audit?prefix=x", "", 400, "INVALID_QUERY prefix"},
			{"", "POST", "/v1/audit", "", 405, "METHOD_NOT_ALLOWED"},
			{"", "GET", "/v1/audit/1", "", 404, "NOT_FOUND"},
			{"", "GET", "/v1/audit?account=acme", "", 200, ""},
			{"", "GET", "/v1/audit?account=x", "", 400, "INVALID_QUERY account"},
			{"", "GET", "/v1/streams", "", 404, "NOT_FOUND"},
			{"", "GET", "/v1/account", "", 404, "NOT_FOUND"},
			{"", "PUT", "/v1/accounts/zeta", "", 405, "METHOD_NOT_ALLOWED"},
		} {
			g.play1(g.operator, r)
		}
		// That of an account's end: its streams go too.
		time.Sleep(settled)
		list, err := g.store.Unsettled(t.Context(), 10)
		// Nobody makes the one that the file states here.
		list = slices.DeleteFunc(list, func(s store.Stream) bool { return s.State == store.Live && s.Declared })
		if err != nil || len(list) > 0 {
			t.Errorf("left: %v %v", list, err)
		}
	})
}

// slowBody is one that stops coming: the server's deadline ends it.
type slowBody struct{}

func (slowBody) Read([]byte) (int, error) { return 0, os.ErrDeadlineExceeded }

// calls are one good call of each operation; those that take a body are told by it.
func calls(operator bool) []row {
	p := "/v1"
	list := make([]row, 0, 16)
	if operator {
		p = "/v1/accounts/acme"
		list = append(list, []row{
			{"", "GET", "/v1/accounts", "", 200, ""},
			{"", "GET", "/v1/usage/batches", "", 200, ""},
			{"", "POST", "/v1/accounts", `{"id":"fresh"}`, 201, ""},
			{"", "GET", p, "", 200, ""},
			{"", "PATCH", p, `{"state":"active"}`, 200, ""},
			{"", "DELETE", p, "", 204, ""},
		}...)
	} else {
		list = append(list, row{"", "GET", "/v1/account", "", 200, ""})
	}
	return append(list,
		row{"", "GET", "/v1/audit", "", 200, ""},
		row{"", "GET", p + "/usage", "", 200, ""},
		row{"", "GET", p + "/streams", "", 200, ""},
		row{"", "POST", p + "/streams", `{"name":"fresh","content_type":"text/plain"}`, 201, ""},
		row{"", "GET", p + "/streams/orders", "", 200, ""},
		row{"", "PATCH", p + "/streams/orders", `{"public":true}`, 200, ""},
		row{"", "DELETE", p + "/streams/orders", "", 202, ""},
		row{"", "GET", p + "/api-keys", "", 200, ""},
		row{"", "POST", p + "/api-keys", `{"name":"fresh"}`, 201, ""},
		row{"", "GET", p + "/api-keys/{spare}", "", 200, ""},
		row{"", "PATCH", p + "/api-keys/{spare}", `{"access":"read"}`, 200, ""},
		row{"", "DELETE", p + "/api-keys/{spare}", "", 204, ""},
		row{"", "POST", p + "/api-keys/{spare}/rotate", `{"overlap_seconds":1}`, 200, ""},
	)
}

// Each operation, with what can befall any: who asks, bodies that are none, a rate, a store
// that is gone, a fault of ours. Then every answer that openapi.yaml has was seen.
func everything(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := world(t, func(_ *ReconcilerOptions, o *Options) {
			o.Allow = func(a tenant.AccountID) Allowance {
				return Allowance{OK: a != "is-busy", RetryAfter: 1500 * time.Millisecond, PerSecond: 20, Burst: 50}
			}
		})
		g.keys["good"], g.keys["busy"] = g.key, g.newAccount("is-busy")
		gone, broken := g.options, g.options
		out, ours := brokenStore{err: store.ErrUnavailable}, brokenStore{err: errors.New("a fault of ours")}
		gone.Streams, gone.Keys, gone.Accounts, gone.Audit, gone.Usage = out, out, out, out, out
		broken.Streams, broken.Keys, broken.Accounts, broken.Audit, broken.Usage = ours, ours, ours, ours, ours
		for _, operator := range []bool{false, true} {
			build := map[bool]func(Options) *API{false: NewOwner, true: NewOperator}[operator]
			for _, r := range calls(operator) {
				try := func(a *API, key, method, target, body string, status int, refused string) {
					t.Helper()
					g.play1(a, row{key, method, target, body, status, refused})
				}
				whole := build(g.options)
				if !operator {
					try(whole, "", r.method, r.target, r.body, 401, "INVALID_CREDENTIAL")
					try(whole, "reads", r.method, r.target, r.body, 403, "FORBIDDEN")
					try(whole, "unpaid account", r.method, r.target, r.body, 402, "PAYMENT_REQUIRED")
					try(whole, "busy", r.method, r.target, r.body, 429, "RATE_LIMITED")
				}
				try(whole, "good", r.method, r.target+"?x=1", r.body, 400, "INVALID_QUERY x")
				if r.body != "" {
					for _, body := range []string{"{", "[]", "null", `"x"`, "{}{}", "{\"a\xff\":1}", r.body + "x"} {
						try(whole, "good", r.method, r.target, body, 400, "INVALID_REQUEST")
					}
					try(whole, "good", r.method, r.target, `{"x":1}`, 400, "INVALID_REQUEST x")
					try(whole, "good", r.method, r.target, `{"":1}`, 400, "INVALID_REQUEST")
					try(whole, "good", r.method, r.target, `{"NAME":1,"`+strings.Repeat("y", 100)+`":1}`, 400, "INVALID_REQUEST NAME")
					try(whole, "good", r.method, r.target, `{"x":1,"x":2}`, 400, "INVALID_REQUEST x")
					try(whole, "good", r.method, r.target, `{"x":"`+strings.Repeat("x", maxBody)+`"}`, 413, "REQUEST_TOO_LARGE")
					g.badBodies(whole, r)
				}
				if r.target != "/v1/account" {
					got := g.ask(build(gone), g.key, r.method, g.named(r.target), r.body)
					if got.refused() != "STORE_UNAVAILABLE" || got.header.Get("Retry-After") == "" {
						t.Errorf("%s %s without a store: %d %s", r.method, r.target, got.status, got.body)
					}
					if got := g.ask(build(broken), g.key, r.method, g.named(r.target), r.body); got.refused() != "INTERNAL" {
						t.Errorf("%s %s with a fault: %d %s", r.method, r.target, got.status, got.body)
					}
				}
			}
		}
		g.directoryGone()
	})
}

// named puts ids of keys into a path.
func (g *rig) named(target string) string {
	for name, id := range g.ids {
		target = strings.ReplaceAll(target, "{"+name+"}", id)
	}
	return target
}

// badBodies are faults of a body that are not of its text.
func (g *rig) badBodies(a *API, r row) {
	for _, bad := range []struct {
		refused string
		spoil   func(*http.Request)
	}{
		{"INVALID_REQUEST Content-Type", func(q *http.Request) { q.Header.Set("Content-Type", "text/plain") }},
		{"INVALID_REQUEST Content-Type", func(q *http.Request) { q.Header.Del("Content-Type") }},
		// These were taken, as if somebody before had read them otherwise.
		{"INVALID_REQUEST Content-Type", func(q *http.Request) { q.Header.Add("Content-Type", "application/json") }},
		{"INVALID_REQUEST Content-Type", func(q *http.Request) { q.Header.Set("Content-Type", "application/json; charset=utf-16") }},
		{"INVALID_REQUEST Content-Encoding", func(q *http.Request) { q.Header.Set("Content-Encoding", "gzip") }},
		{"INVALID_REQUEST Content-Encoding", func(q *http.Request) { q.Header["Content-Encoding"] = []string{"identity", "br"} }},
		{"BODY_TOO_SLOW", func(q *http.Request) { q.Body, q.ContentLength = io.NopCloser(slowBody{}), -1 }},
		{"BODY_UNREADABLE", func(q *http.Request) { q.Body = io.NopCloser(io.MultiReader(strings.NewReader("{"), brokenBody{})) }},
		{"REQUEST_TOO_LARGE", func(q *http.Request) {
			q.Body, q.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat(" ", maxBody+1))), -1
		}},
	} {
		q := g.request(g.key, r.method, g.named(r.target), r.body)
		bad.spoil(q)
		if got := g.send(a, q); got.refused() != bad.refused {
			g.tb.Errorf("%s %s: %d %s, want %s", r.method, r.target, got.status, got.body, bad.refused)
		}
	}
}

type brokenBody struct{}

func (brokenBody) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// directoryGone asks while keys, and then accounts, cannot be looked up.
func (g *rig) directoryGone() {
	for code, spoil := range map[string]func(*Options){
		"AUTHENTICATION_UNAVAILABLE": func(o *Options) { o.Authenticator = auth.New(auth.Options{Directory: brokenDirectory{}}) },
		"AUTHORIZATION_UNAVAILABLE":  func(o *Options) { o.Directory = brokenDirectory{} },
	} {
		o := g.options
		spoil(&o)
		for _, r := range calls(false) {
			if got := g.ask(NewOwner(o), g.key, r.method, g.named(r.target), r.body); got.refused() != code || got.header.Get("Retry-After") == "" {
				g.tb.Errorf("%s %s: %d %s, want %s", r.method, r.target, got.status, got.body, code)
			}
		}
	}
}

// The whole API by its tables. Each answer is held against openapi.yaml as it comes, and
// after them each answer that stands there was one, but for those that are not this
// package's: the operator's credential is looked at by who mounts the API, and nothing of
// the account call can fail in a way of its own.
func TestAPI(t *testing.T) {
	c, err := theContract()
	if err != nil {
		t.Fatal(err)
	}
	t.Run("who may manage", whoMayManage)
	t.Run("owner's calls", ownersCalls)
	t.Run("operator's calls", operatorsCalls)
	t.Run("what befalls any call", everything)
	operators := []string{"listAccounts", "createAccount", "showAccountOf", "updateAccount", "deleteAccount"}
	for _, missing := range c.unseen() {
		op, status, _ := strings.Cut(missing, " ")
		mounted := strings.HasPrefix(op, "operator") || slices.Contains(operators, op)
		if (mounted && (status == "401" || status == "403")) || missing == "showAccount 500" {
			continue
		}
		t.Errorf("%s is documented, and no test meets it", missing)
	}
}
