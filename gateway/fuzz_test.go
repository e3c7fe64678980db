package gateway

import (
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sluice/internal/refusal"
)

// fuzzTargets are the targets of cases.md's group 3 and of H17, H18 and H19, in
// the words of this gateway's paths.
func fuzzTargets() []string {
	return []string{
		"/acme/s.priv", "/acme/s.pub?offset=-1", "/acme/s.pub?offset=now&live=sse", "/acme/s.pub?live=long-poll&timeout_ms=1",
		"/acme/s.priv/incarnation/7/chunk/00000000000000000000", "/acme/s.priv/incarnation/7/snapshot/00000000000000000007",
		"/acme/s.priv/snapshot/7", "/acme/s.priv/snapshot/7/parts", "/acme/s.priv/snapshot/parts", "/acme/s.priv/retention/7", "/acme/s.pub/bootstrap",
		// P01
		"/acme/s.pub/../s.priv", "/acme/s.pub/../../other/s.priv", "/acme/s.pub/%2e%2e/s.priv", "/acme/s.pub/.%2E/s.priv", "/acme/./s.priv", "/acme/s.pub/..",
		"/snapshot/../acme/s.priv", "/acme/s.pub/snapshot/..", "/acme/s.pub/incarnation/../chunk/..",
		// P04
		"//acme/s.priv", "/acme//s.priv", "/acme/s.priv/", "/acme/s.priv///", "//", "/",
		// P05
		"/acme/s.priv;x=/pub/", "/acme/s.priv#/acme/s.pub", "/acme/s.priv?/acme/s.pub", "/acme/s.priv%3f/pub", "/acme/s.pub?a;b", "/acme/s.pub?#",
		// P07
		"/acme/s.pub/incarnation/7/chunk/00000000000000000000?x=1", "/acme/s.pub/bootstrap?",
		// P08
		"/acme/s.team-a", "/acme/s.team-ab", "/acme/s.team-a/..", "/acme/s.team-a%2fx", "/acme/s.TEAM-A", "/ACME/s.x", "/acm/s.x",
		// Bytes where no stream is
		"/acme/\tx", "/\x7f", "/acme\x00", "/é", "/a%20b", "/a;b", "/a\\b", "/acme/x#",
		// H17 to H19, M04
		"/acme/s.priv?_method=DELETE", "*", "http://evil/acme/s.priv", "h:1", "", "/__ursula/live", "/%5F%5Fursula/live", "/__ursula/s.x",
		// Queries
		"/acme/s.pub?offset=1&off%73et=2", "/acme/s.pub?live=sse&l%69ve=sse", "/acme/s.pub?live=", "/acme/s.pub?live", "/acme/s.pub?live=long%2Dpoll",
		"/acme/s.pub?x=%zz", "/acme/s.pub?x=+&&=&a=b", "/acme/s.pub?consistency=leader", "/acme/s.pub?offset=%00", "/acme/s.pub?a b",
		"/acme/s." + strings.Repeat("x", 100), "/acme/s." + strings.Repeat("x", 101), "/" + strings.Repeat("a", 64) + "/s." + strings.Repeat("x", 56),
	}
}

func fuzzMethods() []string {
	return []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "TRACE", "PATCH", "FOO", "get", "PRI", ""}
}

