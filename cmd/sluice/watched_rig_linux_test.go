package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/internal/postgrestest"
	"sluice/internal/realpart"
	"sluice/internal/redistest"
	"sluice/internal/tenant"
	"sluice/internal/ursulatest/realursula"
)

// watchedToken is the admin listener's, which Prometheus and the runbook's reader have.
const watchedToken = "watched-token-watched-token-0123"

// watchedGateway is a replica with all that it can have: a real cluster, Redis, Postgres, a
// certificate of files, and a Prometheus that scrapes it.
type watchedGateway struct {
	*replica

	nodes      []*realursula.Server
	redis      *redistest.Server
	line       *storeLine
	prometheus *promServer
	dir        string
	payer      payer
	owner      payer    // whose account is the store's
	reading    *os.File // what its log comes out of
}

func startWatched(t *testing.T) *watchedGateway {
	t.Helper()
	w := &watchedGateway{nodes: realursula.StartCluster(t, 3), redis: redistest.Start(t), dir: t.TempDir()}
	var store string
	w.line, store = newStoreLine(t, postgrestest.Start(t).Database(t, ""))
	cert, key, _ := pairFor(t, w.dir, "streams.example.com", 60*24*time.Hour)
	w.payer = newPayer(t, "")
	urls := make([]string, 0, len(w.nodes))
	for _, n := range w.nodes {
		urls = append(urls, n.URL)
	}
	address, admin := freePort(t), freePort(t)
	var b strings.Builder
	fmt.Fprintf(&b, "listen: %s\norigin: https://streams.example.com\nadmin: {listen: %q, token: %q}\n", address, admin, watchedToken)
	fmt.Fprintf(&b, "tls: {mode: files, cert: %q, key: %q}\n", cert, key)
	fmt.Fprintf(&b, "ursula: {nodes: [\"%s\"], group_count: 4}\n", strings.Join(urls, `", "`))
	fmt.Fprintf(&b, "redis: {url: \"redis://%s/0\"}\nstore: {url: %q}\n%susage: {flush: 1s}\n", w.redis.Addr, store, sealedAuth)
	fmt.Fprintf(&b, "trusted_proxies: [127.0.0.4]\nproxy_protocol: optional\nserver: {failed_credentials_per_minute: 0, connections_per_address: 300}\ntails: {heartbeat: 1s}\ndrain_delay: 0s\ndrain_timeout: 1s\n")
	fmt.Fprintf(&b, "limits: {default: {requests_per_second: 100000, burst: 100000, open_tails: 10}, floor: {requests_per_second: 50, open_tails: 10}}\n")
	fmt.Fprintf(&b, "accounts:\n  - id: %s\n    streams:\n      - {name: json, content_type: application/json}\n    keys:\n      - {name: all, digest: %q}\n", w.payer.id, tenant.DigestOf(w.payer.key))
	reading, writing, err := os.Pipe()
	must(t, err)
	w.reading = reading
	w.replica = &replica{log: filepath.Join(w.dir, "log")}
	log, err := os.Create(w.log)
	must(t, err)
	w.process, w.path = runProcess(t, &edge{Account: w.payer.id, Key: w.payer.key}, b.String(), writing)
	w.URL, w.Admin = "https://"+address, "http://"+admin
	var passing sync.WaitGroup
	passing.Go(func() { _, _ = io.Copy(log, reading) })
	t.Cleanup(func() {
		_ = w.cmd.Process.Kill()
		passing.Wait()
		_ = reading.Close()
		_ = log.Close()
		if t.Failed() {
			t.Logf("log of the replica:\n%s", realpart.Tail(w.log, 8<<10))
		}
	})
	w.awaitReady(t)
	made := w.operator(t, http.MethodPost, "/v1/accounts", `{"id":"`+testAccount(t)+`","api_key":{"name":"first"}}`)
	want(t, made, http.StatusCreated)
	w.owner = payer{id: made.member(t, "id"), key: made.member(t, "api_key", "key")}
	w.prometheus = startPrometheus(t, admin, watchedToken)
	return w
}

