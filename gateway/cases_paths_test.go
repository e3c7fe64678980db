package gateway

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// badTargets are the targets of the path cases. Each is refused, with a status
// that says whether the target does not parse or leads nowhere.
func badTargets() []struct {
	target string
	status int
} {
	return []struct {
		target string
		status int
	}{
		// P01: dot segments in every spelling.
		{"/acme/s.pub/../s.priv", 400},
		{"/acme/s.pub/../../other/s.priv", 400},
		{"/acme/s.pub/%2e%2e/s.priv", 400},
		{"/acme/s.pub/.%2E/s.priv", 400},
		{"/acme/./s.pub", 400},
		{"/acme/s.pub/..", 400},
		{"/acme/s.pub/.", 400},
		{"/../acme/s.pub", 400},
		{`/acme/s.pub/..\s.priv`, 400},
		{`/acme\s.pub`, 400},
		{"/acme/s.pub%5c..%5cs.priv", 400},
		{"/acme/s.pub%2f..%2fs.priv", 400},
		{"/acme/s.pub..", 400},
		// P04: empty segments.
		{"//acme/s.pub", 400},
		{"/acme//s.pub", 400},
		{"/acme/s.pub/", 400},
		{"/acme/s.pub//", 400},
		{"/acme///", 400},
		{"//", 400},
		{"/acme/s.pub//snapshot/7", 400},
		// P05: what cuts a path for one reader and not for another.
		{"/acme/s.priv;x=/acme/s.pub", 400},
		{"/acme/s.pub;x", 400},
		{"/acme/s.priv#/acme/s.pub", 400},
		{"/acme/s.pub#", 400},
		{"/acme/s.pub?offset=-1#x", 400},
		{"/acme/s.priv%3f/acme/s.pub", 400},
		{"/acme/s.pub%00", 400},
		{"/acme/s.pub?offset=-1;live=sse", 400},
		{"/%61cme/s.pub", 400},
		{"/acme/s.p\xc3\xbcb", 400},
		{"*", 400},
		// M04: what the gateway and its nodes have for operators only.
		{"/metrics", 404},
		{"/debug/pprof", 404},
		{"/debug/pprof/", 400}, // an empty segment first of all
		{"/debug/pprof/heap", 404},
		{"/healthz", 404},
		{"/livez", 404},
		{"/readyz", 404},
		{"/reload", 404},
		{"/__ursula/metrics", 404},
		{"/__ursula/cluster/status", 404},
		{"/__ursula/s.x", 404},
		{"/__ursula", 404},
		{"/%5f%5fursula/metrics", 400},
		{"/__ursul%61/s.x", 400},
		{"/__other/s.x", 400},
		{"/%6detrics", 400},
		{"/", 404},
		{"/acme", 404},
		{"/acme/pub", 404},
		{"/acme/s.pub/metrics", 404},
		{"/acme/s.pub/snapshot", 404},
	}
}

// P01: dot segments led from a public stream to a private one. P04: empty
// segments were cleaned, redirected, or matched the rule of the cleaned path.
// P05: ';' and '#' ended the path for who decided and not for who served. M04:
// the operators' paths answered on the public port. P09: what was refused early
// was answered with an empty 400 and stood in no log. Nobody is redirected,
// nothing is repaired, no key helps, the node sees nothing, and each is our JSON,
// logged and counted.
func TestBadTargets(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("200 OK", "", "served")), rigOptions{})
	n, counted := 0, map[string]int{}
	for _, tc := range badTargets() {
		for _, auth := range []string{"", "Authorization: Bearer " + rg.Keys[key] + "\r\n"} {
			raw := rg.raw(t, "GET "+tc.target+" HTTP/1.1\r\nHost: gw\r\n"+auth+"Connection: close\r\n\r\n")
			got := answers(t, raw)
			n++
			if len(got) != 1 || got[0].StatusCode != tc.status || got[0].code() == "" || got[0].Header.Get("Location") != "" || got[0].Header.Get("Cache-Control") != "no-store" {
				t.Errorf("%q: %q, want our %d", tc.target, raw, tc.status)
				continue
			}
			counted[got[0].code()]++
			line := rg.awaitLines(t, n)[n-1]
			if line["status"] != float64(tc.status) || line["code"] != got[0].code() || line["request_id"] != got[0].Header.Get("X-Request-Id") || line["operation"] != "none" || line["account"] != nil {
				t.Errorf("%q: access line %v", tc.target, line)
			}
		}
	}
	u.untouched(t)
	for code, n := range counted {
		rg.awaitCount(t, fmt.Sprintf(`sluice_refusals_total{code="%s"} %d`, code, n))
	}
}

