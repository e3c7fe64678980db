package manage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"sluice/internal/bubble"
	"sluice/internal/store"
	"sluice/internal/tenant"
)

// answering has the nodes give a client one answer that is not theirs: nil lets it pass.
func (g *rig) answering(f func(*http.Request) (*http.Response, error)) {
	nodes := g.nodes
	g.clientNodes = nodesFunc(func(req *http.Request) (*http.Response, error) {
		if res, err := f(req); res != nil || err != nil {
			return res, err
		}
		return nodes.Do(req)
	})
}

// seldom has the reconciler look every five seconds: what these tests spend their time on is
// its looks.
func seldom(r *ReconcilerOptions, _ *Options) { r.Poll = 5 * time.Second }

// nodeCase is an answer of a node to a client's PUT or DELETE, or an error in its place.
type nodeCase struct {
	status int
	code   string
	err    error
	// row is what the API says of the stream at once, and later what it says in the end;
	// "" = that there is none.
	row, later store.StreamState
}

func (c nodeCase) String() string { return fmt.Sprintf("%d %s %v", c.status, c.code, c.err) }

func (c nodeCase) answer(*http.Request) (*http.Response, error) {
	if c.err != nil {
		return nil, c.err
	}
	return answerBody(c.status, c.code), nil
}

// What a node refuses has done nothing, and leaves no row; what proves nothing is found out.
func TestAnswersToClientsCreates(t *testing.T) {
	const creating, none = store.Creating, store.StreamState("")
	for _, c := range []nodeCase{
		{status: 400, code: "INVALID_HEADER", row: none, later: none},
		{status: 409, code: "STREAM_ALREADY_EXISTS_CONFLICT", row: none, later: none},
		{status: 412, code: "INCARNATION_MISMATCH", row: none, later: none},
		{status: 413, code: "REQUEST_TOO_LARGE", row: none, later: none},
		{status: 429, code: "PRODUCER_LIMIT", row: none, later: none},
		{status: 503, code: "NO_LEADER", row: none, later: none},
		{status: 503, code: "WAL_DISK_PRESSURE", row: none, later: none},
		{err: fmt.Errorf("%w: refused", ErrNotApplied), row: none, later: none},
		{status: 503, code: "OUTCOME_UNKNOWN", row: creating, later: none},
		{status: 500, code: "INTERNAL", row: creating, later: none},
		{status: 408, row: creating, later: none},
		{status: 201, row: creating, later: none}, // without an incarnation it says nothing
		{err: errors.New("cut"), row: creating, later: none},
	} {
		t.Run(c.String(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				g := newRig(t, seldom)
				g.answering(c.answer)
				g.client(http.MethodPut, "events", "text/plain", "one")
				g.isState("events", c.row)
				time.Sleep(settled)
				g.isState("events", c.later)
				// Nothing was made in the client's place: its repeat makes it whole.
				g.clientNodes = g.nodes
				if got := g.client(http.MethodPut, "events", "text/plain", "one"); got.status != http.StatusCreated || g.content("events") != "one" {
					t.Errorf("repeat: %d, holds %q", got.status, g.content("events"))
				}
				g.agree("events")
			})
		})
	}
}

// A DELETE that a node refuses has done nothing; one that proves nothing is finished.
func TestAnswersToClientsDeletes(t *testing.T) {
	const active, deleting, none = store.Live, store.Deleting, store.StreamState("")
	for _, c := range []nodeCase{
		{status: 204, row: none, later: none},
		{status: 404, code: "STREAM_NOT_FOUND", row: none, later: none},
		{status: 410, code: "STREAM_GONE", row: none, later: none},
		{status: 400, code: "INVALID_HEADER", row: active, later: active},
		{status: 503, code: "NO_LEADER", row: active, later: active},
		{err: fmt.Errorf("%w: refused", ErrNotApplied), row: active, later: active},
		{status: 503, code: "OUTCOME_UNKNOWN", row: deleting, later: none},
		{status: 500, code: "INTERNAL", row: deleting, later: none},
		{err: errors.New("cut"), row: deleting, later: none},
	} {
		t.Run(c.String(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				g := newRig(t, seldom)
				g.client(http.MethodPut, "events", "text/plain", "one")
				g.isState("events", active)
				if c.row == none {
					// The node has done what it says.
					g.answering(func(req *http.Request) (*http.Response, error) {
						closeAnswer(g.nodes.Do(req))
						return c.answer(req)
					})
				} else {
					g.answering(c.answer)
				}
				g.client(http.MethodDelete, "events", "", "")
				g.isState("events", c.row)
				time.Sleep(settled)
				g.isState("events", c.later)
				g.agree("events")
			})
		})
	}
}

