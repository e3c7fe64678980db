package upstream

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/bubble"
)

// U07: with all nodes gone requests are told so within 100 ms, as nothing applied
// (Retry-After is the gateway's), and the first node that is back is in use
// within 2 s. On a real network, so it is the best of a few tries on a machine
// with other things to do.
func TestAllNodesGone(t *testing.T) {
	c := newCluster(t, 3)
	p := newPool(t, c.URLs()...)
	waitIdentity(t, p)
	for i := range 3 {
		c.Node(i).Stop()
	}
	for _, k := range []kind{readKind(), keyedKind(), keylessKind(), deleteKind()} {
		best := time.Hour
		for range 5 {
			start := time.Now()
			_, err := p.send(t.Context(), k.method, streamPath, k.meta)
			best = min(best, time.Since(start))
			wantKind(t, err, Unreachable)
		}
		if best > 100*time.Millisecond {
			t.Errorf("%s: told after %s, want 100 ms at the most", k.name, best)
		}
	}
	eventually(t, "all nodes are out", func() bool { return p.Ready() != nil })
	back := time.Hour
	for range 3 {
		start := time.Now()
		c.Node(0).Restart()
		eventually(t, "a request is answered", func() bool {
			res, err := p.send(t.Context(), http.MethodGet, streamPath+"?offset=-1", readKind().meta)
			return err == nil && res.StatusCode == http.StatusOK
		})
		back = min(back, time.Since(start))
		c.Node(0).Stop()
		eventually(t, "the node is out again", func() bool { return p.Ready() != nil })
	}
	if back > 2*time.Second {
		t.Errorf("in use again after %s, want 2 s at the most", back)
	}
}

// U07: one sick node of three. One that takes connections and hangs costs nobody
// more than 1.75 s; one that answers 503 with a leader's address is no leader,
// not a dead node; and no bad answer, however often, ejects anybody.
func TestOneSickNode(t *testing.T) {
	sick := map[string]http.HandlerFunc{
		"500": status(500), "503": status(503), "404": status(404), "breaks": cut,
		"503 with a hint": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "http://b:1"+r.RequestURI)
			w.Header().Set("X-Ursula-Raft-Leader-Id", "2")
			status(503)(w, r)
		},
		"foreign redirect": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://b:1/")
			w.WriteHeader(http.StatusFound)
		},
		"no HTTP": func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = c.Write([]byte("SSH-2.0-OpenSSH\r\n\r\n"))
				_ = c.Close()
			}
		},
	}
	for name, handler := range sick {
		for _, alone := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", alone ", alone), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					handlers := []http.HandlerFunc{handler, saying("b"), saying("c")}
					if alone {
						handlers = handlers[:1]
					}
					p, nodes, seen := newWatchedPipes(t, handlers...)
					bubble.Wait()
					seen.takeEvents()
					for range 30 {
						<-p.begin(t, keylessKind())
						<-p.begin(t, readKind())
					}
					time.Sleep(2 * time.Second)
					if got := seen.takeEvents(); len(got) != 0 {
						t.Errorf("events %v, want none", got)
					}
					if got := len(nodes[0].d.hits()); alone && got < 60 || got < 20 {
						t.Errorf("the sick node was asked %d times: it was passed over", got)
					}
				})
			})
		}
	}
	t.Run("hangs", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			p, nodes := newPipes(t, saying("a"), saying("b"), saying("c"))
			justAfterAProbe()
			nodes[0].freeze()
			for i := range 12 { // a third of them meet it, and no more than once
				if e := <-p.begin(t, readKind()); e.err != nil || e.took >= silentAfter+probeEvery {
					t.Errorf("request %d: %v after %s", i, e.err, e.took)
				}
			}
			wantHits(t, nodes[:1], 1)
		})
	})
}

// U07, S12: clients that leave, before the head and in the body, eject nobody.
func TestLeavingClientsEjectNobody(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, nodes, seen := newWatchedPipes(t, silent, func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).Flush()
			silent(w, r)
		})
		bubble.Wait()
		seen.takeEvents()
		for i := range 40 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*10*time.Millisecond)
			if _, err := p.send(ctx, http.MethodGet, streamPath, readKind().meta); !errorsIsContext(err) {
				t.Errorf("error %v, want the context's", err)
			}
			cancel()
		}
		// While its connection is not there yet, too.
		nodes[0].dial.Store(int64(time.Hour))
		nodes[1].dial.Store(int64(time.Hour))
		time.Sleep(time.Second) // no kept connection is left
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.send(ctx, http.MethodGet, streamPath, readKind().meta); !errorsIsContext(err) {
			t.Errorf("error %v, want the context's", err)
		}
		if got := seen.takeEvents(); len(got) != 0 {
			t.Errorf("events %v, want none", got)
		}
	})
}

// U08: a node's name changes its address. New connections go to the new one
// without a restart, and a tail on the old one goes on.
func TestNameChangesItsAddress(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ps := &pipes{nodes: map[string]*pipeNode{}}
		more := make(chan struct{})
		old, _ := ps.serve(t, "192.0.2.1:4437", 0, time.Hour, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Accept") != "" {
				_ = http.NewResponseController(w).Flush()
				<-more
			}
			saying("old")(w, r)
		}, nil)
		fresh, _ := ps.serve(t, "192.0.2.2:4437", 1, time.Hour, saying("new"), nil)
		var mu sync.Mutex
		address := "192.0.2.1:4437"
		seen := &outcomes{}
		p := newPoolOf(t, Options{Nodes: []string{"http://node.example:4437"}, Observer: seen, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			mu.Lock()
			to := address
			mu.Unlock()
			return ps.dial(ctx, network, to)
		}})
		tail := make(chan string, 1)
		go func() {
			res, err := p.send(t.Context(), http.MethodGet, streamPath, Meta{Path: streamPath, Read: true, Live: true}, "Accept", "text/event-stream")
			tail <- fmt.Sprint(res.Text, err)
		}()
		(<-p.begin(t, keylessKind())).want(t, "old", 0, 0)
		mu.Lock()
		address = "192.0.2.2:4437"
		mu.Unlock()
		time.Sleep(2 * idleTimeout)
		(<-p.begin(t, keylessKind())).want(t, "new", 0, 0)
		// The old one goes away: the probes find the new one, and nobody is out.
		old.refuse.Store(true)
		old.last.Store(true)
		time.Sleep(5 * time.Second)
		(<-p.begin(t, keylessKind())).want(t, "new", 0, 0)
		close(more)
		if got := <-tail; got != "old<nil>" {
			t.Errorf("the tail on the old address ended with %q", got)
		}
		if diff := cmp.Diff([]string{"cluster double"}, seen.takeEvents()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		wantHits(t, []*pipeNode{old, fresh}, 2, 2)
	})
}
