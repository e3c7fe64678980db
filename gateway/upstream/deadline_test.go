package upstream

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"sluice/internal/bubble"
)

// Rows R10, R12, R15 and L21 of facts §13, and the head's time in each.
func TestRedirectDeadlines(t *testing.T) {
	const none = Kind(-1)
	tests := []struct {
		name  string
		nodes []http.HandlerFunc
		kind  Kind
		took  time.Duration
		hits  []int
	}{
		{"R10 a slow first hop counts for nothing", []http.HandlerFunc{after(4900*time.Millisecond, to("b")), after(4900*time.Millisecond, to("c")), ok}, none, 9800 * time.Millisecond, []int{1, 1, 1}},
		{"R10 a third redirect after 5 s is not followed", []http.HandlerFunc{to("b"), after(3*time.Second, to("c")), after(3*time.Second, to("d")), ok}, NoLeader, 6 * time.Second, []int{1, 1, 1, 0}},
		{"R10 a hop under way finishes", []http.HandlerFunc{to("b"), after(4900*time.Millisecond, to("c")), after(4900*time.Millisecond, ok)}, none, 9800 * time.Millisecond, []int{1, 1, 1}},
		{"R12 leader hop silent", []http.HandlerFunc{to("b"), silent, ok}, TimedOut, HeaderTimeout, []int{1, 1, 0}},
		{"R15 search hop silent", []http.HandlerFunc{search, silent, ok}, TimedOut, HeaderTimeout, []int{1, 1, 0}},
		{"facts L21 first hop silent", []http.HandlerFunc{silent, ok}, TimedOut, HeaderTimeout, []int{1, 0}},
		{"a slow node is waited for", []http.HandlerFunc{after(4900*time.Millisecond, ok), ok}, none, 4900 * time.Millisecond, []int{1, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				p, nodes := newPipes(t, tt.nodes...)
				bubble.Wait()
				start := time.Now()
				res, err := p.send(t.Context(), http.MethodPost, streamPath, Meta{Path: streamPath, Body: []byte("x")})
				if got := time.Since(start).Round(time.Millisecond); got != tt.took {
					t.Errorf("took %s, want %s", got, tt.took)
				}
				if tt.kind != none {
					wantKind(t, err, tt.kind)
					if p.leaders.get(streamPath) != nil {
						t.Error("a route was learned from a failure")
					}
				} else if err != nil || res.Text != "ok" {
					t.Errorf("got %q, error %v", res.Text, err)
				}
				for i, want := range tt.hits {
					if got := len(nodes[i].d.hits()); got != want {
						t.Errorf("node %d: %d hits, want %d", i, got, want)
					}
				}
			})
		})
	}
}

// The wait for a response head, unit level: F7, F8, F9 of facts §13.
func TestHeaderTimeout(t *testing.T) {
	body := make([]byte, 32<<20)
	tests := []struct {
		name string
		m    Meta
		want time.Duration
	}{
		{"base", Meta{}, 5 * time.Second},
		{"F9 8 MiB", Meta{Body: body[:8<<20]}, 6 * time.Second},
		{"F9 32 MiB", Meta{Body: body}, 9 * time.Second},
		{"F9 half a MiB", Meta{Body: body[:512<<10]}, 5*time.Second + time.Second/16},
		{"F9 one part", Meta{Parts: 1}, 9 * time.Second},
		{"F9 three parts", Meta{Parts: 3}, 17 * time.Second},
		{"F9 parts and manifest", Meta{Parts: 3, Body: body[:8<<20]}, 18 * time.Second},
		{"F9 32 parts", Meta{Parts: 32}, 133 * time.Second},
		{"F9 more parts than 1 GiB", Meta{Parts: 4096}, 133 * time.Second},
		{"F9 no part, or none that parses", Meta{Parts: 0, Body: body[:8<<20]}, 6 * time.Second},
		{"F9 negative", Meta{Parts: -5}, 5 * time.Second},
		{"F7 long-poll, default wait", Meta{LongPoll: true}, 5 * time.Second},
		{"F7 long-poll, 4 s", Meta{LongPoll: true, Wait: 4 * time.Second}, 6 * time.Second},
		{"F7 long-poll, 1 ms", Meta{LongPoll: true, Wait: time.Millisecond}, 5 * time.Second},
		{"F7 long-poll, 60 s", Meta{LongPoll: true, Wait: time.Minute}, 62 * time.Second},
		{"F8 long-poll, more than a node waits", Meta{LongPoll: true, Wait: time.Hour}, 62 * time.Second},
		{"F8 SSE with timeout_ms", Meta{Wait: time.Hour}, 5 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := headerTimeout(tt.m); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// F7-F9 through the pool: a silent node is given up then, and one that answers
// a second before is waited for.
func TestHeaderTimeoutThroughThePool(t *testing.T) {
	tests := []struct {
		name string
		m    Meta
	}{
		{"base", Meta{}},
		{"F9 8 MiB", Meta{Body: make([]byte, 8<<20)}},
		{"F9 32 parts", Meta{Parts: 32, Body: []byte("{}")}},
		{"S17 long-poll of 60 s", Meta{LongPoll: true, Wait: time.Minute}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				want := headerTimeout(tt.m).Round(time.Millisecond)
				p, _ := newPipes(t, silent)
				start := time.Now()
				_, err := p.send(t.Context(), http.MethodPut, streamPath, tt.m)
				wantKind(t, err, TimedOut)
				if got := time.Since(start).Round(time.Millisecond); got != want {
					t.Errorf("given up after %s, want %s", got, want)
				}
				late, _ := newPipes(t, after(want-time.Second, ok))
				if res, err := late.send(t.Context(), http.MethodPut, streamPath, tt.m); err != nil || res.Text != "ok" {
					t.Errorf("a second before the end: %q, %v", res.Text, err)
				}
			})
		})
	}
}

