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
		e.open(ctx, t, c, e.Key, http.MethodGet, e.path("text"), nil) // the connection
		var mu sync.Mutex
		var open []*http.Response
		var refused int
		var all sync.WaitGroup
		one, endOne := context.WithCancel(ctx)
		defer endOne()
		first := e.open(one, t, c, e.Key, http.MethodGet, tail, nil)
		for range tails - 1 {
			all.Go(func() {
				res, err := tryOpen(ctx, c, e.URL+tail, e.Key)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				switch {
				case res.StatusCode == http.StatusOK:
					open = append(open, res)
				case res.StatusCode == http.StatusTooManyRequests && res.Header.Get("Retry-After") != "":
					refused++
					_ = res.Body.Close()
				default:
					t.Errorf("answered %d", res.StatusCode)
				}
			})
		}
		all.Wait()
		if len(open)+1 != allowed || refused != tails-allowed || first.StatusCode != http.StatusOK {
			t.Errorf("%d tails open, %d refused; want %d and %d", len(open)+1, refused, allowed, tails-allowed)
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
		if res := e.open(ctx, t, other, e.Key, http.MethodGet, tail, nil); res.StatusCode != http.StatusOK {
			t.Errorf("on another connection: %d", res.StatusCode)
		}
		endOne()
		eventually(t, "room for a tail", func() bool {
			res, err := tryOpen(ctx, c, e.URL+tail, e.Key)
			if err != nil {
				t.Fatal(err)
			}
			if res.StatusCode != http.StatusOK {
				_ = res.Body.Close()
				return false
			}
			open = append(open, res)
			return true
		})
		cancel()
		for _, res := range open {
			_ = res.Body.Close()
		}
	})
}

// tryOpen asks for a tail, and leaves its body open.
func tryOpen(ctx context.Context, c *http.Client, url, key string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	return c.Do(req)
}