// A client's own precondition is what the node judges; what it does not let pass has done
// nothing, and is not finished behind the client's back where it had no answer.
func TestClientsOwnPrecondition(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := newRig(t, seldom)
		g.client(http.MethodPut, "events", "text/plain", "one")
		const other = "4503599627370497"
		if got := g.client(http.MethodDelete, "events", "", "", incarnationHeader, other); got.status != http.StatusPreconditionFailed {
			t.Errorf("%d %s", got.status, got.body)
		}
		g.isState("events", store.Live)
		g.answering(nodeCase{err: errors.New("cut")}.answer)
		g.client(http.MethodDelete, "events", "", "", incarnationHeader, other)
		time.Sleep(settled)
		g.isState("events", store.Live)
		in := g.row("events").Incarnation
		g.client(http.MethodDelete, "events", "", "", incarnationHeader, in)
		time.Sleep(settled)
		if g.agree("events") {
			t.Error("what the client asked for is not finished")
		}
	})
}

// The name is free as soon as the DELETE is answered, and a repeated PUT is what it is at
// the node.
func TestClientsCreateAndDelete(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := newRig(t)
		for _, step := range []struct {
			method, contentType, body string
			status                    int
		}{
			{http.MethodPut, "text/plain", "one", 201},
			{http.MethodPut, "text/plain", "one", 200},
			{http.MethodPut, "application/json", "", 409},
			{http.MethodDelete, "", "", 204},
			{http.MethodDelete, "", "", 404},
			{http.MethodPut, "application/json", "[1]", 201},
		} {
			if got := g.client(step.method, "events", step.contentType, step.body); got.status != step.status {
				t.Errorf("%s %s: %d %s", step.method, step.contentType, got.status, got.body)
			}
		}
		if !g.agree("events") || g.row("events").ContentType != "application/json" {
			t.Errorf("%v", g.row("events"))
		}
		for name, want := range map[string]any{"public": false, "declared": false, "region": "eu", "expires_at": nil, "ttl_seconds": nil} {
			if got := g.listed("events").at(name); got != want {
				t.Errorf("%s: %v, want %v", name, got, want)
			}
		}
		// What manages other streams manages these.
		if got := g.own(http.MethodPatch, "/v1/streams/events", `{"public":true}`); got.status != 200 || !g.row("events").Public {
			t.Errorf("make it public: %d %s", got.status, got.body)
		}
		if got := g.own(http.MethodPost, "/v1/streams", events); got.status != http.StatusConflict {
			t.Errorf("create it again: %d", got.status)
		}
		if got := g.own(http.MethodDelete, "/v1/streams/events", ""); got.status != http.StatusAccepted || g.agree("events") {
			t.Errorf("delete it: %d", got.status)
		}
	})
}

// What Ursula has without a row gets one with the first PUT, and can be deleted without.
func TestClientsAndStreamsWithoutARow(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := newRig(t)
		for _, name := range []string{"kept", "dropped"} {
			closeAnswer(g.nodes.Do(mustRequest(t, http.MethodPut, name)))
		}
		if got := g.client(http.MethodPut, "kept", "text/plain", ""); got.status != 200 || !g.agree("kept") {
			t.Errorf("PUT: %d %s", got.status, got.body)
		}
		if got := g.client(http.MethodDelete, "dropped", "", ""); got.status != 204 || g.row("dropped") != nil || g.inUrsula("dropped") != "" {
			t.Errorf("DELETE: %d %s", got.status, got.body)
		}
	})
}

func mustRequest(t *testing.T, method, name string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), method, tenant.StreamPath(testAccount, tenant.StreamName(name)), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "text/plain")
	return req
}

