package gateway

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"sluice/auth"
	"sluice/gateway/upstream"
	"sluice/internal/store/memory"
	"sluice/internal/syncbuf"
	"sluice/internal/telemetry"
	"sluice/internal/tenant"
	"sluice/internal/ursulatest"
	"sluice/ratelimit"
)

// rig is a whole gateway on a real listener, with real connections to the
// nodes behind it, and what a test wants to look at afterwards.
type rig struct {
	URL     string
	Addr    string
	Keys    map[string]string // by what they are: full, read, narrowed, covering, expired, agent, revoked, other, unknown, unpaid, barred
	Cluster *ursulatest.Cluster
	Pool    *upstream.Pool
	Limits  *ratelimit.Memory
	Budget  *BodyBudget
	Metrics *prometheus.Registry
	Log     *syncbuf.Buffer
	Options Options // in force; change a copy and Gateway.Swap it
	Gateway *Gateway

	Directory *memory.Directory
	Content   memory.Content // that it began with; change a copy and Directory.Replace it
	Issuers   *auth.Issuers  // nil but where rigOptions has issuers
	nodes     []string
	atNode    func() int // requests that reached a scripted node
}

// rigOptions change a rig before it starts.
type rigOptions struct {
	nodes   []string // URLs of nodes in place of the stand-in
	cluster int      // nodes of the stand-in; 0 = 1
	limits  func(*tenant.Limits)
	change  func(*Options)
	noNodes bool
	beside  *rig                            // another gateway, whose directory, keys and nodes this one shares
	origins []string                        // of pages
	issuers *auth.IssuersOptions            // of other issuers; their list is set by the test
	wrap    func(http.Handler) http.Handler // stands before the gateway
	around  func(net.Listener) net.Listener // the gateway's own
}

// rigOrigin is what clients call every rig.
const rigOrigin = "https://streams.example.com"

// Accounts of every rig: acme (active), poor (unpaid), gone (revoked), and other
// (active). Each of the first three has the streams "priv" and "pub" (public),
// in the directory and at the stand-in; "missing" is neither.
var rigAccounts = map[tenant.AccountID]tenant.State{
	"acme": tenant.Active, "poor": tenant.Unpaid, "gone": tenant.Revoked, "other": tenant.Active,
}

const (
	rigType = "application/json"
	key     = "full" // the name of the key that may do everything in acme
)

func newKey(t testing.TB) string {
	t.Helper()
	k, err := auth.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k.Reveal()
}

// rigContent declares the accounts, and for each of them one key of each kind
// under "{account}.{kind}"; acme's are also there under the kind alone.
func rigContent(t testing.TB, change func(*tenant.Limits)) (memory.Content, map[string]string) {
	t.Helper()
	var c memory.Content
	keys := map[string]string{"unknown": newKey(t), "malformed": "tbo_nonsense"}
	only, err := tenant.ParseStreamSet([]string{"elsewhere", "else*"})
	if err != nil {
		t.Fatal(err)
	}
	these, err := tenant.ParseStreamSet([]string{"priv", "pub*", "miss*"})
	if err != nil {
		t.Fatal(err)
	}
	for id, state := range rigAccounts {
		limits := tenant.DefaultLimits()
		limits.RequestsPerSecond, limits.Burst = 1_000_000, 1_000_000
		if change != nil {
			change(&limits)
		}
		c.Accounts = append(c.Accounts, tenant.Account{ID: id, State: state, Limits: limits})
		c.Streams = append(c.Streams,
			tenant.Stream{Account: id, Name: "priv", ContentType: rigType},
			tenant.Stream{Account: id, Name: "pub", ContentType: rigType, Public: true})
		for kind, edit := range map[string]func(*tenant.Key){
			"full":     func(*tenant.Key) {},
			"read":     func(k *tenant.Key) { k.Access = tenant.ReadAccess },
			"narrowed": func(k *tenant.Key) { k.Streams = only },
			"covering": func(k *tenant.Key) { k.Streams = these },
			"expired":  func(k *tenant.Key) { k.ExpiresAt = time.Now().Add(-time.Second) },
			"revoked":  func(k *tenant.Key) { k.RevokedAt = time.Now().Add(-time.Second) },
			"agent":    func(k *tenant.Key) { k.ActsAs = tenant.Agent },
		} {
			text := newKey(t)
			k := tenant.Key{
				ID: string(id) + "/" + kind, Account: id, Name: kind, Digest: tenant.DigestOf(text),
				Access: tenant.WriteAccess, Streams: tenant.AllStreams(), ActsAs: tenant.User,
			}
			edit(&k)
			c.Keys = append(c.Keys, k)
			keys[string(id)+"."+kind] = text
			if id == "acme" {
				keys[kind] = text
			}
		}
	}
	return c, keys
}

