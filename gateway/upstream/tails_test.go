package upstream

import (
	"io"
	"net/http"
	"testing"

	"sluice/internal/ursulatest"
)

// openTail opens a live read and returns its body once its first event is there.
func openTail(t *testing.T, p *Pool) io.ReadCloser {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, streamPath+"?offset=now&live=sse", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := p.Send(t.Context(), req, Meta{Path: streamPath, Read: true, Live: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	if _, err := res.Body.Read(make([]byte, 1)); err != nil {
		t.Fatalf("first event: %v", err)
	}
	return res.Body
}

// wantCut reads on and wants the tail to break, not to end.
func wantCut(t *testing.T, body io.Reader) {
	t.Helper()
	if _, err := io.Copy(io.Discard, body); err == nil {
		t.Error("the tail ended cleanly")
	}
}

func waitingAt(p *Pool) int {
	n := 0
	for _, node := range *p.nodes.Load() {
		node.mu.Lock()
		n += len(node.waiting)
		node.mu.Unlock()
	}
	return n
}

// A tail on a node that had been put out stayed open and said nothing: Ursula
// wakes live readers only where their stream is led.
func TestTailIsCutWithItsNode(t *testing.T) {
	for name, out := range map[string]func(*ursulatest.Node){
		// Standing connections of a node that drains are served on.
		"drained": func(n *ursulatest.Node) { n.Drain(); n.SetProbeFault(ursulatest.Reset) },
		"silent":  func(n *ursulatest.Node) { n.SetProbeFault(ursulatest.Hang) },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 2)
			p := newPool(t, c.URLs()...)
			waitIdentity(t, p)
			body := openTail(t, p)
			out(c.Node(0))
			wantCut(t, body)
			_ = body.Close()
			if n := waitingAt(p); n != 0 {
				t.Errorf("%d attempts are still registered", n)
			}
		})
	}
}

// A node that lives and leads no more keeps its tails, silent. Whoever is sent
// from it to the new leader shows that it does not lead.
func TestTailIsCutWhenItsLeaderMoves(t *testing.T) {
	c := newCluster(t, 2)
	p := newPool(t, c.URLs()...)
	waitIdentity(t, p)
	body := openTail(t, p)
	c.SetLeader(1)
	// The route still leads to the old leader, which redirects.
	p.leaders.learn(streamPath, (*p.nodes.Load())[0])
	res := p.mustSend(t, http.MethodPost, streamPath, Meta{Path: streamPath, Body: []byte("x")}, "Content-Type", "text/plain")
	if res.StatusCode != http.StatusNoContent {
		t.Fatalf("append: %d", res.StatusCode)
	}
	wantCut(t, body)
	_ = body.Close()
	if n := waitingAt(p); n != 0 {
		t.Errorf("%d attempts are still registered", n)
	}
}
