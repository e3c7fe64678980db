package ursulatest_test

import (
	"encoding/hex"
	"strings"

	"github.com/zeebo/blake3"
)

func keyed(id, epoch, seq string, more ...string) []string {
	return append([]string{textType, "Producer-Id: " + id, "Producer-Epoch: " + epoch, "Producer-Seq: " + seq}, more...)
}

func bodyDigest(body string) string {
	sum := blake3.Sum256([]byte(body))
	return "Producer-Digest: " + hex.EncodeToString(sum[:])
}

func producerSteps() []step {
	return []step{
		{name: "create", method: "PUT", target: "/B/s", header: []string{textType}},
		{name: "claim", method: "POST", target: "/B/s", header: keyed("p", "0", "0"), body: "one"},
		{name: "repeat", method: "POST", target: "/B/s", header: keyed("p", "0", "0"), body: "one"},
		{name: "repeat other body", method: "POST", target: "/B/s", header: keyed("p", "0", "0"), body: "changed"},
		{name: "repeat without type", method: "POST", target: "/B/s", header: keyed("p", "0", "0")[1:], body: "one"},
		{name: "next", method: "POST", target: "/B/s", header: keyed("p", "00", "001"), body: "two"},
		{name: "evicted", method: "POST", target: "/B/s", header: keyed("p", "0", "0"), body: "one"},
		{name: "gap", method: "POST", target: "/B/s", header: keyed("p", "0", "5"), body: "x"},
		{name: "gap of a new one", method: "POST", target: "/B/s", header: keyed("q", "0", "1"), body: "x"},
		{name: "unclaimed epoch", method: "POST", target: "/B/s", header: keyed("p", "3", "1"), body: "x"},
		{name: "claim 2", method: "POST", target: "/B/s", header: keyed("p", "2", "0"), body: "three"},
		{name: "claim 2 repeat", method: "POST", target: "/B/s", header: keyed("p", "2", "0"), body: "three"},
		{name: "closed epoch", method: "POST", target: "/B/s", header: keyed("p", "0", "2"), body: "x"},
		{name: "stale epoch", method: "POST", target: "/B/s", header: keyed("p", "1", "0"), body: "x"},
		{name: "digest", method: "POST", target: "/B/s", header: keyed("p", "2", "1", bodyDigest("four")), body: "four"},
		{name: "digest repeat", method: "POST", target: "/B/s", header: keyed("p", "2", "1", bodyDigest("four")), body: "four"},
		{name: "digest conflict", method: "POST", target: "/B/s", header: keyed("p", "2", "1", bodyDigest("five")), body: "five"},
		{name: "digest absent conflict", method: "POST", target: "/B/s", header: keyed("p", "2", "1"), body: "four"},
		{name: "digest mismatch", method: "POST", target: "/B/s", header: keyed("p", "2", "2", bodyDigest("other")), body: "six"},
		{name: "digest alone", method: "POST", target: "/B/s", header: []string{textType, bodyDigest("x")}, body: "x"},
		{name: "digest malformed", method: "POST", target: "/B/s", header: keyed("p", "2", "2", "Producer-Digest: ABC"), body: "x"},
		{name: "no type", method: "POST", target: "/B/s", header: keyed("p", "2", "2")[1:], body: "x"},
		{name: "other type", method: "POST", target: "/B/s", header: append([]string{octets}, keyed("p", "2", "2")[1:]...), body: "x"},
		{name: "empty", method: "POST", target: "/B/s", header: keyed("p", "2", "2")},
		{name: "part", method: "POST", target: "/B/s", header: []string{textType, "Producer-Id: p", "Producer-Seq: 1"}, body: "x"},
		{name: "empty id", method: "POST", target: "/B/s", header: keyed("", "0", "0"), body: "x"},
		{name: "long id", method: "POST", target: "/B/s", header: keyed(strings.Repeat("p", 257), "0", "0"), body: "x"},
		{name: "inner space", method: "POST", target: "/B/s", header: keyed("a b", "0", "0"), body: "x"},
		{name: "negative", method: "POST", target: "/B/s", header: keyed("p", "-1", "0"), body: "x"},
		{name: "huge", method: "POST", target: "/B/s", header: keyed("p", "9007199254740992", "0"), body: "x"},
		{name: "twice", method: "POST", target: "/B/s", header: keyed("p", "2", "2", "Producer-Seq: 2"), body: "x"},
		{name: "tokened", method: "POST", target: "/B/s", header: keyed("p", "2", "2", "Stream-Incarnation: {inc}"), body: "seven"},
		{name: "tokened repeat", method: "POST", target: "/B/s", header: keyed("p", "2", "2", "Stream-Incarnation: {inc}"), body: "seven"},
		{name: "wrong token", method: "POST", target: "/B/s", header: keyed("p", "2", "2", "Stream-Incarnation: {wrong}"), body: "seven"},
		{name: "seq header", method: "POST", target: "/B/s", header: keyed("p", "2", "3", "Stream-Seq: m"), body: "8"},
		{name: "seq header conflict", method: "POST", target: "/B/s", header: keyed("p", "2", "4", "Stream-Seq: l"), body: "9"},
		{name: "close", method: "POST", target: "/B/s", header: keyed("p", "2", "4", "Stream-Closed: true")[1:]},
		{name: "close repeat", method: "POST", target: "/B/s", header: keyed("p", "2", "4", "Stream-Closed: true")[1:]},
		{name: "after close", method: "POST", target: "/B/s", header: keyed("p", "2", "5"), body: "x"},
		{name: "close new", method: "POST", target: "/B/s", header: keyed("r", "0", "0", "Stream-Closed: true")[1:]},
		{name: "repeat after close", method: "POST", target: "/B/s", header: keyed("p", "2", "4"), body: ""},
		{name: "missing", method: "POST", target: "/B/none", header: keyed("p", "0", "0"), body: "x"},
		{name: "create 2", method: "PUT", target: "/B/s2", header: []string{textType}},
		{name: "append and close", method: "POST", target: "/B/s2", header: keyed("p", "0", "0", "Stream-Closed: true"), body: "all"},
		{name: "append and close repeat", method: "POST", target: "/B/s2", header: keyed("p", "0", "0", "Stream-Closed: true"), body: "all"},
	}
}

