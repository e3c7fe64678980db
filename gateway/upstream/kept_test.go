package upstream

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/bubble"
)

// endingNode is a node that answers the first request of each connection, once
// keep of them have come, and takes the second without an answer.
type endingNode struct {
	*rawNode
	mu   sync.Mutex
	seen []string // methods and bodies, but for the first of each connection
}

func newEndingNode(t *testing.T, keep int) *endingNode {
	t.Helper()
	n := &endingNode{}
	var all sync.WaitGroup
	all.Add(keep)
	var count int
	n.rawNode = newRawNode(t, func(c net.Conn, in *bufio.Reader) {
		r, body := readRequest(c, in)
		if r == nil {
			return
		}
		n.mu.Lock()
		if count++; count <= keep {
			all.Done()
		} else {
			n.seen = append(n.seen, r.Method+" "+body)
		}
		n.mu.Unlock()
		all.Wait()
		say(c, http.StatusOK, "ok")
		if r, body = readRequest(c, in); r != nil {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.seen = append(n.seen, r.Method+" "+body)
		}
	})
	return n
}

func (n *endingNode) take() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	seen := n.seen
	n.seen = nil
	return seen
}

// warm makes so many kept connections to the pool's first node.
func warm(t *testing.T, p *Pool, connections int) {
	t.Helper()
	var wait sync.WaitGroup
	for range connections {
		wait.Go(func() {
			if _, err := p.send(t.Context(), http.MethodGet, streamPath, readKind().meta); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
}

// U01: a kept connection took the request and ended. A read goes to the same node
// once more, on another connection; of anything else the outcome is unknown, and
// it goes nowhere: not by our table, and not by Go's transport, which takes an
// Idempotency-Key for a promise that no node has made.
func TestKeptConnectionThatEndsUnanswered(t *testing.T) {
	const idempotent = "Idempotency-Key"
	empty := kind{"append without a body", http.MethodPost, Meta{Path: streamPath}}
	tests := []struct {
		kind
		header string
		want   []string // what the node saw; "" = the request's outcome
		ok     bool
	}{
		{readKind(), "", []string{"GET ", "GET "}, true},
		{keyedKind(), "", []string{"POST k"}, false},
		{keyedKind(), idempotent, []string{"POST k"}, false},
		{keylessKind(), "", []string{"POST x"}, false},
		{keylessKind(), idempotent, []string{"POST x"}, false},
		{empty, "", []string{"POST "}, false},
		{empty, idempotent, []string{"POST "}, false},
		{deleteKind(), "", []string{"DELETE "}, false},
		{deleteKind(), "X-" + idempotent, []string{"DELETE "}, false},
	}
	for _, tt := range tests {
		t.Run(strings.TrimSpace(tt.name+" "+tt.header), func(t *testing.T) {
			n, other := newEndingNode(t, 1), newDouble(t, nil)
			p := newPool(t, n.URL, other.URL)
			p.leaders.learn(streamPath, (*p.nodes.Load())[0])
			warm(t, p, 1)
			var headers []string
			if tt.header != "" {
				headers = []string{tt.header, "once"}
			}
			res, err := p.send(t.Context(), tt.method, streamPath, tt.meta, headers...)
			if tt.ok {
				if err != nil || res.Text != "ok" {
					t.Errorf("got %q, error %v", res.Text, err)
				}
			} else {
				wantKind(t, err, Failed)
			}
			if diff := cmp.Diff(tt.want, n.take()); diff != "" {
				t.Errorf("the node saw (-want +got):\n%s", diff)
			}
			if got := len(other.hits()); got != 0 {
				t.Errorf("the other node was asked %d times", got)
			}
		})
	}
}

// U01: with more kept connections that end than the bound a request goes out on a
// new one. The repetitions are ours and counted; Go's transport would try them all.
func TestKeptConnectionsThatAllEnd(t *testing.T) {
	const connections = 2 * maxKept
	n := newEndingNode(t, connections)
	p := newPool(t, n.URL)
	warm(t, p, connections)
	res, err := p.send(t.Context(), http.MethodGet, streamPath, readKind().meta)
	if err != nil || res.Text != "ok" {
		t.Errorf("got %q, error %v", res.Text, err)
	}
	if got := len(n.take()); got != maxKept+1 {
		t.Errorf("the node saw the read %d times, want %d", got, maxKept+1)
	}
}

// U01: a node closes idle connections after 1 s, and requests come 0.9 to 1.1 s
// apart, or about as far apart as our own bound: no read and no append is lost,
// and none is stored twice.
func TestGapsAboutTheIdleTimeout(t *testing.T) {
	for _, gap := range []time.Duration{time.Second / 2, time.Second} {
		t.Run(fmt.Sprint(gap), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				ps := &pipes{nodes: map[string]*pipeNode{}}
				n, url := ps.serve(t, "a:1", 0, time.Second, ok, nil)
				p := newPoolOf(t, Options{Nodes: []string{url}, Dial: ps.dialRequest, probeDial: ps.dial})
				const rounds = 300
				for i := range rounds {
					k := []kind{readKind(), keyedKind(), keylessKind()}[i%3]
					(<-p.begin(t, k)).want(t, "ok", 0, 0)
					spread := rand.Int64N(int64(gap) / 5) //nolint:gosec // a gap, not a secret
					time.Sleep(gap*9/10 + time.Duration(spread))
				}
				hits := n.d.hits()
				if len(hits) != rounds {
					t.Errorf("%d requests reached the node, want %d", len(hits), rounds)
				}
				used := n.dialed.Load()
				if gap == time.Second && used != rounds || used > rounds {
					t.Errorf("%d connections for %d requests %s apart", used, rounds, gap)
				}
			})
		})
	}
}

// An outcome that proves that nothing was applied is told only of what sent
// nothing (design §4).
func TestWhatProves(t *testing.T) {
	sentNothing := []event{eventUnconnected, eventUnwritten}
	for what := range event(len(table)) {
		if proves := kindOf(what) == Unreachable; proves != slices.Contains(sentNothing, what) {
			t.Errorf("event %d is told as %s", what, kindOf(what))
		}
	}
}
