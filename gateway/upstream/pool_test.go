package upstream

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"sluice/internal/ursulatest"
)

func waitIdentity(t testing.TB, p *Pool) Identity {
	t.Helper()
	var id Identity
	eventually(t, "every node has told its identity", func() bool {
		p.identities.mu.RLock()
		told := len(p.identities.byNode)
		p.identities.mu.RUnlock()
		var err error
		id, err = p.Identity()
		return told == len(*p.nodes.Load()) && err == nil
	})
	return id
}

// Identity comes from a HEAD of a missing stream (facts 0.9), as the node says it.
func TestIdentityIsLearned(t *testing.T) {
	c := ursulatest.New(ursulatest.Options{Nodes: 2, ClusterID: "prod-7"})
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	p := newPool(t, c.URLs()...)
	if id := waitIdentity(t, p); id != (Identity{Protocol: "11", ClusterID: "prod-7"}) {
		t.Errorf("identity %+v", id)
	}
	for _, r := range c.Requests() {
		if r.Method != http.MethodHead {
			t.Errorf("the node was asked %s %s", r.Method, r.Target)
		}
	}
}

// Nodes of two clusters agree on no identity, until one of them is taken out.
func TestTwoClusters(t *testing.T) {
	var urls []string
	for _, id := range []string{"one", "two"} {
		c := ursulatest.New(ursulatest.Options{ClusterID: id})
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		urls = append(urls, c.URLs()...)
	}
	p := newPool(t, urls...)
	eventually(t, "the two clusters are seen", func() bool {
		_, err := p.Identity()
		return errors.Is(err, ErrTwoClusters)
	})
	if err := p.SetNodes(urls[1:], 0); err != nil {
		t.Fatal(err)
	}
	if id := waitIdentity(t, p); id.ClusterID != "two" {
		t.Errorf("identity %+v after the other cluster's node was taken out", id)
	}
}

func TestNoNodes(t *testing.T) {
	p := newPool(t)
	_, err := p.send(t.Context(), http.MethodGet, streamPath, Meta{Read: true})
	wantKind(t, err, NoUpstream) // F13
	_, err = p.Identity()
	wantKind(t, err, NoUpstream)
	dead := newPool(t, deadURL(0))
	if _, err := dead.Identity(); !errors.Is(err, ErrNotIdentified) {
		t.Errorf("identity of a dead node: %v", err)
	}
}

func TestNodeAddresses(t *testing.T) {
	tests := []struct {
		name, url string
		ok        bool
	}{
		{"http", "http://10.0.0.1:4437", true},
		{"F5 https", "https://node.example", true},
		{"F2 trailing slash", "http://10.0.0.1:4437/", true},
		{"ipv6", "http://[::1]:4437", true},
		{"path", "http://10.0.0.1:4437/ursula", false},
		{"no scheme", "10.0.0.1:4437", false},
		{"other scheme", "ftp://10.0.0.1", false},
		{"no host", "http://", false},
		{"empty", "", false},
		{"control byte", "http://h\x00", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPool(t, "http://127.0.0.1:1")
			before := *p.nodes.Load()
			err := p.SetNodes([]string{"http://127.0.0.1:2", tt.url}, 0)
			if (err == nil) != tt.ok {
				t.Fatalf("error %v, want ok %v", err, tt.ok)
			}
			if !tt.ok && !slices.Equal(before, *p.nodes.Load()) {
				t.Error("a refused list changed the nodes")
			}
		})
	}
}

// A reload keeps what is known of a node by its address, forgets what was known
// of one that went, and ends its goroutine.
func TestSetNodesKeepsState(t *testing.T) {
	c := newCluster(t, 3)
	urls := c.URLs()
	p := newPool(t, urls...)
	waitIdentity(t, p)
	nodes := *p.nodes.Load()
	p.leaders.learn("/acme/s.a", nodes[0])
	p.leaders.learn("/acme/s.b", nodes[1])
	if got := goroutinesOf(".(*Pool).watch("); got != 3 {
		t.Fatalf("%d goroutines ask for identities, want 3", got)
	}
	if err := p.SetNodes([]string{urls[1] + "/", urls[2]}, 0); err != nil {
		t.Fatal(err)
	}
	now := *p.nodes.Load()
	if len(now) != 2 || now[0] != nodes[1] || now[1] != nodes[2] {
		t.Error("a node that stayed was made anew")
	}
	if p.leaders.get("/acme/s.a") != nil || p.leaders.get("/acme/s.b") != nodes[1] {
		t.Error("routes: the removed node's must go, the other's must stay")
	}
	if _, err := p.Identity(); err != nil {
		t.Errorf("identity after a node was taken out: %v", err)
	}
	eventually(t, "the removed node's goroutine has ended", func() bool {
		return goroutinesOf(".(*Pool).watch(") == 2
	})
	// What a removed node says late counts for nothing.
	removed, cancel := context.WithCancel(t.Context())
	cancel()
	p.identities.set(removed, nodes[0], Identity{"11", "late"})
	if id, err := p.Identity(); err != nil || id.ClusterID == "late" {
		t.Errorf("identity %+v, %v after a removed node spoke", id, err)
	}
}

