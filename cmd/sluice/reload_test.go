package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sluice/config"
	"sluice/internal/syncbuf"
)

// reloadable is an edge that reads its file from disk.
func reloadable(t *testing.T) (e *edge, path string, file func(extra string) string) {
	t.Helper()
	node := standIn(t)
	e = &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	file = func(extra string) string { return edgeFile(e, []string{node}, extra) }
	path = filepath.Join(t.TempDir(), "sluice.yaml")
	writeFile(t, path, file(""))
	e.start(t, file(""), func() (*config.Config, error) {
		return config.Load(path, config.Options{Grammar: grammar()})
	})
	return e, path, file
}

func (e *edge) admin(t *testing.T, method, path string) reply {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, e.Admin+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := http1()
	defer c.CloseIdleConnections()
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{res, string(text)}
}

func TestReloadTakesEffectAtOnce(t *testing.T) {
	e, path, file := reloadable(t)
	e.append(t, "json", `1`)
	want(t, e.doAs(t, http1(), "", http.MethodGet, e.path("json"), nil), http.StatusUnauthorized)
	writeFile(t, path, strings.ReplaceAll(file("log: {level: debug}\n"), "name: json, content_type: application/json, public: false", "name: json, content_type: application/json, public: true"))
	want(t, e.admin(t, http.MethodPost, "/reload"), http.StatusOK)
	want(t, e.doAs(t, http1(), "", http.MethodGet, e.path("json"), nil), http.StatusOK)

	// A key that is gone is refused with the next request.
	writeFile(t, path, strings.ReplaceAll(file(""), "{name: reads,", "{name: reads, expires_at: 2020-01-01T00:00:00Z,"))
	want(t, e.admin(t, http.MethodPost, "/reload"), http.StatusOK)
	expired := e.doAs(t, http1(), e.Reads, http.MethodGet, e.path("json"), nil)
	want(t, expired, http.StatusUnauthorized)
	if expired.code() != "CREDENTIAL_EXPIRED" {
		t.Errorf("code %s", expired.code())
	}
}

// halfOf is a file cut inside a digest. Cut just anywhere it may be a good file with fewer
// keys, and now and then was.
func halfOf(t *testing.T, file string) string {
	t.Helper()
	const digest = `digest: "sha256:`
	i := strings.Index(file, digest)
	if i < 0 {
		t.Fatalf("no digest in %s", file)
	}
	return file[:i+len(digest)]
}

// O04: a bad file replaced a good configuration in half, or silently not at all.
func TestBadReloadKeepsTheOld(t *testing.T) {
	e, path, file := reloadable(t)
	for name, text := range map[string]string{
		"broken syntax": "origin: [",
		"unknown field": file("") + "streems: {}\n",
		"duplicate id":  strings.Replace(file(""), "accounts:\n", "accounts:\n  - id: "+e.Account+"\n", 1),
		"half-written":  halfOf(t, file("")),
		"limit ten":     file("limits: {default: {burst: ten}}\n"),
		"empty":         "",
	} {
		t.Run(name, func(t *testing.T) {
			writeFile(t, path, text)
			res := e.admin(t, http.MethodPost, "/reload")
			want(t, res, http.StatusUnprocessableEntity)
			if !strings.Contains(res.Text, "sluice.yaml:") || !strings.Contains(res.Text, "old configuration stays") {
				t.Errorf("answer names neither file and line nor what is in force: %s", res.Text)
			}
			want(t, e.do(t, http.MethodGet, e.path("json"), nil), http.StatusOK)
			if m := e.admin(t, http.MethodGet, "/metrics").Text; !strings.Contains(m, "\nsluice_config_last_reload_ok 0\n") {
				t.Error("sluice_config_last_reload_ok is not 0")
			}
			if !strings.Contains(e.Log.String(), "reload refused") {
				t.Error("the log does not say so")
			}
		})
	}
	writeFile(t, path, file(""))
	want(t, e.admin(t, http.MethodPost, "/reload"), http.StatusOK)
	if m := e.admin(t, http.MethodGet, "/metrics").Text; !strings.Contains(m, "\nsluice_config_last_reload_ok 1\n") {
		t.Error("sluice_config_last_reload_ok is not 1 again")
	}
}

