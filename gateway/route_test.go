package gateway

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/refusal"
	"sluice/internal/tenant"
)

// Allow lists of design §3's table, written out here once more.
const (
	allowStream   = "GET, HEAD, POST, PUT, DELETE"
	allowRead     = "GET, HEAD"
	allowSnapshot = "GET, HEAD, PUT"
)

const anOffset = "00000000000000000042"

type routeCase struct {
	name   string
	method string // "" = GET
	target string
	want   Route // Path, Query and HasQuery follow from target
	code   refusal.Code
	allow  string // with METHOD_NOT_ALLOWED
}

func (tc routeCase) run(t *testing.T) {
	method := tc.method
	if method == "" {
		method = http.MethodGet
	}
	got, err := parseRoute(method, tc.target)
	if tc.code != "" {
		var r *refusal.Refusal
		if !errors.As(err, &r) || r.Code != tc.code || r.Header.Get("Allow") != tc.allow {
			t.Fatalf("parseRoute(%q, %q) = %+v, %v; want %s, Allow %q", method, tc.target, got, err, tc.code, tc.allow)
		}
		if got != (Route{}) {
			t.Errorf("a refused target left a route behind: %+v", got)
		}
		return
	}
	if err != nil {
		t.Fatalf("parseRoute(%q, %q): %v", method, tc.target, err)
	}
	want := tc.want
	want.Path, want.Query, want.HasQuery = strings.Cut(tc.target, "?")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("parseRoute(%q, %q) (-want +got):\n%s", method, tc.target, diff)
	}
}

func runRoutes(t *testing.T, cases []routeCase) {
	t.Helper()
	for _, tc := range cases {
		t.Run(tc.name, tc.run)
	}
}

// routeOf is the route of that operation on /acme/s.events.
func routeOf(o Operation) Route { return Route{Account: "acme", Stream: "events", Operation: o} }

// Every row of design §3's table, and the methods that are none of its.
func TestRouteTable(t *testing.T) {
	const stream = "/acme/s.events"
	table := []struct {
		behind  string
		allow   string
		methods map[string]Operation
	}{
		{"", allowStream, map[string]Operation{"GET": Read, "HEAD": Head, "POST": Append, "PUT": Create, "DELETE": Delete}},
		{"/incarnation/7/chunk/" + anOffset, allowRead, map[string]Operation{"GET": ReadChunk, "HEAD": ReadChunk}},
		{"/incarnation/7/snapshot/" + anOffset, allowRead, map[string]Operation{"GET": ReadImmutableSnapshot, "HEAD": ReadImmutableSnapshot}},
		{"/snapshot/parts", "DELETE", map[string]Operation{"DELETE": DiscardParts}},
		{"/snapshot/" + anOffset, allowSnapshot, map[string]Operation{"GET": ReadSnapshot, "HEAD": ReadSnapshot, "PUT": PublishSnapshot}},
		{"/snapshot/" + anOffset + "/parts", "POST", map[string]Operation{"POST": StagePart}},
		{"/retention/" + anOffset, "PUT", map[string]Operation{"PUT": AdvanceRetention}},
		{"/bootstrap", allowRead, map[string]Operation{"GET": Bootstrap, "HEAD": Bootstrap}},
	}
	cases := make([]routeCase, 0, 14*len(table))
	for _, row := range table {
		// H17: lower-case and unknown methods were taken for a read, TRACE and FOO
		// were forwarded.
		for _, method := range []string{
			"GET", "HEAD", "POST", "PUT", "DELETE",
			"OPTIONS", "PATCH", "TRACE", "CONNECT", "FOO", "get", "Get", "PRI", "QUERY",
		} {
			tc := routeCase{name: "H17 " + method + " " + row.behind, method: method, target: stream + row.behind}
			if o, ok := row.methods[method]; ok {
				tc.want = routeOf(o)
			} else {
				tc.code, tc.allow = refusal.MethodNotAllowed, row.allow
			}
			if method == "CONNECT" { // refused before its target is looked at
				tc.allow = allowStream
			}
			cases = append(cases, tc)
		}
	}
	runRoutes(t, cases)
}

