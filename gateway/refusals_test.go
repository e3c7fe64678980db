package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sluice/auth"
	"sluice/gateway/upstream"
	"sluice/internal/refusal"
	"sluice/internal/tenant"
	"sluice/internal/ursulatest"
	"sluice/ratelimit"
)

// refusalCase provokes a refusal for real: through a listener, with what is
// wrong really wrong.
type refusalCase struct {
	name    string
	rig     rigOptions
	provoke func(t *testing.T, rg *rig) answer
	// redirected and reached are how many requests the nodes saw: none where
	// neither is set. Redirected ones were not applied.
	redirected, reached int
}

// asking is a provocation by one ordinary request.
func asking(method, path, keyName, body string, headers ...string) func(*testing.T, *rig) answer {
	return func(t *testing.T, rg *rig) answer { return rg.Do(t, method, path, keyName, body, headers...) }
}

// writing is a provocation by bytes on a connection, whose answer is read while
// the connection stands. {key} is the account's full key.
func writing(request string) func(*testing.T, *rig) answer {
	return func(t *testing.T, rg *rig) answer {
		conn := rg.dial(t)
		rg.write(t, conn, request)
		return readAnswer(t, bufio.NewReader(conn), "GET")
	}
}

func (rg *rig) write(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, strings.ReplaceAll(text, "{key}", rg.Keys[key])); err != nil {
		t.Fatal(err)
	}
}

func readAnswer(t *testing.T, br *bufio.Reader, method string) answer {
	t.Helper()
	res := readHead(t, br, method)
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("body: %v", err)
	}
	return answer{res, string(text)}
}

const (
	privHead   = "POST /acme/s.priv HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer {key}\r\n"
	privTarget = "/acme/s.priv?offset=-1"
)

// faultyDirectory is a directory part of which is out of reach.
type faultyDirectory struct {
	tenant.Directory
	keys, accounts, streams bool
}

func (d faultyDirectory) Key(ctx context.Context, digest tenant.Digest) (*tenant.Key, error) {
	if d.keys {
		return nil, tenant.ErrUnavailable
	}
	return d.Directory.Key(ctx, digest)
}

func (d faultyDirectory) Account(ctx context.Context, id tenant.AccountID) (*tenant.Account, error) {
	if d.accounts {
		return nil, fmt.Errorf("look up: %w", tenant.ErrUnavailable)
	}
	return d.Directory.Account(ctx, id)
}

func (d faultyDirectory) Stream(ctx context.Context, account tenant.AccountID, name tenant.StreamName) (*tenant.Stream, error) {
	if d.streams {
		return nil, errors.New("a fault with no name")
	}
	return d.Directory.Stream(ctx, account, name)
}

func without(d faultyDirectory) rigOptions {
	return rigOptions{change: func(o *Options) {
		own := d // options may make several rigs at one time
		own.Directory = o.Directory
		o.Directory, o.Authenticator = own, auth.New(auth.Options{Directory: own, Now: time.Now})
	}}
}

func pace(p Pace) rigOptions { return rigOptions{change: func(o *Options) { o.Pace = p }} }

func limited(change func(*tenant.Limits)) rigOptions { return rigOptions{limits: change} }

// brokenUpstream is a way to the nodes that has a fault of the program.
type brokenUpstream struct{ Upstream }

func (brokenUpstream) Send(context.Context, *http.Request, upstream.Meta) (*http.Response, error) {
	panic(fmt.Errorf("a fault of the program at %s", "10.9.8.7:4437"))
}

