package ursulatest_test

import (
	"strings"
	"testing"

	"sluice/internal/ursulatest"
	"sluice/internal/ursulatest/realursula"
)

const (
	jsonType = "Content-Type: application/json"
	textType = "Content-Type: text/plain"
	octets   = "Content-Type: application/octet-stream"
)

// TestConformance runs every table against the stand-in and the real node and
// demands the same status, headers and body, so that the stand-in cannot drift.
func TestConformance(t *testing.T) {
	node := realursula.Start(t)
	c := start(t, ursulatest.Options{ClusterID: node.ClusterID})
	tables := map[string][]step{
		"paths": pathSteps(), "methods": methodSteps(), "create": createSteps(), "append": appendSteps(),
		"producer": producerSteps(), "json": jsonSteps(), "read": readSteps(), "live": liveSteps(),
		"head": headSteps(), "snapshot": snapshotSteps(), "retention": retentionSteps(),
		"bootstrap": bootstrapSteps(), "immutable": immutableSteps(), "sizes": sizeSteps(), "delete": deleteSteps(),
		"conditional": conditionalSteps(),
	}
	for name, steps := range tables {
		t.Run(name, func(t *testing.T) {
			standIn, realNode := newScript(c.URLs()[0]), newScript(node.URL)
			for _, st := range steps {
				st.target = strings.ReplaceAll(st.target, "/B/", "/t-"+name+"/")
				t.Run(st.name, func(t *testing.T) { compare(t, standIn, realNode, st) })
			}
		})
	}
}

// pathSteps are the odd targets of facts §1.3.
func pathSteps() []step {
	var steps []step
	for _, target := range []string{
		"/", "//", "//x", "/B//s", "/B/s/", "/B/./s", "/B/../s", "/B/..", "/B/%2e%2e", "/B/.", "/B/a%2Fb", "/B/a%00b",
		"/B/a..b", "/B/$x", "/B/streams", "/B/", "/DEMO/x", "/abc/x", "/abc", "/__ursula/x", "/%5F%5Fursula/live", "/__ab/x", "/snapshots/x",
		"/demo;x/..", "/B/%ff", "/%ff/x", "/B/s/snapshot/%ff", "/__ursula/", "/__ursula", "/B/" + strings.Repeat("x", 120),
		"/B/%C3%A9", "/B/s/foo", "/B/s/snapshot", "/B/s/snapshot/", "/B/s/snapshot/parts", "/B/s/snapshot/1/parts",
		"/B/s/retention/1", "/B/s/retention/", "/B//bootstrap", "/B/s/incarnation//chunk/00000000000000000000",
		"/B/s/incarnation/1/other/00000000000000000000", "http://elsewhere/B/s", "/B/missing?", "/B/missing#part", "/%64emo/..",
		"/t-paths/mi%73sing",
	} {
		steps = append(steps, step{name: "get " + target, method: "GET", target: target})
	}
	for _, target := range []string{"/", "/DEMO/x", "/__ursula/", "/__ursula/x", "/B/s/bootstrap", "/B/missing"} {
		steps = append(steps, step{name: "head " + target, method: "HEAD", target: target})
	}
	return append(steps,
		step{name: "live", method: "GET", target: "/__ursula/live"},
		step{name: "ready", method: "GET", target: "/__ursula/ready"},
		step{name: "head ready", method: "HEAD", target: "/__ursula/ready"},
		step{name: "patch live", method: "PATCH", target: "/__ursula/live"},
	)
}

