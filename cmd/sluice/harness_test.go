package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"sluice/auth"
	"sluice/config"
	"sluice/internal/syncbuf"
	"sluice/internal/telemetry"
	"sluice/internal/tenant"
	"sluice/internal/ursulatest"
	"sluice/internal/ursulatest/realursula"
)

// forEachUpstream runs a test against the stand-in and, unchanged, against the
// real Ursula, so that the stand-in cannot drift. It runs it once more with the edge
// ending TLS.
func forEachUpstream(t *testing.T, test func(t *testing.T, node string)) {
	t.Helper()
	for _, name := range []string{"stand-in", overTLS} {
		t.Run(name, func(t *testing.T) {
			cluster := ursulatest.New(ursulatest.Options{ClusterID: "stand-in"})
			if err := cluster.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = cluster.Close() })
			test(t, cluster.URLs()[0])
		})
	}
	t.Run("ursula", func(t *testing.T) { test(t, realursula.Start(t).URL) })
}

// overTLS is the name of the tests whose edge ends TLS.
const overTLS = "over TLS"

// edge is a running App with an account of its own and what a test needs of it.
type edge struct {
	app     *App
	URL     string
	Admin   string
	Account string
	Key     string // may do everything in Account
	Reads   string // reads only
	Log     *syncbuf.Buffer
	Stopped chan error // Serve's result
	Stop    context.CancelFunc
	Cut     context.CancelFunc
	program string // what a process of it runs; this test binary where it is empty
}

// streams that every edge declares: name → content type; "open-" ones are public.
var edgeStreams = map[string]string{
	"json": "application/json", "text": "text/plain", "bytes": "application/octet-stream",
	"open-json": "application/json", "open-bytes": "application/octet-stream",
}

func newTestKey(t *testing.T) string {
	t.Helper()
	k, err := auth.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k.Reveal()
}

func testAccount(t *testing.T) string {
	t.Helper()
	var raw [6]byte
	if _, err := rand.Read(raw[:]); err != nil {
		t.Fatal(err)
	}
	return "acct-" + hex.EncodeToString(raw[:])
}

// edgeFile is the operator's file of an edge.
func edgeFile(e *edge, nodes []string, extra string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "listen: 127.0.0.1:0\norigin: https://streams.example.com\nadmin: {listen: \"127.0.0.1:0\"}\n")
	fmt.Fprintf(&b, "ursula: {nodes: [%q", nodes[0])
	for _, n := range nodes[1:] {
		fmt.Fprintf(&b, ", %q", n)
	}
	fmt.Fprintf(&b, "]}\ndrain_delay: 0s\ndrain_timeout: 2s\nwatch: false\n%saccounts:\n  - id: %s\n    limits: {requests_per_second: 100000, burst: 100000, open_tails: 100}\n    streams:\n", extra, e.Account)
	for name, media := range edgeStreams {
		fmt.Fprintf(&b, "      - {name: %s, content_type: %s, public: %v}\n", name, media, strings.HasPrefix(name, "open-"))
	}
	fmt.Fprintf(&b, "    keys:\n      - {name: all, digest: %q}\n      - {name: reads, digest: %q, access: read}\n",
		tenant.DigestOf(e.Key), tenant.DigestOf(e.Reads))
	return b.String()
}

func newEdge(t *testing.T, nodes ...string) *edge {
	t.Helper()
	e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	extra := ""
	if strings.HasSuffix(t.Name(), "/"+strings.ReplaceAll(overTLS, " ", "_")) {
		extra = "tls: {mode: internal}\n"
	}
	return e.start(t, edgeFile(e, nodes, extra), nil)
}

// address is where the edge is, host:port.
func (e *edge) address() string {
	_, address, _ := strings.Cut(e.URL, "://")
	return address
}

// start runs an App of the file, and waits until it is ready unless it cannot.
func (e *edge) start(t *testing.T, file string, load func() (*config.Config, error)) *edge {
	t.Helper()
	return e.startOn(t, file, load, nil)
}