// refusalCases has at least one case for each code of the table.
func refusalCases() map[refusal.Code][]refusalCase {
	const append1 = `{"n":1}`
	typed := []string{"Content-Type", rigType}
	return map[refusal.Code][]refusalCase{
		refusal.InvalidRequest: {
			{name: "P01 path", provoke: writing("GET /acme/s.pub/%2e%2e/s.priv HTTP/1.1\r\nHost: x\r\n\r\n")},
			{name: "H18 asterisk", provoke: writing("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n")},
			{name: "H19 absolute form", provoke: writing("GET http://evil/acme/s.pub HTTP/1.1\r\nHost: x\r\n\r\n")},
			{name: "H21 body on a read", provoke: writing("GET /acme/s.pub HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")},
			{name: "H21 empty chunked body on a read", provoke: writing("GET /acme/s.pub HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")},
			{name: "H22 websocket", provoke: writing("GET /acme/s.pub HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")},
			{name: "H22 upgrade of a write", provoke: writing(privHead + "Upgrade: h2c\r\nContent-Length: 7\r\n\r\n" + append1)},
		},
		refusal.InvalidQuery: {{name: "live twice", provoke: asking("GET", "/acme/s.pub?live=sse&live=sse", "", "")}},
		refusal.BodyUnreadable: {
			{name: "broken chunk", provoke: writing(privHead + "Transfer-Encoding: chunked\r\n\r\n7\r\n" + append1 + "\r\nZZ\r\n")},
			{name: "H04 chunk without its end", provoke: writing(privHead + "Transfer-Encoding: chunked\r\n\r\n7\r\n" + append1 + append1 + "\r\n")},
			{name: "client that ends early", provoke: endEarly},
		},
		refusal.InvalidCredential: {
			{name: "none", provoke: asking("GET", "/acme/s.priv", "", "")},
			{name: "H05 two", provoke: asking("GET", "/acme/s.pub", key, "", "Authorization", "Bearer x")},
			{name: "H06 another scheme", provoke: asking("GET", "/acme/s.pub", "", "", "Authorization", "Basic YTpi")},
			{name: "unknown", provoke: asking("POST", "/acme/s.priv", "unknown", append1, typed...)},
		},
		refusal.CredentialExpired: {{name: "key", provoke: asking("GET", "/acme/s.pub", "expired", "")}},
		refusal.PaymentRequired:   {{name: "unpaid", provoke: asking("POST", "/poor/s.priv", "poor.full", append1, typed...)}},
		refusal.AccountRevoked:    {{name: "revoked", provoke: asking("POST", "/gone/s.priv", "gone.full", append1, typed...)}},
		refusal.Forbidden:         {{name: "H17 reads only", provoke: asking("POST", "/acme/s.priv", "read", append1, typed...)}},
		refusal.StreamLifecycle:   {{name: "create", provoke: asking("PUT", "/acme/s.new", key, "", typed...)}, {name: "delete", provoke: asking("DELETE", "/acme/s.priv", key, "")}},
		refusal.NotFound:          {{name: "operator path", provoke: asking("GET", "/__ursula/live", key, "")}},
		refusal.MethodNotAllowed: {
			{name: "H17 trace", provoke: writing("TRACE /acme/s.priv HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n")},
			{name: "H22 connect", provoke: writing("CONNECT node:4437 HTTP/1.1\r\nHost: node:4437\r\nAuthorization: Bearer {key}\r\n\r\n")},
			{name: "H18 preface", provoke: writing("PRI /acme/s.priv HTTP/1.1\r\nHost: x\r\n\r\n")},
		},
		refusal.BodyTooSlow: {
			{name: "B7 stall", rig: pace(Pace{Stall: 30 * time.Millisecond}), provoke: writing(privHead + "Content-Length: 7\r\n\r\n{")},
			{name: "H16 trickle", rig: pace(Pace{Window: 50 * time.Millisecond, MinBytes: 64 << 20}), provoke: trickle},
		},
		refusal.RequestTooLarge: {
			{name: "declared", rig: limited(smallRequests), provoke: asking("POST", "/acme/s.priv", key, strings.Repeat("1", 1001), typed...)},
			{name: "chunked", rig: limited(smallRequests), provoke: writing(privHead + "Transfer-Encoding: chunked\r\n\r\n3e9\r\n" + strings.Repeat("1", 1001) + "\r\n0\r\n\r\n")},
			{name: "declared beyond a number's half", provoke: writing(privHead + "Content-Length: 9223372036854775807\r\n\r\n")},
		},
		refusal.RateLimited: {
			{name: "second of one", rig: rigOptions{limits: oneRequest, change: stopClock}, provoke: secondRequest},
			{name: "A19 bad credentials", rig: rigOptions{change: oneFailure}, provoke: func(t *testing.T, rg *rig) answer {
				rg.Do(t, "GET", "/acme/s.pub", "unknown", "")
				return rg.Do(t, "GET", "/acme/s.pub", "malformed", "")
			}},
			{name: "closed", rig: limited(func(l *tenant.Limits) { l.RequestsPerSecond = 0 }), provoke: asking("GET", privTarget, key, "")},
		},
		refusal.LiveReadsExhausted: {{name: "second of one", rig: limited(func(l *tenant.Limits) { l.OpenTails = 1 }), provoke: secondTail}},
		refusal.UploadsExhausted: {{
			name: "U2 closed", rig: limited(func(l *tenant.Limits) { l.Uploads = 0 }), provoke: asking("POST", "/acme/s.priv", key, strings.Repeat("1", 2<<20), typed...),
		}},
		refusal.UploadBytesExhausted: {{
			name: "U1 closed", rig: limited(func(l *tenant.Limits) { l.UploadBytes = 0 }), provoke: asking("POST", "/acme/s.priv", key, strings.Repeat("1", 2<<20), typed...),
		}},
		refusal.Internal: {{
			name: "panic", rig: rigOptions{change: func(o *Options) { o.Upstream = brokenUpstream{o.Upstream} }},
			provoke: asking("POST", "/acme/s.priv", key, append1, typed...),
		}},
		refusal.UpstreamFailed: {
			{name: "U03 reset after a write was read", provoke: faulty(ursulatest.ReadThen(ursulatest.Reset)), reached: 1},
			{name: "H23 redirect that Ursula does not send", provoke: faulty(ursulatest.Status(302, http.Header{"Location": {"http://169.254.169.254/"}}, nil)), reached: 1},
		},
		refusal.AuthenticationUnavailable: {{name: "A11 keys", rig: without(faultyDirectory{keys: true}), provoke: asking("GET", "/acme/s.pub", key, "")}},
		refusal.AuthorizationUnavailable: {
			{name: "streams", rig: without(faultyDirectory{streams: true}), provoke: asking("GET", "/acme/s.pub", key, "")},
			{name: "accounts", rig: without(faultyDirectory{accounts: true}), provoke: asking("POST", "/acme/s.priv", key, append1, typed...)},
		},
		refusal.NoUpstream: {{name: "F13 no nodes", rig: rigOptions{noNodes: true}, provoke: asking("POST", "/acme/s.priv", key, append1, typed...)}},
		refusal.UpstreamUnreachable: {
			{name: "U07 node gone", provoke: stopped},
			{name: "U07 three refuse", rig: rigOptions{cluster: 3}, provoke: stopped},
			{name: "O08 no connection to spare", provoke: withoutRoom},
		},
		refusal.NoLeader:              {{name: "all redirect", rig: rigOptions{cluster: 2}, provoke: redirecting, redirected: 2}},
		refusal.UploadBudgetExhausted: {{name: "budget taken", rig: rigOptions{change: func(o *Options) { o.Budget = NewBodyBudget(1000); o.Pace.BudgetWait = 10 * time.Millisecond }}, provoke: secondUpload}},
		// The wait for a head is the contract's 5 s (facts §4.3) and not an option.
		refusal.UpstreamTimeout: {{name: "silent node", provoke: faulty(ursulatest.Hang), reached: 1}},
	}
}

