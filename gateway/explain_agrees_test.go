package gateway

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/auth"
	"sluice/internal/refusal"
	"sluice/internal/store/memory"
	"sluice/internal/tenant"
	"sluice/ratelimit"
)

// explainedRequests are how many requests are generated, in all.
const explainedRequests = 10_000

// explainRig is a gateway on a listener whose node notes what it gets, answers at once, and
// whose limits' clock stands still: what is counted is never refilled.
type explainRig struct {
	*rig
	ledger      *ledger
	credentials map[string][]string // lines of Authorization, by what they are
	conn        net.Conn            // to the gateway, while it is kept
	in          *bufio.Reader

	mu   sync.Mutex
	seen map[string][]*http.Request // at the node, by request id
}

// note is the node.
func (e *explainRig) note(w http.ResponseWriter, r *http.Request) bool {
	_, _ = io.Copy(io.Discard, r.Body)
	if id := r.Header.Get(requestIDHeader); id != "" {
		e.mu.Lock()
		e.seen[id] = append(e.seen[id], r)
		e.mu.Unlock()
	}
	w.WriteHeader(http.StatusOK)
	return true
}

func newExplainRig(t *testing.T, protocol bool) *explainRig {
	t.Helper()
	e := &explainRig{ledger: &ledger{}, seen: map[string][]*http.Request{}, credentials: map[string][]string{}}
	still := time.Now()
	e.rig = newRig(t, rigOptions{
		origins: []string{"https://app.example.com"},
		limits:  func(l *tenant.Limits) { l.RequestBytes = 256 },
		change: func(o *Options) {
			stopped := func() *ratelimit.Memory {
				return ratelimit.NewMemory(ratelimit.MemoryOptions{Now: func() time.Time { return still }})
			}
			limits := stopped()
			o.Limiter, o.Tails, o.Uploads, o.Failures, o.FailedPerMinute = limits, limits, limits, stopped(), 30
			o.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
			o.MaxRequestBytes = 256
			if protocol {
				o.Lifecycle = e.ledger
				o.Management = managed(func(w http.ResponseWriter, _ *http.Request) (*auth.Principal, error) {
					w.WriteHeader(http.StatusNoContent)
					return nil, nil
				})
			}
		},
	})
	// "other" uses its rate up on the way, and its strangers have all their tails open.
	e.replace(t, func(c *memory.Content) {
		for i := range c.Accounts {
			if a := &c.Accounts[i]; a.ID == "other" {
				a.Limits.RequestsPerSecond, a.Limits.Burst, a.Limits.OpenTails = 3, 40, 1
			}
		}
	})
	lease, err := e.Options.Tails.Acquire(t.Context(), ratelimit.Subject{Account: "other", Public: true}, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(lease.Release)
	e.collectCredentials(t)
	e.Cluster.Node(0).SetFault(e.note)
	return e
}

func (e *explainRig) collectCredentials(t *testing.T) {
	t.Helper()
	for name, text := range e.Keys {
		e.credentials[name] = []string{"Authorization: Bearer " + text}
	}
	full := e.Keys["acme.full"]
	e.addKey(t, "doomed", nil)
	doomed := e.token(t, "doomed")
	if err := e.Directory.RevokeKey("acme/doomed"); err != nil {
		t.Fatal(err)
	}
	for name, lines := range map[string][]string{
		"none":           nil,
		"none at all":    nil,
		"empty":          {"Authorization:"},
		"basic":          {"Authorization: Basic dTpw"},
		"two":            {"Authorization: Bearer " + full, "authorization: Bearer " + full},
		"lower case":     {"authorization: bearer  " + full},
		"no text":        {"Authorization: Bearer"},
		"a token":        {"Authorization: Bearer " + e.token(t, "full")},
		"to read":        {"Authorization: Bearer " + e.token(t, "full", "scope", auth.ScopeRead)},
		"narrow token":   {"Authorization: Bearer " + e.token(t, "full", "resource", rigOrigin+"/acme/s.pub")},
		"agent's token":  {"Authorization: Bearer " + e.token(t, "agent")},
		"expired token":  {"Authorization: Bearer " + e.expiredToken(t)},
		"revoked token":  {"Authorization: Bearer " + doomed},
		"foreign token":  {"Authorization: Bearer " + e.mint(t, "iss", "https://login.example.com")},
		"broken token":   {"Authorization: Bearer " + e.token(t, "full") + "x"},
		"in the query":   nil,
		"a cookie alone": {"Cookie: key=" + full},
	} {
		e.credentials[name] = lines
	}
}

// generated is a request as it is sent, and as it is asked about.
type generated struct {
	Question
	body string
	as   string // the credential, for messages
}

// generator makes requests: mostly good ones, in which one thing or more is odd.
type generator struct {
	*rand.Rand
	rig   *explainRig
	names []string // of credentials
}

func pick[T any](g *generator, from ...T) T { return from[g.IntN(len(from))] }

// rarely is true once in n times.
func (g *generator) rarely(n int) bool { return g.IntN(n) == 0 }

func (g *generator) next(id string) generated {
	account := pick(g, "acme", "acme", "acme", "other", "poor", "gone", "nobody")
	path := "/" + account + "/s." + pick(g, "priv", "pub", "pub", "missing", "priv")
	q := generated{Question: Question{Method: pick(g, "GET", "GET", "GET", "HEAD", "POST", "POST", "PUT", "DELETE"), URL: path}}
	if g.rarely(12) {
		q.Method = pick(g, "OPTIONS", "PATCH", "get", "TRACE", "M-SEARCH", "CONNECT", "BREW", "G@T", "Ä")
	}
	if g.rarely(4) {
		q.URL += pick(g, "/incarnation/7/chunk/42", "/incarnation/a-b/snapshot/0", "/snapshot/12", "/snapshot/12/parts", "/snapshot/parts", "/retention/3",
			"/bootstrap", "/records", "/", "//", "/../s.pub", "/snapshot/parts/x", "/snapshot/1_0", "%2e", ";v=1", "/incarnation/~/chunk/0", "%zz", "\\")
	}
	if g.rarely(20) {
		q.URL = pick(g, "/", "*", "/v1/streams", "/v1/token", "/.well-known/jwks.json", "/.well-known/oauth-authorization-server", "/__ursula/live",
			"/ABC/s.priv", "/acme/s.-x", "/acme/s.a..b", "/acme", "acme/s.priv", "/acme/s."+strings.Repeat("a", 101), "/acme/s. x", "/"+strings.Repeat("a", 48<<10),
			rigOrigin+path, "http://other.example.com"+path+"?offset=-1", rigOrigin)
	}
	q.URL += pick(g, "", "", "", "?offset=-1", "?offset=now&live=sse", "?offset=-1&live=long-poll&timeout_ms=1", "?", "?a=b&&c&=d", "?consistency=leader")
	if g.rarely(10) {
		q.URL += pick(g, "?x=1&%zz", "?a;b", "?live=websocket", "?offset=1&%6fffset=2", "?live=sse&live=sse", "?ü", "&live=sse", "&offset=1")
	}
	name := pick(g, g.names...)
	if account == "acme" && !g.rarely(3) {
		name = pick(g, "full", "covering", "read", "none", "a token", "to read", "narrow token")
	} else if key := account + ".full"; g.rarely(2) && g.rig.Keys[key] != "" {
		name = key
	}
	q.as = name
	q.Headers = append(slices.Clone(g.rig.credentials[name]), requestIDHeader+": "+id, fmt.Sprintf("X-Forwarded-For: 203.0.113.%d", g.IntN(16)))
	if name == "in the query" {
		q.URL += "?access_token=" + strings.Repeat("x", 10)
	}
	g.addBody(&q)
	g.addHeaders(&q)
	return q
}

func (g *generator) addBody(q *generated) {
	if !slices.Contains([]string{"POST", "PUT", "PATCH"}, q.Method) && !g.rarely(12) {
		return
	}
	size := pick(g, 0, 1, 7, 255, 256, 257, 300)
	text := strings.Repeat("b", size)
	switch {
	case g.rarely(6):
		text = strings.Repeat("b", min(size, 256))
		q.Headers = append(q.Headers, "Transfer-Encoding: chunked")
		if g.rarely(4) {
			q.Headers = append(q.Headers, fmt.Sprint("Content-Length: ", len(text)))
		}
		q.body = "0\r\n\r\n"
		if text != "" {
			q.body = fmt.Sprintf("%x\r\n%s\r\n", len(text), text) + q.body
		}
	case g.rarely(30):
		q.Headers = append(q.Headers, pick(g, "Content-Length: x", "Content-Length: -1", "Transfer-Encoding: gzip", "Transfer-Encoding: gzip, chunked", "Content-Length: 1, 1"))
	case g.rarely(30):
		q.Headers = append(q.Headers, fmt.Sprint("Content-Length: ", size), fmt.Sprint("Content-Length: ", pick(g, size, size+1)))
		q.body = text
	default:
		q.Headers = append(q.Headers, fmt.Sprint("Content-Length: ", size), "Content-Type: "+pick(g, rigType, "application/x-www-form-urlencoded"))
		q.body = text
	}
}

func (g *generator) addHeaders(q *generated) {
	if q.Method == http.MethodOptions && g.rarely(2) {
		q.Headers = append(q.Headers, "Access-Control-Request-Method: POST", pick(g, "Origin: https://app.example.com", "Origin: https://evil.example.com"))
	}
	for range g.IntN(3) {
		q.Headers = append(q.Headers, pick(g,
			"Origin: https://app.example.com", "Origin: https://evil.example.com", "Origin: null", "Access-Control-Request-Method: POST",
			"X-Forwarded-For: 198.51.100.7, 127.0.0.1", "Forwarded: for=198.51.100.9", "Cookie: a=b", "X-Ursula-Leader: 1", "Range: bytes=0-3",
			`If-None-Match: "x"`, "Connection: X-Mine", "X-Mine: 1", "Te: trailers", "X-HTTP-Method-Override: DELETE", "Producer-Id: p", "Producer-Epoch: 0",
			"Stream-Closed: true", "Idempotency-Key: 1", "User-Agent: curl/8", "Accept-Encoding: gzip", "Stream-Snapshot-Parts: 2", "X_Odd: 1", "Stream-Forked-From: /other/s.priv",
			"Stream-TTL: 60", "Expect: 100-continue", "Via: 1.1 x",
		))
	}
	if g.rarely(25) {
		q.Headers = append(q.Headers, pick(g, "Upgrade: websocket", "Expect: much", "X@d: 1", "X Bad: 1", "X-Bad: \x01", "X-Bad: "+strings.Repeat("a", 48<<10), "Host: a b",
			"Host: a\r\n"[:7], "Origin: https://app.example.com"), "Origin: https://app.example.com")
	}
}

// send makes the request for real and returns what came of it, past any 100. It is nil of a
// head that is too large and was cut off: the reset may take the answer along.
func (e *explainRig) send(t *testing.T, q generated) (res *http.Response, code string) {
	t.Helper()
	head, err := q.text()
	if err != nil {
		t.Fatal(err)
	}
	if e.conn == nil {
		e.conn = e.dial(t)
		e.in = bufio.NewReader(e.conn)
	}
	if err := e.conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	// What is refused early may close the connection under the rest: the answer tells.
	_, _ = io.WriteString(e.conn, head+q.body)
	for {
		if res, err = http.ReadResponse(e.in, &http.Request{Method: q.Method}); err != nil || res.StatusCode >= http.StatusOK {
			break
		}
	}
	var text []byte
	if err == nil {
		text, err = io.ReadAll(res.Body)
		_ = res.Body.Close()
	}
	if err != nil && len(head) > maxHead {
		_ = e.conn.Close()
		e.conn = nil
		return nil, ""
	}
	if err != nil {
		t.Fatalf("%.300q: %v", head, err)
	}
	if res.Close {
		_ = e.conn.Close()
		e.conn = nil
	}
	code, _ = refusalIn(text)
	return res, code
}

// check asks about a request, makes it, and holds the one to the other; fault is where they
// differ.
func (e *explainRig) check(t *testing.T, id string, q generated) (x Explanation, fault string) {
	t.Helper()
	x, err := e.Gateway.Explain(t.Context(), q.Question)
	if err != nil {
		t.Fatalf("%+v: %v", q.Question, err)
	}
	res, code := e.send(t, q) //nolint:bodyclose // it has closed it
	if res == nil {
		res = &http.Response{StatusCode: x.Status}
	}
	e.mu.Lock()
	seen := e.seen[id]
	e.mu.Unlock()
	got := fmt.Sprintf("the client got %d %s", res.StatusCode, code)
	switch {
	case (x.Outcome == Forwarded) != (len(seen) == 1) || len(seen) > 1:
		return x, fmt.Sprintf("the node saw it %d times, and %s", len(seen), got)
	case x.Outcome == Forwarded:
		if cache := res.Header.Get("Cache-Control"); res.StatusCode != http.StatusOK || cache != "no-store" {
			return x, got + " with Cache-Control: " + cache
		}
		return x, seenOtherwise(x, seen[0])
	case x.Status == 0:
		if x.Outcome != Answered || !strings.HasPrefix(q.URL, "/v1/") {
			return x, "nothing was said of the answer: " + got
		}
	case x.Status != res.StatusCode || q.Method != http.MethodHead && x.Code != code:
		return x, got
	default:
		for name, want := range x.Headers {
			if got := strings.Join(res.Header[name], ", "); got != want {
				return x, fmt.Sprintf("%s: %q, the client got %q", name, want, got)
			}
		}
	}
	return x, ""
}

// seenOtherwise holds what was to be sent to what a node got.
func seenOtherwise(x Explanation, r *http.Request) string {
	if got := r.Method + " " + r.RequestURI; got != x.Forwarded.Method+" "+x.Forwarded.Target {
		return "the node got " + got
	}
	got, want := flat(r.Header), maps.Clone(x.Forwarded.Headers)
	// The length of a body that declared none, or that is empty, is found on the way.
	delete(got, "Content-Length")
	delete(want, "Content-Length")
	if diff := cmp.Diff(want, got); diff != "" {
		return "headers (-explained +at the node):\n" + diff
	}
	return ""
}

// Done when of part 8: what is explained is what the chain does, on 10,000 generated requests:
// the status and code of each refusal, with its headers, or that the node gets it, with which
// target and headers. Asking takes nothing of what is counted, and reaches no node.
func TestExplainAgreesWithTheChain(t *testing.T) {
	for _, protocol := range []bool{false, true} {
		t.Run(fmt.Sprint("protocol=", protocol), func(t *testing.T) {
			e := newExplainRig(t, protocol)
			seed := uint64(len(t.Name()))
			t.Logf("seed: %d", seed)
			g := &generator{rand.New(rand.NewPCG(8, seed)), e, slices.Sorted(maps.Keys(e.credentials))} //nolint:gosec // the same requests each run
			outcomes, steps := map[string]int{}, map[string]int{}
			for i := range explainedRequests / 2 {
				if i%500 == 0 {
					e.ledger.mu.Lock()
					e.ledger.refuses = nil
					if i%1000 == 500 {
						e.ledger.refuses = refusal.New(refusal.StreamTaken, nil)
					}
					e.ledger.mu.Unlock()
				}
				id := fmt.Sprint("explained-", i)
				q := g.next(id)
				x, fault := e.check(t, id, q)
				if fault != "" { // one tells enough
					e.report(t, i, q, fault)
				}
				outcomes[strings.TrimSpace(fmt.Sprint(x.Outcome, " ", x.Status, " ", x.Code))]++
				steps[x.Steps[len(x.Steps)-1].Step]++
			}
			t.Logf("outcomes: %v\nlast steps: %v", outcomes, steps)
			checkCoverage(t, outcomes, steps, protocol)
		})
	}
}

// checkCoverage wants the generator to have met everything that a head can be refused for.
func checkCoverage(t *testing.T, outcomes, steps map[string]int, protocol bool) {
	t.Helper()
	want := []string{
		"forwarded 0", "answered 200", "answered 204", "refused 400 INVALID_REQUEST", "refused 400 INVALID_QUERY", "refused 401 INVALID_CREDENTIAL",
		"refused 401 CREDENTIAL_EXPIRED", "refused 402 PAYMENT_REQUIRED", "refused 403 ACCOUNT_REVOKED", "refused 403 FORBIDDEN", "refused 404 NOT_FOUND",
		"refused 405 METHOD_NOT_ALLOWED", "refused 413 REQUEST_TOO_LARGE", "refused 417 INVALID_REQUEST", "refused 429 RATE_LIMITED", "refused 429 LIVE_READS_EXHAUSTED", "refused 431 INVALID_REQUEST", "refused 501 INVALID_REQUEST",
	}
	if protocol {
		want = append(want, "refused 409 STREAM_ALREADY_EXISTS_CONFLICT", "answered 0")
	} else {
		want = append(want, "refused 403 STREAM_LIFECYCLE")
	}
	for _, outcome := range want {
		if outcomes[outcome] == 0 {
			t.Errorf("no request was %s", outcome)
		}
	}
	for _, step := range []string{"server", stepCORS, stepRoute, stepOwn, stepAuthenticate, stepAuthorize, stepAccount, stepSize, stepRate, stepTail, stepProxy} {
		if steps[step] == 0 {
			t.Errorf("no request ended at %s", step)
		}
	}
	if outcomes["forwarded 0"] < explainedRequests/20 {
		t.Errorf("only %d were forwarded", outcomes["forwarded 0"])
	}
}
