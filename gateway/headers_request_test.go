package gateway

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Every header of facts §3.1 reaches the node as the client sent it, repeated
// ones repeated, so that the node can judge it; F1 for those nobody knows.
func TestRequestHeadersPass(t *testing.T) {
	rt := newRetold(t, rigOptions{})
	rt.answerWith(http.MethodPost, "200 OK", nil, "x")
	const digest = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
	rows := []struct {
		name   string
		values []string
	}{
		{"Content-Type", []string{"application/json; charset=utf-8"}},
		{"Accept-Encoding", []string{"gzip", "br"}},
		{"If-None-Match", []string{`W/"a", "b"`}},
		{"Range", []string{"bytes=0-9"}},
		{"If-Range", []string{`"x"`}},
		{"Producer-Id", []string{"a producer\twith inner space"}},
		{"Producer-Epoch", []string{"007"}},
		{"Producer-Seq", []string{"9007199254740991"}},
		{"Producer-Digest", []string{digest}},
		{"Stream-Incarnation", []string{"7", "8"}},
		{"Stream-Seq", []string{strings.Repeat("s", 256)}},
		{"Stream-Closed", []string{"TRUE"}},
		{"Stream-Ttl", []string{"60"}},
		{"Stream-Expires-At", []string{"2030-01-01T00:00:00Z"}},
		{"Stream-Snapshot-Parts", []string{"3"}},
		{"Stream-Snapshot-Digest", []string{digest}},
		{"Stream-Record-Match", []string{"removed, the node says so"}},
		{"Stream-Snapshot-Match", []string{"removed, the node says so"}},
		{"User-Agent", []string{"curl/8"}},
		{"Accept", []string{"*/*"}},
		{"Last-Event-Id", []string{"1"}},
		{"X-Nobody-Knows", []string{"a", "b"}},
	}
	for i, target := range []string{"POST /acme/s.priv", "PUT /acme/s.priv/snapshot/42", "GET /acme/s.priv/snapshot/42"} {
		t.Run(target, func(t *testing.T) {
			method, path, _ := strings.Cut(target, " ")
			var headers []string
			for _, row := range rows {
				for _, v := range row.values {
					headers = append(headers, row.name, v)
				}
			}
			body := "b"
			if method == http.MethodGet {
				body = ""
			}
			rt.Do(t, method, path, key, body, headers...)
			got := rt.node.await(t, i+1).Header
			want := http.Header{}
			for _, row := range rows {
				want[row.name] = row.values
			}
			got.Del("Content-Length")
			got.Del(requestIDHeader)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("headers at the node (-want +got):\n%s", diff)
			}
		})
	}
}

// What a client may not tell a node (design §3, last paragraph; H02, H08, H17):
// none of it arrives, in no spelling, on no method.
func TestRequestHeadersThatStay(t *testing.T) {
	rt := newRetold(t, rigOptions{})
	rt.answerWith(http.MethodPost, "200 OK", nil, "x")
	names := []string{
		"Cookie", "Idempotency-Key", "X-Idempotency-Key", "idempotency-key",
		"X-Ursula-Debug-Token", "x-ursula-backup-blake3", "X-URSULA-Format", "X-Ursula-Commit-Index", "X-Ursula-Process-Incarnation",
		"X-Ursula-Maintenance-Fence", "X-Ursula-", "X_Ursula_Debug_Token", "X-Ursula_Debug_Token",
		"X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "x-http-method-override",
		"X-Original-URL", "X-Rewrite-URL", "X-Host", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Uri",
		"X-Forwarded-Prefix", "X_Forwarded_For", "Forwarded", "X-Real-IP", "True-Client-IP", "Via",
		"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authorization", "Proxy-Authenticate", "TE", "Trailer",
	}
	const target = "/acme/s.priv"
	for _, method := range []string{http.MethodPost, http.MethodGet} {
		t.Run(method, func(t *testing.T) {
			before := len(rt.node.requests())
			var head strings.Builder
			fmt.Fprintf(&head, "%s %s HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer %s\r\nConnection: close, X-Named\r\nX-Named: 1\r\n", method, target, rt.Keys[key])
			for _, name := range names {
				if name != "Connection" {
					fmt.Fprintf(&head, "%s: smuggled\r\n", name)
				}
			}
			if method == http.MethodPost {
				head.WriteString("Transfer-Encoding: chunked\r\n\r\n1\r\nb\r\n0\r\nX-Late: smuggled\r\nIdempotency-Key: smuggled\r\n\r\n")
			} else {
				head.WriteString("\r\n")
			}
			if raw := rt.raw(t, head.String()); !strings.HasPrefix(raw, "HTTP/1.1 200") {
				t.Fatalf("answer %q", raw)
			}
			got := rt.node.await(t, before+1)
			want := []string{requestIDHeader}
			if method == http.MethodPost {
				want = append(want, "Content-Length")
			}
			for name := range got.Header {
				if !slices.Contains(want, name) {
					t.Errorf("%s: %q reached the node", name, got.Header[name])
				}
			}
			if all := rt.node.received(); strings.Contains(all, "smuggled") || strings.Contains(all, rt.Keys[key]) || strings.Contains(all, "X-Late") {
				t.Errorf("the node got %q", all)
			}
			if got.Method != method || got.Target != target {
				t.Errorf("the node got %s %s", got.Method, got.Target)
			}
		})
	}
}