func jsonSteps() []step {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	post := func(name, body string, free bool) step {
		return step{name: name, method: "POST", target: "/B/s", header: []string{jsonType}, body: body, free: free}
	}
	return []step{
		{name: "create", method: "PUT", target: "/B/s", header: []string{jsonType}},
		post("object", ` { "b" : 1.50e3 , "a" : -0 , "a" : 1e400, "s" : "\ud800 \" , ] \\ \/ é" } `, false),
		post("array", `[ [1, 2] , {"a" : [ ]} , "x , ]" , 3 ]`, false),
		post("nested array", `[[]]`, false),
		post("scalar", ` 7 `, false),
		post("empty array", ` [ ] `, false),
		post("invalid", `{"a":1,}`, true),
		post("two values", `1 2`, true),
		post("blank", `   `, true),
		post("control byte", "\"\x01\"", true),
		post("not utf-8", "\"\xff\"", true),
		post("deep", deep(128), false),
		post("too deep", deep(129), false),
		post("wrapped too deep", "[1,"+deep(128)+"]", false),
		{name: "keyed bad", method: "POST", target: "/B/s", header: append([]string{jsonType}, keyed("p", "0", "0")[1:]...), body: "{", free: true},
		{name: "charset differs", method: "POST", target: "/B/s", header: []string{"Content-Type: application/json; charset=utf-8"}, body: "1"},
		{name: "read", method: "GET", target: "/B/s"},
		{name: "read in a message", method: "GET", target: "/B/s?offset=3&max_bytes=5"},
		{name: "sse", method: "GET", target: "/B/s?offset=-1&live=sse", until: "upToDate"},
		{name: "sse cut at a message", method: "GET", target: "/B/s?offset=-1&live=sse&max_bytes=60", until: "upToDate"},
		{name: "sse smaller than a message", method: "GET", target: "/B/s?offset=-1&live=sse&max_bytes=10", until: "upToDate"},
		{name: "head", method: "HEAD", target: "/B/s"},
		{name: "close with array", method: "POST", target: "/B/s", header: []string{jsonType, "Stream-Closed: true"}, body: "[1,2]"},
		{name: "sse closed", method: "GET", target: "/B/s?offset=-1&live=sse"},
	}
}

func deleteSteps() []step {
	return []step{
		{name: "missing", method: "DELETE", target: "/B/s"},
		{name: "create", method: "PUT", target: "/B/s", body: "x", header: []string{textType}},
		{name: "wrong token", method: "DELETE", target: "/B/s", header: []string{"Stream-Incarnation: {wrong}"}},
		{name: "bad token", method: "DELETE", target: "/B/s", header: []string{"Stream-Incarnation: -"}},
		{name: "delete", method: "DELETE", target: "/B/s", header: []string{"Stream-Incarnation: {inc}"}},
		{name: "again", method: "DELETE", target: "/B/s"},
		{name: "read", method: "GET", target: "/B/s"},
		{name: "head", method: "HEAD", target: "/B/s"},
		{name: "anew", method: "PUT", target: "/B/s", header: []string{jsonType}},
		{name: "read anew", method: "GET", target: "/B/s"},
	}
}

// sizeSteps are the limits of facts §1.6 that a head decides, and one body that
// only its end shows to be too large.
func sizeSteps() []step {
	return []step{
		{name: "post declared", method: "POST", target: "/B/s", header: []string{"Content-Length: 33554433"}},
		{name: "patch nowhere", method: "PATCH", target: "/a/b/c/d", header: []string{"Content-Length: 33554433"}},
		{name: "snapshot", method: "PUT", target: "/B/s/snapshot/0", header: []string{"Content-Length: 99999999999"}},
		{name: "create", method: "PUT", target: "/B/s", header: []string{octets}},
		{
			name: "chunked", method: "POST", target: "/B/s", header: []string{octets, "Transfer-Encoding: chunked"},
			body: "2000001\r\n" + strings.Repeat("x", 0x2000001) + "\r\n0\r\n\r\n",
		},
		{name: "at the limit", method: "POST", target: "/B/s", header: []string{octets}, body: strings.Repeat("y", 0x2000000)},
		{name: "read is capped", method: "GET", target: "/B/s?offset=1"},
		{name: "bootstrap above the cap", method: "GET", target: "/B/s/bootstrap"},
	}
}
