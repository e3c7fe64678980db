package gateway

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/refusal"
	"sluice/internal/tenant"
)

// What one answer says of a write, read as facts §5.3 tells a client to, and by
// that alone: nothing of it is taken from the gateway.
const (
	saysApplied  = "applied"
	saysRepeated = "applied by an earlier request"
	saysRefused  = "refused"
	saysUnknown  = "unknown"
)

// writeKind is a kind of write, with a request that makes one.
type writeKind struct {
	name, method, behind, body string
	headers                    []string
	// receipts: a 2xx with all headers of one of them says that the write holds.
	receipts [][]string
}

func writeKinds() map[string]writeKind {
	producer := []string{"Content-Type", "text/plain", "Producer-Id", "p", "Producer-Epoch", "3", "Producer-Seq", "2", "Stream-Incarnation", "7"}
	published := [][]string{{"Stream-Snapshot-Offset", "Stream-Snapshot-Digest"}}
	kinds := []writeKind{
		{"keyed append", "POST", "", "body", producer, [][]string{{"Stream-Offset", "Stream-Next-Offset"}, {"Producer-Outcome"}}},
		{"keyed close", "POST", "", "", append(slices.Clone(producer[2:]), "Stream-Closed", "true"), [][]string{{"Stream-Offset", "Stream-Next-Offset"}, {"Producer-Outcome"}}},
		{"append", "POST", "", "body", []string{"Content-Type", "text/plain", "Stream-Seq", "5"}, [][]string{{"Stream-Next-Offset"}}},
		{"close", "POST", "", "", []string{"Stream-Closed", "true"}, [][]string{{"Stream-Next-Offset"}}},
		{"publish", "PUT", "/snapshot/3", "snap", []string{"Content-Type", "text/plain"}, published},
		{"parts commit", "PUT", "/snapshot/3", "part-1\n", []string{"Content-Type", "text/plain", "Stream-Snapshot-Parts", "1", "Stream-Snapshot-Digest", rowDigest}, published},
		{"part", "POST", "/snapshot/3/parts", "part", nil, [][]string{{"Stream-Snapshot-Part"}}},
		{"discard", "DELETE", "/snapshot/parts", "", nil, [][]string{{"Stream-Incarnation"}}},
		{"retention", "PUT", "/retention/3", "", nil, [][]string{{"Stream-Retained-Offset", "Stream-Incarnation"}}},
	}
	byName := make(map[string]writeKind, len(kinds))
	for _, k := range kinds {
		byName[k.name] = k
	}
	return byName
}

const (
	rowDigest = "0707070707070707070707070707070707070707070707070707070707070707"
	rowOffset = "00000000000000000003"
)

// proofs are the codes that prove, at a status that proves nothing by itself,
// that a write did not apply and never will.
func proofs() map[int][]string {
	return map[int][]string{
		http.StatusRequestTimeout: {"BODY_TOO_SLOW"},
		http.StatusNotImplemented: {"NO_COLD_STORE"},
		http.StatusServiceUnavailable: {
			"NO_LEADER", "WAL_DISK_PRESSURE", "RAFT_LOG_PRESSURE", "INGRESS_BODY_BYTES_LIMIT_REACHED", "COLD_BACKPRESSURE",
			"RAFT_UNCOMMITTED_BACKPRESSURE", "APPLY_STOPPED", "GROUP_RESTARTING", "HISTORY_PENDING", "JSON_BOUNDARY_UNVERIFIED",
			"SNAPSHOT_COMMITS_BUSY", "AUTHENTICATION_UNAVAILABLE", "AUTHORIZATION_UNAVAILABLE", "NO_UPSTREAM", "UPSTREAM_UNREACHABLE",
			"UPLOAD_BUDGET_EXHAUSTED",
		},
	}
}

// says reads an answer to a write of the kind.
func (k writeKind) says(res answer) string {
	keyed := strings.HasPrefix(k.name, "keyed")
	switch status := res.StatusCode; {
	case status/100 == 2:
		held := slices.ContainsFunc(k.receipts, func(receipt []string) bool {
			return !slices.ContainsFunc(receipt, func(name string) bool { return res.Header.Get(name) == "" })
		})
		switch {
		case !held:
			return saysUnknown
		case keyed && status == http.StatusNoContent:
			return saysRepeated
		default:
			return saysApplied
		}
	case status/100 == 4 && status != http.StatusRequestTimeout:
		return saysRefused
	case slices.Contains(proofs()[status], res.code()):
		return saysRefused
	default:
		return saysUnknown
	}
}

