package manage

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/internal/bubble"
	"sluice/internal/store"
	"sluice/internal/tenant"
)

// records are those that a listener shows for a query, the newest first.
func (g *rig) records(a *API, key, query string) []recordJSON {
	g.tb.Helper()
	got := g.ask(a, key, http.MethodGet, "/v1/audit"+query, "")
	var page struct {
		Records []recordJSON `json:"records"`
	}
	if err := json.Unmarshal([]byte(got.body), &page); err != nil || got.status != http.StatusOK {
		g.tb.Fatalf("audit%s: %d %s", query, got.status, got.body)
	}
	return page.Records
}

// from sends a request as the gateway hands it on, of a client.
func (g *rig) from(a *API, client string, r *http.Request) answered {
	g.tb.Helper()
	rec := httptest.NewRecorder()
	if _, err := a.Serve(rec, r, netip.MustParseAddr(client)); err != nil {
		g.tb.Fatal(err)
	}
	return answered{g.tb, rec.Code, rec.Header(), rec.Body.String()}
}

// change is what a call of an operation leaves in the records: "" = nothing.
type change struct{ action, target, details string }

// changesByOperation are what the records say of a good call of each operation, on either
// listener. One that is missing here has to get a record, or to be said to need none.
func changesByOperation() map[string]change {
	const none = ""
	return map[string]change{
		"createStream": {"stream.create", "fresh", "content_type"},
		"updateStream": {"stream.update", "orders", "public"},
		"deleteStream": {"stream.delete", "orders", "content_type"},
		"createApiKey": {"api_key.create", "{new}", "name"},
		"narrowApiKey": {"api_key.update", "{spare}", "access"},
		"rotateApiKey": {"api_key.rotate", "{rotating}", "hint"},
		"revokeApiKey": {"api_key.revoke", "{spare}", "name"},

		"createAccount": {"account.create", "fresh", "api_key.id"},
		"updateAccount": {"account.update", "acme", "state"},
		"deleteAccount": {"account.delete", "acme", "api_keys"},

		"listStreams": {none, none, none}, "showStream": {none, none, none}, "listApiKeys": {none, none, none},
		"showApiKey": {none, none, none}, "showAccount": {none, none, none}, "listAccounts": {none, none, none},
		"showAccountOf": {none, none, none}, "listAudit": {none, none, none}, "readReference": {none, none, none},
		"listUsage": {none, none, none}, "listUsageBatches": {none, none, none},
	}
}

// operations are what a listener answers by its routes: the operation and its method. Each
// method of a route is one of openapi.yaml.
func operations(t *testing.T, a *API) map[string]string {
	t.Helper()
	c, err := theContract()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for path, item := range c.doc.Paths.Map() {
		found, _ := a.path(strings.Split(strings.TrimPrefix(path, Prefix), "/"))
		for method := range found {
			op := item.GetOperation(method)
			if op == nil {
				t.Errorf("%s %s is a route and no operation of openapi.yaml", method, path)
				continue
			}
			name, ok := strings.CutPrefix(op.OperationID, "operator")
			if ok {
				name = strings.ToLower(name[:1]) + name[1:]
			}
			all[name] = method + " " + path
		}
	}
	return all
}