// nodeErrors are the node's own errors by status (facts §5.2).
func nodeErrors() map[string][]string {
	return map[string][]string{
		"400 Bad Request": {
			"INVALID_REQUEST", "INVALID_HEADER", "INVALID_QUERY", "INVALID_OFFSET", "INVALID_PRODUCER", "PRODUCER_DIGEST_MISMATCH", "MISSING_CONTENT_TYPE",
			"EMPTY_APPEND", "INVALID_RECORD_BOUNDARIES", "NOT_JSON_BOUNDARY", "INVALID_RETENTION", "INVALID_SNAPSHOT", "INVALID_PARTS_COMMIT",
			"UNKNOWN_PART", "SNAPSHOT_DIGEST_MISMATCH", "BODY_UNREADABLE", "UNSUPPORTED",
		},
		"403 Forbidden":             {"PRODUCER_EPOCH_CLOSED", "PRODUCER_EPOCH_STALE", "PRODUCER_EXPIRED", "PRODUCER_KEY_CONFLICT"},
		"404 Not Found":             {"STREAM_NOT_FOUND", "BUCKET_NOT_FOUND", "BUCKET_ERASED", "SNAPSHOT_NOT_FOUND", "NOT_FOUND"},
		"405 Method Not Allowed":    {"METHOD_NOT_ALLOWED", "UNSUPPORTED"},
		"409 Conflict":              {"STREAM_CLOSED", "STREAM_SEQ_CONFLICT", "CONTENT_TYPE_MISMATCH", "PRODUCER_SEQ_CONFLICT", "SNAPSHOT_CONFLICT"},
		"410 Gone":                  {"STREAM_GONE"},
		"412 Precondition Failed":   {"INCARNATION_MISMATCH"},
		"413 Payload Too Large":     {"REQUEST_TOO_LARGE", "SNAPSHOT_TOO_LARGE"},
		"429 Too Many Requests":     {"PRODUCER_LIMIT", "STAGED_PARTS_LIMIT"},
		"500 Internal Server Error": {"INTERNAL", "CREATED_AT_OUT_OF_RANGE", "HISTORY_MISMATCH"},
		"501 Not Implemented":       {"NO_COLD_STORE"},
		"502 Bad Gateway":           {"COLD_STORE_FAILED"},
		"503 Service Unavailable": {
			"NO_LEADER", "WAL_DISK_PRESSURE", "RAFT_LOG_PRESSURE", "INGRESS_BODY_BYTES_LIMIT_REACHED", "COLD_BACKPRESSURE", "RAFT_UNCOMMITTED_BACKPRESSURE",
			"LIVE_READ_BACKPRESSURE", "HISTORY_PENDING", "APPLY_STOPPED", "GROUP_RESTARTING", "OUTCOME_UNKNOWN", "JSON_BOUNDARY_UNVERIFIED",
			"SNAPSHOT_COMMITS_BUSY", "SNAPSHOT_COMMIT_IN_PROGRESS",
		},
		"504 Gateway Timeout": {"OUTCOME_UNKNOWN"},
	}
}

// Facts W1, W2, W3: what a node says of a write reaches the client as it was said: status,
// code, headers. Nothing unknown becomes a refusal, nothing refused becomes
// unknown, nothing is sent again, and each 429 and 503 says when to come back.
func TestWriteOutcomesPass(t *testing.T) {
	rt := newRetold(t, rigOptions{})
	sent := 0
	for status, codes := range nodeErrors() {
		for _, code := range codes {
			for _, retryAfter := range []string{"", "7"} {
				t.Run(fmt.Sprint(status[:3], " ", code, " ", retryAfter), func(t *testing.T) {
					body := `{"error":{"code":"` + code + `","message":"acme/s.priv"},"more":1}`
					headers := []string{"Content-Type", "application/json", "Producer-Epoch", "3", "Producer-Outcome", "stale-epoch", "Stream-Incarnation", "7"}
					if retryAfter != "" {
						headers = append(headers, "Retry-After", retryAfter)
					}
					rt.answerWith(http.MethodPost, status, append(headers, "X-Ursula-Raft-Group", "1"), body)
					res := rt.Do(t, http.MethodPost, "/acme/s.priv", key, "b", "Producer-Id", "p", "Producer-Epoch", "3", "Producer-Seq", "0")
					sent++
					if res.Status[:3] != status[:3] || res.Text != body || res.code() != code {
						t.Errorf("got %s %q, want %s %q", res.Status, res.Text, status, body)
					}
					want := retryAfter
					if want == "" && (status[:3] == "429" || status[:3] == "503") {
						want = "1"
					}
					if got := res.Header.Get("Retry-After"); got != want {
						t.Errorf("Retry-After %q, want %q", got, want)
					}
					for name, want := range map[string]string{"Producer-Epoch": "3", "Producer-Outcome": "stale-epoch", "Stream-Incarnation": "7", "X-Ursula-Raft-Group": ""} {
						if got := res.Header.Get(name); got != want {
							t.Errorf("%s %q, want %q", name, got, want)
						}
					}
					if got := len(rt.node.requests()); got != sent {
						t.Errorf("%d requests at the node after %d writes", got, sent)
					}
				})
			}
		}
	}
}