func smallRequests(l *tenant.Limits) { l.RequestBytes = 1000 }

func oneRequest(l *tenant.Limits) { l.RequestsPerSecond, l.Burst = 1, 1 }

// oneFailure has an address' second bad credential refused for its rate.
func oneFailure(o *Options) {
	stopClock(o)
	o.FailedPerMinute = 1
}

func stopClock(o *Options) {
	now := time.Now()
	still := ratelimit.MemoryOptions{Now: func() time.Time { return now }}
	o.Limiter, o.Exchanges, o.Failures = ratelimit.NewMemory(still), ratelimit.NewMemory(still), ratelimit.NewMemory(still)
}

// endEarly shuts the sending half of a connection down in the middle of a body.
func endEarly(t *testing.T, rg *rig) answer {
	conn := rg.dial(t)
	rg.write(t, conn, privHead+"Content-Length: 100\r\n\r\n{\"n\":")
	if tcp, ok := conn.(*net.TCPConn); !ok || tcp.CloseWrite() != nil {
		t.Fatal("cannot shut the sending half down")
	}
	return readAnswer(t, bufio.NewReader(conn), "POST")
}

// trickle sends byte by byte, as fast as it may, until the answer is there.
func trickle(t *testing.T, rg *rig) answer {
	conn := rg.dial(t)
	rg.write(t, conn, privHead+"Content-Length: 8388608\r\n\r\n")
	feed(t, conn)
	return readAnswer(t, bufio.NewReader(conn), "POST")
}