func TestRouteForms(t *testing.T) {
	longest := strings.Repeat("a", 64) + "/s." + strings.Repeat("x", 122-64-3)
	named := func(account, stream string) Route {
		r := routeOf(Read)
		r.Account, r.Stream = tenant.AccountID(account), tenant.StreamName(stream)
		return r
	}
	runRoutes(t, []routeCase{
		{name: "longest account and stream, 122 bytes", target: "/" + longest, want: named(longest[:64], longest[67:])},
		{name: "123 bytes", target: "/" + longest + "x", code: refusal.InvalidRequest},
		{name: "longest stream name", target: "/acme/s." + strings.Repeat("x", 100), want: named("acme", strings.Repeat("x", 100))},
		{name: "stream name of 101", target: "/acme/s." + strings.Repeat("x", 101), code: refusal.InvalidRequest},
		{name: "every byte of a name", target: "/a_-9/s.A9._~-z", want: named("a_-9", "A9._~-z")},
		{name: "stream called like a route", target: "/acme/s.bootstrap", want: named("acme", "bootstrap")},
		{name: "parts is a good stream name", target: "/acme/s.parts", want: named("acme", "parts")},

		// P08: a scope was compared at the wrong border. The route's names end where
		// the segments do.
		{name: "P08 team-a", target: "/acme/s.team-a", want: named("acme", "team-a")},
		{name: "P08 team-ab is another", target: "/acme/s.team-ab", want: named("acme", "team-ab")},
		{name: "P08 case is kept", target: "/acme/s.TEAM-A", want: named("acme", "TEAM-A")},
		{name: "P08 parent", target: "/acme/s.team-a/..", code: refusal.InvalidRequest},
		{name: "P08 encoded slash", target: "/acme/s.team-a%2fx", code: refusal.InvalidRequest},
		{name: "P08 upper-case account", target: "/ACME/s.team-a", code: refusal.InvalidRequest},
		{name: "P08 account of 3", target: "/acm/s.x", code: refusal.InvalidRequest},
		{name: "P08 account of 65", target: "/" + strings.Repeat("a", 65) + "/s.x", code: refusal.InvalidRequest},
		{name: "P08 reserved account", target: "/snapshots/s.x", code: refusal.InvalidRequest},
		{name: "P08 console", target: "/console/s.x", code: refusal.InvalidRequest},
		{name: "P08 internal account", target: "/__ab/s.x", code: refusal.InvalidRequest},
		{name: "P08 no name", target: "/acme/s.", code: refusal.InvalidRequest},
		{name: "P08 name begins with a dot", target: "/acme/s..x", code: refusal.InvalidRequest},
		{name: "P08 two dots in a name", target: "/acme/s.a..b", code: refusal.InvalidRequest},
		{name: "P08 name with a star", target: "/acme/s.a*", code: refusal.InvalidRequest},
		{name: "P08 no prefix", target: "/acme/events", code: refusal.NotFound},
		{name: "P08 prefix of another case", target: "/acme/S.events", code: refusal.NotFound},
		{name: "a bad name has no method", method: "FOO", target: "/acme/s.", code: refusal.InvalidRequest},

		{name: "root", target: "/", code: refusal.NotFound},
		{name: "account alone", target: "/acme", code: refusal.NotFound},
		{name: "bucket PUT", method: "PUT", target: "/acme", code: refusal.NotFound},
		{name: "unlisted segment", target: "/acme/s.events/records", code: refusal.NotFound},
		{name: "snapshot alone", target: "/acme/s.events/snapshot", code: refusal.NotFound},
		{name: "incarnation alone", target: "/acme/s.events/incarnation/7", code: refusal.NotFound},
		{name: "incarnation without offset", target: "/acme/s.events/incarnation/7/chunk", code: refusal.NotFound},
		{name: "behind a chunk", target: "/acme/s.events/incarnation/7/chunk/1/x", code: refusal.NotFound},
		{name: "behind bootstrap", target: "/acme/s.events/bootstrap/x", code: refusal.NotFound},
		{name: "many segments", target: "/acme/s.events" + strings.Repeat("/x", 2000), code: refusal.NotFound},
		{name: "M04 operator path", target: "/__ursula/live", code: refusal.NotFound},
		{name: "M04 operator path of two segments", method: "POST", target: "/__ursula/s.x", code: refusal.NotFound},
		{name: "M04 encoded operator path", target: "/%5F%5Fursula/live", code: refusal.InvalidRequest},
		{name: "M04 raft", method: "POST", target: "/ursula.raft.v1.RaftInternal/Append", code: refusal.NotFound},
		{name: "management", target: "/v1/streams", want: Route{Operation: Manage}},
		{name: "management, any method", method: "PATCH", target: "/v1/streams/a?x=%zz", want: Route{Operation: Manage}},
		{name: "management, an id with a slash", target: "/v1/api-keys/acme%2Fci", want: Route{Operation: Manage}},
		{name: "management, dots", target: "/v1/../acme/s.events", code: refusal.InvalidRequest},
		{name: "management, nothing behind", target: "/v1", code: refusal.NotFound},
		{name: "well-known", target: "/.well-known/other.json", code: refusal.NotFound},
		{name: "metrics", target: "/metrics", code: refusal.NotFound},
	})
}