func newRig(t testing.TB, o rigOptions) *rig {
	t.Helper()
	rg := newRigParts(t, o)
	rg.nodes = o.nodes
	switch {
	case o.beside != nil:
		rg.nodes = o.beside.nodes
	case rg.nodes == nil && !o.noNodes:
		rg.Cluster = ursulatest.New(ursulatest.Options{Nodes: o.cluster})
		if err := rg.Cluster.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = rg.Cluster.Close() })
		rg.nodes = rg.Cluster.URLs()
	}
	var err error
	if rg.Pool, err = upstream.New(upstream.Options{Nodes: rg.nodes, Observer: rigNodes{rg.Options.Metrics}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(rg.Pool.Close)
	rg.Options.Upstream = rg.Pool
	rg.begin(t, o)
	rg.listen(t, o.wrap, o.around)
	if rg.Cluster != nil {
		rg.createStreams(t, rg.Content)
		rg.identified(t)
	}
	return rg
}

// newRigParts makes what every rig has but the way to the nodes.
func newRigParts(t testing.TB, o rigOptions) *rig {
	t.Helper()
	rg := &rig{Log: &syncbuf.Buffer{}, Metrics: prometheus.NewRegistry(), Budget: NewBodyBudget(64 << 20)}
	metrics, err := telemetry.NewMetrics(rg.Metrics)
	if err != nil {
		t.Fatal(err)
	}
	if o.beside != nil {
		rg.Directory, rg.Content, rg.Keys = o.beside.Directory, o.beside.Content, o.beside.Keys
	} else {
		rg.Content, rg.Keys = rigContent(t, o.limits)
		if rg.Directory, err = memory.New(rg.Content); err != nil {
			t.Fatal(err)
		}
	}
	if o.issuers != nil {
		own := *o.issuers
		own.Origin, own.Changed = rigOrigin, func(string) { rg.Gateway.Recheck() }
		rg.Issuers = auth.NewIssuers(own)
		t.Cleanup(rg.Issuers.Close)
	}
	authenticator := auth.New(auth.Options{Directory: rg.Directory, Now: time.Now, Origin: rigOrigin, Issuers: rg.Issuers})
	rg.Limits = ratelimit.NewMemory(ratelimit.MemoryOptions{Now: time.Now})
	rg.Options = Options{
		Directory: rg.Directory, Authenticator: authenticator, Origin: rigOrigin,
		Exchanger: auth.NewExchanger(auth.ExchangeOptions{Authenticator: authenticator}),
		Exchanges: ratelimit.NewMemory(ratelimit.MemoryOptions{Now: time.Now}), ExchangesPerSecond: 1000,
		Failures: ratelimit.NewMemory(ratelimit.MemoryOptions{Now: time.Now}),
		Origins:  o.origins,
		Limiter:  rg.Limits, Tails: rg.Limits, Uploads: rg.Limits,
		Log:     telemetry.NewLogger(rg.Log, zap.NewAtomicLevelAt(zap.DebugLevel)),
		Metrics: metrics, Budget: rg.Budget, Now: time.Now, Random: rand.Reader,
	}
	return rg
}

// begin makes the gateway.
func (rg *rig) begin(t testing.TB, o rigOptions) {
	t.Helper()
	if o.change != nil {
		o.change(&rg.Options)
	}
	rg.Gateway = New(rg.Options)
	t.Cleanup(rg.Gateway.Close)
}

// rigNodes counts what the pool sees; who logs it is the program's matter.
type rigNodes struct{ *telemetry.Metrics }

func (r rigNodes) NodeChanged(node, state string) { r.Node(node, state) }
func (rigNodes) ClusterChanged(string)            {}

func (rg *rig) listen(t testing.TB, wrap func(http.Handler) http.Handler, around func(net.Listener) net.Listener) {
	t.Helper()
	var handler http.Handler = rg.Gateway
	if wrap != nil {
		handler = wrap(handler)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if around != nil {
		l = around(l)
	}
	server := NewServer(handler, log.New(rg.Log, "server: ", 0))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	rg.Addr = l.Addr().String()
	rg.URL = "http://" + rg.Addr
}

// createStreams makes the declared streams at the stand-in, past the gateway.
func (rg *rig) createStreams(t testing.TB, c memory.Content) {
	t.Helper()
	for _, s := range c.Streams {
		res := send(t, http.MethodPut, rg.Cluster.URLs()[0]+tenant.StreamPath(s.Account, s.Name), "", nil, "Content-Type", s.ContentType)
		if res.StatusCode != http.StatusCreated {
			t.Fatalf("create %s at the node: %d", s.Name, res.StatusCode)
		}
	}
}

// identified waits until the pool knows its cluster, and forgets the questions.
func (rg *rig) identified(t testing.TB) {
	t.Helper()
	poll(t, "the pool knows its cluster", func() bool {
		_, err := rg.Pool.Identity()
		return err == nil
	})
	rg.Cluster.ResetRequests()
}

// answer is a response read whole.
type answer struct {
	*http.Response
	Text string
}

// code is the code of an error body; "" where there is none.
func (a answer) code() string {
	var body struct {
		Error struct{ Code string } `json:"error"`
	}
	_ = json.Unmarshal([]byte(a.Text), &body)
	return body.Error.Code
}

// client never follows redirects and asks for no coding.
func client() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{DisableCompression: true, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// send makes one request on a connection of its own and reads the answer whole.
// headers are pairs.
func send(t testing.TB, method, url, bearer string, body io.Reader, headers ...string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	res, err := client().Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s: body: %v", method, url, err)
	}
	return answer{res, string(text)}
}

// Do is send with a path of the rig and the name of a key ("" = anonymous).
func (rg *rig) Do(t testing.TB, method, path, keyName, body string, headers ...string) answer {
	t.Helper()
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	return send(t, method, rg.URL+path, rg.Keys[keyName], in, headers...)
}

// raw writes bytes on a connection of its own; the request must say
// "Connection: close" for the answer to end.
func (rg *rig) raw(t testing.TB, request string) string {
	t.Helper()
	conn := rg.dial(t)
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(conn)
	if err != nil {
		t.Logf("raw: %v", err)
	}
	return string(text)
}

func (rg *rig) dial(t testing.TB) net.Conn {
	t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", rg.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// readHead reads one response head from a raw connection.
func readHead(t testing.TB, br *bufio.Reader, method string) *http.Response {
	t.Helper()
	res, err := http.ReadResponse(br, &http.Request{Method: method})
	if err != nil {
		t.Fatalf("read response: %v", err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

// requestLines are the access log's lines so far.
func (rg *rig) requestLines(t testing.TB) []map[string]any {
	t.Helper()
	var lines []map[string]any
	for line := range strings.Lines(rg.Log.String()) {
		if !strings.Contains(line, `"message":"request"`) {
			continue
		}
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("log line %q: %v", line, err)
		}
		lines = append(lines, m)
	}
	return lines
}

func TestRig(t *testing.T) {
	rg := newRig(t, rigOptions{})
	if res := rg.Do(t, http.MethodPost, "/acme/s.priv", key, `{"n":1}`, "Content-Type", rigType); res.StatusCode != http.StatusNoContent {
		t.Fatalf("append: %d %s", res.StatusCode, res.Text)
	}
	res := rg.Do(t, http.MethodGet, "/acme/s.priv?offset=-1", key, "")
	if res.StatusCode != http.StatusOK || res.Text != "{\"n\":1}\n" || res.Header.Get("Stream-Up-To-Date") != "true" {
		t.Fatalf("read: %d %q %v", res.StatusCode, res.Text, res.Header)
	}
	if rg.Cluster.Hits() != 2 {
		t.Errorf("%d requests reached the node, want 2", rg.Cluster.Hits())
	}
	// A line is written when its request has ended, which may be after the client
	// has its answer; the first one's has surely.
	if lines := rg.requestLines(t); len(lines) < 1 || lines[0]["status"] != float64(204) || lines[0]["key_id"] != "acme/full" {
		t.Errorf("access log: %v", lines)
	}
	if strings.Contains(rg.Log.String(), rg.Keys[key]) {
		t.Error("the key is in the log")
	}
}