// A stream that Ursula has lost is another one when a client makes it again: of another
// incarnation, and private, though the one before was public.
func TestClientsMakeAnew(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.own(http.MethodPost, "/v1/streams", `{"name":"events","content_type":"text/plain","public":true}`)
		before := g.row("events")
		closeAnswer(g.nodes.Do(mustRequest(t, http.MethodDelete, "events")))
		if got := g.client(http.MethodPut, "events", "application/json", ""); got.status != http.StatusCreated {
			t.Fatalf("%d %s", got.status, got.body)
		}
		now := g.row("events")
		if !g.agree("events") || now.ID != before.ID || now.Public || now.ContentType != "application/json" {
			t.Errorf("%+v", now)
		}
	})
}

// Nothing goes to a node while somebody else works on the name, or nothing can be written
// down.
func TestClientsAreRefused(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := newRig(t)
		unreachable := fmt.Errorf("%w: dial", store.ErrUnavailable)
		down := g.nodes
		g.options.Reconciler.Close()
		r, o := g.parts()
		r.Nodes = nodesFunc(func(*http.Request) (*http.Response, error) { return nil, fmt.Errorf("%w: down", ErrNotApplied) })
		o.Reconciler = NewReconciler(r)
		t.Cleanup(o.Reconciler.Close)
		g.options, g.owner = o, NewOwner(o)
		g.own(http.MethodPost, "/v1/streams", `{"name":"making","content_type":"text/plain"}`)
		g.own(http.MethodPost, "/v1/streams", `{"name":"going","content_type":"text/plain"}`)
		g.own(http.MethodDelete, "/v1/streams/going", "")
		g.state("stated")
		g.nodes = down
		sent := 0
		g.answering(func(*http.Request) (*http.Response, error) { sent++; return nil, nil })
		for _, c := range []struct {
			method, name, code string
			status             int
			retry              bool
		}{
			{http.MethodPut, "making", "STREAM_ALREADY_EXISTS_CONFLICT", 409, true},
			{http.MethodDelete, "making", "STREAM_ALREADY_EXISTS_CONFLICT", 409, true},
			{http.MethodPut, "going", "STREAM_ALREADY_EXISTS_CONFLICT", 409, true},
			{http.MethodDelete, "going", "STREAM_NOT_FOUND", 404, false},
			{http.MethodDelete, "stated", "DECLARED_CONFLICT", 409, false},
		} {
			got := g.client(c.method, c.name, "text/plain", "x")
			retry, err := strconv.Atoi(got.header.Get("Retry-After"))
			if got.status != c.status || got.refused() != c.code || c.retry != (err == nil && retry >= 1) {
				t.Errorf("%s %s: %d %s, Retry-After %q", c.method, c.name, got.status, got.body, got.header.Get("Retry-After"))
			}
		}
		g.options.Streams = brokenStore{err: unreachable}
		if got := g.client(http.MethodPut, "other", "text/plain", "x"); got.status != 503 || got.refused() != "STORE_UNAVAILABLE" || got.header.Get("Retry-After") == "" {
			t.Errorf("without a store: %d %s", got.status, got.body)
		}
		if sent != 0 {
			t.Errorf("%d requests went to a node", sent)
		}
	})
}

// state has the file state a stream of the account.
func (g *rig) state(name string) {
	g.tb.Helper()
	d := store.Declaration{
		Accounts: []store.Account{{ID: testAccount, State: tenant.Active}},
		Streams:  []tenant.Stream{{Account: testAccount, Name: tenant.StreamName(name), ContentType: "text/plain"}},
	}
	if err := g.store.Declare(context.WithoutCancel(g.tb.Context()), d); err != nil {
		g.tb.Fatal(err)
	}
}

// A PUT of a stream that the file states is what it is at the node.
func TestClientsAndDeclaredStreams(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.state("stated")
		for _, status := range []int{http.StatusCreated, http.StatusOK} {
			if got := g.client(http.MethodPut, "stated", "text/plain", ""); got.status != status {
				t.Errorf("%d %s, want %d", got.status, got.body, status)
			}
		}
		if !g.agree("stated") || !g.row("stated").Declared {
			t.Errorf("%+v", g.row("stated"))
		}
		g.answering(nodeCase{err: errors.New("cut")}.answer)
		g.client(http.MethodPut, "stated", "text/plain", "")
		time.Sleep(settled)
		if !g.agree("stated") || g.row("stated").Unanswered != 0 {
			t.Errorf("%+v", g.row("stated"))
		}
	})
}
