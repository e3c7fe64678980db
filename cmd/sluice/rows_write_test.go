package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/zeebo/blake3"

	"sluice/internal/ursulatest"
	"sluice/internal/ursulatest/realursula"
)

// request is a write, or what comes before it. {part}, {digest}, {inc} and {wrong}
// in it stand for what earlier answers named, and for an incarnation that no
// stream has; {aux} is the path of a stream beside.
type request struct {
	method, behind, body string
	headers              []string // pairs
}

// rowCase is one answer to a write: what has to happen before, at the node, and the
// write that gets it.
type rowCase struct {
	name   string
	before []request
	write  request
	status int
	code   string // "" = none, or either of those for a missing stream (facts §1.3)
	typed  string // header names that the answer must have, at least
	cold   bool   // only a node with a cold store has it
}

const octets, plainText = "application/octet-stream", "text/plain"

func create(media, content string) request {
	return request{"PUT", "", content, []string{"Content-Type", media}}
}

func produce(epoch, seq, body string, more ...string) request {
	return request{"POST", "", body, append([]string{"Content-Type", plainText, "Producer-Id", "p", "Producer-Epoch", epoch, "Producer-Seq", seq}, more...)}
}

func publish(offset, body string) request {
	return request{"PUT", "/snapshot/" + offset, body, []string{"Content-Type", octets}}
}

func digestOf(body string) string {
	sum := blake3.Sum256([]byte(body))
	return hex.EncodeToString(sum[:])
}

// appliedCases are the kinds of writes that clients have (facts §5.3).
func appliedCases() []rowCase {
	text, bytes3, bytes6 := create(plainText, ""), create(octets, "abc"), create(octets, "abcdef")
	stage := request{"POST", "/snapshot/3/parts", "part", nil}
	return []rowCase{
		{"keyed append", []request{text}, produce("0", "0", "a"), 200, "", "Stream-Offset Stream-Next-Offset Producer-Epoch Producer-Seq", false},
		{"keyed append, repeat", []request{text, produce("0", "0", "a")}, produce("0", "0", "a"), 204, "", "Stream-Offset Stream-Next-Offset Producer-Epoch", false},
		{"keyed append, its receipt evicted", []request{text, produce("0", "0", "a"), produce("0", "1", "b")}, produce("0", "0", "a"), 204, "", "Producer-Outcome Producer-Epoch", false},
		{"keyed close", []request{text}, request{"POST", "", "", append(produce("0", "0", "").headers[2:], "Stream-Closed", "true")}, 204, "", "Stream-Offset Stream-Next-Offset Stream-Closed", false},
		{"append", []request{text}, request{"POST", "", "a", []string{"Content-Type", plainText}}, 204, "", "Stream-Next-Offset", false},
		{"close", []request{text}, request{"POST", "", "", []string{"Stream-Closed", "true"}}, 204, "", "Stream-Next-Offset Stream-Closed", false},
		{"publish", []request{bytes3}, publish("3", "snap"), 204, "", "Stream-Snapshot-Offset Stream-Snapshot-Digest Stream-Incarnation", false},
		{"publish, repeat", []request{bytes3, publish("3", "snap")}, publish("3", "snap"), 204, "", "Stream-Snapshot-Offset Stream-Snapshot-Digest", false},
		{"retention", []request{bytes6, publish("3", "x")}, request{"PUT", "/retention/3", "", nil}, 204, "", "Stream-Retained-Offset Stream-Incarnation", false},
		{"part", []request{bytes3}, stage, 201, "", "Stream-Snapshot-Part", true},
		{"discard", []request{bytes3, stage}, request{"DELETE", "/snapshot/parts", "", nil}, 204, "", "Stream-Incarnation", true},
		{"parts commit", []request{
			{"PUT", "{aux}", "abc", []string{"Content-Type", octets}},
			{"PUT", "{aux}/snapshot/3", "part", []string{"Content-Type", octets}}, // names the digest
			bytes3, stage,
		}, request{"PUT", "/snapshot/3", "{part}\n", []string{"Content-Type", octets, "Stream-Snapshot-Parts", "1", "Stream-Snapshot-Digest", "{digest}"}}, 204, "", "Stream-Snapshot-Offset Stream-Snapshot-Digest", true},
	}
}

