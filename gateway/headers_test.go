package gateway

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/gateway/upstream"
	"sluice/internal/tenant"
)

// retold is a rig whose node answers with whatever next holds at the moment.
type retold struct {
	*rig
	node *up
	next atomic.Pointer[string]
}

func newRetold(t testing.TB, o rigOptions) *retold {
	t.Helper()
	rt := &retold{}
	rt.rig, rt.node = newUpRig(t, func(c *upConn, _ *upRequest) { c.say(*rt.next.Load()) }, o)
	return rt
}

// answerWith makes the node's next answers: a status line's rest, header pairs
// and a body. A HEAD's, a 204's and a 304's body is not sent.
func (rt *retold) answerWith(method, status string, headers []string, body string) {
	var b strings.Builder
	fmt.Fprintf(&b, "HTTP/1.1 %s\r\n", status)
	for i := 0; i+1 < len(headers); i += 2 {
		fmt.Fprintf(&b, "%s: %s\r\n", headers[i], headers[i+1])
	}
	switch {
	case method == http.MethodHead, strings.HasPrefix(status, "304"):
		fmt.Fprintf(&b, "\r\n")
	case strings.HasPrefix(status, "204"):
		fmt.Fprintf(&b, "\r\n")
	default:
		fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%s", len(body), body)
	}
	text := b.String()
	rt.next.Store(&text)
}

// ofNode are the headers that a node adds to everything (facts §3.2, first row)
// and, here, those of which no client may hear.
func ofNode() []string {
	return []string{
		"X-Content-Type-Options", "nosniff", "Cross-Origin-Resource-Policy", "cross-origin", "Cache-Control", "no-cache, no-store",
		"Server", "ursula/0.11.5", "Set-Cookie", "a=1", "Set-Cookie", "b=2", "Via", "1.1 node-7",
		"X-Ursula-Raft-Group", "3", "X-Ursula-Raft-Leader-Id", "2", "X-Ursula-Raft-Term", "9", "x-ursula-anything", "x",
		"Location", "http://10.0.0.7:4491/acme/s.priv", "Connection", "X-Hop", "X-Hop", "1", "Keep-Alive", "timeout=1",
		"Strict-Transport-Security", "max-age=1", "Access-Control-Allow-Origin", "*", "Clear-Site-Data", "*",
		"Expires", "Tue, 01 Jan 2030 00:00:00 GMT", "Pragma", "cache", "Age", "5",
		"Link", "<http://10.0.0.7:4491/>", "WWW-Authenticate", "Basic",
	}
}

// hidden are those of ofNode that are dropped; the others are the gateway's own
// word on every answer.
func hidden() []string {
	return []string{
		"Server", "Set-Cookie", "Via", "X-Ursula-Raft-Group", "X-Ursula-Raft-Leader-Id", "X-Ursula-Raft-Term", "X-Ursula-Anything",
		"Location", "X-Hop", "Keep-Alive", "Connection", "Strict-Transport-Security", "Access-Control-Allow-Origin", "Clear-Site-Data",
		"Expires", "Pragma", "Age", "Link", "Www-Authenticate",
	}
}

// sighting is an answer of a node as facts §3.2 says it occurs. Every header of
// it must reach the client as it was sent, but for those of changed.
type sighting struct {
	name    string
	method  string
	target  string // behind the stream
	status  string
	headers []string
	body    string
	changed map[string]string // header → what the client gets; "" = dropped
}

