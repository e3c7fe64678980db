package manage

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"sluice/internal/ursulatest/realursula"
)

// oneNode asks one real node.
type oneNode struct{ url string }

func (n oneNode) Do(r *http.Request) (*http.Response, error) {
	req, err := http.NewRequestWithContext(r.Context(), r.Method, n.url+r.URL.Path, r.Body)
	if err != nil {
		return nil, err
	}
	req.Header = r.Header
	return http.DefaultClient.Do(req)
}

// What the steps between store and node rest on, as the real node does it: a create and a
// HEAD say the incarnation, a repeated create finds what is there, one of another type is a
// conflict, and a DELETE for another incarnation does nothing, also to a stream that was
// made after the one it is for.
func TestRealNodeKeepsToTheIncarnation(t *testing.T) {
	t.Parallel()
	n := oneNode{realursula.Start(t).URL}
	ask := func(method, name string, header ...string) *http.Response {
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
		return res
	}
	want := func(what string, res *http.Response, status int) string {
		t.Helper()
		if res.StatusCode != status {
			t.Fatalf("%s: %d, want %d", what, res.StatusCode, status)
		}
		return res.Header.Get(incarnationHeader)
	}
	const json, kind = "application/json", "Content-Type"
	first := want("create", ask("PUT", "a", kind, json), 201)
	if again := want("create again", ask("PUT", "a", kind, json), 200); again != first || first == "" {
		t.Errorf("incarnation %q, and again %q", first, again)
	}
	res := ask("HEAD", "a")
	if head := want("look", res, 200); head != first || !strings.HasPrefix(res.Header.Get(kind), json) {
		t.Errorf("HEAD says incarnation %q and type %q", head, res.Header.Get(kind))
	}
	want("create with another type", ask("PUT", "a", kind, "text/plain"), 409)
	want("delete another incarnation", ask("DELETE", "a", incarnationHeader, "1"), 412)
	want("delete", ask("DELETE", "a", incarnationHeader, first), 204)
	want("delete again", ask("DELETE", "a", incarnationHeader, first), 404)
	want("look at what is gone", ask("HEAD", "a"), 404)
	second := want("create anew", ask("PUT", "a", kind, json), 201)
	if second == first {
		t.Fatal("a stream has the incarnation of the one before")
	}
	want("late delete of the one before", ask("DELETE", "a", incarnationHeader, first), 412)
	want("look at the second", ask("HEAD", "a"), 200)
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