// do makes a write of the kind through the gateway.
func (k writeKind) do(t *testing.T, rg *rig) answer {
	t.Helper()
	return rg.Do(t, k.method, "/acme/s.priv"+k.behind, key, k.body, k.headers...)
}

// writeRow is what a node answers to a write, and what it says.
type writeRow struct {
	name, kind, status string
	code               string // "" = no error body
	headers            []string
	says               string
}

func (r writeRow) body() string {
	if r.code == "" {
		return ""
	}
	return `{"error":{"code":"` + r.code + `","message":"of acme/s.priv"},"more":{"n":1}}`
}

// typed are the headers by which an answer to a write speaks.
func typed(h http.Header) http.Header {
	own := http.Header{}
	for name, values := range h {
		if strings.HasPrefix(name, "Stream-") || strings.HasPrefix(name, "Producer-") || strings.HasPrefix(name, "Ursula-Max-") || name == "Retry-After" {
			own[name] = values
		}
	}
	return own
}

// check sends the row's write through the gateway and compares: what the node
// got is what the client sent, what the client got is what the node said.
func (r writeRow) check(t *testing.T, rt *retold, k writeKind) {
	t.Helper()
	rt.answerWith(k.method, r.status, append([]string{"X-Ursula-Raft-Group", "1", "Cache-Control", "no-store"}, r.headers...), r.body())
	before := len(rt.node.requests())
	res := k.do(t, rt.rig)
	if !strings.HasPrefix(r.status, fmt.Sprint(res.StatusCode, " ")) || res.Text != r.body() {
		t.Errorf("got %d %q, want %s %q", res.StatusCode, res.Text, r.status, r.body())
	}
	want := http.Header{}
	for i := 0; i+1 < len(r.headers); i += 2 {
		want.Add(r.headers[i], r.headers[i+1])
	}
	if (res.StatusCode == 429 || res.StatusCode == 503) && want.Get("Retry-After") == "" {
		want.Set("Retry-After", "1")
	}
	if want.Get(maxRequestBytesHeader) != "" {
		want.Set(maxRequestBytesHeader, "8388608") // the account's, which is the smaller one
	}
	if diff := cmp.Diff(typed(want), typed(res.Header)); diff != "" {
		t.Errorf("typed headers (-want +got):\n%s", diff)
	}
	if got := k.says(res); got != r.says {
		t.Errorf("says %q, want %q", got, r.says)
	}
	seen := rt.node.requests()[before:]
	if len(seen) != 1 || seen[0].Method != k.method || seen[0].Target != "/acme/s.priv"+k.behind || seen[0].Body != k.body {
		t.Fatalf("the node got %+v, want one %s of %q", seen, k.method, k.body)
	}
	for i := 0; i+1 < len(k.headers); i += 2 {
		if got := seen[0].Header.Values(k.headers[i]); !slices.Equal(got, []string{k.headers[i+1]}) {
			t.Errorf("the node got %s %q, want %q", k.headers[i], got, k.headers[i+1])
		}
	}
}

func checkRows(t *testing.T, rows []writeRow) {
	t.Helper()
	rt, kinds := newRetold(t, rigOptions{}), writeKinds()
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) { row.check(t, rt, kinds[row.kind]) })
	}
}