// Each call that changes something has exactly one record, which says who, what and from
// where; what only looks has none. A new route has to say here which.
func TestEveryRouteIsRecorded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for _, operator := range []bool{false, true} {
			g := world(t)
			api, key, who := g.owner, g.key, "key"
			if operator {
				api, key, who = g.operator, "", "operator"
			}
			got := g.own(http.MethodPost, "/v1/api-keys", `{"name":"rotating"}`)
			g.ids["rotating"] = got.text("id")
			self := g.own(http.MethodGet, "/v1/api-keys?limit=200", "")
			seen := map[string]bool{}
			ordered := calls(operator)
			slices.SortStableFunc(ordered, func(a, b row) int { return strings.Compare(last(a), last(b)) })
			routes := operations(t, api)
			for _, r := range ordered {
				r.target = strings.Replace(r.target, "{spare}/rotate", "{rotating}/rotate", 1)
				r.body = strings.Replace(r.body, `"state":"active"`, `"state":"unpaid"`, 1)
				op := g.operation(t, r, routes)
				want, known := changesByOperation()[op]
				if !known {
					t.Fatalf("%s has no row here: which record is there of it?", op)
				}
				seen[op] = true
				before := g.newest()
				q := g.request(key, r.method, g.named(r.target), r.body)
				q.Header.Set("X-Request-Id", "request-of-"+op)
				q.RemoteAddr = "192.0.2.1:1234"
				got := g.from(api, "2001:db8::7", q)
				if got.status != r.status {
					t.Fatalf("%s: %d %s", op, got.status, got.body)
				}
				records := g.since(before)
				if want.action == "" {
					if len(records) != 0 {
						t.Errorf("%s left %v", op, records)
					}
					continue
				}
				if len(records) != 1 {
					t.Fatalf("%s left %d records: %v", op, len(records), records)
				}
				one := records[0]
				target := g.named(strings.Replace(want.target, "{new}", got.maybe("id"), 1))
				if string(one.Action) != want.action || one.Target != target || string(one.Actor.Kind) != who ||
					one.Client.String() != "2001:db8::7" || one.RequestID != "request-of-"+op || !strings.Contains(string(one.Details), `"`+want.details+`":{`) {
					t.Errorf("%s left %+v %s", op, one, one.Details)
				}
				if first := one.Actor.KeyID; !operator && (first == "" || !strings.Contains(self.body, first) || one.Actor.Account != testAccount) {
					t.Errorf("%s was done by %+v", op, one.Actor)
				}
			}
			delete(routes, "readReference")
			for op := range routes {
				if !seen[op] {
					t.Errorf("no call of %s (%s) was made: calls lacks it", op, routes[op])
				}
			}
		}
	})
}

// last has what ends a thing come after what only changes it.
func last(r row) string {
	if r.method == http.MethodDelete {
		return "2" + strings.Repeat("x", 9-min(9, strings.Count(r.target, "/")))
	}
	return "1"
}

// operation is the name of a call's operation, whichever the listener.
func (g *rig) operation(t *testing.T, r row, routes map[string]string) string {
	t.Helper()
	c, err := theContract()
	if err != nil {
		t.Fatal(err)
	}
	route, _, err := c.router.FindRoute(httptest.NewRequestWithContext(t.Context(), r.method, g.named(r.target), nil))
	if err != nil {
		t.Fatal(err)
	}
	for op, is := range routes {
		if is == r.method+" "+route.Path {
			return op
		}
	}
	t.Fatalf("%s %s is none of %v", r.method, route.Path, routes)
	return ""
}

// maybe is a text of the body, where there is one.
func (a answered) maybe(name string) string {
	if a.body == "" {
		return ""
	}
	return a.text(name)
}

// newest is the id of the newest record.
func (g *rig) newest() int64 {
	g.tb.Helper()
	if all := g.since(0); len(all) > 0 {
		return all[0].ID
	}
	return 0
}

// since are the records after one, past the API.
func (g *rig) since(id int64) []store.Record {
	g.tb.Helper()
	all, _, err := g.store.Audit(g.tb.Context(), store.AuditQuery{Limit: 10_000})
	if err != nil {
		g.tb.Fatal(err)
	}
	return slices.DeleteFunc(all, func(r store.Record) bool { return r.ID <= id })
}

