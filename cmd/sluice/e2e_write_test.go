package main

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
)

// The end-to-end suite: the whole program on its real listeners, against the
// stand-in and the real Ursula alike.

func producer(seq string) []string {
	return []string{"Content-Type", "application/json", "Producer-Id", "p1", "Producer-Epoch", "0", "Producer-Seq", seq}
}

func TestEndToEndQuickstart(t *testing.T) {
	forEachUpstream(t, func(t *testing.T, node string) {
		e := newEdge(t, node)
		path := e.path("json")
		first := e.do(t, http.MethodPost, path, []byte(`{"n":1}`), producer("0")...)
		want(t, first, http.StatusOK, "Stream-Offset", "*", "Stream-Next-Offset", "*", "Ursula-Protocol", "*", "Ursula-Cluster-Id", "*", "Cache-Control", "no-store")
		second := e.do(t, http.MethodPost, path, []byte(`{"n":2}`), producer("1")...)
		want(t, second, http.StatusOK, "Stream-Offset", first.Header.Get("Stream-Next-Offset"))
		again := e.do(t, http.MethodPost, path, []byte(`{"n":2}`), producer("1")...)
		want(t, again, http.StatusNoContent, "Stream-Offset", second.Header.Get("Stream-Offset"), "Stream-Next-Offset", second.Header.Get("Stream-Next-Offset"))

		read := e.do(t, http.MethodGet, path+"?offset=-1", nil)
		want(t, read, http.StatusOK, "Stream-Up-To-Date", "true", "Stream-Next-Offset", second.Header.Get("Stream-Next-Offset"), "Cache-Control", "no-store")
		if read.Text != "{\"n\":1}\n{\"n\":2}\n" {
			t.Errorf("read %q", read.Text)
		}

		want(t, e.do(t, http.MethodPost, path, nil, "Stream-Closed", "true"), http.StatusNoContent, "Stream-Closed", "true")
		closed := e.do(t, http.MethodPost, path, []byte(`{"n":3}`), producer("2")...)
		want(t, closed, http.StatusConflict, "Stream-Closed", "true", "Stream-Next-Offset", "*")
		if closed.code() != "STREAM_CLOSED" {
			t.Errorf("append after the close: %s", closed.Text)
		}

		atEnd := e.do(t, http.MethodGet, path+"?offset="+read.Header.Get("Stream-Next-Offset"), nil)
		want(t, atEnd, http.StatusOK, "Stream-Closed", "true")
		if atEnd.Text != "" {
			t.Errorf("read at the end: %q", atEnd.Text)
		}
		poll := e.do(t, http.MethodGet, path+"?offset=now&live=long-poll&timeout_ms=20000", nil)
		want(t, poll, http.StatusNoContent, "Stream-Closed", "true", "Stream-Cursor", "")
		tail := e.do(t, http.MethodGet, path+"?offset=now&live=sse", nil)
		want(t, tail, http.StatusOK, "Content-Type", "text/event-stream", "Cache-Control", "no-store")
		if !strings.Contains(tail.Text, `"streamClosed":true`) {
			t.Errorf("tail at the end: %q", tail.Text)
		}
	})
}

func TestEndToEndProducers(t *testing.T) {
	forEachUpstream(t, func(t *testing.T, node string) {
		e := newEdge(t, node)
		path := e.path("json")
		want(t, e.do(t, http.MethodPost, path, []byte(`1`), producer("0")...), http.StatusOK)
		gap := e.do(t, http.MethodPost, path, []byte(`3`), producer("5")...)
		want(t, gap, http.StatusConflict, "Producer-Expected-Seq", "1", "Producer-Received-Seq", "5")
		want(t, e.do(t, http.MethodPost, path, []byte(`2`), "Content-Type", "application/json",
			"Producer-Id", "p1", "Producer-Epoch", "1", "Producer-Seq", "0"), http.StatusOK)
		stale := e.do(t, http.MethodPost, path, []byte(`9`), producer("1")...)
		want(t, stale, http.StatusForbidden, "Producer-Outcome", "*", "Producer-Epoch", "*")
		incomplete := e.do(t, http.MethodPost, path, []byte(`9`), "Content-Type", "application/json", "Producer-Id", "p1")
		want(t, incomplete, http.StatusBadRequest)
		if incomplete.code() != "INVALID_PRODUCER" {
			t.Errorf("incomplete: %s", incomplete.Text)
		}
		if read := e.do(t, http.MethodGet, path, nil); read.Text != "1\n2\n" {
			t.Errorf("stored %q", read.Text)
		}
	})
}