// Facts W1: the applied and repeated writes reach the client as the node said
// them. cmd/sluice does the same with the stand-in and the real node. Of the 14
// kinds four make or delete streams and buckets, and those are not the client's.
func TestAppliedWritesPass(t *testing.T) {
	const inc = "4503599627370497"
	receipt := []string{"Producer-Epoch", "1", "Producer-Seq", "2", "Stream-Offset", "00000000000000000001", "Stream-Next-Offset", rowOffset, "Stream-Incarnation", inc}
	published := []string{"Stream-Snapshot-Offset", rowOffset, "Stream-Snapshot-Digest", rowDigest, "Stream-Incarnation", inc}
	checkRows(t, []writeRow{
		{"keyed append", "keyed append", "200 OK", "", receipt, saysApplied},
		{"keyed append, repeat", "keyed append", "204 No Content", "", receipt, saysRepeated},
		{"keyed append, its receipt evicted", "keyed append", "204 No Content", "", []string{"Producer-Epoch", "1", "Producer-Seq", "2", "Producer-Outcome", "receipt-evicted", "Stream-Incarnation", inc}, saysRepeated},
		{"keyed close", "keyed close", "204 No Content", "", append([]string{"Stream-Closed", "true"}, receipt...), saysRepeated},
		{"append", "append", "204 No Content", "", []string{"Stream-Next-Offset", rowOffset, "Stream-Incarnation", inc}, saysApplied},
		{"close", "close", "204 No Content", "", []string{"Stream-Next-Offset", rowOffset, "Stream-Closed", "true", "Stream-Incarnation", inc}, saysApplied},
		{"publish", "publish", "204 No Content", "", published, saysApplied},
		{"parts commit", "parts commit", "204 No Content", "", published, saysApplied},
		{"part", "part", "201 Created", "", []string{"Stream-Snapshot-Part", "part-1", "Stream-Incarnation", inc}, saysApplied},
		{"discard", "discard", "204 No Content", "", []string{"Stream-Incarnation", inc}, saysApplied},
		{"retention", "retention", "204 No Content", "", []string{"Stream-Retained-Offset", rowOffset, "Stream-Incarnation", inc}, saysApplied},
	})
	rt := newRetold(t, rigOptions{})
	rt.answerWith(http.MethodPut, "201 Created", []string{"Stream-Incarnation", inc}, "")
	for _, tc := range []struct {
		name, method, path string
		status             int
		code               refusal.Code
	}{
		{"create, a new stream", "PUT", "/acme/s.new", 403, refusal.StreamLifecycle},
		{"create, the same again", "PUT", "/acme/s.priv", 403, refusal.StreamLifecycle},
		{"delete of a stream", "DELETE", "/acme/s.priv", 403, refusal.StreamLifecycle},
		{"create of a bucket", "PUT", "/acme", 404, refusal.NotFound},
	} {
		res := rt.Do(t, tc.method, tc.path, key, "")
		if res.StatusCode != tc.status || res.code() != string(tc.code) || len(typed(res.Header)) != 0 {
			t.Errorf("%s: %d %s %v, want %d %s", tc.name, res.StatusCode, res.Text, res.Header, tc.status, tc.code)
		}
	}
	rt.node.untouched(t)
}