// methodSteps ask every route with methods it has not.
func methodSteps() []step {
	var steps []step
	for _, target := range []string{
		"/t-methods", "/B/s", "/B/s/snapshot", "/B/s/snapshot/1", "/B/s/snapshot/parts", "/B/s/snapshot/1/parts",
		"/B/s/retention/1", "/B/s/bootstrap", "/B/s/incarnation/1/chunk/1", "/B/s/incarnation/1/snapshot/1", "/__ursula/x", "/nowhere/at/all",
	} {
		for _, method := range []string{"PATCH", "OPTIONS", "FOO"} {
			steps = append(steps, step{name: method + " " + target, method: method, target: target})
		}
	}
	for target, method := range map[string]string{
		"/t-methods": "DELETE", "/B/s/snapshot": "HEAD", "/B/s/snapshot/parts": "HEAD", "/B/s/snapshot/2": "DELETE",
		"/B/s/bootstrap": "PUT", "/B/s/incarnation/1/chunk/1": "POST", "/B/s/retention/1": "HEAD",
	} {
		steps = append(steps, step{name: method + " " + target, method: method, target: target})
	}
	return append(steps,
		step{name: "bucket", method: "PUT", target: "/t-methods"},
		step{name: "bad bucket", method: "PUT", target: "/abc"},
	)
}

func createSteps() []step {
	return []step{
		{name: "default type", method: "PUT", target: "/B/plain"},
		{name: "again", method: "PUT", target: "/B/plain"},
		{name: "other type", method: "PUT", target: "/B/plain", header: []string{textType}},
		{name: "normalised type", method: "PUT", target: "/B/typed", header: []string{"Content-Type: Text/Plain ;Charset=UTF-8; "}},
		{name: "same type", method: "PUT", target: "/B/typed", header: []string{"Content-Type: text/plain; charset=utf-8"}},
		{name: "with bytes", method: "PUT", target: "/B/bytes", header: []string{textType}, body: "hello"},
		{name: "with bytes again", method: "PUT", target: "/B/bytes", header: []string{textType}, body: "other"},
		{name: "closed", method: "PUT", target: "/B/closed", header: []string{textType, "Stream-Closed: TRUE"}, body: "all"},
		{name: "closed again", method: "PUT", target: "/B/closed", header: []string{textType, "Stream-Closed: true"}},
		{name: "closed is open", method: "PUT", target: "/B/closed", header: []string{textType}},
		{name: "json", method: "PUT", target: "/B/json", header: []string{jsonType}, body: ` [ {"a": 1}, 2 ] `},
		{name: "json empty array", method: "PUT", target: "/B/json0", header: []string{jsonType}, body: `[]`},
		{name: "json bad", method: "PUT", target: "/B/json1", header: []string{jsonType}, body: `{`, free: true},
		{name: "ttl", method: "PUT", target: "/B/ttl", header: []string{"Stream-TTL: 3600"}},
		{name: "ttl again", method: "PUT", target: "/B/ttl", header: []string{"Stream-TTL: 3600"}},
		{name: "ttl differs", method: "PUT", target: "/B/ttl", header: []string{"Stream-TTL: 3601"}},
		{name: "ttl on head", method: "HEAD", target: "/B/ttl"},
		{name: "expires", method: "PUT", target: "/B/exp", header: []string{"Stream-Expires-At: 2099-01-02T03:04:05.678+01:00"}},
		{name: "expires on head", method: "HEAD", target: "/B/exp"},
		{name: "expired", method: "PUT", target: "/B/past", header: []string{"Stream-Expires-At: 2001-01-01T00:00:00Z"}},
		{name: "expired is gone", method: "GET", target: "/B/past"},
		{name: "ttl and expires", method: "PUT", target: "/B/both", header: []string{"Stream-TTL: 1", "Stream-Expires-At: 2099-01-01T00:00:00Z"}},
		{name: "ttl leading zero", method: "PUT", target: "/B/e", header: []string{"Stream-TTL: 01"}},
		{name: "ttl no number", method: "PUT", target: "/B/e", header: []string{"Stream-TTL: +1"}},
		{name: "ttl empty", method: "PUT", target: "/B/e", header: []string{"Stream-TTL: "}},
		{name: "expires no date", method: "PUT", target: "/B/e", header: []string{"Stream-Expires-At: tomorrow"}},
		{name: "producer", method: "PUT", target: "/B/e", header: []string{"Producer-Id: p", "Producer-Epoch: 0", "Producer-Seq: 0"}},
		{name: "part of a producer", method: "PUT", target: "/B/e", header: []string{"Producer-Id: p"}},
		{name: "token of a missing stream", method: "PUT", target: "/B/e", header: []string{"Stream-Incarnation: {wrong}"}},
		{name: "bad token", method: "PUT", target: "/B/e", header: []string{"Stream-Incarnation: 007"}},
		{name: "another token", method: "PUT", target: "/B/plain", header: []string{"Stream-Incarnation: {wrong}"}},
		{name: "bad bucket", method: "PUT", target: "/abc/s"},
		{name: "bad stream", method: "PUT", target: "/B/a..b"},
		{name: "encoded id", method: "PUT", target: "/B/te%78t~1"},
	}
}

