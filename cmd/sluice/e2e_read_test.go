package main

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
	"time"
)

const cacheable = "public, max-age=300, immutable"

func TestEndToEndTails(t *testing.T) {
	forEachUpstream(t, func(t *testing.T, node string) {
		e := newEdge(t, node)
		for _, proto := range []struct {
			name   string
			client *http.Client
		}{{"HTTP/1.1", http1()}, {"HTTP/2", http2()}} {
			for stream, tc := range map[string]struct{ send, event string }{
				"json":  {`{"a":"é"}`, "event: data\ndata:{\"a\":\"é\"}\ndata:\n\n"},
				"text":  {"one\ntwo", "event: data\ndata:one\ndata:two\n\n"},
				"bytes": {"\x00\x01\xff", "event: data\ndata:" + base64.StdEncoding.EncodeToString([]byte("\x00\x01\xff")) + "\n\n"},
			} {
				t.Run(proto.name+" "+stream, func(t *testing.T) {
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
					defer cancel()
					res := e.open(ctx, t, proto.client, e.Key, http.MethodGet, e.path(stream)+"?offset=now&live=sse", nil)
					defer func() { _ = res.Body.Close() }()
					want(t, reply{res, ""}, http.StatusOK, "Content-Type", "text/event-stream", "Cache-Control", "no-store", "Ursula-Cluster-Id", "*")
					events := bufio.NewReader(res.Body)
					if got := readEvent(t, events); !strings.HasPrefix(got, "event: control\n") {
						t.Fatalf("first event %q", got)
					}
					e.append(t, stream, tc.send)
					if got := readEvent(t, events); got != tc.event {
						t.Errorf("event %q, want %q", got, tc.event)
					}
					if got := readEvent(t, events); !strings.Contains(got, `"upToDate":true`) {
						t.Errorf("control event %q", got)
					}
				})
			}
		}
	})
}

func readEvent(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	var event strings.Builder
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("after %q: %v", event.String(), err)
		}
		event.WriteString(line)
		if line == "\n" {
			return event.String()
		}
	}
}

func TestEndToEndLongPoll(t *testing.T) {
	forEachUpstream(t, func(t *testing.T, node string) {
		e := newEdge(t, node)
		path := e.path("json")
		idle := e.do(t, http.MethodGet, path+"?offset=now&live=long-poll&timeout_ms=10", nil)
		want(t, idle, http.StatusNoContent, "Stream-Up-To-Date", "true", "Stream-Cursor", "*", "Stream-Next-Offset", "*")
		got := make(chan reply, 1)
		go func() {
			got <- e.do(t, http.MethodGet, path+"?offset="+idle.Header.Get("Stream-Next-Offset")+"&live=long-poll&timeout_ms=20000", nil)
		}()
		eventually(t, "the poll is open", func() bool { return e.app.limits.OpenTails() == 1 })
		e.append(t, "json", `{"n":1}`)
		res := <-got
		want(t, res, http.StatusOK, "Stream-Cursor", "*", "Cache-Control", "no-store")
		if res.Text != "{\"n\":1}\n" {
			t.Errorf("polled %q", res.Text)
		}
		eventually(t, "the slot is given back", func() bool { return e.app.limits.OpenTails() == 0 })
	})
}

// A client that leaves ends its upstream request, and with it its slot.
func TestEndToEndTailEnds(t *testing.T) {
	forEachUpstream(t, func(t *testing.T, node string) {
		e := newEdge(t, node)
		for _, c := range []*http.Client{http1(), http2()} {
			ctx, cancel := context.WithCancel(t.Context())
			res := e.open(ctx, t, c, e.Key, http.MethodGet, e.path("json")+"?offset=now&live=sse", nil)
			readEvent(t, bufio.NewReader(res.Body))
			if n := e.app.limits.OpenTails(); n != 1 {
				t.Errorf("%d open tails, want 1", n)
			}
			cancel()
			_ = res.Body.Close()
			eventually(t, "the slot is given back", func() bool { return e.app.limits.OpenTails() == 0 })
		}
	})
}

// A closed stream's chunks are immutable at its end too, so that the whole of
// the Cache-Control rule can be seen from outside.
func TestEndToEndImmutableReads(t *testing.T) {
	forEachUpstream(t, func(t *testing.T, node string) {
		e := newEdge(t, node)
		for _, name := range []string{"bytes", "open-bytes"} {
			e.append(t, name, "some bytes")
			path := e.path(name)
			incarnation := e.do(t, http.MethodHead, path, nil).Header.Get("Stream-Incarnation")
			chunk := path + "/incarnation/" + incarnation + "/chunk/00000000000000000000"
			open := e.do(t, http.MethodGet, chunk, nil)
			want(t, open, http.StatusOK, "Stream-Immutable", "", "Cache-Control", "no-store")
			want(t, e.do(t, http.MethodPost, path, nil, "Stream-Closed", "true"), http.StatusNoContent)

			keyed := e.do(t, http.MethodGet, chunk, nil)
			want(t, keyed, http.StatusOK, "Stream-Immutable", "true", "Cache-Control", "no-store", "ETag", "*", "Stream-Offset", "*")
			if keyed.Text != "some bytes" {
				t.Errorf("chunk %q", keyed.Text)
			}
			if name != "open-bytes" {
				want(t, e.doAs(t, http1(), "", http.MethodGet, chunk, nil), http.StatusUnauthorized, "Cache-Control", "no-store")
				continue
			}
			want(t, e.doAs(t, http1(), "", http.MethodGet, chunk, nil), http.StatusOK, "Cache-Control", cacheable)
			head := e.doAs(t, http1(), "", http.MethodHead, chunk, nil)
			want(t, head, http.StatusOK, "Cache-Control", cacheable, "Content-Length", "10")
			same := e.doAs(t, http1(), "", http.MethodGet, chunk, nil, "If-None-Match", keyed.Header.Get("ETag"))
			want(t, same, http.StatusNotModified, "Cache-Control", cacheable, "ETag", keyed.Header.Get("ETag"))
			want(t, e.doAs(t, http1(), "", http.MethodGet, path+"/incarnation/"+incarnation+"/chunk/99999999999999999999", nil), http.StatusBadRequest, "Cache-Control", "no-store")
			want(t, e.doAs(t, http1(), "", http.MethodGet, path, nil), http.StatusOK, "Cache-Control", "no-store")
		}
	})
}