func secondRequest(t *testing.T, rg *rig) answer {
	if res := rg.Do(t, "GET", privTarget, key, ""); res.StatusCode != http.StatusOK {
		t.Fatalf("first request: %d %s", res.StatusCode, res.Text)
	}
	rg.Cluster.ResetRequests()
	return rg.Do(t, "GET", privTarget, key, "")
}

func secondTail(t *testing.T, rg *rig) answer {
	const tail = "GET /acme/s.priv?offset=now&live=sse HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n"
	rg.write(t, rg.dial(t), tail)
	if err := rg.Cluster.WaitTails(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	rg.Cluster.ResetRequests()
	return writing(tail)(t, rg)
}

// withoutRoom writes while a tail has the only connection to nodes that there may be.
func withoutRoom(t *testing.T, rg *rig) answer {
	rg.Pool.SetMaxConnections(1)
	rg.write(t, rg.dial(t), "GET /acme/s.priv?offset=now&live=sse HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n")
	if err := rg.Cluster.WaitTails(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	rg.Cluster.ResetRequests()
	return rg.Do(t, "POST", "/acme/s.priv", key, `{"n":1}`, "Content-Type", rigType)
}

func secondUpload(t *testing.T, rg *rig) answer {
	rg.write(t, rg.dial(t), privHead+"Content-Length: 900\r\n\r\n{")
	poll(t, "the budget is taken", func() bool { return rg.Options.Budget.Used() == 900 })
	return rg.Do(t, "POST", "/acme/s.priv", key, strings.Repeat("1", 200), "Content-Type", rigType)
}

// faulty has every node break an append in one way.
func faulty(f ursulatest.Fault) func(*testing.T, *rig) answer {
	return func(t *testing.T, rg *rig) answer {
		rg.Cluster.Node(0).SetFault(f)
		return rg.Do(t, "POST", "/acme/s.priv", key, `{"n":1}`, "Content-Type", rigType)
	}
}

func stopped(t *testing.T, rg *rig) answer {
	for i := range rg.Cluster.URLs() {
		rg.Cluster.Node(i).Stop()
	}
	// A pooled connection may die under the first request, which is another case.
	rg.Pool.Close()
	return rg.Do(t, "POST", "/acme/s.priv", key, `{"n":1}`, "Content-Type", rigType)
}

// redirecting has each of two nodes send everything to the other. Nothing may
// have been applied by either.
func redirecting(t *testing.T, rg *rig) answer {
	urls := rg.Cluster.URLs()
	for i := range urls {
		rg.Cluster.Node(i).SetFault(ursulatest.Status(307, http.Header{"Location": {urls[1-i] + "/acme/s.priv"}}, nil))
	}
	res := rg.Do(t, "POST", "/acme/s.priv", key, `{"n":1}`, "Content-Type", rigType)
	for i := range urls {
		rg.Cluster.Node(i).SetFault(nil)
	}
	if next := send(t, "HEAD", urls[0]+"/acme/s.priv", "", nil).Header.Get("Stream-Next-Offset"); next != "00000000000000000000" {
		t.Errorf("the stream ends at %q after a refusal that says nothing was applied", next)
	}
	return res
}

// Every code of the refusal table is provoked, and what the node saw of it is
// what its outcome promises: nothing, where it says that nothing was applied.
//
// Facts W4: a client that knows the facts reads the same of each.
//
// P09: refusals left no line in the access log. F16: an error text named a node.
func TestEveryRefusal(t *testing.T) {
	cases := refusalCases()
	// Of the Management API, whose own tests provoke them.
	managed := []refusal.Code{
		refusal.StreamNotFound, refusal.KeyNotFound, refusal.AccountNotFound, refusal.StreamTaken, refusal.KeyTaken, refusal.KeyRevoked,
		refusal.KeyRotation, refusal.AccountTaken, refusal.Declared, refusal.StoreUnavailable,
	}
	for _, e := range refusal.Table() {
		if len(cases[e.Code]) == 0 && !slices.Contains(managed, e.Code) {
			t.Errorf("no case provokes %s", e.Code)
		}
		for _, tc := range cases[e.Code] {
			t.Run(string(e.Code)+"/"+tc.name, func(t *testing.T) {
				t.Parallel()
				rg := newRig(t, tc.rig)
				res := tc.provoke(t, rg)
				checkEntry(t, e, res)
				checkReached(t, rg, e, tc)
				poll(t, "a line in the access log", func() bool {
					return slices.ContainsFunc(rg.requestLines(t), func(line map[string]any) bool {
						return line["code"] == string(e.Code) && line["request_id"] == res.Header.Get("X-Request-Id")
					})
				})
			})
		}
		delete(cases, e.Code)
	}
	for code := range cases {
		t.Errorf("%s is not in the table", code)
	}
}

func checkEntry(t *testing.T, e refusal.Entry, res answer) {
	t.Helper()
	if res.StatusCode != e.Status || res.code() != string(e.Code) {
		t.Fatalf("got %d %s, want %d %s", res.StatusCode, res.Text, e.Status, e.Code)
	}
	want := saysUnknown
	if e.Outcome == refusal.OutcomeNone {
		want = saysRefused
	}
	for _, k := range writeKinds() {
		if got := k.says(res); got != want {
			t.Errorf("to a %s it says %q, want %q", k.name, got, want)
		}
	}
	var body struct{ Error struct{ Message string } }
	if err := json.Unmarshal([]byte(res.Text), &body); err != nil || body.Error.Message == "" {
		t.Errorf("body %q: %v", res.Text, err)
	}
	for _, inside := range []string{"127.0.0.1", "10.9.8.7", "panic", "tbo_", "dial", "EOF", "unavailable"} {
		if strings.Contains(body.Error.Message, inside) {
			t.Errorf("the message names an inside: %s", body.Error.Message)
		}
	}
	for _, header := range append([]string{"X-Request-Id", "Content-Type: application/json", "Cache-Control: no-store"}, e.Headers...) {
		name, value, _ := strings.Cut(header, ": ")
		got := res.Header.Get(name)
		if name == "Connection" && res.Close {
			got = "close"
		}
		if got == "" || value != "" && got != value {
			t.Errorf("header %s: %q, want %q", name, got, value)
		}
	}
	for name := range res.Header {
		own := name == maxRequestBytesHeader && e.Code == refusal.RequestTooLarge
		for _, prefix := range []string{"Ursula-", "X-Ursula-", "Producer-", "Stream-", "Etag", "Location", "Server"} {
			if strings.HasPrefix(name, prefix) && !own {
				t.Errorf("a refusal with %s", name)
			}
		}
	}
	if n, err := strconv.Atoi(res.Header.Get("Retry-After")); slices.Contains(e.Headers, "Retry-After") && (err != nil || n < 1) {
		t.Errorf("Retry-After: %q, want whole seconds, at least 1", res.Header.Get("Retry-After"))
	}
}

func checkReached(t *testing.T, rg *rig, e refusal.Entry, tc refusalCase) {
	t.Helper()
	if e.Outcome == refusal.OutcomeNone && tc.reached != 0 {
		t.Fatal("the case expects a write to reach a node, the table says that none does")
	}
	if rg.Cluster == nil {
		return
	}
	seen := rg.reached()
	if len(seen) != tc.reached+tc.redirected {
		t.Errorf("the nodes saw %q, want %d requests", seen, tc.reached+tc.redirected)
	}
}

// reached lists what the nodes saw, but for the pool's own questions, which have
// no request id.
func (rg *rig) reached() []string {
	var seen []string
	for _, r := range rg.Cluster.Requests() {
		if r.Header.Get(requestIDHeader) != "" {
			seen = append(seen, r.Method+" "+r.Target)
		}
	}
	return seen
}