// Facts W2: what a node refuses reaches the client unchanged: status, code,
// producer headers, Retry-After (added where it lacks, design §8).
func TestNodesRefusalsPass(t *testing.T) {
	outcome := func(epoch, says string, more ...string) []string {
		return append([]string{"Producer-Epoch", epoch, "Producer-Outcome", says}, more...)
	}
	again, none := []string{"Retry-After", "1"}, []string(nil)
	const keyed, unavailable = "keyed append", "503 Service Unavailable"
	rows := slices.Concat([]writeRow{
		{"403 epoch closed by a claim", keyed, "403 Forbidden", "PRODUCER_EPOCH_CLOSED", outcome("2", "epoch-closed;by=claim", "Producer-Closed-Epoch", "1", "Producer-Closed-Seq", "1"), ""},
		{"403 epoch closed by history", keyed, "403 Forbidden", "PRODUCER_EPOCH_CLOSED", outcome("2", "epoch-closed;by=history"), ""},
		{"403 stale epoch", keyed, "403 Forbidden", "PRODUCER_EPOCH_STALE", outcome("3", "stale-epoch"), ""},
		{"403 key conflict", keyed, "403 Forbidden", "PRODUCER_KEY_CONFLICT", outcome("1", "key-conflict"), ""},
		{"403 producer expired", keyed, "403 Forbidden", "PRODUCER_EXPIRED", outcome("1", "producer-expired"), ""},
		{"409 sequence gap", keyed, "409 Conflict", "PRODUCER_SEQ_CONFLICT", []string{"Producer-Expected-Seq", "2", "Producer-Received-Seq", "5"}, ""},
		{"400 epoch not claimed", keyed, "400 Bad Request", "INVALID_PRODUCER", []string{"Producer-Expected-Seq", "0"}, ""},
		{"400 empty append", "append", "400 Bad Request", "EMPTY_APPEND", none, ""},
		{"400 unknown part", "parts commit", "400 Bad Request", "UNKNOWN_PART", none, ""},
		{"404 stream", keyed, "404 Not Found", "STREAM_NOT_FOUND", none, ""},
		{"404 bucket", keyed, "404 Not Found", "BUCKET_NOT_FOUND", none, ""},
		{"409 closed", keyed, "409 Conflict", "STREAM_CLOSED", []string{"Stream-Closed", "true", "Stream-Next-Offset", rowOffset}, ""},
		{"409 Stream-Seq", "append", "409 Conflict", "STREAM_SEQ_CONFLICT", []string{"Stream-Last-Seq", "7", "Stream-Next-Offset", rowOffset}, ""},
		{"409 snapshot", "publish", "409 Conflict", "SNAPSHOT_CONFLICT", []string{"Stream-Snapshot-Offset", rowOffset, "Stream-Snapshot-Digest", rowDigest}, ""},
		{"409 another type", "append", "409 Conflict", "CONTENT_TYPE_MISMATCH", none, ""},
		{"410", "publish", "410 Gone", "STREAM_GONE", []string{"Stream-Next-Offset", rowOffset}, ""},
		{"412", keyed, "412 Precondition Failed", "INCARNATION_MISMATCH", []string{"Stream-Incarnation", "8"}, ""},
		{"413", "append", "413 Payload Too Large", "REQUEST_TOO_LARGE", []string{maxRequestBytesHeader, "33554432"}, ""},
		{"413 snapshot", "parts commit", "413 Payload Too Large", "SNAPSHOT_TOO_LARGE", []string{"Ursula-Max-Snapshot-Bytes", "1073741824"}, ""},
		{"429 producers", keyed, "429 Too Many Requests", "PRODUCER_LIMIT", none, ""},
		{"429 parts", "part", "429 Too Many Requests", "STAGED_PARTS_LIMIT", []string{"Ursula-Max-Staged-Parts", "8192", "Stream-Incarnation", "7"}, ""},
		{"429 bytes of parts", "part", "429 Too Many Requests", "STAGED_PARTS_LIMIT", []string{"Ursula-Max-Staged-Bytes", "2147483648", "Stream-Incarnation", "7", "Retry-After", "9"}, ""},
		{"501", "part", "501 Not Implemented", "NO_COLD_STORE", none, ""},
		{"503 apply stopped", keyed, unavailable, "APPLY_STOPPED", none, ""},
		{"503 boundary, checked", "publish", unavailable, "JSON_BOUNDARY_UNVERIFIED", again, ""},
		{"503 boundary, at apply", "publish", unavailable, "JSON_BOUNDARY_UNVERIFIED", none, ""},
		{"503 commits busy", "parts commit", unavailable, "SNAPSHOT_COMMITS_BUSY", again, ""},
	}, unavailableRows(
		"NO_LEADER", "WAL_DISK_PRESSURE", "RAFT_LOG_PRESSURE", "INGRESS_BODY_BYTES_LIMIT_REACHED", "COLD_BACKPRESSURE",
		"RAFT_UNCOMMITTED_BACKPRESSURE", "HISTORY_PENDING", "GROUP_RESTARTING",
	))
	for i := range rows {
		rows[i].says = saysRefused
	}
	checkRows(t, rows)
	// Of a body beyond the account's limit no node ever hears.
	rt := newRetold(t, rigOptions{limits: func(l *tenant.Limits) { l.RequestBytes = 3 }})
	k := writeKinds()["append"]
	res := k.do(t, rt.rig)
	if res.code() != "REQUEST_TOO_LARGE" || res.Header.Get(maxRequestBytesHeader) != "3" || k.says(res) != saysRefused {
		t.Errorf("4 bytes of 3: %d %s %v", res.StatusCode, res.Text, res.Header)
	}
	rt.node.untouched(t)
}

// unavailableRows are 503s to a keyed append that differ by their code only.
func unavailableRows(codes ...string) []writeRow {
	rows := make([]writeRow, len(codes))
	for i, code := range codes {
		rows[i] = writeRow{name: "503 " + code, kind: "keyed append", status: "503 Service Unavailable", code: code, headers: []string{"Retry-After", "3"}}
	}
	return rows
}

// Facts W3: what a node leaves open stays open: no answer to a write whose
// outcome is unknown becomes one that proves something, whatever kind of write
// it is, and nothing is sent again. The last rows are of a layer between the
// gateway and a node, which speaks no Ursula.
func TestUnknownOutcomesStayUnknown(t *testing.T) {
	again := []string{"Retry-After", "1"}
	rows := []writeRow{
		{"500", "", "500 Internal Server Error", "INTERNAL", nil, ""},
		{"500 created at", "", "500 Internal Server Error", "CREATED_AT_OUT_OF_RANGE", nil, ""},
		{"500 history", "", "500 Internal Server Error", "HISTORY_MISMATCH", nil, ""},
		{"502", "", "502 Bad Gateway", "COLD_STORE_FAILED", nil, ""},
		{"503 leadership lost", "", "503 Service Unavailable", "OUTCOME_UNKNOWN", again, ""},
		{"503 response lost", "", "503 Service Unavailable", "OUTCOME_UNKNOWN", nil, ""},
		{"503 commit under way", "", "503 Service Unavailable", "SNAPSHOT_COMMIT_IN_PROGRESS", again, ""},
		{"503 tails' limit", "", "503 Service Unavailable", "LIVE_READ_BACKPRESSURE", again, ""},
		{"504", "", "504 Gateway Timeout", "OUTCOME_UNKNOWN", nil, ""},
		{"504 bare", "", "504 Gateway Timeout", "", nil, ""},
		{"503 bare", "", "503 Service Unavailable", "", nil, ""},
		{"502 bare", "", "502 Bad Gateway", "", nil, ""},
		{"408 bare", "", "408 Request Timeout", "", nil, ""},
		{"200 without a receipt", "", "200 OK", "", nil, ""},
		{"proof at another status", "", "500 Internal Server Error", "NO_LEADER", nil, ""},
		{"proof at 502", "", "502 Bad Gateway", "UPSTREAM_UNREACHABLE", nil, ""},
	}
	rt := newRetold(t, rigOptions{})
	for _, k := range writeKinds() {
		for _, row := range rows {
			row.says = saysUnknown
			t.Run(k.name+"/"+row.name, func(t *testing.T) { row.check(t, rt, k) })
		}
	}
}