func sightings() []sighting {
	const (
		get, head, post, put, del = http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete
		off                       = "00000000000000000042"
		digest                    = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
		snap                      = "/snapshot/42"
		chunkAt                   = "/incarnation/7/chunk/00000000000000000000"
		snapAt                    = "/incarnation/7/snapshot/00000000000000000042"
	)
	e := func(code string) string { return `{"error":{"code":"` + code + `","message":"acme/s.priv says so"}}` }
	const js = "application/json"
	return []sighting{
		{"read", get, "?offset=-1", "200 OK", []string{"Content-Type", js, "Stream-Next-Offset", off, "Stream-Incarnation", "7", "Stream-Up-To-Date", "true", "ETag", `W/"0af1"`, "Vary", "accept-encoding", "Date", "Tue, 01 Jan 2030 00:00:00 GMT"}, "{}\n", nil},
		{"read at the end of a closed stream", get, "?offset=42", "200 OK", []string{"Stream-Next-Offset", off, "Stream-Incarnation", "7", "Stream-Up-To-Date", "true", "Stream-Closed", "true", "ETag", `"0af1"`}, "", nil},
		{"read, not modified", get, "?offset=42", "304 Not Modified", []string{"ETag", `"0af1"`, "Stream-Next-Offset", off, "Stream-Incarnation", "7", "Vary", "accept-encoding"}, "", nil},
		{"read 404 of a stream that exists", get, "?offset=42", "404 Not Found", []string{"Content-Type", js, "Stream-Incarnation", "7"}, e("SNAPSHOT_NOT_FOUND"), nil},
		{"read 410", get, "?offset=1", "410 Gone", []string{"Content-Type", js, "Stream-Incarnation", "7", "Stream-Next-Offset", off}, e("STREAM_GONE"), nil},
		{"read 416", get, "?offset=99", "416 Range Not Satisfiable", []string{"Content-Type", js, "Stream-Incarnation", "7", "Stream-Next-Offset", off}, e("OFFSET_OUT_OF_RANGE"), nil},
		{"read 412", get, "?offset=1", "412 Precondition Failed", []string{"Content-Type", js, "Stream-Incarnation", "7"}, e("INCARNATION_MISMATCH"), nil},
		{"long-poll, timed out", get, "?offset=42&live=long-poll", "204 No Content", []string{"Stream-Up-To-Date", "true", "Stream-Cursor", "c1", "Stream-Next-Offset", off, "Stream-Incarnation", "7"}, "", nil},
		{"long-poll, closed", get, "?offset=42&live=long-poll", "204 No Content", []string{"Stream-Up-To-Date", "true", "Stream-Closed", "true", "Stream-Next-Offset", off}, "", nil},
		{"long-poll, data", get, "?offset=42&live=long-poll", "200 OK", []string{"Content-Type", js, "Stream-Cursor", "c1", "Stream-Next-Offset", off}, "{}\n", nil},
		{"SSE", get, "?offset=42&live=sse", "200 OK", []string{"Content-Type", "text/event-stream", "Stream-Data-Content-Type", "application/x-ndjson", "Stream-Sse-Data-Encoding", "base64", "Stream-Incarnation", "7"}, "event: control\n\n", nil},
		{"head", head, "", "200 OK", []string{
			"Content-Type", js, "Stream-Next-Offset", off, "Stream-Incarnation", "7", "Stream-Up-To-Date", "true", "Stream-Closed", "true", "Stream-Retained-Offset", off,
			"Stream-Snapshot-Offset", off, "Stream-Snapshot-Digest", digest, "Stream-TTL", "60", "Stream-Expires-At", "2030-01-01T00:00:00Z", "Stream-Cold-Hot-Start-Offset", off,
			"Stream-Previous-Incarnation", "6", "Stream-Inherited-Offset", off, "Ursula-Max-Request-Bytes", "33554432", "Ursula-Max-Snapshot-Bytes", "1073741824",
			"Ursula-Protocol", "11", "Ursula-Cluster-Id", "up",
		}, "", map[string]string{"Stream-TTL": "", "Stream-Expires-At": "", "Ursula-Max-Request-Bytes": "8388608"}},
		{"head 404", head, "", "404 Not Found", []string{"Ursula-Protocol", "11", "Ursula-Cluster-Id", "up"}, "", nil},
		{"snapshot", get, snap, "200 OK", []string{"Content-Type", "text/plain", "Stream-Next-Offset", off, "Stream-Snapshot-Offset", off, "Stream-Snapshot-Digest", digest, "ETag", `"` + digest + `"`, "Accept-Ranges", "bytes", "Stream-Incarnation", "7"}, "snapshot", nil},
		{"snapshot, range", get, snap, "206 Partial Content", []string{"Content-Range", "bytes 0-3/8", "Accept-Ranges", "bytes", "ETag", `"` + digest + `"`, "Stream-Snapshot-Offset", off}, "snap", nil},
		{"snapshot, no such range", get, snap, "416 Range Not Satisfiable", []string{"Content-Type", js, "Content-Range", "bytes */8", "Stream-Incarnation", "7"}, e("RANGE_NOT_SATISFIABLE"), nil},
		{"snapshot, head", head, snap, "200 OK", []string{"Content-Length", "8", "Stream-Snapshot-Offset", off, "ETag", `"` + digest + `"`, "Accept-Ranges", "bytes", "Ursula-Protocol", "11", "Ursula-Cluster-Id", "up"}, "", nil},
		{"bootstrap", get, "/bootstrap", "200 OK", []string{"Content-Type", "multipart/mixed; boundary=b", "Stream-Snapshot-Offset", "-1", "Stream-Next-Offset", off, "Stream-Up-To-Date", "true", "Stream-Incarnation", "7"}, "--b--", nil},
		{"chunk", get, chunkAt, "200 OK", []string{"Content-Type", "application/x-ndjson", "Stream-Immutable", "true", "Stream-Incarnation", "7", "Stream-Offset", off, "Stream-Next-Offset", off, "ETag", `"c"`}, "{}\n", nil},
		{"chunk, closed", get, chunkAt, "200 OK", []string{"Stream-Immutable", "true", "Stream-Closed", "true", "ETag", `"c"`}, "{}\n", nil},
		{"chunk, not modified", get, chunkAt, "304 Not Modified", []string{"Stream-Immutable", "true", "ETag", `"c"`, "Stream-Incarnation", "7", "Stream-Offset", off}, "", nil},
		{"immutable snapshot, range", get, snapAt, "206 Partial Content", []string{"Stream-Immutable", "true", "Content-Range", "bytes 0-3/8", "Accept-Ranges", "bytes"}, "snap", nil},
		{"chunk with a query", get, chunkAt + "?x=1", "400 Bad Request", []string{"Content-Type", js}, e("QUERY_NOT_ACCEPTED"), nil},
		{"append", post, "", "204 No Content", []string{"Stream-Next-Offset", off, "Stream-Incarnation", "7"}, "", nil},
		{"keyed append", post, "", "200 OK", []string{"Stream-Offset", off, "Stream-Next-Offset", off, "Stream-Incarnation", "7", "Producer-Epoch", "1", "Producer-Seq", "0"}, "", nil},
		{"keyed append, repeat", post, "", "204 No Content", []string{"Stream-Offset", off, "Stream-Next-Offset", off, "Stream-Incarnation", "7", "Producer-Epoch", "1", "Producer-Seq", "0"}, "", nil},
		{"close", post, "", "204 No Content", []string{"Stream-Closed", "true", "Stream-Next-Offset", off, "Stream-Incarnation", "7"}, "", nil},
		{"409 closed", post, "", "409 Conflict", []string{"Content-Type", js, "Stream-Closed", "true", "Stream-Next-Offset", off}, e("STREAM_CLOSED"), nil},
		{"409 Stream-Seq", post, "", "409 Conflict", []string{"Content-Type", js, "Stream-Last-Seq", "b"}, e("STREAM_SEQ_CONFLICT"), nil},
		{"409 seq-gap", post, "", "409 Conflict", []string{"Content-Type", js, "Producer-Outcome", "seq-gap", "Producer-Epoch", "1", "Producer-Expected-Seq", "3", "Producer-Received-Seq", "5"}, e("PRODUCER_SEQ_CONFLICT"), nil},
		{"403 epoch closed by claim", post, "", "403 Forbidden", []string{"Content-Type", js, "Producer-Epoch", "2", "Producer-Outcome", "epoch-closed;by=claim", "Producer-Closed-Epoch", "1", "Producer-Closed-Seq", "9"}, e("PRODUCER_EPOCH_CLOSED"), nil},
		{"403 epoch closed by history", post, "", "403 Forbidden", []string{"Content-Type", js, "Producer-Epoch", "2", "Producer-Outcome", "epoch-closed;by=history"}, e("PRODUCER_EPOCH_CLOSED"), nil},
		{"403 stale epoch", post, "", "403 Forbidden", []string{"Content-Type", js, "Producer-Epoch", "2", "Producer-Outcome", "stale-epoch"}, e("PRODUCER_EPOCH_STALE"), nil},
		{"403 key conflict", post, "", "403 Forbidden", []string{"Content-Type", js, "Producer-Epoch", "2", "Producer-Outcome", "key-conflict"}, e("PRODUCER_KEY_CONFLICT"), nil},
		{"403 producer expired", post, "", "403 Forbidden", []string{"Content-Type", js, "Producer-Epoch", "2", "Producer-Outcome", "producer-expired"}, e("PRODUCER_EXPIRED"), nil},
		{"413 of the node", post, "", "413 Request Entity Too Large", []string{"Content-Type", js, "Ursula-Max-Request-Bytes", "33554432"}, e("REQUEST_TOO_LARGE"), map[string]string{"Ursula-Max-Request-Bytes": "8388608"}},
		{"413 of a snapshot", put, snap, "413 Request Entity Too Large", []string{"Content-Type", js, "Ursula-Max-Snapshot-Bytes", "1073741824"}, e("SNAPSHOT_TOO_LARGE"), nil},
		{"publish", put, snap, "204 No Content", []string{"Stream-Snapshot-Offset", off, "Stream-Snapshot-Digest", digest, "Stream-Incarnation", "7"}, "", nil},
		{"publish 409", put, snap, "409 Conflict", []string{"Content-Type", js, "Stream-Snapshot-Offset", off, "Stream-Snapshot-Digest", digest}, e("SNAPSHOT_CONFLICT"), nil},
		{"part", post, snap + "/parts", "201 Created", []string{"Stream-Snapshot-Part", "p1", "Stream-Incarnation", "7"}, "", nil},
		{"too many part bytes", post, snap + "/parts", "429 Too Many Requests", []string{"Content-Type", js, "Ursula-Max-Staged-Bytes", "2147483648", "Stream-Incarnation", "7"}, e("STAGED_PARTS_LIMIT"), nil},
		{"too many parts", post, snap + "/parts", "429 Too Many Requests", []string{"Content-Type", js, "Ursula-Max-Staged-Parts", "8192", "Stream-Incarnation", "7"}, e("STAGED_PARTS_LIMIT"), nil},
		{"parts dropped", del, "/snapshot/parts", "204 No Content", []string{"Stream-Incarnation", "7"}, "", nil},
		{"retention", put, "/retention/42", "204 No Content", []string{"Stream-Retained-Offset", off, "Stream-Incarnation", "7"}, "", nil},
		{"405", get, snap, "405 Method Not Allowed", []string{"Content-Type", js, "Allow", "DELETE"}, e("METHOD_NOT_ALLOWED"), nil},
		{"F1 unknown ones, repeated ones", get, "", "200 OK", []string{"X-Deployment", "a", "X-Deployment", "b", "Content-Language", "de"}, "x", nil},
	}
}

