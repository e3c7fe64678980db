package manage

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"sluice/internal/bubble"
	"sluice/internal/store"
	"sluice/internal/tenant"
)

const events = `{"name":"events","content_type":"application/json"}`

// A stream from its create to its name being free again.
func TestStreamLife(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := newRig(t)
		got := g.own(http.MethodPost, "/v1/streams", events)
		if got.status != http.StatusCreated || got.text("state") != "active" || got.text("url") != testOrigin+"/acme/s.events" {
			t.Fatalf("create: %d %s", got.status, got.body)
		}
		if in := g.inUrsula("events"); in == "" || in != got.text("incarnation") {
			t.Errorf("Ursula has incarnation %q, the answer says %q", in, got.text("incarnation"))
		}
		got = g.own(http.MethodPatch, "/v1/streams/events", `{"public":true}`)
		if got.status != http.StatusOK || got.at("public") != true {
			t.Errorf("publish: %d %s", got.status, got.body)
		}
		got = g.own(http.MethodDelete, "/v1/streams/events", "")
		if got.status != http.StatusAccepted || got.text("state") != "deleting" {
			t.Errorf("delete: %d %s", got.status, got.body)
		}
		if in := g.inUrsula("events"); in != "" {
			t.Errorf("Ursula still has incarnation %s", in)
		}
		if got = g.own(http.MethodDelete, "/v1/streams/events", ""); got.refused() != "STREAM_NOT_FOUND" {
			t.Errorf("delete again: %d %s", got.status, got.body)
		}
		if got = g.own(http.MethodGet, "/v1/streams/events", ""); got.refused() != "STREAM_NOT_FOUND" {
			t.Errorf("show: %d %s", got.status, got.body)
		}
		if got = g.own(http.MethodPost, "/v1/streams", events); got.text("state") != "active" {
			t.Errorf("create anew: %d %s", got.status, got.body)
		}
	})
}

// hookedNodes do something in the middle of the next PUT.
type hookedNodes struct {
	Nodes
	inPut func()
}

func (n *hookedNodes) Do(r *http.Request) (*http.Response, error) {
	res, err := n.Nodes.Do(r)
	if do := n.inPut; do != nil && r.Method == http.MethodPut {
		n.inPut = nil
		do()
	}
	return res, err
}

// A stream that was deleted while it was created was answered with 201 and the state
// deleting; and its name was held for many seconds, of which Retry-After said one.
func TestDeletedWhileCreated(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		nodes := &hookedNodes{}
		g := newRig(t, func(r *ReconcilerOptions, _ *Options) { nodes.Nodes, r.Nodes = r.Nodes, nodes })
		// again waits as long as it is told, and creates it then.
		again := func(got answered) {
			t.Helper()
			wait, err := strconv.Atoi(got.header.Get("Retry-After"))
			if got.refused() != "STREAM_ALREADY_EXISTS_CONFLICT" || err != nil {
				t.Fatalf("%d %s, Retry-After %q", got.status, got.body, got.header.Get("Retry-After"))
			}
			time.Sleep(time.Duration(wait) * time.Second)
			bubble.Wait()
			if got := g.own(http.MethodPost, "/v1/streams", events); got.text("state") != "active" {
				t.Errorf("after %d s: %d %s", wait, got.status, got.body)
			}
		}
		nodes.inPut = func() {
			if got := g.own(http.MethodDelete, "/v1/streams/events", ""); got.status != http.StatusAccepted {
				t.Errorf("delete: %d %s", got.status, got.body)
			}
		}
		again(g.own(http.MethodPost, "/v1/streams", events))

		// Of one that no node has taken yet: as far as anybody knows one may.
		if got := g.own(http.MethodDelete, "/v1/streams/events", ""); got.status != http.StatusAccepted {
			t.Errorf("delete: %d %s", got.status, got.body)
		}
		row := store.Stream{
			Stream: tenant.Stream{Account: testAccount, Name: "events", ContentType: "application/json"},
			ID:     "str_x", BusyUntil: time.Now().Add(15 * time.Second),
		}
		if err := g.store.CreateStream(t.Context(), store.BySystem(), row); err != nil {
			t.Fatal(err)
		}
		g.own(http.MethodDelete, "/v1/streams/events", "")
		again(g.own(http.MethodPost, "/v1/streams", events))
	})
}