// refusedCases are the refusals that a node can be brought to by writes alone; the
// others come from a scripted node in gateway.
func refusedCases() []rowCase {
	text, closeIt := create(plainText, ""), request{"POST", "", "", []string{"Stream-Closed", "true"}}
	first := produce("0", "0", "a")
	seq := func(n string) request {
		return request{"POST", "", "a", []string{"Content-Type", plainText, "Stream-Seq", n}}
	}
	return []rowCase{
		{"epoch closed", []request{text, first, produce("1", "0", "b")}, first, 403, "PRODUCER_EPOCH_CLOSED", "Producer-Epoch Producer-Outcome", false},
		{"stale epoch", []request{text, first, produce("1", "0", "a"), produce("2", "0", "a")}, first, 403, "PRODUCER_EPOCH_STALE", "Producer-Epoch Producer-Outcome", false},
		{"key conflict", []request{text, first}, produce("0", "0", "b", "Producer-Digest", digestOf("b")), 403, "PRODUCER_KEY_CONFLICT", "Producer-Epoch Producer-Outcome", false},
		{"sequence gap", []request{text, first}, produce("0", "5", "b"), 409, "PRODUCER_SEQ_CONFLICT", "Producer-Expected-Seq Producer-Received-Seq", false},
		{"epoch not claimed", []request{text, first}, produce("1", "1", "b"), 400, "INVALID_PRODUCER", "Producer-Expected-Seq", false},
		{"digest of other bytes", []request{text}, produce("0", "0", "b", "Producer-Digest", digestOf("c")), 400, "PRODUCER_DIGEST_MISMATCH", "", false},
		{"empty append", []request{text}, request{"POST", "", "", []string{"Content-Type", plainText}}, 400, "EMPTY_APPEND", "", false},
		{"missing stream", nil, first, 404, "", "", false},
		{"closed", []request{text, closeIt}, first, 409, "STREAM_CLOSED", "Stream-Closed Stream-Next-Offset", false},
		{"Stream-Seq", []request{text, seq("5")}, seq("3"), 409, "STREAM_SEQ_CONFLICT", "Stream-Last-Seq", false},
		{"another type", []request{text}, request{"POST", "", "a", []string{"Content-Type", octets}}, 409, "CONTENT_TYPE_MISMATCH", "", false},
		{"snapshot conflict", []request{create(octets, "abc"), publish("3", "x")}, publish("3", "y"), 409, "SNAPSHOT_CONFLICT", "Stream-Snapshot-Offset Stream-Snapshot-Digest", false},
		{"gone", []request{create(octets, "abcdef"), publish("3", "x"), {"PUT", "/retention/3", "", nil}}, publish("1", "y"), 410, "STREAM_GONE", "", false},
		{"another incarnation", []request{text}, produce("0", "0", "a", "Stream-Incarnation", "{wrong}"), 412, "INCARNATION_MISMATCH", "Stream-Incarnation", false},
		{"unknown part", []request{create(octets, "abc")}, request{"PUT", "/snapshot/3", "no-such-part\n", []string{"Content-Type", octets, "Stream-Snapshot-Parts", "1", "Stream-Snapshot-Digest", digestOf("x")}}, 400, "UNKNOWN_PART", "", true},
	}
}

// Facts W1, W2: each kind of write, and each refusal that writes bring about, is
// played twice with the same history: at the node, and through the gateway. What
// the node says, the gateway says, on the stand-in and on the real Ursula, alone
// and where a follower redirects first.
func TestEndToEndWriteRows(t *testing.T) {
	upstreams := []struct {
		name  string
		cold  bool
		start func(*testing.T) []string
	}{
		{"stand-in", false, func(t *testing.T) []string { return startStandIn(t, 1) }},
		{"stand-in of three", false, func(t *testing.T) []string { return startStandIn(t, 3) }},
		{"ursula", false, func(t *testing.T) []string { return []string{realursula.Start(t).URL} }},
		{"ursula of three", true, func(t *testing.T) []string {
			nodes := realursula.StartCluster(t, clusterNodes)
			return []string{nodes[0].URL, nodes[1].URL, nodes[2].URL}
		}},
	}
	for _, up := range upstreams {
		t.Run(up.name, func(t *testing.T) {
			nodes := up.start(t)
			e := newEdge(t, nodes...)
			for i, tc := range append(appliedCases(), refusedCases()...) {
				t.Run(tc.name, func(t *testing.T) {
					if tc.cold && !up.cold {
						tc.status, tc.code, tc.typed = http.StatusNotImplemented, "NO_COLD_STORE", ""
					}
					one, other := fmt.Sprint("row-", i, "-direct"), fmt.Sprint("row-", i, "-through")
					if tc.before == nil {
						other = one // which code a missing stream gets depends on its Raft group
					}
					direct := tc.play(t, e, one, nodes[0], nodes[0])
					through := tc.play(t, e, other, nodes[0], e.URL)
					tc.compare(t, direct, through)
				})
			}
		})
	}
}