// What a node refuses comes through with its own code and headers.
func TestEndToEndNodeRefusals(t *testing.T) {
	forEachUpstream(t, func(t *testing.T, node string) {
		e := newEdge(t, node)
		path := e.path("text")
		e.append(t, "text", "hello")
		head := e.do(t, http.MethodHead, path, nil)
		want(t, head, http.StatusOK, "Stream-Incarnation", "*", "Stream-Next-Offset", "00000000000000000005",
			"Ursula-Max-Request-Bytes", "8388608", "Stream-TTL", "", "Stream-Expires-At", "")
		incarnation := head.Header.Get("Stream-Incarnation")
		for name, tc := range map[string]struct {
			method, path, body string
			headers            []string
			status             int
			code               string
			want               []string
		}{
			"missing stream":    {http.MethodGet, e.path("none"), "", nil, 404, "", nil},
			"other type":        {http.MethodPost, path, "{}", []string{"Content-Type", "application/json"}, 409, "CONTENT_TYPE_MISMATCH", nil},
			"no type":           {http.MethodPost, path, "x", nil, 400, "MISSING_CONTENT_TYPE", nil},
			"empty append":      {http.MethodPost, path, "", []string{"Content-Type", "text/plain"}, 400, "EMPTY_APPEND", nil},
			"beyond the tail":   {http.MethodGet, path + "?offset=99", "", nil, 416, "OFFSET_OUT_OF_RANGE", []string{"Stream-Next-Offset", "*", "Stream-Incarnation", incarnation}},
			"bad offset":        {http.MethodGet, path + "?offset=x", "", nil, 400, "INVALID_OFFSET", nil},
			"other incarnation": {http.MethodGet, path, "", []string{"Stream-Incarnation", "1"}, 412, "INCARNATION_MISMATCH", []string{"Stream-Incarnation", incarnation}},
			"removed parameter": {http.MethodGet, path + "?record=1", "", nil, 400, "UNSUPPORTED", nil},
			"query on a chunk":  {http.MethodGet, path + "/incarnation/" + incarnation + "/chunk/00000000000000000000?x=1", "", nil, 400, "QUERY_NOT_ACCEPTED", nil},
			"bare ? on a chunk": {http.MethodGet, path + "/incarnation/" + incarnation + "/chunk/00000000000000000000?", "", nil, 400, "QUERY_NOT_ACCEPTED", nil},
			"bad token":         {http.MethodGet, path + "/incarnation/01/chunk/00000000000000000000", "", nil, 400, "INVALID_RESOURCE", nil},
			"no snapshot":       {http.MethodGet, path + "/snapshot/0", "", nil, 404, "SNAPSHOT_NOT_FOUND", nil},
		} {
			t.Run(name, func(t *testing.T) {
				var body []byte
				if tc.body != "" {
					body = []byte(tc.body)
				}
				res := e.do(t, tc.method, tc.path, body, tc.headers...)
				want(t, res, tc.status, append(tc.want, "Cache-Control", "no-store", "Ursula-Cluster-Id", "*")...)
				if tc.code != "" && res.code() != tc.code {
					t.Errorf("code %s, want %s", res.code(), tc.code)
				}
				for name := range res.Header {
					if strings.HasPrefix(name, "X-Ursula-") || name == "Server" || name == "Location" {
						t.Errorf("%s leaks", name)
					}
				}
			})
		}
	})
}