func TestReloadNamesWhatNeedsARestart(t *testing.T) {
	e, path, file := reloadable(t)
	writeFile(t, path, strings.Replace(file(""), "listen: 127.0.0.1:0\n", "listen: 127.0.0.1:1\n", 1))
	// Until the restart every reload says so, not only the first.
	for range 2 {
		res := e.admin(t, http.MethodPost, "/reload")
		want(t, res, http.StatusOK)
		var got struct {
			Restart []string `json:"restart_needed"`
		}
		if err := json.Unmarshal([]byte(res.Text), &got); err != nil || len(got.Restart) != 1 || got.Restart[0] != "listen" {
			t.Errorf("restart_needed: %s", res.Text)
		}
	}
	want(t, e.do(t, http.MethodGet, e.path("json"), nil), http.StatusOK)
}

// Open tails and their slots outlive a reload.
func TestTailOutlivesReload(t *testing.T) {
	e, path, file := reloadable(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	res := e.open(ctx, t, http1(), e.Key, http.MethodGet, e.path("json")+"?offset=now&live=sse", nil)
	defer func() { _ = res.Body.Close() }()
	events := bufio.NewReader(res.Body)
	readEvent(t, events)
	for range 3 {
		writeFile(t, path, file(""))
		want(t, e.admin(t, http.MethodPost, "/reload"), http.StatusOK)
	}
	if n := e.app.limits.OpenTails(); n != 1 {
		t.Errorf("%d open tails are counted, want 1", n)
	}
	e.append(t, "json", `{"after":"reload"}`)
	if got := readEvent(t, events); !strings.Contains(got, "reload") {
		t.Errorf("event %q", got)
	}
}

// SIGHUP reloads, SIGTERM drains: the signals reach the program as they would
// from a supervisor.
func TestSignals(t *testing.T) {
	node := standIn(t)
	e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	path := filepath.Join(t.TempDir(), "sluice.yaml")
	address := freePort(t)
	e.URL = "http://" + address
	file := strings.Replace(edgeFile(e, []string{node}, ""), "listen: 127.0.0.1:0\n", "listen: "+address+"\n", 1)
	writeFile(t, path, file)
	var out, errOut syncbuf.Buffer
	var ended atomic.Bool
	done := make(chan int, 1)
	go func() {
		done <- run(context.Background(), []string{"serve", "--config", path}, environment{lookup: os.LookupEnv, out: &out, err: &errOut})
		ended.Store(true)
	}()
	eventually(t, "serving", func() bool {
		return ended.Load() || strings.Contains(errOut.String(), "declared stream created") && strings.Contains(errOut.String(), `"serving"`)
	})
	eventually(t, "answering", func() bool {
		return ended.Load() || e.do(t, http.MethodGet, e.path("json"), nil).StatusCode == http.StatusOK
	})
	signal := func(s syscall.Signal) {
		if err := syscall.Kill(os.Getpid(), s); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, path, file+"streems: {}\n")
	signal(syscall.SIGHUP)
	eventually(t, "the bad file is refused", func() bool { return strings.Contains(errOut.String(), "reload refused") })
	writeFile(t, path, file)
	signal(syscall.SIGHUP)
	eventually(t, "the good one is taken", func() bool { return strings.Contains(errOut.String(), "configuration reloaded") })
	signal(syscall.SIGTERM)
	if code := <-done; code != exitDone {
		t.Errorf("exit %d: %s", code, errOut.String())
	}
}

// A stop waits for requests under way; a second signal, or the end of the drain
// time, cuts what is left.
func TestStopDrains(t *testing.T) {
	e := newEdge(t, standIn(t))
	poll := make(chan reply, 1)
	go func() {
		poll <- e.do(t, http.MethodGet, e.path("json")+"?offset=now&live=long-poll&timeout_ms=1000", nil)
	}()
	eventually(t, "the poll is open", func() bool { return e.app.limits.OpenTails() == 1 })
	e.Stop()
	want(t, <-poll, http.StatusNoContent)
	if err := <-e.Stopped; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

// newSlowLeaver is an edge that goes on for a minute once it is told to stop.
func newSlowLeaver(t *testing.T) *edge {
	t.Helper()
	e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	return e.start(t, strings.Replace(edgeFile(e, []string{standIn(t)}, ""), "drain_delay: 0s", "drain_delay: 1m", 1), nil)
}

func TestCutEndsTheDrain(t *testing.T) {
	e := newSlowLeaver(t)
	res := e.open(t.Context(), t, http1(), e.Key, http.MethodGet, e.path("json")+"?offset=now&live=sse", nil)
	defer func() { _ = res.Body.Close() }()
	events := bufio.NewReader(res.Body)
	readEvent(t, events)
	e.Stop()
	eventually(t, "draining", func() bool { return strings.Contains(e.Log.String(), "draining") })
	want(t, e.admin(t, http.MethodGet, "/readyz"), http.StatusServiceUnavailable)
	e.Cut()
	if err := <-e.Stopped; err != nil {
		t.Errorf("Serve: %v", err)
	}
	// Cut, not ended: the client must see that its tail is not whole.
	if _, err := io.ReadAll(events); err == nil {
		t.Error("the tail ended cleanly")
	}
}

func TestReadiness(t *testing.T) {
	e := newEdge(t, standIn(t))
	want(t, e.admin(t, http.MethodGet, "/livez"), http.StatusNoContent)
	if res := e.admin(t, http.MethodGet, "/readyz"); res.StatusCode != http.StatusOK || !strings.Contains(res.Text, `"ready":true`) {
		t.Errorf("%d %s", res.StatusCode, res.Text)
	}
	metrics := e.admin(t, http.MethodGet, "/metrics")
	want(t, metrics, http.StatusOK)
	for _, name := range []string{"sluice_ready 1", "sluice_open_tails 0", "go_goroutines", "process_open_fds"} {
		if !strings.Contains(metrics.Text, name) {
			t.Errorf("metrics lack %s", name)
		}
	}
}

// Without its nodes a gateway starts, says that it is not ready and what is
// missing, and answers 503 at once.
func TestNotReadyWithoutNodes(t *testing.T) {
	e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	c, err := config.Parse("test.yaml", []byte(edgeFile(e, []string{"http://" + freePort(t)}, "")), config.Options{Grammar: grammar()})
	if err != nil {
		t.Fatal(err)
	}
	app, err := newApp(testAppOptions(c))
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()
	missing := app.missing()
	if missing["nodes"] == "" || missing["declared_streams"] == "" {
		t.Errorf("missing: %v", missing)
	}
	for part, reason := range missing {
		if strings.Contains(reason, "127.0.0.1") {
			t.Errorf("%s names an address: %s", part, reason)
		}
	}
}

// A tail that the gateway's own stop cuts was booked on its client, who had
// done nothing.
func TestShutdownIsNotBookedOnClients(t *testing.T) {
	e := newSlowLeaver(t)
	for _, c := range []*http.Client{http1(), http2()} {
		res := e.open(t.Context(), t, c, e.Key, http.MethodGet, e.path("json")+"?offset=now&live=sse", nil)
		t.Cleanup(func() { _ = res.Body.Close() })
		readEvent(t, bufio.NewReader(res.Body))
	}
	e.Stop()
	eventually(t, "draining", func() bool { return strings.Contains(e.Log.String(), "draining") })
	e.Cut()
	if err := <-e.Stopped; err != nil {
		t.Errorf("Serve: %v", err)
	}
	eventually(t, "both tails are booked as cut by the stop", func() bool {
		return strings.Count(e.Log.String(), `"end":"shutdown"`) == 2
	})
	for _, line := range []string{"told again to stop", `"message":"stopped"`} {
		if !strings.Contains(e.Log.String(), line) {
			t.Errorf("the log lacks %q", line)
		}
	}
}

// What is legal but unwise is said at a reload as it is at the start.
func TestWarningsOfAReload(t *testing.T) {
	e, path, file := reloadable(t)
	writeFile(t, path, strings.ReplaceAll(file(""), "{name: reads,", "{name: reads, expires_at: 2020-01-01T00:00:00Z,"))
	want(t, e.admin(t, http.MethodPost, "/reload"), http.StatusOK)
	if log := e.Log.String(); !strings.Contains(log, "configuration: ") || !strings.Contains(log, "expired") {
		t.Errorf("no warning of the expired key: %s", log)
	}
}