// A request that is under way when its node is taken out ends as it would have.
func TestSetNodesLeavesRequests(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	n := newDouble(t, func(w http.ResponseWriter, _ *http.Request) {
		close(asked)
		<-answer
		_, _ = w.Write([]byte("late"))
	})
	p := newPool(t, n.URL)
	got := make(chan result, 1)
	go func() {
		res, err := p.send(context.WithoutCancel(t.Context()), http.MethodGet, streamPath, Meta{Read: true})
		if err != nil {
			t.Error(err)
		}
		got <- res
	}()
	<-asked
	if err := p.SetNodes([]string{"http://127.0.0.1:1"}, 0); err != nil {
		t.Fatal(err)
	}
	close(answer)
	if res := <-got; res.Text != "late" {
		t.Errorf("got %q", res.Text)
	}
}

// Close leaves no goroutine behind: neither the pool's nor a connection's.
func TestCloseLeavesNothing(t *testing.T) {
	c := newCluster(t, 3)
	for range 5 {
		p := newPool(t, c.URLs()...)
		waitIdentity(t, p)
		for range 20 {
			p.mustSend(t, http.MethodGet, streamPath, Meta{Path: streamPath, Read: true, CatchUp: true})
		}
		p.Close()
		p.Close() // again does nothing
		if got := goroutinesOf(".(*Pool).watch("); got != 0 {
			t.Errorf("%d goroutines of the pool after Close", got)
		}
		if err := p.SetNodes(c.URLs()[:1], 0); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "no connection is left", func() bool {
		return goroutinesOf("persistConn", ".(*Pool).watch(") == 0
	})
}

// endedConn is a connection that has ended by the time that it is written to,
// once it was told to.
type endedConn struct {
	*net.TCPConn
	dead func() bool
}

func (c endedConn) Write(p []byte) (int, error) {
	if c.dead() {
		_ = c.Close()
	}
	return c.TCPConn.Write(p)
}

// endingDial connects by TCP; as many writes as left says meet an ended connection.
func endingDial(left *atomic.Int64) DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := defaultDial()(ctx, network, address)
		if err != nil {
			return nil, err
		}
		tcp, ok := conn.(*net.TCPConn)
		if !ok {
			return nil, errors.ErrUnsupported
		}
		return endedConn{tcp, func() bool { return left.Add(-1) >= 0 }}, nil
	}
}

// U01: a kept connection that had ended cost a write a 502. Not a byte of it was
// written, so it goes out on another one, with any method; here the connection
// ends between its choice and the first byte.
func TestKeptConnectionThatEnded(t *testing.T) {
	n := newDouble(t, nil)
	var ends atomic.Int64
	p := newPoolOf(t, Options{Nodes: []string{n.URL}, Dial: endingDial(&ends), probeDial: defaultDial()})
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete} {
		for _, body := range []string{"", "body", strings.Repeat("large", 10<<10)} {
			p.mustSend(t, http.MethodGet, streamPath, Meta{Read: true})
			before := len(n.hits())
			ends.Store(1)
			res, err := p.send(t.Context(), method, streamPath, Meta{Body: []byte(body), Read: method == http.MethodGet})
			if err != nil || res.StatusCode != http.StatusOK {
				t.Errorf("%s, %d bytes: %v, %v", method, len(body), res.Response, err)
			}
			if got := len(n.hits()) - before; got != 1 || ends.Load() >= 0 {
				t.Errorf("%s, %d bytes: reached the node %d times, %d ends left", method, len(body), got, ends.Load())
			}
		}
	}
}

// Connections that all end before a byte is written are no way to a node: the
// request is given up for unreachable, in so many tries.
func TestConnectionsThatAllEnd(t *testing.T) {
	n := newDouble(t, nil)
	var ends atomic.Int64
	ends.Store(1000)
	p := newPoolOf(t, Options{Nodes: []string{n.URL}, Dial: endingDial(&ends), probeDial: defaultDial()})
	_, err := p.send(t.Context(), http.MethodPost, streamPath, Meta{Body: []byte("x")})
	wantKind(t, err, Unreachable)
	if tries := 1000 - ends.Load(); len(n.hits()) != 0 || tries != maxKept+1 {
		t.Errorf("%d hits in %d tries, want none in %d", len(n.hits()), tries, maxKept+1)
	}
}

// A missing node is told within 100 ms of the refused connection, by any method,
// also when a connection to it stood a moment ago.
func TestNodeGoesAway(t *testing.T) {
	c := newCluster(t, 1)
	p := newPool(t, c.URLs()...)
	p.mustSend(t, http.MethodGet, streamPath, Meta{Path: streamPath, Read: true})
	c.Node(0).Stop()
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
		_, err := p.send(t.Context(), method, streamPath, Meta{Path: streamPath, Read: method == http.MethodGet})
		wantKind(t, err, Unreachable)
	}
}
