package main

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/internal/refusal"
)

// G03: 250 tails on one HTTP/2 connection took all requests that there may be on it, and a
// read behind them waited for one of them to end. 200 are opened, further ones are 429 for
// the connection's sake, and a read is served meanwhile, on the same connection. What ends
// makes room, and another connection has room of its own.
func TestTailsOfOneConnection(t *testing.T) {
	forEachUpstream(t, func(t *testing.T, node string) {
		const tails, allowed = 250, 200
		e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
		extra := ""
		if strings.HasSuffix(t.Name(), "/"+strings.ReplaceAll(overTLS, " ", "_")) {
			extra = "tls: {mode: internal}\n"
		}
		e.start(t, strings.Replace(edgeFile(e, []string{node}, extra), "open_tails: 100}", "open_tails: 1000}", 1), nil)
		if r := e.append(t, "text", "one"); r.StatusCode != http.StatusNoContent {
			t.Fatalf("append: %d %s", r.StatusCode, r.Text)
		}
		c := http2()
		t.Cleanup(c.CloseIdleConnections)
		var dialled atomic.Int64
		ctx, cancel := context.WithTimeout(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
			if !i.Reused {
				dialled.Add(1)
			}
		}}), time.Minute)
		defer cancel()
		tail := e.path("text") + "?offset=now&live=sse"
		tryTail(ctx, t, c, e.URL+e.path("text"), e.Key).close() // makes the connection
		var mu sync.Mutex
		var open []openedTail
		var refused int
		var all sync.WaitGroup
		one, endOne := context.WithCancel(ctx)
		defer endOne()
		first := tryTail(one, t, c, e.URL+tail, e.Key)
		for range tails - 1 {
			all.Go(func() {
				res := tryTail(ctx, t, c, e.URL+tail, e.Key)
				mu.Lock()
				defer mu.Unlock()
				open = append(open, res)
				if res.status == http.StatusTooManyRequests && res.retryAfter != "" {
					refused++
				} else if res.status != http.StatusOK {
					t.Errorf("answered %d", res.status)
				}
			})
		}
		all.Wait()
		if refused != tails-allowed || first.status != http.StatusOK {
			t.Errorf("%d tails refused, the first answered %d; want %d and 200", refused, first.status, tails-allowed)
		}
		began := time.Now()
		if r := e.doAs(t, c, e.Key, http.MethodGet, e.path("text")+"?offset=-1", nil); r.StatusCode != http.StatusOK || r.Text != "one" || r.ProtoMajor != 2 {
			t.Errorf("read beside them: %d %q", r.StatusCode, r.Text)
		}
		t.Logf("a read beside %d tails took %v", allowed, time.Since(began))
		if r := e.doAs(t, c, e.Key, http.MethodGet, tail, nil); r.code() != string(refusal.LiveReadsExhausted) || !strings.Contains(r.Text, "connection") {
			t.Errorf("a tail too many: %d %s", r.StatusCode, r.Text)
		}
		if n := dialled.Load(); n != 1 {
			t.Errorf("%d connections, want the one", n)
		}
		other := http2()
		t.Cleanup(other.CloseIdleConnections)
		elsewhere := tryTail(ctx, t, other, e.URL+tail, e.Key)
		if elsewhere.status != http.StatusOK {
			t.Errorf("on another connection: %d", elsewhere.status)
		}
		endOne()
		eventually(t, "room for a tail", func() bool {
			res := tryTail(ctx, t, c, e.URL+tail, e.Key)
			open = append(open, res)
			return res.status == http.StatusOK
		})
		cancel()
		for _, res := range append(open, first, elsewhere) {
			res.close()
		}
	})
}

// openedTail is what came of the try to open one.
type openedTail struct {
	status     int
	retryAfter string
	close      func()
}

// tryTail asks for a tail, and leaves its body open.
func tryTail(ctx context.Context, t *testing.T, c *http.Client, url, key string) openedTail {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Error(err)
		return openedTail{close: func() {}}
	}
	req.Header.Set("Authorization", "Bearer "+key)
	res, err := c.Do(req) //nolint:bodyclose // by openedTail.close
	if err != nil {
		t.Error(err)
		return openedTail{close: func() {}}
	}
	return openedTail{res.StatusCode, res.Header.Get("Retry-After"), func() { _ = res.Body.Close() }}
}