func appendSteps() []step {
	return []step{
		{name: "missing", method: "POST", target: "/B/s", header: []string{textType}, body: "x"},
		{name: "create", method: "PUT", target: "/B/s", header: []string{textType}},
		{name: "append", method: "POST", target: "/B/s", header: []string{textType}, body: "hello\n"},
		{name: "normalised", method: "POST", target: "/B/s", header: []string{"Content-Type: TEXT/plain;"}, body: "world\n"},
		{name: "chunked", method: "POST", target: "/B/s", header: []string{textType, "Transfer-Encoding: chunked"}, body: "3\r\nabc\r\n0\r\n\r\n"},
		{name: "empty", method: "POST", target: "/B/s", header: []string{textType}},
		{name: "empty on missing", method: "POST", target: "/B/none"},
		{name: "no type", method: "POST", target: "/B/s", body: "x"},
		{name: "other type", method: "POST", target: "/B/s", header: []string{octets}, body: "x"},
		{name: "record match", method: "POST", target: "/B/s", header: []string{textType, "Stream-Record-Match: 1"}, body: "x"},
		{name: "seq", method: "POST", target: "/B/s", header: []string{textType, "Stream-Seq: b"}, body: "x"},
		{name: "seq lower", method: "POST", target: "/B/s", header: []string{textType, "Stream-Seq: a"}, body: "x"},
		{name: "seq same", method: "POST", target: "/B/s", header: []string{textType, "Stream-Seq: b"}, body: "x"},
		{name: "seq long", method: "POST", target: "/B/s", header: []string{textType, "Stream-Seq: " + strings.Repeat("z", 257)}, body: "x"},
		{name: "right token", method: "POST", target: "/B/s", header: []string{textType, "Stream-Incarnation: {inc}"}, body: "x"},
		{name: "wrong token", method: "POST", target: "/B/s", header: []string{textType, "Stream-Incarnation: {wrong}"}, body: "x"},
		{name: "wrong token, missing", method: "POST", target: "/B/none", header: []string{textType, "Stream-Incarnation: {wrong}"}, body: "x"},
		{name: "two tokens", method: "POST", target: "/B/s", header: []string{textType, "Stream-Incarnation: 1", "Stream-Incarnation: 1"}, body: "x"},
		{name: "token 0", method: "POST", target: "/B/s", header: []string{textType, "Stream-Incarnation: 0"}, body: "x"},
		{name: "token word", method: "POST", target: "/B/s", header: []string{textType, "Stream-Incarnation: x"}, body: "x"},
		{name: "token huge", method: "POST", target: "/B/s", header: []string{textType, "Stream-Incarnation: 99999999999999999999"}, body: "x"},
		{name: "bad bucket", method: "POST", target: "/DEMO/s", header: []string{textType}, body: "x"},
		{name: "close with bytes", method: "POST", target: "/B/s", header: []string{textType, "Stream-Closed: true"}, body: "end"},
		{name: "after close", method: "POST", target: "/B/s", header: []string{textType}, body: "x"},
		{name: "close again", method: "POST", target: "/B/s", header: []string{"Stream-Closed: true"}},
		{name: "close again with bytes", method: "POST", target: "/B/s", header: []string{textType, "Stream-Closed: true"}, body: "x"},
		{name: "read closed", method: "GET", target: "/B/s"},
		{name: "create 2", method: "PUT", target: "/B/s2"},
		{name: "close alone", method: "POST", target: "/B/s2", header: []string{"Stream-Closed: True"}},
		{name: "closed not true", method: "POST", target: "/B/s2", header: []string{"Stream-Closed: yes"}},
	}
}
