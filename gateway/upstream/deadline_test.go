package upstream

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a network in memory for tests in a bubble of testing/synctest, where
// a real one would keep the clock from moving.
type pipes struct {
	nodes map[string]*pipeNode // by host; not changed once the pool has it
}

type pipeNode struct {
	d     *double
	conns chan net.Conn
	done  chan struct{}
	dial  atomic.Int64 // how long a connection takes, in ns; more than ConnectTimeout = none
}

func (n *pipeNode) Accept() (net.Conn, error) {
	select {
	case c := <-n.conns:
		return c, nil
	case <-n.done:
		return nil, net.ErrClosed
	}
}

func (n *pipeNode) Close() error   { return nil }
func (n *pipeNode) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)} }

// newPipes makes a pool over in-memory nodes a, b, c, …, one for each handler,
// and asks the first of them first.
func newPipes(t *testing.T, handlers ...http.HandlerFunc) (*Pool, []*pipeNode) {
	t.Helper()
	ps := &pipes{nodes: map[string]*pipeNode{}}
	urls := make([]string, len(handlers))
	nodes := make([]*pipeNode, len(handlers))
	for i, h := range handlers {
		host := string(rune('a'+i)) + ":1"
		n := &pipeNode{d: &double{id: i}, conns: make(chan net.Conn), done: make(chan struct{})}
		nodes[i], ps.nodes[host], urls[i] = n, n, "http://"+host
		server := &http.Server{Handler: n.d.handler(h), ReadHeaderTimeout: time.Hour}
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = server.Serve(n)
		}()
		t.Cleanup(func() {
			close(n.done)
			_ = server.Close()
			<-served
		})
	}
	p, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	p.transport.DialContext = watched(ps.dial)
	if err := p.SetNodes(urls); err != nil {
		t.Fatal(err)
	}
	p.firstIs(0, len(urls))
	t.Cleanup(p.Close)
	return p, nodes
}

func (ps *pipes) dial(ctx context.Context, _, address string) (net.Conn, error) {
	n := ps.nodes[address]
	takes := time.Duration(n.dial.Load())
	timer := time.NewTimer(min(takes, ConnectTimeout))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if takes > ConnectTimeout {
		return nil, errors.New("dial: i/o timeout")
	}
	mine, theirs := net.Pipe()
	select {
	case n.conns <- theirs:
		return mine, nil
	case <-n.done:
		return nil, errors.New("connection refused")
	}
}

// after answers 200 once d has passed; silent never answers.
func after(d time.Duration, then http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			then(w, r)
		case <-r.Context().Done():
		}
	}
}

func ok(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }

func silent(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func to(host string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { redirect(w, "http://"+host+":1"+r.RequestURI, true) }
}

func search(w http.ResponseWriter, r *http.Request) {
	redirect(w, "http://elsewhere:1"+r.RequestURI, true)
}

// Rows R10, R12, R15, L9, L19, L21 of facts §13, and the head's time in each.
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
		{"L21 first hop silent", []http.HandlerFunc{silent, ok}, TimedOut, HeaderTimeout, []int{1, 0}},
		{"a slow node is waited for", []http.HandlerFunc{after(4900*time.Millisecond, ok), ok}, none, 4900 * time.Millisecond, []int{1, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, nodes := newPipes(t, tt.nodes...)
				synctest.Wait()
				start := time.Now()
				res, err := p.send(t.Context(), http.MethodPost, streamPath, Meta{Key: streamPath, Body: []byte("x")})
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
			synctest.Test(t, func(t *testing.T) {
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
	synctest.Test(t, func(t *testing.T) {
		p, _ := newPipes(t, func(w http.ResponseWriter, r *http.Request) {
			for range 100 {
				_, _ = io.WriteString(w, "event: data\n\n")
				_ = http.NewResponseController(w).Flush()
				after(time.Minute, func(http.ResponseWriter, *http.Request) {})(w, r)
			}
		})
		res, err := p.send(t.Context(), http.MethodGet, streamPath, Meta{})
		if err != nil || strings.Count(res.Text, "event") != 100 {
			t.Errorf("%d events of 100, error %v", strings.Count(res.Text, "event"), err)
		}
	})
}

// A connection's time is not the head's: a node that takes 4 s for each answers,
// and one that takes no connection is passed over after ConnectTimeout.
func TestConnectTimeIsItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, nodes := newPipes(t, after(4*time.Second, ok), ok)
		synctest.Wait()
		p.transport.CloseIdleConnections()
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
	synctest.Test(t, func(t *testing.T) {
		p, nodes := newPipes(t, ok, ok)
		synctest.Wait() // the questions about the identity are answered
		p.transport.CloseIdleConnections()
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
	synctest.Test(t, func(t *testing.T) {
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

// A node that comes back as another cluster's is noticed.
func TestIdentityIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		cluster := "one"
		set := func(id string) {
			mu.Lock()
			defer mu.Unlock()
			cluster = id
		}
		n := &pipeNode{conns: make(chan net.Conn), done: make(chan struct{})}
		server := &http.Server{ReadHeaderTimeout: time.Hour, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			if cluster == "" {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			w.Header().Set(ProtocolHeader, "11")
			w.Header().Set(ClusterIDHeader, cluster)
			w.WriteHeader(http.StatusNotFound)
		})}
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = server.Serve(n)
		}()
		p, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		p.transport.DialContext = watched((&pipes{nodes: map[string]*pipeNode{"a:1": n}}).dial)
		set("") // a node that does not tell is asked again soon
		if err := p.SetNodes([]string{"http://a:1"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(identifyEvery / 2)
		if _, err := p.Identity(); !errors.Is(err, ErrNotIdentified) {
			t.Errorf("a node that does not tell: %v", err)
		}
		set("one")
		time.Sleep(identifyEvery)
		if id, _ := p.Identity(); id.ClusterID != "one" {
			t.Errorf("identity %+v, want one", id)
		}
		set("two")
		time.Sleep(recheckEvery)
		if id, _ := p.Identity(); id.ClusterID != "two" {
			t.Errorf("identity %+v after the node came back as two", id)
		}
		p.Close()
		close(n.done)
		_ = server.Close()
		<-served
	})
}