// P05, the other half: a second path in the query is a query. What is decided on
// is the part before '?', and what goes on is the target as it came.
func TestTargetIsDecidedOnItsPath(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("200 OK", "", "served")), rigOptions{})
	const target = "/acme/s.priv?/acme/s.pub"
	if res := rg.Do(t, http.MethodGet, target, "", ""); res.StatusCode != http.StatusUnauthorized {
		t.Errorf("anonymous: %d %s", res.StatusCode, res.Text)
	}
	u.untouched(t)
	if res := rg.Do(t, http.MethodGet, target, key, ""); res.Text != "served" || u.await(t, 1).Target != target {
		t.Errorf("with a key: %d %s, the node got %q", res.StatusCode, res.Text, u.await(t, 1).Target)
	}
}

// K06: queries were sorted, decoded or dropped on the way, and what was cached
// for one was served for another. They go on byte for byte.
func TestQueryGoesOnAsItCame(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("200 OK", "", "served")), rigOptions{})
	for i, query := range []string{"?b=1&a=2", "?a=2&b=1", "?a=1&a=2&a", "?", "?x=%41+1", "?a=b=c&&=d&", "?offset=%2D1&x=~!$'()*,:@/?", "?cursor=1&offset=7&unknown=%C3%BC"} {
		raw := rg.raw(t, "GET /acme/s.pub"+query+" HTTP/1.1\r\nHost: gw\r\nConnection: close\r\n\r\n")
		if !strings.HasPrefix(raw, "HTTP/1.1 200") {
			t.Fatalf("%s: %q", query, raw)
		}
		if got := u.await(t, i+1).Target; got != "/acme/s.pub"+query {
			t.Errorf("the node got %q, want %q", got, "/acme/s.pub"+query)
		}
	}
}

const (
	chunkURL    = "/acme/s.pub/incarnation/7/chunk/00000000000000000000"
	snapshotURL = "/acme/s.pub/incarnation/7/snapshot/00000000000000000007"
	storable    = "public, max-age=300, immutable"
)

// P07: a query on an immutable path made a new cached object of every x. The
// node's 400 passes as no-store; and were a node to answer 200, that would not
// be relaxed either, since no relaxed answer may depend on a query (K06).
func TestImmutableWithAQuery(t *testing.T) {
	t.Run("the node's own 400", func(t *testing.T) {
		rg := newRig(t, rigOptions{})
		for i := range 50 {
			res := rg.Do(t, http.MethodGet, fmt.Sprintf("%s?x=%d", chunkURL, i), "", "")
			if res.StatusCode != http.StatusBadRequest || res.code() != "QUERY_NOT_ACCEPTED" || res.Header.Get("Cache-Control") != "no-store" {
				t.Fatalf("answer %d %s %q", res.StatusCode, res.Text, res.Header.Get("Cache-Control"))
			}
		}
	})
	t.Run("a node that takes it", func(t *testing.T) {
		rg, _ := newUpRig(t, respond(whole("200 OK", "Stream-Immutable: true\r\n", "x")), rigOptions{})
		for query, want := range map[string]string{"": storable, "?": "no-store", "?x=1": "no-store"} {
			if res := rg.Do(t, http.MethodGet, chunkURL+query, "", ""); res.StatusCode != 200 || res.Header.Get("Cache-Control") != want {
				t.Errorf("%q: %d %q, want %q", query, res.StatusCode, res.Header.Get("Cache-Control"), want)
			}
		}
	})
}

// K03: errors and empty answers on immutable paths were cached, a node's as well
// as the proxy's own. Whatever a node says of caching, only 200, 206 and 304 that
// it marks are relaxed, and no refusal is.
func TestErrorsAreNotCached(t *testing.T) {
	rg, u := newUpRig(t, func(c *upConn, r *upRequest) {
		status := r.Header.Get("X-Status")
		c.say("HTTP/1.1 " + status + " X\r\nStream-Immutable: true\r\nCache-Control: public, max-age=31536000, immutable\r\n" +
			"Expires: Thu, 01 Jan 2099 00:00:00 GMT\r\nPragma: cache\r\nAge: 5\r\nSurrogate-Control: max-age=9\r\nCDN-Cache-Control: max-age=9\r\n")
		if status != "204" && status != "304" {
			c.say("Content-Length: 0\r\n")
		}
		c.say("\r\n")
	}, rigOptions{})
	for _, path := range []string{chunkURL, snapshotURL} {
		for status, want := range map[string]string{
			"200": storable, "206": storable, "304": storable, "201": "no-store", "204": "no-store",
			"400": "no-store", "401": "no-store", "402": "no-store", "403": "no-store", "404": "no-store", "408": "no-store", "410": "no-store",
			"412": "no-store", "413": "no-store", "416": "no-store", "429": "no-store", "500": "no-store", "502": "no-store", "503": "no-store", "504": "no-store",
			"307": "no-store", "302": "no-store",
		} {
			for _, method := range []string{http.MethodGet, http.MethodHead} {
				res := rg.Do(t, method, path, "", "", "X-Status", status)
				if got := res.Header.Values("Cache-Control"); !slices.Equal(got, []string{want}) {
					t.Errorf("%s %s, node's %s: Cache-Control %q, want %q", method, path, status, got, want)
				}
				for _, name := range []string{"Expires", "Pragma", "Age", "Surrogate-Control", "Cdn-Cache-Control"} {
					if v := res.Header.Get(name); v != "" {
						t.Errorf("%s %s, node's %s: the node's %s: %q", method, path, status, name, v)
					}
				}
			}
		}
		if res := rg.Do(t, http.MethodGet, path, key, "", "X-Status", "200"); res.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("with a credential: %q", res.Header.Get("Cache-Control"))
		}
		// Ours, one of each status that a read of such a path can get.
		before := len(u.requests())
		for _, own := range []struct {
			path, key string
			status    int
		}{
			{path, "unknown", 401},
			{path, "expired", 401},
			{strings.Replace(path, "acme", "poor", 1), "", 402},
			{strings.Replace(path, "acme", "gone", 1), "", 403},
			{strings.Replace(path, "pub", "priv", 1), "other.full", 403},
			{strings.Replace(path, "pub", "priv", 1), "", 401},
			{path + "/more", "", 404},
			{path + "?live=x", "", 400},
		} {
			res := rg.Do(t, http.MethodGet, own.path, own.key, "", "X-Status", "200")
			if res.StatusCode != own.status || res.code() == "" || res.Header.Get("Cache-Control") != "no-store" {
				t.Errorf("%s with %q: %d %q", own.path, own.key, res.StatusCode, res.Header.Get("Cache-Control"))
			}
		}
		if n := len(u.requests()); n != before {
			t.Errorf("%d refused reads reached the node", n-before)
		}
	}
}

