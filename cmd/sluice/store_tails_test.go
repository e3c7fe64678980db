package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"sluice/internal/syncbuf"
)

// follower is a tail that is read to its end.
type follower struct {
	who, at string // whose, and where
	sse     bool
	text    *syncbuf.Buffer
	end     chan followed
	cancel  context.CancelFunc
}

// followed is how a tail ended.
type followed struct {
	status int
	text   string
	err    error // nil = a clean end
	at     time.Time
}

// followers are tails of one stream, as each of those credentials (name → credential,
// none = a stranger's), in both kinds and over both protocols, at each replica.
func (f *fleet) followers(t *testing.T, path string, who map[string]string) []*follower {
	t.Helper()
	all := make([]*follower, 0, 4*len(who)*len(f.replicas))
	for i, r := range f.replicas {
		for name, credential := range who { // so that none waits for the store
			if got := r.settled(t, credential, path); got.StatusCode != http.StatusOK {
				t.Fatalf("%s, before its tail: %d %s", name, got.StatusCode, got.Text)
			}
		}
		for proto, c := range map[string]*http.Client{"HTTP/1.1": http1(), "HTTP/2": http2()} {
			t.Cleanup(c.CloseIdleConnections)
			for name, credential := range who {
				for kind, query := range map[string]string{"SSE": "?offset=now&live=sse", "long-poll": "?offset=now&live=long-poll&timeout_ms=60000"} {
					tail := &follower{who: name, at: kind + " over " + proto + " at " + []string{"the first", "another"}[min(i, 1)], sse: kind == "SSE", text: &syncbuf.Buffer{}, end: make(chan followed, 1)}
					tail.follow(t, c, r.URL+path+query, credential)
					all = append(all, tail)
				}
			}
		}
	}
	return all
}

func (l *follower) follow(t *testing.T, c *http.Client, url, credential string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	l.cancel = cancel
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if credential != "" {
		req.Header.Set("Authorization", "Bearer "+credential)
	}
	go func() {
		defer cancel()
		var got followed
		res, err := c.Do(req)
		if err == nil {
			got.status = res.StatusCode
			_, err = io.Copy(l.text, res.Body)
			_ = res.Body.Close()
		}
		got.text, got.err, got.at = l.text.String(), err, time.Now()
		l.end <- got
	}()
}

// awaitTails waits until so many tails are open at each replica.
func (f *fleet) awaitTails(t *testing.T, each int) {
	t.Helper()
	for _, r := range f.replicas {
		eventually(t, "the tails are open", func() bool { return r.gauge(t, "sluice_open_tails") == float64(each) })
	}
	wait, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := f.cluster.WaitTails(wait, each*len(f.replicas)); err != nil {
		t.Fatalf("tails at the node: %v", err)
	}
}

// goOn wants all of them open still, and to be told what is appended now.
func (f *fleet) goOn(t *testing.T, tails []*follower, a payer) {
	t.Helper()
	for _, l := range tails {
		select {
		case got := <-l.end:
			t.Errorf("%s, %s, has ended: %d %q %v", l.who, l.at, got.status, got.text, got.err)
			return
		default:
		}
	}
	want(t, ask(t, http.MethodPost, f.replicas[0].URL+a.path("json"), strings.NewReader(`"later"`),
		"Authorization", "Bearer "+a.key, "Content-Type", edgeStreams["json"]), http.StatusNoContent)
	for _, l := range tails {
		eventually(t, l.who+", "+l.at+", is told of what comes", func() bool { return strings.Contains(l.text.String(), "later") })
		l.cancel()
	}
}