// Every header of facts §3.2 passes as the node sent it, under each status where
// that table says it occurs, but for what design §7 and §8 change or drop.
func TestAnswerHeadersPass(t *testing.T) {
	rt := newRetold(t, rigOptions{})
	for _, tt := range sightings() {
		t.Run(tt.name, func(t *testing.T) {
			rt.answerWith(tt.method, tt.status, append(ofNode(), tt.headers...), tt.body)
			res := rt.Do(t, tt.method, "/acme/s.priv"+tt.target, key, map[string]string{http.MethodPost: "b", http.MethodPut: "b"}[tt.method])
			if got := fmt.Sprint(res.StatusCode); !strings.HasPrefix(tt.status, got) || res.Text != tt.body {
				t.Fatalf("got %s %q, want %s %q", got, res.Text, tt.status, tt.body)
			}
			want := http.Header{}
			for i := 0; i+1 < len(tt.headers); i += 2 {
				want.Add(tt.headers[i], tt.headers[i+1])
			}
			for name, value := range tt.changed {
				if want.Set(name, value); value == "" {
					want.Del(name)
					if v, ok := res.Header[http.CanonicalHeaderKey(name)]; ok {
						t.Errorf("%s: %q reached the client", name, v)
					}
				}
			}
			for name := range want {
				if diff := cmp.Diff(want[name], res.Header[name]); diff != "" {
					t.Errorf("%s (-want +got):\n%s", name, diff)
				}
			}
			checkOwnHeaders(t, res)
			// Nothing is there that the node did not send and the gateway does not owe.
			for name := range res.Header {
				owed := []string{
					"X-Content-Type-Options", "Content-Security-Policy", "Cross-Origin-Resource-Policy", "Cache-Control", "X-Request-Id",
					"Ursula-Protocol", "Ursula-Cluster-Id", "Date", "Content-Length", "Retry-After",
				}
				if _, sent := want[name]; !sent && !slices.Contains(owed, name) {
					t.Errorf("%s: %q is nobody's", name, res.Header[name])
				}
			}
		})
	}
}

