package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sluice/config"
)

const (
	edgeOrigin  = "https://streams.example.com"
	lastEvent   = "event: credential-expired\ndata: {\"reason\":\"credential_expired\"}\n\n"
	grantName   = "urn:ietf:params:oauth:grant-type:token-exchange"
	accessToken = "urn:ietf:params:oauth:token-type:access_token"
)

// exchange asks for a token; pairs are further parameters.
func (e *edge) exchange(t *testing.T, subject string, pairs ...string) reply {
	t.Helper()
	form := url.Values{"grant_type": {grantName}, "subject_token": {subject}, "subject_token_type": {accessToken}}
	for i := 0; i+1 < len(pairs); i += 2 {
		form.Add(pairs[i], pairs[i+1])
	}
	return e.doAs(t, http1(), "", http.MethodPost, "/v1/token", []byte(form.Encode()), "Content-Type", "application/x-www-form-urlencoded")
}

func (e *edge) token(t *testing.T, subject string, pairs ...string) string {
	t.Helper()
	res := e.exchange(t, subject, pairs...)
	want(t, res, http.StatusOK, "Cache-Control", "no-store", "Content-Type", "application/json")
	var body struct {
		Token string `json:"access_token"`
	}
	if err := json.Unmarshal([]byte(res.Text), &body); err != nil || body.Token == "" {
		t.Fatalf("%s: %v", res.Text, err)
	}
	return body.Token
}

// A key's token does at the node what the key does, and no more than it was made
// for; what it is refused never reaches the node.
func TestEndToEndTokens(t *testing.T) {
	forEachUpstream(t, func(t *testing.T, node string) {
		e := newEdge(t, node)
		full := e.token(t, e.Key)
		reads := e.token(t, full, "scope", "streams:read", "resource", edgeOrigin+e.path("json"))
		as := func(token, method, path string, body []byte) reply {
			return e.doAs(t, http1(), token, method, path, body, "Content-Type", "application/json")
		}
		want(t, as(full, http.MethodPost, e.path("json"), []byte(`{"n":1}`)), http.StatusNoContent)
		for _, token := range []string{full, reads, e.token(t, e.Reads)} {
			if res := as(token, http.MethodGet, e.path("json")+"?offset=-1", nil); res.StatusCode != http.StatusOK || res.Text != "{\"n\":1}\n" {
				t.Errorf("read: %d %q", res.StatusCode, res.Text)
			}
		}
		want(t, as(reads, http.MethodPost, e.path("json"), []byte(`{"n":2}`)), http.StatusForbidden,
			"WWW-Authenticate", `Bearer realm="streams", error="insufficient_scope", error_description="The token does not reach this stream with this operation", scope="streams:write"`)
		want(t, as(reads, http.MethodGet, e.path("text"), nil), http.StatusForbidden)
		want(t, as(reads[:len(reads)-4]+"AAAA", http.MethodGet, e.path("json"), nil), http.StatusUnauthorized)
		want(t, e.exchange(t, newTestKey(t)), http.StatusBadRequest)
		if res := e.do(t, http.MethodGet, e.path("json")+"?offset=-1", nil); res.Text != "{\"n\":1}\n" {
			t.Errorf("the stream holds %q", res.Text)
		}
		if strings.Contains(e.Log.String(), full) || strings.Contains(e.Log.String(), e.Key) {
			t.Error("a credential is in the log")
		}
		want(t, e.doAs(t, http1(), "", http.MethodGet, "/.well-known/jwks.json", nil), http.StatusOK, "Content-Type", "application/json")
		meta := e.doAs(t, http1(), "", http.MethodGet, "/.well-known/oauth-authorization-server", nil)
		if !strings.Contains(meta.Text, `"token_endpoint":"`+edgeOrigin+`/v1/token"`) {
			t.Errorf("metadata %s", meta.Text)
		}
		for _, sample := range []string{"sluice_token_cache_entries 3", "sluice_failure_subjects 1", "sluice_issuers_failing 0"} {
			if m := e.admin(t, http.MethodGet, "/metrics").Text; !strings.Contains(m, sample) {
				t.Errorf("metrics lack %s", sample)
			}
		}
	})
}