func TestEndToEndAccess(t *testing.T) {
	forEachUpstream(t, func(t *testing.T, node string) {
		e := newEdge(t, node)
		e.append(t, "json", `{"n":1}`)
		e.append(t, "open-json", `{"n":1}`)
		for name, tc := range map[string]struct {
			key, method, path string
			status            int
			code              string
		}{
			"anonymous, private":       {"", http.MethodGet, e.path("json"), 401, "INVALID_CREDENTIAL"},
			"anonymous, missing":       {"", http.MethodGet, e.path("none"), 401, "INVALID_CREDENTIAL"},
			"anonymous, public":        {"", http.MethodGet, e.path("open-json"), 200, ""},
			"anonymous write, public":  {"", http.MethodPost, e.path("open-json"), 401, "INVALID_CREDENTIAL"},
			"unknown key, public":      {newTestKey(t), http.MethodGet, e.path("open-json"), 401, "INVALID_CREDENTIAL"},
			"reads, private":           {e.Reads, http.MethodGet, e.path("json"), 200, ""},
			"reads, write":             {e.Reads, http.MethodPost, e.path("json"), 403, "FORBIDDEN"},
			"another account's stream": {e.Key, http.MethodGet, "/" + testAccount(t) + "/s.json", 403, "FORBIDDEN"},
			"create":                   {e.Key, http.MethodPut, e.path("json"), 403, "STREAM_LIFECYCLE"},
			"delete":                   {e.Key, http.MethodDelete, e.path("json"), 403, "STREAM_LIFECYCLE"},
			"operator's path":          {e.Key, http.MethodGet, "/__ursula/metrics", 404, "NOT_FOUND"},
		} {
			t.Run(name, func(t *testing.T) {
				for _, c := range []*http.Client{http1(), http2()} {
					var body []byte
					if tc.method == http.MethodPost {
						body = []byte(`{"n":2}`)
					}
					res := e.doAs(t, c, tc.key, tc.method, tc.path, body, "Content-Type", "application/json")
					want(t, res, tc.status, "Cache-Control", "no-store")
					if res.code() != tc.code {
						t.Errorf("code %q, want %q", res.code(), tc.code)
					}
				}
			})
		}
		if got := e.do(t, http.MethodGet, e.path("json"), nil).Text; got != "{\"n\":1}\n" {
			t.Errorf("a refused write was stored: %q", got)
		}
	})
}

// Bodies arrive byte for byte up to the limit, and not at all beyond it.
func TestEndToEndBodySizes(t *testing.T) {
	forEachUpstream(t, func(t *testing.T, node string) {
		e := newEdge(t, node)
		path := e.path("bytes")
		const limit = 8 << 20
		big := bytes.Repeat([]byte("0123456789abcdef"), limit/16)
		want(t, e.do(t, http.MethodPost, path, big, "Content-Type", "application/octet-stream"), http.StatusNoContent)
		tooBig := e.do(t, http.MethodPost, path, append(big[:limit:limit], 'x'), "Content-Type", "application/octet-stream")
		want(t, tooBig, http.StatusRequestEntityTooLarge, "Ursula-Max-Request-Bytes", "8388608", "Ursula-Cluster-Id", "")
		if tooBig.code() != "REQUEST_TOO_LARGE" {
			t.Errorf("code %s", tooBig.code())
		}
		read := e.do(t, http.MethodGet, path+"?offset=-1&max_bytes=8388608", nil)
		want(t, read, http.StatusOK, "Stream-Next-Offset", "00000000000008388608")
		if read.Text != string(big) {
			t.Errorf("read %d bytes that differ from what was written", len(read.Text))
		}
		over2 := e.doAs(t, http2(), e.Key, http.MethodPost, path, []byte("h2"), "Content-Type", "application/octet-stream")
		want(t, over2, http.StatusNoContent)
	})
}