func TestEndToEndSnapshots(t *testing.T) {
	forEachUpstream(t, func(t *testing.T, node string) {
		e := newEdge(t, node)
		path := e.path("open-json")
		next := e.append(t, "open-json", `{"n":1}`).Header.Get("Stream-Next-Offset")
		published := e.do(t, http.MethodPut, path+"/snapshot/"+next, []byte("state at one"), "Content-Type", "text/plain")
		want(t, published, http.StatusNoContent, "Stream-Snapshot-Offset", next, "Stream-Snapshot-Digest", "*")
		want(t, e.doAs(t, http1(), e.Reads, http.MethodPut, path+"/snapshot/"+next, []byte("x"), "Content-Type", "text/plain"), http.StatusForbidden)

		read := e.doAs(t, http1(), "", http.MethodGet, path+"/snapshot/"+next, nil)
		want(t, read, http.StatusOK, "Content-Type", "text/plain", "Stream-Snapshot-Offset", next, "Cache-Control", "no-store")
		if read.Text != "state at one" {
			t.Errorf("snapshot %q", read.Text)
		}
		want(t, e.do(t, http.MethodHead, path+"/snapshot/"+next, nil), http.StatusOK, "Content-Length", "12")
		ranged := e.do(t, http.MethodGet, path+"/snapshot/"+next, nil, "Range", "bytes=0-4")
		want(t, ranged, http.StatusPartialContent, "Content-Range", "bytes 0-4/12")
		if ranged.Text != "state" {
			t.Errorf("range %q", ranged.Text)
		}

		incarnation := e.do(t, http.MethodHead, path, nil).Header.Get("Stream-Incarnation")
		immutable := path + "/incarnation/" + incarnation + "/snapshot/" + next
		want(t, e.doAs(t, http1(), "", http.MethodGet, immutable, nil), http.StatusOK, "Stream-Immutable", "true", "Cache-Control", cacheable)
		want(t, e.doAs(t, http1(), "", http.MethodGet, immutable, nil, "Range", "bytes=0-4"), http.StatusPartialContent, "Cache-Control", cacheable)
		want(t, e.doAs(t, http1(), "", http.MethodGet, immutable, nil, "Range", "bytes=90-"), http.StatusRequestedRangeNotSatisfiable, "Cache-Control", "no-store")
		want(t, e.do(t, http.MethodGet, immutable, nil), http.StatusOK, "Cache-Control", "no-store")

		e.append(t, "open-json", `{"n":2}`)
		boot := e.do(t, http.MethodGet, path+"/bootstrap", nil)
		want(t, boot, http.StatusOK, "Stream-Up-To-Date", "true", "Stream-Snapshot-Offset", next)
		if got := parts(t, boot); len(got) != 2 || got[0] != "state at one" || got[1] != "{\"n\":2}\n" {
			t.Errorf("bootstrap parts %q", got)
		}

		want(t, e.do(t, http.MethodPut, path+"/retention/"+next, nil), http.StatusNoContent, "Stream-Retained-Offset", next)
		gone := e.do(t, http.MethodGet, path+"?offset=0", nil)
		want(t, gone, http.StatusGone, "Stream-Incarnation", incarnation, "Stream-Next-Offset", next)
	})
}

func parts(t *testing.T, res reply) []string {
	t.Helper()
	_, params, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for r := multipart.NewReader(strings.NewReader(res.Text), params["boundary"]); ; {
		p, err := r.NextPart()
		if errors.Is(err, io.EOF) {
			return texts
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(p)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
}

// A coding that the client asked for is the node's, and passes untouched.
func TestEndToEndGzip(t *testing.T) {
	forEachUpstream(t, func(t *testing.T, node string) {
		e := newEdge(t, node)
		long := fmt.Sprintf(`{"text":%q}`, strings.Repeat("again and ", 100))
		e.append(t, "json", long)
		plain := e.do(t, http.MethodGet, e.path("json"), nil)
		want(t, plain, http.StatusOK, "Content-Encoding", "")
		packed := e.do(t, http.MethodGet, e.path("json"), nil, "Accept-Encoding", "gzip")
		want(t, packed, http.StatusOK, "Content-Encoding", "gzip")
		r, err := gzip.NewReader(strings.NewReader(packed.Text))
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(r); err != nil || string(text) != long+"\n" || plain.Text != long+"\n" {
			t.Errorf("unpacked %q, %v", text, err)
		}
	})
}