// checkOwnHeaders looks at what a forwarded answer owes, whatever it is, and at
// what none may have.
func checkOwnHeaders(t *testing.T, res answer) {
	t.Helper()
	for name, want := range map[string]string{
		"X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "cross-origin",
		"Content-Security-Policy": "sandbox; default-src 'none'; frame-ancestors 'none'",
		"Cache-Control":           "no-store", "Ursula-Protocol": "11", "Ursula-Cluster-Id": "up",
	} {
		if diff := cmp.Diff([]string{want}, res.Header.Values(name)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if res.Header.Get(requestIDHeader) == "" {
		t.Error("no X-Request-Id")
	}
	for _, name := range hidden() {
		// The rig's client asks for the end of its connection itself.
		if v, ok := res.Header[name]; ok && name != "Connection" {
			t.Errorf("%s: %q reached the client", name, v)
		}
	}
	if wanted := res.StatusCode == http.StatusTooManyRequests || res.StatusCode == http.StatusServiceUnavailable; wanted != (res.Header.Get("Retry-After") != "") {
		t.Errorf("status %d has Retry-After %q", res.StatusCode, res.Header.Get("Retry-After"))
	}
}

// The Cache-Control rule holds through the chain (facts 0.10): the node's word
// counts for nothing, and only a stranger's marked immutable read is public.
func TestCacheControlThroughTheChain(t *testing.T) {
	const chunkAt = "/incarnation/7/chunk/00000000000000000000"
	rt := newRetold(t, rigOptions{})
	tests := []struct {
		name, method, target, keyName, status, mark, want string
	}{
		{"stranger's marked chunk", "GET", "/acme/s.pub" + chunkAt, "", "200 OK", "true", "public, max-age=300, immutable"},
		{"its head", "HEAD", "/acme/s.pub" + chunkAt, "", "200 OK", "true", "public, max-age=300, immutable"},
		{"not modified", "GET", "/acme/s.pub" + chunkAt, "", "304 Not Modified", "true", "public, max-age=300, immutable"},
		{"with a key", "GET", "/acme/s.pub" + chunkAt, key, "200 OK", "true", "no-store"},
		{"unmarked", "GET", "/acme/s.pub" + chunkAt, "", "200 OK", "false", "no-store"},
		{"private", "GET", "/acme/s.priv" + chunkAt, key, "200 OK", "true", "no-store"},
		{"not immutable", "GET", "/acme/s.pub?offset=-1", "", "200 OK", "true", "no-store"},
		{"error", "GET", "/acme/s.pub" + chunkAt, "", "404 Not Found", "true", "no-store"},
		{"SSE", "GET", "/acme/s.pub?offset=now&live=sse", "", "200 OK", "true", "no-store"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rt.answerWith(tt.method, tt.status, []string{"Cache-Control", "public, max-age=9", "Cache-Control", "s-maxage=9", "Stream-Immutable", tt.mark}, "x")
			res := rt.Do(t, tt.method, tt.target, tt.keyName, "")
			if diff := cmp.Diff([]string{tt.want}, res.Header.Values("Cache-Control")); diff != "" {
				t.Errorf("Cache-Control (-want +got):\n%s", diff)
			}
		})
	}
}

// F12: the client sees the smaller of the node's limit and its account's, on
// HEAD and on 413; a malformed one is the account's, an absent one stays absent.
func TestMaxRequestBytes(t *testing.T) {
	rt := newRetold(t, rigOptions{limits: func(l *tenant.Limits) { l.RequestBytes = 1 << 20 }})
	tests := []struct {
		name string
		sent []string // nil = absent
		want []string
	}{
		{"above", []string{"33554432"}, []string{"1048576"}},
		{"equal", []string{"1048576"}, []string{"1048576"}},
		{"below", []string{"1000"}, []string{"1000"}},
		{"zero", []string{"0"}, []string{"0"}},
		{"absent", nil, nil},
		{"word", []string{"many"}, []string{"1048576"}},
		{"empty", []string{""}, []string{"1048576"}},
		{"sign", []string{"+5"}, []string{"1048576"}},
		{"negative", []string{"-5"}, []string{"1048576"}},
		{"fraction", []string{"5.0"}, []string{"1048576"}},
		{"beyond a number", []string{"99999999999999999999"}, []string{"1048576"}},
		{"twice", []string{"2000", "1000"}, []string{"2000"}},
	}
	for _, tt := range tests {
		for method, status := range map[string]string{http.MethodHead: "200 OK", http.MethodPost: "413 Request Entity Too Large"} {
			t.Run(tt.name+"/"+method, func(t *testing.T) {
				var headers []string
				for _, v := range tt.sent {
					headers = append(headers, maxRequestBytesHeader, v)
				}
				rt.answerWith(method, status, headers, "")
				body := map[string]string{http.MethodPost: "b"}[method]
				res := rt.Do(t, method, "/acme/s.priv", key, body)
				if diff := cmp.Diff(tt.want, res.Header[maxRequestBytesHeader]); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		}
	}
}

// F4: a compressed answer passes untouched, and is asked for only by the client.
func TestCompressedAnswer(t *testing.T) {
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	_, _ = io.WriteString(zip, strings.Repeat("a line\n", 100))
	_ = zip.Close()
	rt := newRetold(t, rigOptions{})
	rt.answerWith(http.MethodGet, "200 OK", []string{"Content-Encoding", "gzip", "Vary", "accept-encoding", "ETag", `W/"1"`}, packed.String())
	res := rt.Do(t, http.MethodGet, "/acme/s.priv", key, "", "Accept-Encoding", "gzip")
	if res.Text != packed.String() || res.Header.Get("Content-Encoding") != "gzip" || res.ContentLength != int64(packed.Len()) || res.Header.Get("Etag") != `W/"1"` {
		t.Errorf("got %d bytes of %d, %v", len(res.Text), packed.Len(), res.Header)
	}
	if got := rt.node.await(t, 1).Header.Values("Accept-Encoding"); !slices.Equal(got, []string{"gzip"}) {
		t.Errorf("the node was asked for %q", got)
	}
	rt.Do(t, http.MethodGet, "/acme/s.priv", key, "")
	if got := rt.node.await(t, 2).Header.Values("Accept-Encoding"); len(got) != 0 {
		t.Errorf("the node was asked for %q though the client asked for nothing", got)
	}
}

// Identity headers stand on forwarded answers only (facts 0.8, 0.9).
func TestIdentityHeaders(t *testing.T) {
	rt := newRetold(t, rigOptions{})
	rt.answerWith(http.MethodGet, "200 OK", []string{upstream.ProtocolHeader, "12", upstream.ClusterIDHeader, "spoofed", upstream.ClusterIDHeader, "twice"}, "x")
	forwarded := rt.Do(t, http.MethodGet, "/acme/s.priv", key, "")
	checkOwnHeaders(t, forwarded)
	for _, path := range []string{"/acme/s.priv", "/other/s.priv", "/acme", "/acme/s.priv?live=x", "/poor/s.priv"} {
		for _, keyName := range []string{"", "read", "poor.full"} {
			for _, method := range []string{http.MethodPost, http.MethodHead, http.MethodPatch} {
				res := rt.Do(t, method, path, keyName, "")
				if res.StatusCode < 400 {
					continue // this one was forwarded
				}
				for _, name := range []string{upstream.ProtocolHeader, upstream.ClusterIDHeader, "Producer-Epoch", "Producer-Outcome"} {
					if v := res.Header.Values(name); len(v) != 0 {
						t.Errorf("refusal %d of %s %s has %s: %q", res.StatusCode, method, path, name, v)
					}
				}
			}
		}
	}
}