// What is refused is no change.
func TestRefusedCallsAreNotRecorded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := world(t)
		before := g.newest()
		for _, r := range []row{
			{"reads", "POST", "/v1/streams", `{"name":"x","content_type":"a/b"}`, 403, "FORBIDDEN"},
			{"agent", "DELETE", "/v1/streams/orders", "", 403, "FORBIDDEN"},
			{"good", "POST", "/v1/streams", `{"name":"orders","content_type":"application/json"}`, 409, "STREAM_ALREADY_EXISTS_CONFLICT"},
			{"good", "POST", "/v1/streams", `{"name":"x","content_type":"no"}`, 400, "INVALID_REQUEST content_type"},
			{"good", "POST", "/v1/api-keys", `{"name":"spare"}`, 409, "API_KEY_ALREADY_EXISTS_CONFLICT"},
			{"good", "DELETE", "/v1/api-keys/none", "", 404, "API_KEY_NOT_FOUND"},
			{"good", "PATCH", "/v1/api-keys/{reads}", `{"access":"write"}`, 400, "INVALID_REQUEST access"},
			{"stated", "DELETE", "/v1/streams/orders", "", 409, "DECLARED_CONFLICT"},
			{"good", "PATCH", "/v1/streams/orders", `{"public":false}`, 200, ""}, // as it is
			{"good", "DELETE", "/v1/api-keys/{revoked}", "", 204, ""},            // as it is
		} {
			g.play1(g.owner, r)
		}
		if left := g.since(before); len(left) != 0 {
			t.Errorf("%v", left)
		}
	})
}

// A wish that Ursula refuses is undone by the program, and the records say both.
func TestRefusedByUrsulaIsRecorded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := newRig(t)
		req := g.request("", http.MethodPut, tenant.StreamPath(testAccount, "taken"), "")
		req.Header.Set("Content-Type", "text/plain")
		res, err := g.nodes.Do(req)
		if err != nil || res.StatusCode != http.StatusCreated {
			t.Fatal(res, err)
		}
		_ = res.Body.Close()
		before := g.newest()
		if got := g.own(http.MethodPost, "/v1/streams", `{"name":"taken","content_type":"application/json"}`); got.refused() != "STREAM_ALREADY_EXISTS_CONFLICT content_type" {
			t.Fatalf("%d %s", got.status, got.body)
		}
		left := g.since(before)
		if len(left) != 2 || left[0].Action != store.StreamUndo || left[0].Actor.Kind != store.ActorSystem || left[1].Action != store.StreamCreate {
			t.Errorf("%v", left)
		}
	})
}

// An owner sees the records of the account and no others, and of the operator's changes
// neither where they came from nor what the request was called.
func TestOwnerSeesOwnRecords(t *testing.T) {
	g := newRig(t)
	other := g.newAccount("other")
	g.ask(g.owner, other, http.MethodPost, "/v1/streams", `{"name":"theirs","content_type":"a/b"}`)
	q := g.request(g.key, http.MethodPost, "/v1/streams", `{"name":"ours","content_type":"a/b"}`)
	q.Header.Set("X-Request-Id", "req-1")
	g.from(g.owner, "203.0.113.9", q)
	q = g.request("", http.MethodPatch, "/v1/accounts/acme/streams/ours", `{"public":true}`)
	q.Header.Set("X-Request-Id", "ticket-42")
	q.RemoteAddr = "[fe80::1%eth0]:999"
	g.send(g.operator, q)
	if err := g.store.Declare(t.Context(), store.Declaration{Accounts: []store.Account{{ID: "acme", State: tenant.Active}}}); err != nil {
		t.Fatal(err)
	}
	line := func(r recordJSON) string {
		text := func(s *string) string {
			if s == nil {
				return "-"
			}
			return *s
		}
		key := "-"
		if r.Actor.KeyID != nil {
			key = "key"
		}
		return fmt.Sprint(text(r.Account), " ", r.Actor.Kind, " ", key, " ", r.Action, " ", text(r.Target), " ", text(r.From), " ", text(r.RequestID))
	}
	lines := func(all []recordJSON) (got []string) {
		for _, r := range all {
			got = append(got, line(r))
		}
		return got
	}
	want := []string{
		"acme file - account.update acme - -", "acme operator - stream.update ours - -",
		"acme key key stream.create ours 203.0.113.9 req-1", "acme operator - account.create acme - -",
	}
	if got := lines(g.records(g.owner, g.key, "")); !slices.Equal(got, want) {
		t.Errorf("the owner sees %q", got)
	}
	want[1] = "acme operator - stream.update ours fe80::1 ticket-42"
	got := lines(g.records(g.operator, "", "?account=acme"))
	if len(got) != 4 || !slices.Equal(got[:3], want[:3]) || !strings.HasPrefix(got[3], "acme operator - account.create acme 192.0.2.1 ") {
		t.Errorf("the operator sees %q", got)
	}
	if got := lines(g.records(g.operator, "", "")); len(got) != 6 {
		t.Errorf("of all accounts: %q", got)
	}
	if got := g.records(g.owner, other, "?target=ours"); len(got) != 0 {
		t.Errorf("the other sees %v", got)
	}
	// A cursor of the operator's opens nothing to an owner.
	page := g.ask(g.operator, "", http.MethodGet, "/v1/audit?limit=1", "")
	for _, r := range g.records(g.owner, other, "?cursor="+url.QueryEscape(page.text("next_cursor"))) {
		if *r.Account != "other" {
			t.Errorf("the other sees %s", line(r))
		}
	}
}