func TestRouteOffsets(t *testing.T) {
	const stream = "/acme/s.events"
	runRoutes(t, []routeCase{
		{name: "parts is no offset: GET", target: stream + "/snapshot/parts", code: refusal.MethodNotAllowed, allow: "DELETE"},
		{name: "parts is no offset: PUT", method: "PUT", target: stream + "/snapshot/parts", code: refusal.MethodNotAllowed, allow: "DELETE"},
		{name: "parts of parts", method: "POST", target: stream + "/snapshot/parts/parts", code: refusal.InvalidRequest},
		{name: "retention of parts", method: "PUT", target: stream + "/retention/parts", code: refusal.InvalidRequest},
		{name: "chunk of parts", target: stream + "/incarnation/7/chunk/parts", code: refusal.InvalidRequest},
		// Only offsets are never "parts": a token of that spelling is the node's to judge.
		{name: "incarnation of parts", target: stream + "/incarnation/parts/chunk/7", want: routeOf(ReadChunk)},
		{name: "Parts is an offset for the node to judge", target: stream + "/snapshot/Parts", want: routeOf(ReadSnapshot)},
	})
	cases := make([]routeCase, 0, 64)
	for _, good := range []string{"0", anOffset, "18446744073709551615", "99999999999999999999", "-1", "now", "0Az-", strings.Repeat("9", 500)} {
		cases = append(cases,
			routeCase{name: "good chunk " + good, target: stream + "/incarnation/" + good + "/chunk/" + good, want: routeOf(ReadChunk)},
			routeCase{name: "good retention " + good, method: "PUT", target: stream + "/retention/" + good, want: routeOf(AdvanceRetention)})
	}
	for _, bad := range []string{"+1", "1.0", "a_b", "1~", "1:2", "1,2", "1*", "$", "@", "1=2", "1&2", "'", "(1)"} {
		cases = append(cases,
			routeCase{name: "bad snapshot " + bad, target: stream + "/snapshot/" + bad, code: refusal.InvalidRequest},
			routeCase{name: "bad snapshot, any method " + bad, method: "FOO", target: stream + "/snapshot/" + bad, code: refusal.InvalidRequest},
			routeCase{name: "bad token " + bad, target: stream + "/incarnation/" + bad + "/chunk/1", code: refusal.InvalidRequest})
	}
	runRoutes(t, cases)
}

