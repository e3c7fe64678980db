package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/syncbuf"
)

const (
	// fewDescriptors and manyTails are the case's own (O08).
	fewDescriptors = 200
	manyTails      = 500
	// quietLines bounds the lines of the log beside those of requests, however many
	// connections are turned away.
	quietLines = 40
)

// limited is a process that may have few descriptors.
type limited struct {
	*process

	log *syncbuf.Buffer
}

// startLimited serves a file in a process that was started under `ulimit -n`.
func startLimited(t *testing.T, node, extra string, descriptors int) *limited {
	t.Helper()
	return startBy(t, node, extra, "sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, descriptors))
}

// startBy serves a file in a process that another program has started, and keeps its log.
func startBy(t *testing.T, node, extra string, by ...string) *limited {
	t.Helper()
	e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	l := &limited{log: &syncbuf.Buffer{}}
	var copied sync.WaitGroup
	copied.Go(func() { _, _ = io.Copy(l.log, r) })
	t.Cleanup(func() {
		_ = l.cmd.Process.Kill()
		copied.Wait()
		_ = r.Close()
	})
	file := strings.Replace(edgeFile(e, []string{node}, extra), "open_tails: 100}", "open_tails: 100000}", 1)
	l.process, _ = runProcessBy(t, e, file, w, by...)
	if strings.Contains(extra, "tls:") {
		e.URL = strings.Replace(e.URL, "http:", "https:", 1)
	}
	eventually(t, "the process answers", func() bool { return l.reads(t) })
	return l
}

// wantQuiet checks that the log holds little beside the lines of requests.
func (l *limited) wantQuiet(t *testing.T) {
	t.Helper()
	var others []string
	for line := range strings.Lines(l.log.String()) {
		if !strings.Contains(line, `"message":"request"`) {
			others = append(others, line)
		}
	}
	if len(others) > quietLines {
		t.Errorf("%d lines beside those of requests:\n%s", len(others), strings.Join(others, ""))
	}
}

// tried is what became of clients that each asked for a tail on a connection of their own.
type tried struct {
	open         []io.Reader // the answers' bodies
	said, closed int         // told so, or closed without a word
	odd          []string    // whatever else
}

// tails has n clients open a tail each, some at a time. Those that have one keep it until
// ctx ends.
func (l *limited) tails(ctx context.Context, n int) *tried {
	var mu sync.Mutex
	var wait sync.WaitGroup
	got, slots := &tried{}, make(chan struct{}, 16)
	for range n {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			req, _ := http.NewRequestWithContext(ctx, http.MethodGet, l.URL+l.path("json")+"?offset=now&live=sse", nil)
			req.Header.Set("Authorization", "Bearer "+l.Key)
			c := http1()
			res, err := c.Do(req)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				got.closed++
			case res.StatusCode == http.StatusOK:
				got.open = append(got.open, res.Body)
				return
			default:
				text, err := io.ReadAll(res.Body)
				said := reply{res, string(text)}
				if res.StatusCode == http.StatusServiceUnavailable && said.code() == "UPSTREAM_UNREACHABLE" && err == nil {
					got.said++
				} else {
					got.odd = append(got.odd, fmt.Sprintf("%d %s %v", res.StatusCode, text, err))
				}
				_ = res.Body.Close()
			}
			c.CloseIdleConnections()
		})
	}
	wait.Wait()
	return got
}

// wantAlive checks what has to answer whatever clients do, and that no node is blamed.
func (l *limited) wantAlive(t *testing.T) {
	t.Helper()
	for path, status := range map[string]int{"/livez": http.StatusNoContent, "/readyz": http.StatusOK, "/metrics": http.StatusOK} {
		eventually(t, path+" answers", func() bool { return l.admin(t, http.MethodGet, path).StatusCode == status })
	}
	if l.ejected(t, "stopped") {
		t.Error("a node is blamed")
	}
}