// Facts W3, the other half: a write that a node took and did not answer. Whatever
// the node does instead, the client is told a code that proves nothing, or gets
// no whole answer, and no node is asked again.
func TestBrokenExchangesStayUnknown(t *testing.T) {
	const whole204 = "HTTP/1.1 204 No Content\r\nStream-Next-Offset: 7\r\n\r\n"
	ends := map[string]string{
		"nothing":                "",
		"half a status line":     "HTTP/1.1 20",
		"half a head":            "HTTP/1.1 409 Conflict\r\nContent-Type: application/json\r\n",
		"a 1xx":                  "HTTP/1.1 100 Continue\r\n\r\n",
		"no HTTP":                "SSH-2.0-OpenSSH\r\n\r\n",
		"a switch of protocols":  "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
		"a status of its own":    "HTTP/1.1 099 Odd\r\nContent-Length: 0\r\n\r\n",
		"a foreign redirect":     "HTTP/1.1 302 Found\r\nLocation: http://10.0.0.7/\r\nContent-Length: 0\r\n\r\n",
		"two lengths":            "HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok!",
		"a header that is none":  "HTTP/1.1 404 Not Found\r\nno header\r\n\r\n",
		"a head beyond measure":  "HTTP/1.1 404 Not Found\r\nX: " + strings.Repeat("a", 1<<20) + "\r\n\r\n",
		"half a refusal's body":  "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n" + `{"error":{"code":"NO_LE`,
		"an answer of yesterday": whole204[:len(whole204)-2] + "\x00: 1\r\n\r\n",
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rg, u := newUpRig(t, func(c *upConn, _ *upRequest) {
				c.say(end)
				_ = c.Close()
			}, rigOptions{})
			reached := 0
			for _, k := range writeKinds() {
				raw := rg.raw(t, k.bytes(rg))
				reached++
				if !strings.HasPrefix(raw, "HTTP/1.1 ") {
					continue // no answer proves nothing
				}
				var got answer
				if head, body, ok := strings.Cut(raw, "\r\n\r\n"); ok {
					got = parsedHead(t, head, body)
				}
				if said := k.says(got); said != saysUnknown || got.StatusCode != 502 && got.StatusCode != 504 && got.StatusCode != 503 {
					t.Errorf("%s: answered %q, which says %q", k.name, raw, said)
				}
			}
			// Fewer, where a write went out on the connection that the node was closing:
			// it was answered as unknown too.
			if got := len(u.requests()); got > reached || got == 0 {
				t.Errorf("%d requests at the node after %d writes", got, reached)
			}
		})
	}
}

// bytes is the kind's request as it goes over a connection that closes after it.
func (k writeKind) bytes(rg *rig) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s /acme/s.priv%s HTTP/1.1\r\nHost: gw\r\nConnection: close\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n", k.method, k.behind, rg.Keys[key], len(k.body))
	for i := 0; i+1 < len(k.headers); i += 2 {
		fmt.Fprintf(&b, "%s: %s\r\n", k.headers[i], k.headers[i+1])
	}
	return b.String() + "\r\n" + k.body
}

// parsedHead is an answer whose body may be cut: what a client has of it.
func parsedHead(t *testing.T, head, body string) answer {
	t.Helper()
	lines := strings.Split(head, "\r\n")
	var status int
	if _, err := fmt.Sscanf(lines[0], "HTTP/1.1 %d ", &status); err != nil {
		t.Fatalf("status line %q: %v", lines[0], err)
	}
	h := http.Header{}
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ": ")
		h.Add(name, value)
	}
	return answer{&http.Response{StatusCode: status, Header: h}, body}
}