// The grammar of design §1 and §3 as expressions; the fuzz targets hold what the
// gateway does against them.
var (
	goodPath  = regexp.MustCompile(`\A/[!"$&-:<-\[\]-~]*\z`) // printable ASCII without # % ; \
	goodQuery = regexp.MustCompile(`\A[!"$-:<-~]*\z`)        // printable ASCII without # ;
	streamURL = regexp.MustCompile(`\A/([^/]+)/s\.([^/]*)((?:/[^/]+)*)\z`)
	goodID    = regexp.MustCompile(`\A[a-z0-9_-]{4,64}\z`)
	goodName  = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9._~-]{0,99}\z`)
	goodValue = regexp.MustCompile(`\A[0-9A-Za-z-]+\z`)
)

// behinds is design §3's table, by what stands behind the stream. Groups are
// tokens, and the last of them an offset; the first row that matches counts.
var behinds = []struct {
	form          *regexp.Regexp
	reads, writes string // methods
}{
	{regexp.MustCompile(`\A\z`), "GET HEAD", "POST PUT DELETE"},
	{regexp.MustCompile(`\A/incarnation/([^/]+)/(?:chunk|snapshot)/([^/]+)\z`), "GET HEAD", ""},
	{regexp.MustCompile(`\A/snapshot/parts\z`), "", "DELETE"},
	{regexp.MustCompile(`\A/snapshot/([^/]+)\z`), "GET HEAD", "PUT"},
	{regexp.MustCompile(`\A/snapshot/([^/]+)/parts\z`), "", "POST"},
	{regexp.MustCompile(`\A/retention/([^/]+)\z`), "", "PUT"},
	{regexp.MustCompile(`\A/bootstrap\z`), "GET HEAD", ""},
}

// wanted is what design §3 says of a target: the code of its refusal, or whom it
// is about.
type wanted struct {
	code            refusal.Code
	account, stream string
	write           bool
	lifecycle       bool
	tail            string
}

func wantRoute(method, target string) wanted {
	if method == http.MethodConnect {
		return wanted{code: refusal.MethodNotAllowed}
	}
	path, query, _ := strings.Cut(target, "?")
	if !goodPath.MatchString(path) {
		return wanted{code: refusal.InvalidRequest}
	}
	for segment := range strings.SplitSeq(path[1:], "/") {
		if segment == "" && path != "/" || segment == "." || segment == ".." {
			return wanted{code: refusal.InvalidRequest}
		}
	}
	parts := streamURL.FindStringSubmatch(path)
	if parts == nil || parts[1] == "__ursula" {
		return wanted{code: refusal.NotFound}
	}
	account, name := parts[1], parts[2]
	for _, b := range behinds {
		values := b.form.FindStringSubmatch(parts[3])
		if values == nil {
			continue
		}
		for i, value := range values[1:] {
			if !goodValue.MatchString(value) || value == "parts" && i == len(values)-2 {
				return wanted{code: refusal.InvalidRequest}
			}
		}
		if !goodID.MatchString(account) || account == "console" || account == "snapshots" || strings.HasPrefix(account, "__") ||
			!goodName.MatchString(name) || strings.Contains(name, "..") || len(account+"/s."+name) > 122 {
			return wanted{code: refusal.InvalidRequest}
		}
		w := wanted{account: account, stream: name, write: slices.Contains(strings.Fields(b.writes), method)}
		if !w.write && !slices.Contains(strings.Fields(b.reads), method) {
			return wanted{code: refusal.MethodNotAllowed}
		}
		w.lifecycle = parts[3] == "" && (method == http.MethodPut || method == http.MethodDelete)
		return w.withQuery(query, method == http.MethodGet && parts[3] == "")
	}
	return wanted{code: refusal.NotFound}
}

func (w wanted) withQuery(query string, mayTail bool) wanted {
	values, err := url.ParseQuery(query)
	lives, offsets := values["live"], values["offset"]
	if err != nil || !goodQuery.MatchString(query) || len(lives) > 1 || len(offsets) > 1 {
		return wanted{code: refusal.InvalidQuery}
	}
	if len(lives) == 1 {
		if lives[0] != "sse" && lives[0] != "long-poll" {
			return wanted{code: refusal.InvalidQuery}
		}
		if mayTail {
			w.tail = lives[0]
		}
	}
	return w
}

// FuzzRoute holds parseRoute to design §3, and to the invariant of the whole
// gateway as far as it is the route's: what is authorised is, byte for byte, what
// net/http will send.
func FuzzRoute(f *testing.F) {
	for _, target := range fuzzTargets() {
		for _, method := range fuzzMethods() {
			f.Add(method, target)
		}
	}
	f.Fuzz(func(t *testing.T, method, target string) {
		if strings.Count(target, "&") > 1000 {
			return // url.ParseQuery has a bound of its own
		}
		got, err := parseRoute(method, target)
		want := wantRoute(method, target)
		if want.code != "" {
			var r *refusal.Refusal
			if !errors.As(err, &r) || r.Code != want.code || (r.Header.Get("Allow") != "") != (want.code == refusal.MethodNotAllowed) {
				t.Fatalf("parseRoute(%q, %q) = %+v, %v; want %s", method, target, got, err, want.code)
			}
			return
		}
		if err != nil {
			t.Fatalf("parseRoute(%q, %q): %v; want %+v", method, target, err, want)
		}
		if string(got.Account) != want.account || string(got.Stream) != want.stream || got.Operation == NoOperation ||
			got.Operation.Writes() != want.write || (got.Operation == Create || got.Operation == Delete) != want.lifecycle {
			t.Errorf("parseRoute(%q, %q) = %+v, want %+v", method, target, got, want)
		}
		if (got.Tail != NoTail) != (want.tail != "") || want.tail != "" && got.Tail.String() != want.tail {
			t.Errorf("parseRoute(%q, %q): tail %v, want %q", method, target, got.Tail, want.tail)
		}
		sent := url.URL{Path: got.Path, RawQuery: got.Query, ForceQuery: got.HasQuery && got.Query == ""}
		if sent.RequestURI() != target {
			t.Errorf("parseRoute(%q, %q) would be sent as %q", method, target, sent.RequestURI())
		}
		// Facts L24: all of a stream's subresources share its key.
		if key := streamKey(got); key != "/"+want.account+"/s."+want.stream {
			t.Errorf("parseRoute(%q, %q): key %q", method, target, key)
		}
	})
}