// ejected reports whether a node was ejected for that reason. On a machine that stands
// still for so long one is silent, and is back with its next answer.
func (l *limited) ejected(t *testing.T, why string) bool {
	t.Helper()
	for line := range strings.Lines(l.admin(t, http.MethodGet, "/metrics").Text) {
		if strings.HasPrefix(line, "sluice_upstream_ejections_total") && strings.Contains(line, `why="`+why+`"`) {
			return true
		}
	}
	return false
}

// keptClient has a connection that stands before the others come.
func (l *limited) keptClient(t *testing.T) (ask func() reply) {
	t.Helper()
	c := http1()
	t.Cleanup(c.CloseIdleConnections)
	ask = func() reply {
		res := l.open(t.Context(), t, c, l.Key, http.MethodPost, l.path("json"), []byte(`[1]`), "Content-Type", "application/json")
		defer func() { _ = res.Body.Close() }()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return reply{res, string(text)}
	}
	want(t, ask(), http.StatusNoContent)
	return ask
}

// O08: under `ulimit -n 200` 500 tails took every descriptor: no connection could be taken
// any more, the nodes could not be reached and were ejected, the admin listener was dead,
// and each failed accept had its line in the log. Those over the bound are told so, or
// closed; whoever has a connection is served on; and when the tails end others are.
func TestTrialDescriptors(t *testing.T) {
	forEachUpstream(t, func(t *testing.T, node string) {
		tls := strings.Contains(t.Name(), "TLS")
		extra := ""
		if tls {
			extra = "tls: {mode: internal}\n"
		}
		l := startLimited(t, node, extra, fewDescriptors)
		ask := l.keptClient(t)
		bound := int(gaugeAt(t, l.Admin, "sluice_connections_bound"))
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		got := l.tails(ctx, manyTails)
		t.Logf("of %d tails under %d descriptors: %d open, %d told 503, %d closed; the bound is %d", manyTails, fewDescriptors, len(got.open), got.said, got.closed, bound)
		// One is the client's that came before; a connection that had just ended may
		// have been counted yet.
		if n := len(got.open); n > bound-1 || n < bound-3 || len(got.odd) > 0 {
			t.Errorf("%d tails are open under a bound of %d; odd answers: %q", n, bound, got.odd)
		}
		if (got.said == 0) != tls {
			t.Errorf("%d were told why, with TLS %t", got.said, tls)
		}
		l.wantAlive(t)
		want(t, ask(), http.StatusNoContent)
		for _, body := range got.open {
			wantTail(t, body)
		}
		if n := gaugeAt(t, l.Admin, "sluice_connections_turned_away_total"); int(n) < got.said+got.closed {
			t.Errorf("%v turned away are counted of %d", n, got.said+got.closed)
		}
		if n := gaugeAt(t, l.Admin, "sluice_accept_failures_total"); n != 0 {
			t.Errorf("%v connections could not be taken: the bound leaves too few descriptors", n)
		}
		leave()
		eventually(t, "new clients are served", func() bool { return l.reads(t) })
		l.wantAlive(t)
		l.wantQuiet(t)
		if err := l.ends(t, syscall.SIGTERM); err != nil {
			t.Errorf("exit: %v", err)
		}
	})
}

// wantTail checks that a tail is one.
func wantTail(t *testing.T, body io.Reader) {
	t.Helper()
	line := make([]byte, 6)
	if _, err := io.ReadFull(body, line); err != nil || string(line) != "event:" && !strings.HasPrefix(string(line), ":\n\n") {
		t.Errorf("a tail begins with %q: %v", line, err)
	}
}