func startStandIn(t *testing.T, nodes int) []string {
	t.Helper()
	cluster := ursulatest.New(ursulatest.Options{Nodes: nodes})
	if err := cluster.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cluster.Close() })
	return cluster.URLs()
}

// play makes the history of a stream at a node, and the write at a place.
func (tc rowCase) play(t *testing.T, e *edge, stream, node, at string) reply {
	t.Helper()
	names := strings.NewReplacer()
	known := map[string]string{"{wrong}": "4503599627370497"}
	for _, r := range tc.before {
		res := e.write(t, node, stream, r, names)
		if res.StatusCode/100 != 2 && res.StatusCode != http.StatusNotImplemented {
			t.Fatalf("before: %s %s: %d %s", r.method, r.behind, res.StatusCode, res.Text)
		}
		for placeholder, header := range map[string]string{"{part}": "Stream-Snapshot-Part", "{digest}": "Stream-Snapshot-Digest", "{inc}": "Stream-Incarnation"} {
			if value := res.Header.Get(header); value != "" {
				known[placeholder] = value
			}
		}
		if known["{inc}"] == known["{wrong}"] {
			known["{wrong}"] = "4503599627370498"
		}
		var pairs []string
		for placeholder, value := range maps.All(known) {
			pairs = append(pairs, placeholder, value)
		}
		names = strings.NewReplacer(pairs...)
	}
	return e.write(t, at, stream, tc.write, names)
}

// write sends one request, with the key, which a node does not read. Redirects are
// followed where a node sends them; the gateway sends none, so that one would be
// seen by its address.
func (e *edge) write(t *testing.T, at, stream string, r request, names *strings.Replacer) reply {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	path := e.path(stream) + r.behind
	if beside, ok := strings.CutPrefix(r.behind, "{aux}"); ok {
		path = e.path(stream+"-aux") + beside
	}
	req, err := http.NewRequestWithContext(ctx, r.method, at+path, bytes.NewReader([]byte(names.Replace(r.body))))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+e.Key)
	for i := 0; i+1 < len(r.headers); i += 2 {
		req.Header.Set(r.headers[i], names.Replace(r.headers[i+1]))
	}
	c := http.DefaultClient
	if at == e.URL {
		c = http1()
		defer c.CloseIdleConnections()
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", r.method, path, err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", r.method, path, err)
	}
	return reply{res, string(text)}
}

// compare holds the gateway's answer against the node's, and both against the row.
func (tc rowCase) compare(t *testing.T, direct, through reply) {
	t.Helper()
	if direct.StatusCode != tc.status || tc.code != "" && direct.code() != tc.code {
		t.Errorf("the node says %d %s, want %d %s", direct.StatusCode, direct.Text, tc.status, tc.code)
	}
	if through.StatusCode != direct.StatusCode || through.code() != direct.code() {
		t.Errorf("the gateway says %d %s, the node %d %s", through.StatusCode, through.Text, direct.StatusCode, direct.Text)
	}
	for name := range strings.FieldsSeq(tc.typed) {
		if through.Header.Get(name) == "" {
			t.Errorf("the gateway's answer has no %s: %v", name, through.Header)
		}
	}
	if diff := cmp.Diff(typedHeaders(direct.Header), typedHeaders(through.Header)); diff != "" {
		t.Errorf("typed headers (-node +gateway):\n%s", diff)
	}
}

// typedHeaders are those by which a node speaks of a write; what is random by
// nature is only there or not.
func typedHeaders(h http.Header) http.Header {
	own := http.Header{}
	for name, values := range h {
		switch {
		case name == "Stream-Incarnation", name == "Stream-Snapshot-Part":
			own[name] = []string{"*"}
		case strings.HasPrefix(name, "Stream-"), strings.HasPrefix(name, "Producer-"), strings.HasPrefix(name, "Ursula-Max-"), name == "Retry-After":
			own[name] = values
		}
	}
	return own
}