// What the operator, the file and the service did was found by no filter, and an account
// that never was had an empty list, as if nothing had been done to it.
func TestAuditFilters(t *testing.T) {
	g := newRig(t)
	g.newAccount("other")
	if got := g.ask(g.operator, "", http.MethodDelete, "/v1/accounts/other", ""); got.status >= 300 {
		t.Fatal(got.body)
	}
	if err := g.store.Declare(t.Context(), store.Declaration{Accounts: []store.Account{{ID: "acme", State: tenant.Active}}}); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []store.ActorKind{store.ActorOperator, store.ActorFile, store.ActorSystem} {
		for _, r := range g.records(g.operator, "", "?limit=200&actor="+string(kind)) {
			if r.Actor.Kind != kind {
				t.Errorf("actor=%s shows %+v", kind, r)
			}
		}
	}
	if len(g.records(g.operator, "", "?actor=operator")) == 0 || len(g.records(g.owner, g.key, "?actor=file")) != 1 {
		t.Error("nothing is found by a kind of actor")
	}
	if got := g.records(g.operator, "", "?account=other&actor=file"); len(got) != 0 {
		t.Errorf("of a deleted account: %v", got)
	}
	if got := g.ask(g.operator, "", http.MethodGet, "/v1/audit?account=nope1", ""); got.refused() != "ACCOUNT_NOT_FOUND " && got.refused() != "ACCOUNT_NOT_FOUND" {
		t.Errorf("of an account that never was: %d %s", got.status, got.body)
	}
	for _, until := range []string{"2027-01-01T00:00:00Z", "2027-01-02T00:00:00Z"} {
		got := g.own(http.MethodGet, "/v1/audit?since=2027-01-02T00:00:00Z&until="+until, "")
		if got.refused() != "INVALID_QUERY until" {
			t.Errorf("until %s: %d %s", until, got.status, got.body)
		}
	}
}

// Each record is on one page, while more of them come.
func TestAuditPages(t *testing.T) {
	g := newRig(t)
	for i := range 10 {
		g.own(http.MethodPost, "/v1/streams", fmt.Sprintf(`{"name":"s%d","content_type":"a/b"}`, i))
	}
	want := g.records(g.owner, g.key, "?limit=200")
	var got []int64
	cursor := ""
	for i := 0; ; i++ {
		page := g.own(http.MethodGet, "/v1/audit?limit=3"+cursor, "")
		entries, _ := page.at("records").([]any)
		for _, e := range entries {
			id, _ := e.(map[string]any)["id"].(float64)
			got = append(got, int64(id))
		}
		next := page.text("next_cursor")
		if next == "" {
			break
		}
		cursor = "&cursor=" + next
		g.own(http.MethodPost, "/v1/streams", fmt.Sprintf(`{"name":"more%d","content_type":"a/b"}`, i))
	}
	ids := make([]int64, 0, len(want))
	for _, r := range want {
		ids = append(ids, r.ID)
	}
	if !slices.Equal(got, ids) {
		t.Errorf("got %v, want %v", got, ids)
	}
}