// O08: over HTTP/2 a few connections carry hundreds of tails, each of which needs one to a
// node: these have a bound of their own, and what has no room is told so.
func TestTrialDescriptorsOverHTTP2(t *testing.T) {
	l := startLimited(t, standIn(t), "", fewDescriptors)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	bound := int(gaugeAt(t, l.Admin, "sluice_upstream_connections_bound"))
	c := http2()
	var statuses [600]int
	var open []io.Reader
	for range 2 * bound {
		res := l.open(ctx, t, c, l.Key, http.MethodGet, l.path("json")+"?offset=now&live=sse", nil)
		t.Cleanup(func() { _ = res.Body.Close() })
		statuses[res.StatusCode]++
		if res.StatusCode == http.StatusOK {
			open = append(open, res.Body)
			continue
		}
		text, _ := io.ReadAll(res.Body)
		if said := (reply{res, string(text)}); said.code() != "UPSTREAM_UNREACHABLE" || res.Header.Get("Retry-After") == "" {
			t.Errorf("%d %s", res.StatusCode, text)
		}
	}
	if statuses[http.StatusOK] != bound || statuses[http.StatusServiceUnavailable] != bound {
		t.Errorf("%d tails are open, %d were refused; the bound is %d", statuses[http.StatusOK], statuses[http.StatusServiceUnavailable], bound)
	}
	l.wantAlive(t)
	if n := gaugeAt(t, l.Admin, "sluice_upstream_connections_short_total"); int(n) != bound {
		t.Errorf("%v requests without a connection are counted, want %d", n, bound)
	}
	// Nothing of a write that has no room goes to a node.
	if res := l.do(t, http.MethodPost, l.path("json"), []byte(`[7]`), "Content-Type", "application/json"); res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("%d %s", res.StatusCode, res.Text)
	}
	for _, body := range open {
		wantTail(t, body)
	}
	leave()
	eventually(t, "new clients are served", func() bool { return l.reads(t) })
	if text := l.do(t, http.MethodGet, l.path("json")+"?offset=-1", nil).Text; strings.Contains(text, "7") {
		t.Errorf("a write that was refused is there: %s", text)
	}
}

// O08: where descriptors do run out, as when the limit is lowered or the machine has none
// left: accepting waits and goes on, a node that cannot be dialled is not blamed, and the
// log has a line now and then.
func TestTrialNoDescriptors(t *testing.T) {
	l := startLimited(t, standIn(t), "", fewDescriptors)
	ask := l.keptClient(t)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	got := l.tails(ctx, 10)
	// As many as are open, and less: not one more can be had.
	limit := func(n uint64) {
		t.Helper()
		if err := unix.Prlimit(l.cmd.Process.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: fewDescriptors}, nil); err != nil {
			t.Fatal(err)
		}
	}
	limit(16)
	refused := make(chan *tried, 1)
	go func() { refused <- l.tails(ctx, 5) }() // they wait in the kernel's queue
	// The connection to the node that was kept for the next request has gone by then.
	eventually(t, "a write has no connection to a node", func() bool {
		res := ask()
		if res.StatusCode == http.StatusServiceUnavailable && res.code() == "UPSTREAM_UNREACHABLE" {
			return true
		}
		want(t, res, http.StatusNoContent)
		return false
	})
	eventually(t, "the log tells of an accept that failed", func() bool { return strings.Contains(l.log.String(), "too many open files") })
	<-time.After(2 * time.Second) // in which a loop without a wait would fail a million times
	for _, body := range got.open {
		wantTail(t, body)
	}
	limit(fewDescriptors)
	waited := <-refused
	if len(waited.open) != 5 {
		t.Errorf("of 5 that waited %d are served: %+v", len(waited.open), waited)
	}
	eventually(t, "new clients are served", func() bool { return l.reads(t) })
	want(t, ask(), http.StatusNoContent)
	l.wantAlive(t)
	if n := gaugeAt(t, l.Admin, "sluice_accept_failures_total"); n == 0 || n > 200 {
		t.Errorf("accepting failed %v times", n)
	}
	if n := gaugeAt(t, l.Admin, "sluice_upstream_connections_short_total"); n == 0 {
		t.Error("no request without a connection is counted")
	}
	l.wantQuiet(t)
	leave()
	if err := l.ends(t, syscall.SIGTERM); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("exit: %v", err)
	}
}
