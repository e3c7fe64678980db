package upstream

import (
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/bubble"
)

// lacks are errors of connecting that are this side's own.
func lacks() map[string]error {
	dial := func(err error) error {
		return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", err)}
	}
	return map[string]error{
		"descriptors of the process": dial(syscall.EMFILE),
		"descriptors of the machine": dial(syscall.ENFILE),
		"memory for sockets":         dial(syscall.ENOBUFS),
		"ports":                      dial(syscall.EADDRNOTAVAIL),
		"descriptors to resolve with": &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{
			Err: "dial udp 192.0.2.53:53: socket: too many open files", Name: "a", IsTemporary: true,
		}},
	}
}

// O08: a process that had no descriptor left could reach no node, and took each for
// one that is down: all of them were ejected, leaders forgotten, and once there were
// descriptors again, requests went astray until probes had brought the nodes back.
func TestLackIsNoNodesFault(t *testing.T) {
	for name, lack := range lacks() {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				p, nodes, seen := newWatchedPipes(t, to("b"), saying("b"))
				(<-p.begin(t, keylessKind())).want(t, "b", 0, 0) // who leads is known
				bubble.Wait()
				seen.takeEvents()
				exchanges := len(seen.all())
				for _, n := range nodes {
					n.lack.Store(&lack)
					n.mu.Lock()
					for _, c := range n.open {
						_ = c.Close() // probes and requests need new ones
					}
					n.mu.Unlock()
				}
				time.Sleep(4 * probeEvery)
				for _, k := range []kind{readKind(), keyedKind(), keylessKind(), deleteKind()} {
					(<-p.begin(t, k)).want(t, "", NoRoom, 0)
				}
				if got := p.Short(); got != 4 {
					t.Errorf("%d requests counted, want 4", got)
				}
				if more := seen.all()[exchanges:]; len(more) != 0 {
					t.Errorf("exchanges told of nodes that nobody asked: %v", more)
				}
				for _, n := range nodes {
					n.lack.Store(nil)
				}
				(<-p.begin(t, keylessKind())).want(t, "b", 0, 0)
				wantHits(t, nodes, 1, 2) // at the leader at once
				if diff := cmp.Diff([]string(nil), seen.takeEvents()); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// What has reached a node is in doubt, however its repetition ends.
func TestLackForARepetition(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, nodes := newPipes(t, silent, saying("b"))
		bubble.Wait()
		lack := lacks()["descriptors of the process"]
		nodes[1].lack.Store(&lack)
		k := keyedKind()
		waiting := p.begin(t, k)
		bubble.Wait()
		nodes[0].freeze()
		e := <-waiting
		if e.err == nil {
			t.Fatal("answered")
		}
		wantKind(t, e.err, TimedOut)
	})
}

// Connections to nodes had no bound of their own: the tails of a few HTTP/2 clients
// took all descriptors. One too many is refused before a byte is sent; those that only
// wait for a request make room; what ends gives its place back.
func TestBoundOfConnections(t *testing.T) {
	release := make(chan struct{})
	held := func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/hold") {
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
		saying("ok")(w, r)
	}
	bubble.Test(t, func(t *testing.T) {
		release = make(chan struct{})
		p, _, seen := newWatchedPipes(t, held, held)
		bubble.Wait()
		seen.takeEvents()
		p.SetMaxConnections(2)
		hold := func() <-chan error {
			done := make(chan error, 1)
			go func() {
				_, err := p.send(t.Context(), http.MethodPost, "/hold/s.x", Meta{Path: "/hold/s.x", Body: []byte("x")})
				done <- err
			}()
			bubble.Wait()
			return done
		}
		// Two are kept, one at each node, and are in the way of nothing.
		p.firstIs(0, 2)
		p.mustSend(t, http.MethodGet, "/acme/s.a", Meta{Path: "/acme/s.a", Read: true})
		p.mustSend(t, http.MethodGet, "/acme/s.a", Meta{Path: "/acme/s.a", Read: true})
		if got := p.Connections(); got != 2 {
			t.Fatalf("%d connections, want one kept at each node", got)
		}
		p.firstIs(0, 1)
		first, second := hold(), hold()
		if got := p.Connections(); got != 2 {
			t.Errorf("%d connections under a bound of 2", got)
		}
		_, err := p.send(t.Context(), http.MethodPost, "/acme/s.a", Meta{Path: "/acme/s.a", Body: []byte("x")})
		wantKind(t, err, NoRoom)
		close(release)
		for _, done := range []<-chan error{first, second} {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		p.mustSend(t, http.MethodGet, "/acme/s.a", Meta{Path: "/acme/s.a", Read: true})
		if got := seen.takeEvents(); len(got) != 0 {
			t.Errorf("events %v, want none", got)
		}
		for _, n := range *p.nodes.Load() {
			n.conns.CloseIdle()
		}
		if got := p.Connections(); got != 0 {
			t.Errorf("%d connections counted of none", got)
		}
	})
}
