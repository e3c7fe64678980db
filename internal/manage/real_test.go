package manage

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"sluice/internal/store"
	"sluice/internal/tenant"
	"sluice/internal/ursulatest/realursula"
)

// oneNode asks one real node.
type oneNode struct{ url string }

func (n oneNode) Do(r *http.Request) (*http.Response, error) {
	req, err := http.NewRequestWithContext(r.Context(), r.Method, n.url+r.URL.Path, r.Body) //nolint:gosec // to the test's own node
	if err != nil {
		return nil, err
	}
	req.Header = r.Header
	return http.DefaultClient.Do(req) //nolint:gosec // to the test's own node
}

// What the steps between store and node rest on, as the real node does it: a create and a
// HEAD say the incarnation, a repeated create finds what is there, one of another type is a
// conflict, and a DELETE for another incarnation does nothing, also to a stream that was
// made after the one it is for.
func TestRealNodeKeepsToTheIncarnation(t *testing.T) {
	t.Parallel()
	n := oneNode{realursula.Start(t).URL}
	ask := func(method, name string, header ...string) (int, http.Header) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, method, "/acme/s."+name, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		res, err := n.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res.StatusCode, res.Header
	}
	want := func(what string, status int, method, name string, header ...string) string {
		t.Helper()
		got, h := ask(method, name, header...)
		if got != status {
			t.Fatalf("%s: %d, want %d", what, got, status)
		}
		return h.Get(incarnationHeader)
	}
	const json, kind = "application/json", "Content-Type"
	first := want("create", 201, "PUT", "a", kind, json)
	if again := want("create again", 200, "PUT", "a", kind, json); again != first || first == "" {
		t.Errorf("incarnation %q, and again %q", first, again)
	}
	if status, h := ask("HEAD", "a"); status != 200 || h.Get(incarnationHeader) != first || !strings.HasPrefix(h.Get(kind), json) {
		t.Errorf("HEAD says %d %v", status, h)
	}
	want("create with another type", 409, "PUT", "a", kind, "text/plain")
	want("delete another incarnation", 412, "DELETE", "a", incarnationHeader, "1")
	want("delete", 204, "DELETE", "a", incarnationHeader, first)
	want("delete again", 404, "DELETE", "a", incarnationHeader, first)
	want("look at what is gone", 404, "HEAD", "a")
	second := want("create anew", 201, "PUT", "a", kind, json)
	if second == first {
		t.Fatal("a stream has the incarnation of the one before")
	}
	want("late delete of the one before", 412, "DELETE", "a", incarnationHeader, first)
	want("look at the second", 200, "HEAD", "a")
}

// The storage takes every form of content type that the API does.
func TestRealNodeTakesContentTypes(t *testing.T) {
	t.Parallel()
	n := oneNode{realursula.Start(t).URL}
	for _, contentType := range []string{
		"application/json", "application/x-ndjson", "text/plain; charset=utf-8", "text/plain;charset=UTF-8;format=flowed",
		"0/0", "application/vnd.a+b.c_d-e!f#g$h&i^j", "TEXT/Plain", "multipart/mixed; boundary=a; b=c; d=e", "audio/x; a=1; a=2",
	} {
		if !mediaTypes.MatchString(contentType) {
			t.Errorf("%s is not taken by the API", contentType)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "/acme/s.x", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", contentType)
		res, err := n.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusCreated {
			t.Errorf("%s: the node answers %d", contentType, res.StatusCode)
		}
		req.Method = http.MethodHead
		head, err := n.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = head.Body.Close()
		if got := head.Header.Get("Content-Type"); !sameType(got, contentType) {
			t.Errorf("%s comes back as %s", contentType, got)
		}
		req.Method = http.MethodDelete
		if res, err = n.Do(req); err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
	}
}

// The API on the real node: what it says of a stream is what the node has, a deleted one
// takes its data with it, and what a process left halfway is finished.
func TestManageTheRealNode(t *testing.T) {
	t.Parallel()
	node := oneNode{realursula.Start(t).URL}
	g := newRig(t, func(r *ReconcilerOptions, _ *Options) {
		r.Nodes, r.Poll, r.Late = node, 20*time.Millisecond, 200*time.Millisecond
	})
	ask := func(method, name, body string) (int, http.Header) {
		req, err := http.NewRequestWithContext(t.Context(), method, "/acme/s."+name, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := node.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res.StatusCode, res.Header
	}
	await := func(what string, done func() bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for !done() {
			select {
			case <-ctx.Done():
				t.Fatalf("%s: not in 20 s", what)
			case <-tick.C:
			}
		}
	}
	for range 2 {
		got := g.create()
		if got.text("state") != "active" {
			t.Fatalf("create: %d %s", got.status, got.body)
		}
		status, h := ask(http.MethodHead, "events", "")
		if status != 200 || h.Get(incarnationHeader) != got.text("incarnation") || h.Get("Stream-Next-Offset") != "00000000000000000000" {
			t.Errorf("the node has %d %v, the API says %s", status, h, got.body)
		}
		if status, _ := ask(http.MethodPost, "events", `{"a":1}`); status != http.StatusNoContent {
			t.Errorf("append: %d", status)
		}
		if got := g.own(http.MethodDelete, "/v1/streams/events", ""); got.status != http.StatusAccepted {
			t.Errorf("delete: %d %s", got.status, got.body)
		}
		await("delete", func() bool { return g.own(http.MethodGet, "/v1/streams/events", "").status == http.StatusNotFound })
		if status, _ := ask(http.MethodHead, "events", ""); status != http.StatusNotFound {
			t.Errorf("the node still has it: %d", status)
		}
	}
	// A process died after its create had reached the node, and one before.
	if status, _ := ask(http.MethodPut, "made", ""); status != http.StatusCreated {
		t.Fatalf("create at the node: %d", status)
	}
	for _, name := range []string{"made", "not-made"} {
		if err := g.store.CreateStream(t.Context(), store.BySystem(), store.Stream{
			Stream: tenant.Stream{Account: testAccount, Name: tenant.StreamName(name), ContentType: "application/json"}, ID: "str_" + name,
		}); err != nil {
			t.Fatal(err)
		}
		await(name, func() bool { return g.row(name).State == store.Live })
		if status, h := ask(http.MethodHead, name, ""); status != 200 || h.Get(incarnationHeader) != g.row(name).Incarnation {
			t.Errorf("%s: %d %v, row %v", name, status, h, g.row(name))
		}
	}
}