// editable is an edge of a node that reads its file from disk.
func editable(t *testing.T, node, extra string) (e *edge, path string) {
	t.Helper()
	e = &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	path = filepath.Join(t.TempDir(), "sluice.yaml")
	writeFile(t, path, edgeFile(e, []string{node}, extra))
	e.start(t, edgeFile(e, []string{node}, extra), func() (*config.Config, error) {
		return config.Load(path, config.Options{Grammar: grammar()})
	})
	return e, path
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// without is the file without the line of the key of that name.
func without(file, name string) string {
	var kept strings.Builder
	for line := range strings.Lines(file) {
		if !strings.Contains(line, "{name: "+name+", digest:") {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// A reload that takes a key away ends its tails on a real node's stream, between two
// events, with the last one; those of others go on, and so do their tokens.
func TestEndToEndRemovedKey(t *testing.T) {
	forEachUpstream(t, func(t *testing.T, node string) {
		e, path := editable(t, node, "")
		for proto, c := range map[string]*http.Client{"HTTP/1.1": http1(), "HTTP/2": http2()} {
			t.Run(proto, func(t *testing.T) { e.removeKey(t, c, path, edgeFile(e, []string{node}, "")) })
		}
	})
}

// removeKey puts the file in force, opens tails, and takes the reading key away.
func (e *edge) removeKey(t *testing.T, c *http.Client, path, file string) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	writeFile(t, path, file)
	want(t, e.admin(t, http.MethodPost, "/reload"), http.StatusOK)
	readsToken, allToken := e.token(t, e.Reads), e.token(t, e.Key)
	open := map[string]*bufio.Reader{}
	for name, credential := range map[string]string{"key": e.Reads, "token": readsToken, "other key": e.Key, "other token": allToken} {
		res := e.open(ctx, t, c, credential, http.MethodGet, e.path("json")+"?offset=now&live=sse", nil)
		defer func() { _ = res.Body.Close() }()
		open[name] = bufio.NewReader(res.Body)
		readEvent(t, open[name]) // the first says where it begins
	}
	e.append(t, "json", `{"before":1}`)
	for _, events := range open {
		readEvent(t, events)
		readEvent(t, events)
	}
	polled := make(chan reply, 1)
	go func() {
		polled <- e.doAs(t, http1(), readsToken, http.MethodGet, e.path("json")+"?offset=now&live=long-poll&timeout_ms=20000", nil)
	}()
	eventually(t, "the poll is open", func() bool { return e.app.limits.OpenTails() == 5 })
	writeFile(t, path, without(file, "reads"))
	start := time.Now()
	want(t, e.admin(t, http.MethodPost, "/reload"), http.StatusOK)
	for _, name := range []string{"key", "token"} {
		if text, err := io.ReadAll(open[name]); err != nil || string(text) != lastEvent {
			t.Errorf("tail of the %s: %q %v", name, text, err)
		}
	}
	want(t, <-polled, http.StatusUnauthorized)
	if took := time.Since(start); took > time.Second {
		t.Errorf("the tails ended after %s", took)
	}
	e.append(t, "json", `{"after":1}`)
	for _, name := range []string{"other key", "other token"} {
		if got := readEvent(t, open[name]); !strings.Contains(got, "after") {
			t.Errorf("tail of the %s: %q", name, got)
		}
	}
	for _, credential := range []string{e.Reads, readsToken} {
		want(t, e.doAs(t, http1(), credential, http.MethodGet, e.path("json"), nil), http.StatusUnauthorized)
	}
	want(t, e.doAs(t, http1(), allToken, http.MethodGet, e.path("json"), nil), http.StatusOK)
	cancel()
	eventually(t, "all slots", func() bool { return e.app.limits.OpenTails() == 0 })
}

// O02: a reload hung on open streams, or left them be. With 1,000 silent tails, by
// SIGHUP: the new rules are in force, and the tails of a removed key ended, within a
// second; the others are not touched.
func TestReloadWithManyTails(t *testing.T) {
	const tails, removed = 1000, 100
	p, path := startProcess(t)
	go func() { _, _ = io.Copy(io.Discard, p.stderr) }()
	roomy := strings.Replace(readFile(t, path), "open_tails: 100", "open_tails: 2000", 1)
	writeFile(t, path, roomy)
	want(t, p.admin(t, http.MethodPost, "/reload"), http.StatusOK)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	type end struct {
		text string
		err  error
		at   time.Time
	}
	var wait sync.WaitGroup
	ended := make(chan end, tails)
	for i := range tails / 100 {
		c, key := http2(), p.Key
		if i < removed/100 {
			key = p.Reads
		}
		for range 100 {
			res := p.open(ctx, t, c, key, http.MethodGet, p.path("json")+"?offset=now&live=sse", nil)
			events := bufio.NewReader(res.Body)
			readEvent(t, events)
			wait.Go(func() {
				defer func() { _ = res.Body.Close() }()
				text, err := io.ReadAll(events)
				ended <- end{string(text), err, time.Now()}
			})
		}
	}
	writeFile(t, path, without(roomy, "reads"))
	start := time.Now()
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	for range removed {
		if got := <-ended; got.text != lastEvent || got.err != nil || got.at.Sub(start) > time.Second {
			t.Errorf("a removed key's tail: %q %v after %s", got.text, got.err, got.at.Sub(start))
		}
	}
	want(t, p.doAs(t, http1(), p.Reads, http.MethodGet, p.path("json"), nil), http.StatusUnauthorized)
	if took := time.Since(start); took > time.Second {
		t.Errorf("the new rules were in force after %s", took)
	}
	if len(ended) != 0 {
		t.Errorf("another's tail has ended: %+v", <-ended)
	}
	if m := p.admin(t, http.MethodGet, "/metrics").Text; !strings.Contains(m, fmt.Sprintf("sluice_open_tails %d\n", tails-removed)) ||
		!strings.Contains(m, fmt.Sprintf("sluice_answers_ended_total{end=\"credential\"} %d\n", removed)) {
		t.Errorf("metrics: %s", m)
	}
	cancel()
	wait.Wait()
	if err := p.ends(t, syscall.SIGTERM); err != nil {
		t.Errorf("exit: %v", err)
	}
}