// P01: dot segments, plain and encoded, got past the rule of another path.
// P04: empty segments did. P05: a rule saw a path that was cut at ';' or '#'.
func TestRouteRefusesBytes(t *testing.T) {
	cases := make([]routeCase, 0, 128)
	for _, target := range []string{
		"/acme/s.pub/../../acme/s.priv", "/acme/s.pub/%2e%2e/s.priv", "/acme/s.pub/.%2E/s.priv", "/acme/./s.priv",
		"/acme/s.pub/..", "/acme/s.pub/.", "/../acme/s.priv", "/./acme/s.priv", "/.", "/..", "/acme/..", "/acme/s.pub/../s.priv",
		"/snapshot/../acme/s.priv", "/__ursula/../acme/s.priv",
		"//acme/s.priv", "/acme//s.priv", "/acme/s.priv/", "/acme/s.priv///", "//", "/acme/", "/acme/s.pub//bootstrap", "///",
		"/acme/s.priv;x=/pub/", "/acme;x/s.priv", "/acme/s.priv;", "/;/", "/acme/s.priv#/acme/s.pub", "/acme/s.priv#", "/#", "/acme/s.priv%3f/pub",
		"/acme/s.priv%23", "/acme/s.%70riv", "/%61cme/s.priv", "/acme/s.priv%00", "/acme/s.priv%2Fbootstrap", "/acme/s.priv%",
		`/acme\s.priv`, `/acme/s.priv\bootstrap`, `/acme/s.pub\..\s.priv`,
		"/acme/s.priv\x00", "/acme/s.pri\tv", "/acme/s.pri v", "/acme/s.priv\r", "/acme/s.priv\n", "/acme/s.priv\x7f", "/acme/s.priv\x80",
		"/acme/\tx", "/\x7f", "/acme\x00", "/é", "/a%20b", "/a;b", `/a\b`, "/v1/streams#x", "/__ursula/%6cive",
		"/acme/s.privé", "/acme/s.priv\u200b", "/acmé/s.priv", "/acme/s.\uff50riv",
	} {
		cases = append(cases, routeCase{name: "P01 P04 P05 " + target, target: target, code: refusal.InvalidRequest})
		// What stands behind a path changes nothing about it.
		cases = append(cases, routeCase{name: "with a query " + target, target: target + "?offset=-1", code: refusal.InvalidRequest})
	}
	// H18: "OPTIONS *" was answered outside of the chain. H19: an absolute target
	// chose another virtual host. H22: CONNECT made a tunnel past all rules.
	for _, target := range []string{
		"*", "", "http://evil.example/acme/s.pub", "https://evil.example/acme/s.pub", "evil.example:80", "acme/s.pub", "?offset=1",
		"HTTP://x/acme/s.pub", "\\acme\\s.pub", " /acme/s.pub",
	} {
		for _, method := range []string{"GET", "OPTIONS", "FOO"} {
			cases = append(cases, routeCase{name: "H18 H19 " + method + " " + target, method: method, target: target, code: refusal.InvalidRequest})
		}
		cases = append(cases, routeCase{name: "H22 CONNECT " + target, method: "CONNECT", target: target, code: refusal.MethodNotAllowed, allow: allowStream})
	}
	runRoutes(t, cases)
}