// A client may call its request by its own key. No record holds a key, a digest of one, or
// more of one than its hint.
func TestRecordsHoldNoSecret(t *testing.T) {
	g := newRig(t)
	secrets := []string{g.key}
	ask := func(method, target, body string) answered {
		q := g.request(g.key, method, target, body)
		q.Header.Set("X-Request-Id", g.key)
		got := g.from(g.owner, "192.0.2.1", q)
		if key := got.maybe("key"); key != "" {
			secrets = append(secrets, key)
		}
		return got
	}
	id := ask(http.MethodPost, "/v1/api-keys", `{"name":"one"}`).text("id")
	ask(http.MethodPost, "/v1/api-keys/"+id+"/rotate", "")
	ask(http.MethodDelete, "/v1/api-keys/"+id, "")
	shown := g.ask(g.operator, "", http.MethodGet, "/v1/audit", "").body
	stored := fmt.Sprintf("%+v", g.since(0))
	for _, r := range g.since(0) {
		stored += string(r.Details)
	}
	if len(secrets) != 3 || !strings.Contains(shown, id) || !strings.Contains(stored, id) || !strings.Contains(shown, "redacted") {
		t.Fatalf("nothing to look through: %s", shown)
	}
	for _, secret := range secrets {
		digest := tenant.DigestOf(secret)
		for _, form := range []string{secret, secret[4:20], string(digest[:]), hex.EncodeToString(digest[:]), base64.StdEncoding.EncodeToString(digest[:])} {
			if strings.Contains(shown+stored, form) {
				t.Errorf("%q is in a record: %s", form, shown)
			}
		}
	}
}

// countedAudit counts the steps of forgetting.
type countedAudit struct {
	*store.Store
	mu    sync.Mutex
	steps map[string]int // by how many went
}

func (a *countedAudit) ForgetAudit(ctx context.Context, before time.Time, limit int) (int, error) {
	n, err := a.Store.ForgetAudit(ctx, before, limit)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.steps[fmt.Sprint(n)]++
	return n, err
}

// Old records go by and by, as the configuration in force says, and by one replica.
func TestOldRecordsGo(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		keep := 365 * 24 * time.Hour
		audit := &countedAudit{steps: map[string]int{}}
		var mu sync.Mutex
		set := func(d time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			keep = d
		}
		g := newRig(t, func(r *ReconcilerOptions, _ *Options) {
			audit.Store, _ = r.Store.(*store.Store)
			r.Poll = time.Minute
			r.Audit, r.AuditKeep = audit, func() time.Duration {
				mu.Lock()
				defer mu.Unlock()
				return keep
			}
		})
		for i := range forgetLimit + 5 {
			if err := g.store.CreateStream(t.Context(), store.BySystem(), store.Stream{
				Stream: tenant.Stream{Account: testAccount, Name: tenant.StreamName(fmt.Sprint("s", i)), ContentType: "a/b"}, ID: fmt.Sprint("str_", i), BusyUntil: time.Now().Add(time.Hour),
			}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Hour)
		before := len(g.since(0))
		set(time.Hour)
		time.Sleep(5 * time.Minute)
		if left := g.since(0); before != forgetLimit+6 || len(left) != 0 {
			t.Errorf("%d of %d records are left", len(left), before)
		}
		audit.mu.Lock()
		steps := maps.Clone(audit.steps)
		audit.mu.Unlock()
		if steps[fmt.Sprint(forgetLimit)] != 1 || steps["6"] != 1 {
			t.Errorf("steps by what went: %v", steps)
		}
		set(0)
		g.own(http.MethodPost, "/v1/api-keys", `{"name":"kept"}`)
		time.Sleep(24 * time.Hour)
		if left := g.since(0); len(left) != 1 {
			t.Errorf("for ever is over: %v", left)
		}
	})
}