// K04: a 304 lost its validators or had another cache rule than its 200, and
// HEAD another than GET. K05: ranges lost bytes, 416 was cached.
func TestConditionalAndRange(t *testing.T) {
	const object = "0123456789abcdef"
	const marks = "Content-Type: text/plain\r\nETag: \"e\"\r\nVary: accept-encoding\r\nStream-Immutable: true\r\nAccept-Ranges: bytes\r\n"
	rg, u := newUpRig(t, func(c *upConn, r *upRequest) {
		body, head := object, "HTTP/1.1 200 OK\r\n"
		switch ranged := r.Header.Get("Range"); {
		case r.Header.Get("If-None-Match") == `"e"`:
			c.say("HTTP/1.1 304 Not Modified\r\n" + marks + "\r\n")
			return
		case ranged == "bytes=0-9" && r.Header.Get("If-Range") != `"wrong"`:
			body, head = object[:10], "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-9/16\r\n"
		case ranged == "bytes=99-":
			body, head = "", "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Range: bytes */16\r\n"
		}
		head += fmt.Sprintf("%sContent-Length: %d\r\n\r\n", marks, len(body))
		if r.Method == http.MethodHead {
			body = ""
		}
		c.say(head + body)
	}, rigOptions{})
	for _, tc := range []struct {
		name    string
		headers []string
		status  int
		ranged  string
		body    string
		cache   string
	}{
		{"plain", nil, 200, "", object, storable},
		{"K04 not modified", []string{"If-None-Match", `"e"`}, 304, "", "", storable},
		{"K05 one range", []string{"Range", "bytes=0-9"}, 206, "bytes 0-9/16", object[:10], storable},
		{"K05 several", []string{"Range", "bytes=0-1,4-5"}, 200, "", object, storable},
		{"K05 unsatisfiable", []string{"Range", "bytes=99-"}, 416, "bytes */16", "", "no-store"},
		{"K05 If-Range of another", []string{"Range", "bytes=0-9", "If-Range", `"wrong"`}, 200, "", object, storable},
	} {
		for _, path := range []string{chunkURL, snapshotURL} {
			for _, method := range []string{http.MethodGet, http.MethodHead} {
				t.Run(tc.name+" "+method, func(t *testing.T) {
					res := rg.Do(t, method, path, "", "", tc.headers...)
					length := strconv.Itoa(len(tc.body))
					if tc.status == 304 {
						length = ""
					}
					got := []string{res.Header.Get("Cache-Control"), res.Header.Get("Content-Range"), res.Header.Get("Etag"), res.Header.Get("Vary"), res.Header.Get("Content-Length")}
					if want := []string{tc.cache, tc.ranged, `"e"`, "accept-encoding", length}; res.StatusCode != tc.status || !slices.Equal(got, want) {
						t.Errorf("%d %q, want %d %q", res.StatusCode, got, tc.status, want)
					}
					if body := res.Text; body != tc.body && method == http.MethodGet || body != "" && method == http.MethodHead {
						t.Errorf("body %q, want %q", body, tc.body)
					}
					last := u.requests()[len(u.requests())-1]
					for i := 0; i < len(tc.headers); i += 2 {
						if got := last.Header.Get(tc.headers[i]); got != tc.headers[i+1] {
							t.Errorf("the node got %s: %q, want %q", tc.headers[i], got, tc.headers[i+1])
						}
					}
				})
			}
		}
	}
}