// operator makes a call of the admin listener.
func (w *watchedGateway) operator(t *testing.T, method, path, body string) reply {
	t.Helper()
	return ask(t, method, w.Admin+path, strings.NewReader(body), "Authorization", "Bearer "+watchedToken, "Content-Type", "application/json")
}

// traffic is a little of all: reads, appends, tails of both kinds that stay, and what is
// refused with its body and without.
func (w *watchedGateway) traffic(t *testing.T, c *http.Client) {
	t.Helper()
	path, send := w.payer.path("json"), func(key, method, path string, body []byte) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		headers := []string{"X-Request-Id", "watched"}
		if body != nil {
			headers = append(headers, "Content-Type", "application/json")
		}
		res := w.open(ctx, t, c, key, method, path, body, headers...)
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
	}
	for range 20 {
		send(w.payer.key, http.MethodPost, path, []byte(`{"a":1}`))
		send(w.payer.key, http.MethodGet, path+"?offset=-1", nil)
		send(w.payer.key, http.MethodHead, path, nil)
	}
	send(w.Reads, http.MethodPost, path, bytes.Repeat([]byte("x"), 1000)) // nobody's key
	send("", http.MethodGet, path, nil)
	send(w.payer.key, http.MethodGet, "/nothing/here/at/all", nil)
}

// headers opens n connections of a balancer that begin so, and closes them.
func (w *watchedGateway) headers(t *testing.T, n int, text string) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 4)}}
	for range n {
		conn, err := d.DialContext(t.Context(), "tcp", strings.TrimPrefix(w.URL, "https://"))
		must(t, err)
		_, _ = io.WriteString(conn, text) // it may be closed already
		must(t, conn.Close())
	}
}

// tails opens n streams of events, which stay until the returned function.
func (w *watchedGateway) tails(t *testing.T, c *http.Client, n int, query string) (leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	bodies := make([]io.Closer, 0, n)
	for range n {
		res := w.open(ctx, t, c, w.payer.key, http.MethodGet, w.payer.path("json")+query, nil) //nolint:bodyclose // leave does
		if res.StatusCode != http.StatusOK {
			t.Fatalf("a tail is answered %d", res.StatusCode)
		}
		bodies = append(bodies, res.Body)
	}
	return func() {
		cancel()
		for _, b := range bodies {
			_ = b.Close()
		}
	}
}

// consults runs the commands of an alert's section of the runbook, which all have to go
// well, and returns what they print.
func (w *watchedGateway) consults(t *testing.T, alert string) string {
	t.Helper()
	page := readFile(t, "../../docs/runbook.md")
	_, rest, found := strings.Cut(page, "\n## "+alert+"\n")
	if !found {
		t.Fatalf("no section %s", alert)
	}
	section, _, _ := strings.Cut(rest, "\n## ")
	preamble, _, _ := strings.Cut(page, "\n## ")
	script := "set -euo pipefail\n" + fence(t, preamble) +
		// What is the reader's own: where the replica is, and how its log is had.
		fmt.Sprintf("export SLUICE_ADMIN_URL=%q SLUICE_ADMIN_TOKEN=%q SLUICE_FILE=%q NODE=%q\nlogs() { cat %q; }\n", w.Admin, watchedToken, w.path, w.nodes[0].URL, w.log) +
		fence(t, section)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Env = append(os.Environ(), asProgram+"=1", "PATH="+programPath(t)+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s\n%s", alert, err, section, out)
	}
	return string(out)
}

// fence is the one block of commands in a text.
func fence(t *testing.T, text string) string {
	t.Helper()
	_, rest, found := strings.Cut(text, "```sh\n")
	script, _, ends := strings.Cut(rest, "```")
	if !found || !ends {
		t.Fatalf("no commands in %s", text)
	}
	return script
}