// The incarnation of a stream that the operator's file states was null for ever, though
// null says that it is not made yet. It is learned once a node has the stream.
func TestDeclaredIncarnation(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.declare(t)
		show := func() answered { return g.ask(g.owner, g.keys["stated"], http.MethodGet, "/v1/streams/orders", "") }
		time.Sleep(time.Minute)
		if got := show(); got.status != http.StatusOK || got.at("incarnation") != nil {
			t.Errorf("before it is made: %d %s", got.status, got.body)
		}
		keeper := NewKeeper(KeeperOptions{Nodes: g.nodes, Log: zap.NewNop()})
		t.Cleanup(keeper.Close)
		keeper.Keep([]tenant.Stream{{Account: "stated", Name: "orders", ContentType: "text/plain"}})
		time.Sleep(20 * time.Second)
		req := httptest.NewRequestWithContext(t.Context(), http.MethodHead, tenant.StreamPath("stated", "orders"), nil)
		res, err := g.nodes.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		want := res.Header.Get(incarnationHeader)
		if got := show(); want == "" || got.text("incarnation") != want || got.text("state") != "active" {
			t.Errorf("%s, want incarnation %q", got.body, want)
		}
		if n := g.options.Reconciler.Trying(); n != 0 {
			t.Errorf("%d rows are tried again", n)
		}
	})
}

// What was said of a name that is taken: "exists with another public", and of a region
// where there is none: "the only region there is, is .".
func TestWords(t *testing.T) {
	g := newRig(t, func(_ *ReconcilerOptions, o *Options) { o.Region = "" })
	for _, name := range []string{"events", "open", "ends"} {
		body := map[string]string{"events": "", "open": `,"public":true`, "ends": `,"expires_at":"2099-01-01T00:00:00Z"`}[name]
		if got := g.own(http.MethodPost, "/v1/streams", `{"name":"`+name+`","content_type":"text/plain"`+body+`}`); got.status != http.StatusCreated {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	for body, want := range map[string]string{
		`{"name":"x","content_type":"text/plain","region":"us"}`:                              "no regions",
		`{"name":"events","content_type":"text/html"}`:                                        "exists with another content type:",
		`{"name":"events","content_type":"text/plain","public":true}`:                         "exists and is private:",
		`{"name":"open","content_type":"text/plain"}`:                                         "exists and is public:",
		`{"name":"events","content_type":"text/plain","expires_at":"2099-01-01T00:00:00Z"}`:   "exists and does not expire:",
		`{"name":"ends","content_type":"text/plain"}`:                                         "exists and expires at another time:",
		`{"name":"ends","content_type":"text/plain","expires_at":"2098-01-01T00:00:00.001Z"}`: "exists and expires at another time:",
	} {
		if got := g.own(http.MethodPost, "/v1/streams", body); !strings.Contains(got.text("error", "message"), want) {
			t.Errorf("%s: %s, want %q", body, got.body, want)
		}
	}
}

// A stream expires within a minute of its time, and its name is free then.
func TestExpiry(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := newRig(t)
		ends := time.Now().Add(3 * time.Minute)
		got := g.own(http.MethodPost, "/v1/streams", `{"name":"events","content_type":"text/plain","expires_at":"`+ends.UTC().Format(time.RFC3339)+`"}`)
		if got.text("state") != "active" {
			t.Fatalf("create: %d %s", got.status, got.body)
		}
		time.Sleep(3*time.Minute - time.Second)
		bubble.Wait()
		if s := g.row("events"); s == nil || s.State != store.Live {
			t.Fatalf("a second before its time it is %v", s)
		}
		time.Sleep(time.Minute)
		bubble.Wait()
		if s := g.row("events"); s != nil || g.inUrsula("events") != "" {
			t.Errorf("a minute after its time it is %v", s)
		}
	})
}