// One header timeout on a real network: a node that takes the connection and the
// request and says nothing.
func TestHeaderTimeoutForReal(t *testing.T) {
	n := newDouble(t, silent)
	p := newPool(t, n.URL)
	start := time.Now()
	_, err := p.send(t.Context(), http.MethodPost, streamPath, Meta{Body: []byte("x")})
	wantKind(t, err, TimedOut)
	if got := time.Since(start); got < HeaderTimeout {
		t.Errorf("given up after %s, want %s at least", got, HeaderTimeout)
	}
	if got := len(n.hits()); got != 1 {
		t.Errorf("%d attempts, want 1", got)
	}
}

// F6: a body that flows on after the header timeout is not cut: an SSE answer.
func TestBodiesHaveNoTimeout(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, _ := newPipes(t, func(w http.ResponseWriter, r *http.Request) {
			for range 10 {
				_, _ = io.WriteString(w, "event: data\n\n")
				_ = http.NewResponseController(w).Flush()
				after(2*HeaderTimeout, func(http.ResponseWriter, *http.Request) {})(w, r)
			}
		})
		res, err := p.send(t.Context(), http.MethodGet, streamPath, Meta{Read: true})
		if err != nil || strings.Count(res.Text, "event") != 10 {
			t.Errorf("%d events of 10, error %v", strings.Count(res.Text, "event"), err)
		}
	})
}

// A connection's time is not the head's: a node that takes 4 s for each answers,
// and one that takes no connection is passed over after ConnectTimeout.
func TestConnectTimeIsItsOwn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, nodes := newPipes(t, after(4*time.Second, ok), ok)
		bubble.Wait()
		closeIdle(p)
		nodes[0].dial.Store(int64(4 * time.Second))
		start := time.Now()
		res, err := p.send(t.Context(), http.MethodPost, streamPath, Meta{Body: []byte("x")})
		if err != nil || res.Text != "ok" || len(nodes[0].d.hits()) != 1 {
			t.Errorf("got %q, error %v, %d hits", res.Text, err, len(nodes[0].d.hits()))
		}
		if got := time.Since(start).Round(time.Millisecond); got != 8*time.Second {
			t.Errorf("took %s, want 8 s", got)
		}
	})
}

func TestBlackHole(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, nodes := newPipes(t, ok, ok)
		bubble.Wait() // the questions about the identity are answered
		closeIdle(p)
		nodes[0].dial.Store(int64(time.Hour))
		p.firstIs(0, 2)
		start := time.Now()
		res, err := p.send(t.Context(), http.MethodPost, streamPath, Meta{Body: []byte("x")})
		if err != nil || res.Text != "ok" || len(nodes[1].d.hits()) != 1 {
			t.Errorf("got %q, error %v", res.Text, err)
		}
		if got := time.Since(start).Round(time.Millisecond); got != ConnectTimeout {
			t.Errorf("took %s, want %s", got, ConnectTimeout)
		}
	})
}

// A redirect whose body never ends held its request for ever.
func TestRedirectWithoutEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, _ := newPipes(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			to("b")(w, r)
			_ = http.NewResponseController(w).Flush()
			silent(w, r)
		}, ok)
		start := time.Now()
		res, err := p.send(t.Context(), http.MethodPost, streamPath, Meta{Body: []byte("x")})
		if err != nil || res.Text != "ok" {
			t.Errorf("got %q, error %v", res.Text, err)
		}
		if got := time.Since(start); got > time.Second {
			t.Errorf("took %s, want a second at the most", got)
		}
	})
}