func TestRouteQueries(t *testing.T) {
	const stream = "/acme/s.events"
	live := func(kind Tail, wait time.Duration) Route {
		r := routeOf(Read)
		r.Tail, r.Wait = kind, wait
		return r
	}
	leader := routeOf(Read)
	leader.Leader = true
	runRoutes(t, []routeCase{
		{name: "bare question mark", target: stream + "?", want: routeOf(Read)},
		{name: "plain read", target: stream + "?offset=-1", want: routeOf(Read)},
		{name: "encoded offset", target: stream + "?offset=%2D1", want: routeOf(Read)},
		{name: "unknown parameters, in any order and number", target: stream + "?b=1&a=2&b=3&_method=DELETE&&=&x", want: routeOf(Read)},
		{name: "P05 a path in a query is a query", target: stream + "?/acme/s.other", want: routeOf(Read)},
		{name: "second question mark", target: stream + "?offset=1?live=sse", want: routeOf(Read)},
		{name: "sse", target: stream + "?offset=now&live=sse", want: live(SSE, 0)},
		{name: "live alone", target: stream + "?live=sse", want: live(SSE, 0)},
		{name: "encoded name and value of live", target: stream + "?%6cive=s%73e", want: live(SSE, 0)},
		{name: "encoded hyphen", target: stream + "?live=long%2Dpoll&offset=1", want: live(LongPoll, 0)},
		{name: "long-poll with a wait", target: stream + "?live=long-poll&timeout_ms=1500", want: live(LongPoll, 1500*time.Millisecond)},
		{name: "wait that is no number", target: stream + "?live=long-poll&timeout_ms=soon", want: live(LongPoll, 0)},
		{name: "wait below zero", target: stream + "?live=long-poll&timeout_ms=-1", want: live(LongPoll, 0)},
		{name: "wait beyond a number", target: stream + "?live=long-poll&timeout_ms=99999999999999999999", want: live(LongPoll, 0)},
		{name: "the last wait counts", target: stream + "?live=long-poll&timeout_ms=9&timeout_ms=7", want: live(LongPoll, 7*time.Millisecond)},
		{name: "consistency", target: stream + "?consistency=leader", want: leader},
		{name: "H20 live on HEAD is no tail", method: "HEAD", target: stream + "?live=sse", want: routeOf(Head)},
		{name: "live on an append is no tail", method: "POST", target: stream + "?live=sse", want: routeOf(Append)},
		// P07: queries on immutable paths are the node's to refuse.
		{name: "P07 chunk with a query", target: stream + "/incarnation/7/chunk/" + anOffset + "?x=1", want: routeOf(ReadChunk)},
		{name: "P07 chunk with a bare question mark", target: stream + "/incarnation/7/chunk/" + anOffset + "?", want: routeOf(ReadChunk)},
		{name: "live on a chunk is no tail", target: stream + "/incarnation/7/chunk/" + anOffset + "?live=sse", want: routeOf(ReadChunk)},
	})
	cases := make([]routeCase, 0, 256)
	for _, query := range []string{
		"offset=1&offset=1", "offset=1&x=2&offset=2", "offset&offset", "offset=1&off%73et=2", "%6fffset=1&offset=2",
		"live=sse&live=sse", "live=sse&live=long-poll", "live=sse&l%69ve=sse",
		"live=", "live", "live=SSE", "live=true", "live=sse%20", "live=+sse", "live=sse%00", "live=longpoll", "live=long+poll", "live=long_poll",
		"offset=1;live=sse", ";", "a;b", "offset=1;", "x=%", "x=%2", "x=%zz", "%zz=x", "x=%u0041", "offset=%",
		"a#b", "#", "a b", "a\tb", "a\x00b", "a\x7fb", "é=1", "x=\xff",
	} {
		cases = append(cases,
			routeCase{name: "bad query " + query, target: stream + "?" + query, code: refusal.InvalidQuery},
			routeCase{name: "bad query on a write " + query, method: "POST", target: stream + "?" + query, code: refusal.InvalidQuery},
			routeCase{name: "bad query on a chunk " + query, target: stream + "/incarnation/7/chunk/1?" + query, code: refusal.InvalidQuery},
			// A path that is not served is so, whatever its query.
			routeCase{name: "bad query elsewhere " + query, target: "/acme?" + query, code: refusal.NotFound},
			routeCase{name: "bad query, other method " + query, method: "FOO", target: stream + "?" + query, code: refusal.MethodNotAllowed, allow: allowStream})
	}
	runRoutes(t, cases)
}

// The table of operations is whole: each has a name of its own, and writing
// and immutability are stated for each.
func TestOperations(t *testing.T) {
	writes := map[Operation]bool{
		Append: true, PublishSnapshot: true, StagePart: true, DiscardParts: true, AdvanceRetention: true, Create: true, Delete: true,
	}
	seen := map[string]bool{}
	for o := NoOperation; int(o) < len(operationNames); o++ {
		if name := o.String(); name == "" || seen[name] {
			t.Errorf("operation %d has the name %q", o, name)
		}
		seen[o.String()] = true
		if o.Writes() != writes[o] {
			t.Errorf("%s.Writes() = %t", o, o.Writes())
		}
		if want := o == ReadChunk || o == ReadImmutableSnapshot; o.Immutable() != want {
			t.Errorf("%s.Immutable() = %t", o, o.Immutable())
		}
	}
}