// startOn is start with listeners of the test's; nil = those of the file.
func (e *edge) startOn(t *testing.T, file string, load func() (*config.Config, error), public []net.Listener) *edge {
	t.Helper()
	c, err := config.Parse("test.yaml", []byte(file), config.Options{Grammar: grammar()})
	if err != nil {
		t.Fatalf("%v\n%s", err, file)
	}
	e.Log = &syncbuf.Buffer{}
	level := zap.NewAtomicLevel()
	if e.app, err = newApp(appOptions{Config: c, Log: telemetry.NewLogger(e.Log, level), Level: level, Load: load, Public: public}); err != nil {
		t.Fatal(err)
	}
	scheme := "http://"
	if c.TLS.On() {
		scheme = "https://"
	}
	e.URL, e.Admin = scheme+e.app.addresses()[0], "http://"+e.app.admin.Addr().String()
	var ctx, cut context.Context
	ctx, e.Stop = context.WithCancel(context.Background())
	cut, e.Cut = context.WithCancel(context.Background())
	e.Stopped = make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.Stopped <- e.app.Serve(ctx, cut)
	}()
	t.Cleanup(func() {
		e.Stop()
		e.Cut()
		<-done
		e.app.Close()
	})
	wait, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := e.app.keeper.Wait(wait); err != nil {
		t.Fatalf("%v\n%s", err, e.Log)
	}
	eventually(t, "ready", func() bool { return len(e.app.missing()) == 0 })
	return e
}

// eventually polls a condition that has nothing to wait on.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 20 s", what)
		}
		<-tick.C
	}
}

// reply is an answer read whole.
type reply struct {
	*http.Response
	Text string
}

func (r reply) code() string {
	var body struct {
		Error struct{ Code string } `json:"error"`
	}
	_ = json.Unmarshal([]byte(r.Text), &body)
	return body.Error.Code
}

// protocols are the ways in; every suite test may choose.
func http1() *http.Client { return clientOf(func(p *http.Protocols) { p.SetHTTP1(true) }) }

func http2() *http.Client {
	return clientOf(func(p *http.Protocols) {
		p.SetUnencryptedHTTP2(true)
		p.SetHTTP2(true)
	})
}

func clientOf(set func(*http.Protocols)) *http.Client {
	var p http.Protocols
	set(&p)
	return &http.Client{
		Transport: &http.Transport{
			Protocols: &p, DisableCompression: true,
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // an authority of each edge's own; trials of TLS have clients that verify
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// path is a stream's path.
func (e *edge) path(name string) string { return "/" + e.Account + "/s." + name }

// do sends one request with the full key; "Authorization", "" among the headers
// makes it anonymous.
func (e *edge) do(t *testing.T, method, path string, body []byte, headers ...string) reply {
	t.Helper()
	return e.doAs(t, http1(), e.Key, method, path, body, headers...)
}

func (e *edge) doAs(t *testing.T, c *http.Client, key, method, path string, body []byte, headers ...string) reply {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	res := e.open(ctx, t, c, key, method, path, body, headers...)
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	c.CloseIdleConnections()
	return reply{res, string(text)}
}

// open sends one request and returns with the answer's head.
func (e *edge) open(ctx context.Context, t *testing.T, c *http.Client, key, method, path string, body []byte, headers ...string) *http.Response {
	t.Helper()
	var in io.Reader
	if body != nil {
		in = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, e.URL+path, in)
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return res
}

// append adds text to a stream and wants it accepted.
func (e *edge) append(t *testing.T, name, text string) reply {
	t.Helper()
	res := e.do(t, http.MethodPost, e.path(name), []byte(text), "Content-Type", edgeStreams[name])
	want(t, res, http.StatusNoContent)
	return res
}

// want checks a status and headers, given as pairs; "*" is any value but none,
// "" is none.
func want(t *testing.T, res reply, status int, headers ...string) {
	t.Helper()
	if res.StatusCode != status {
		t.Fatalf("status %d, want %d: %s\n%v", res.StatusCode, status, res.Text, res.Header)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		got := res.Header.Get(headers[i])
		if w := headers[i+1]; got != w && (w != "*" || got == "") {
			t.Errorf("%s: got %q, want %q", headers[i], got, w)
		}
	}
}

// command runs the program in this process and returns its exit code and output.
func command(t *testing.T, env map[string]string, args ...string) (code int, out, errOut string) {
	t.Helper()
	var o, e syncbuf.Buffer
	code = run(t.Context(), args, environment{
		lookup: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		out:    &o, err: &e,
	})
	return code, o.String(), e.String()
}

// freePort is a port that was free a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func testAppOptions(c *config.Config) appOptions {
	level := zap.NewAtomicLevel()
	return appOptions{Config: c, Log: telemetry.NewLogger(io.Discard, level), Level: level}
}
