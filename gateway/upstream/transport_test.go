package upstream

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// H19: the node is asked under its own name, whatever Host the client sent.
func TestHostIsTheNodesOwn(t *testing.T) {
	urls, _, nodes := fleet(t, "->1", "ok")
	p := newPool(t, urls...)
	p.firstIs(0, 2)
	p.mustSend(t, http.MethodPost, streamPath, Meta{Body: []byte("x")})
	for i, n := range nodes {
		hits := n.hits()
		if len(hits) != 1 || hits[0].Host != strings.TrimPrefix(urls[i], "http://") {
			t.Errorf("node %d was asked as %v, want its own address", i, hits)
		}
	}
}

// U08: HTTP_PROXY was obeyed for nodes: requests went to somebody else's proxy.
// The environment is read once a process by net/http, and never for loopback
// addresses, so the node has a name that is none and the rule is looked at too.
func TestProxyEnvironmentIsIgnored(t *testing.T) {
	proxy := newDouble(t, nil)
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"} {
		t.Setenv(name, proxy.URL)
	}
	p := newPool(t, "http://node.invalid:4437")
	if p.prober.Proxy != nil || p.asker.Proxy != nil {
		t.Error("the probes' transport has a proxy function")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if res, err := p.send(ctx, http.MethodGet, streamPath, Meta{Read: true}); err == nil {
		t.Errorf("a node that does not exist answered %d", res.StatusCode)
	}
	if got := len(proxy.hits()); got != 0 {
		t.Errorf("%d requests went to the proxy", got)
	}
}

// U06: the transport asked for gzip and unpacked it: other bytes under the
// node's ETag. F4: what the client asks for arrives, and comes back as it is.
func TestNoCodingIsAdded(t *testing.T) {
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	_, _ = zip.Write(bytes.Repeat([]byte("a line\n"), 100))
	_ = zip.Close()
	n := newDouble(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", `"1"`)
		if r.Header.Get("Accept-Encoding") == "gzip" {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(packed.Bytes())
			return
		}
		_, _ = io.WriteString(w, "plain")
	})
	p := newPool(t, n.URL)
	plain := p.mustSend(t, http.MethodGet, streamPath, Meta{Read: true})
	if got := n.hits()[0].Header["Accept-Encoding"]; got != nil {
		t.Errorf("the node was asked for %q though the client asked for nothing", got)
	}
	if plain.Text != "plain" || plain.Uncompressed || plain.ContentLength != 5 {
		t.Errorf("plain answer: %q, %d bytes declared", plain.Text, plain.ContentLength)
	}
	res := p.mustSend(t, http.MethodGet, streamPath, Meta{Read: true}, "Accept-Encoding", "gzip")
	if res.Text != packed.String() || res.Header.Get("Content-Encoding") != "gzip" || res.ContentLength != int64(packed.Len()) {
		t.Errorf("packed answer changed: %v, %d bytes of %d", res.Header, len(res.Text), packed.Len())
	}
}

// H10, H22: informational answers: some are passed over, a flood is bounded, and
// a switch of protocols is no answer to anything.
func TestInformationalAnswers(t *testing.T) {
	const end = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	tests := []struct {
		name   string
		before string
		flood  bool
		kind   Kind
		want   int
	}{
		{"early hints", "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\nConnection: keep-alive\r\n\r\n", false, 0, 200},
		{"103 and 200 times 100", "HTTP/1.1 103 Early Hints\r\n\r\n" + strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 200), false, 0, 200},
		{"flood", strings.Repeat("HTTP/1.1 100 Continue\r\nX-Pad: "+strings.Repeat("a", 1000)+"\r\n\r\n", 50), true, Failed, 0},
		{"head without end", "HTTP/1.1 200 OK\r\nX-Pad: " + strings.Repeat("a", 128<<10), false, Failed, 0},
		{"101", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", false, Failed, 0},
		{"no HTTP", "SSH-2.0-OpenSSH\r\n", false, Failed, 0},
		{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok!", false, Failed, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := newRawNode(t, func(c net.Conn, in *bufio.Reader) {
				for {
					if r, _ := readRequest(c, in); r == nil {
						return
					}
					for {
						if _, err := io.WriteString(c, tt.before); err != nil {
							return
						}
						if !tt.flood {
							break
						}
					}
					_, _ = io.WriteString(c, end)
				}
			})
			p := newPool(t, n.URL)
			res, err := p.send(t.Context(), http.MethodPost, streamPath, Meta{Body: []byte("x")})
			if tt.want == 0 {
				wantKind(t, err, tt.kind)
				return
			}
			if err != nil || res.StatusCode != tt.want || res.Text != "ok" {
				t.Errorf("got %v, error %v", res.Response, err)
			}
		})
	}
}

// U05: bytes that a node sent beyond an answer were taken for the answer to the
// next request. Each request here asks for its own number, so that an answer to
// another one is seen; many run at once, since the window is a narrow one.
func TestLeftoverBytesAnswerNothing(t *testing.T) {
	const extra = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"
	tests := []struct {
		name, method string
		answer       func(n string) string
	}{
		{"body after HEAD", http.MethodHead, func(n string) string {
			return "HTTP/1.1 200 OK\r\nX-N: " + n + "\r\nContent-Length: " + fmt.Sprint(len(extra)) + "\r\n\r\n" + extra
		}},
		{"body after 304", http.MethodGet, func(n string) string {
			return "HTTP/1.1 304 Not Modified\r\nX-N: " + n + "\r\n\r\n" + extra
		}},
		{"second answer", http.MethodGet, func(n string) string {
			return "HTTP/1.1 200 OK\r\nX-N: " + n + "\r\nContent-Length: 2\r\n\r\nok" + extra
		}},
		{"second answer to a write", http.MethodPost, func(n string) string {
			return "HTTP/1.1 204 No Content\r\nX-N: " + n + "\r\n\r\n" + extra
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := newRawNode(t, func(c net.Conn, in *bufio.Reader) {
				for {
					r, _ := readRequest(c, in)
					if r == nil {
						return
					}
					if _, err := io.WriteString(c, tt.answer(r.Header.Get("X-N"))); err != nil {
						return
					}
				}
			})
			p := newPool(t, n.URL)
			var wrong, failed atomic.Int64
			var failure atomic.Value
			var wait sync.WaitGroup
			for worker := range 8 {
				wait.Go(func() {
					for i := range 100 {
						number := fmt.Sprint(worker, "-", i)
						m := Meta{Read: tt.method != http.MethodPost}
						if tt.method == http.MethodPost {
							m.Body = []byte("x")
						}
						res, err := p.send(t.Context(), tt.method, streamPath, m, "X-N", number)
						switch {
						case err != nil:
							failed.Add(1)
							failure.Store(err)
						case res.Header.Get("X-N") != number || strings.Contains(res.Text, "poison"):
							wrong.Add(1)
						}
					}
				})
			}
			wait.Wait()
			if wrong.Load() != 0 {
				t.Errorf("%d of 800 requests were answered with other requests' bytes", wrong.Load())
			}
			if failed.Load() != 0 {
				t.Errorf("%d of 800 requests failed, one with %v: they went out on a connection that was spoilt already", failed.Load(), failure.Load())
			}
		})
	}
}

// U05: an answer that nobody asked for, before the first request and between
// two, ends the connection and answers nothing.
func TestUnsolicitedAnswer(t *testing.T) {
	more := make(chan struct{})
	ended := make(chan struct{}, 1)
	n := newRawNode(t, func(c net.Conn, in *bufio.Reader) {
		r, _ := readRequest(c, in)
		if r == nil {
			return
		}
		say(c, http.StatusOK, "first")
		if <-more; r.Header.Get("X-N") != "1" {
			return
		}
		say(c, http.StatusOK, "poison")
		_, _ = in.ReadByte() // until the pool has closed it
		ended <- struct{}{}
	})
	p := newPool(t, n.URL)
	if res := p.mustSend(t, http.MethodGet, streamPath, Meta{Read: true}, "X-N", "1"); res.Text != "first" {
		t.Fatalf("first answer: %q", res.Text)
	}
	close(more)
	<-ended
	if res := p.mustSend(t, http.MethodPost, streamPath, Meta{Body: []byte("x")}, "X-N", "2"); res.Text != "first" {
		t.Errorf("second request was answered %q", res.Text)
	}
}

// U09: two idle connections a host made a handshake of nearly every request.
func TestNoHandshakesInSteadyState(t *testing.T) {
	n := newRawNode(t, func(c net.Conn, in *bufio.Reader) {
		for {
			if r, _ := readRequest(c, in); r == nil {
				return
			}
			say(c, http.StatusOK, "ok")
		}
	})
	p := newPool(t, n.URL)
	one := func() {
		if res, err := p.send(t.Context(), http.MethodPost, streamPath, Meta{Body: []byte("x")}); err != nil || res.Text != "ok" {
			t.Errorf("%q, %v", res.Text, err)
		}
	}
	for range 2000 {
		one()
	}
	// One for the requests, one for the question about the identity; on a machine
	// that stands still for the idle time, one more each time it does.
	if got := len(n.conns); got > 20 {
		t.Errorf("2000 requests in a row made %d connections, want 20 at the most", got)
	}
	const workers = 64
	before := len(n.conns)
	var wait sync.WaitGroup
	for range workers {
		wait.Go(func() {
			for range 2000 / workers {
				one()
			}
		})
	}
	wait.Wait()
	// Each worker may have to make one, and more may meet at a busy moment.
	if got := len(n.conns) - before; got > 4*workers {
		t.Errorf("2000 requests of %d workers made %d connections, want %d at the most", workers, got, 4*workers)
	}
}

// S11, S12: a client that leaves ends the exchange at once, before the head and
// in the body, and no node is blamed.
func TestClientLeaves(t *testing.T) {
	asked, gone := make(chan struct{}, 1), make(chan struct{}, 1)
	n := newDouble(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Head") != "" {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
		}
		asked <- struct{}{}
		<-r.Context().Done()
		gone <- struct{}{}
	})
	seen := &outcomes{}
	p := newPoolOf(t, Options{Nodes: []string{n.URL}, Observer: seen})
	for _, head := range []string{"", "yes"} {
		t.Run("head sent "+head, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				_, err := p.send(ctx, http.MethodPost, streamPath, Meta{Body: []byte("x")}, "X-Head", head)
				done <- err
			}()
			<-asked
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("error %v, want the context's", err)
			}
			select {
			case <-gone:
			case <-time.After(time.Second): // the figure
				t.Error("the node was still asked 1 s after the client had left")
			}
		})
	}
	for _, o := range seen.all() {
		if o == Failed.String() || o == TimedOut.String() || o == Unreachable.String() {
			t.Errorf("the node is blamed with %q for a client that left", o)
		}
	}
}

// outcomes is an Observer that remembers. Its methods must not block.
type outcomes struct {
	mu     sync.Mutex
	list   []string // of exchanges
	events []string // "host state" of nodes, "cluster id"
}

func (o *outcomes) Exchanged(_, outcome string, _ time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list = append(o.list, outcome)
}

func (o *outcomes) NodeChanged(node, state string) { o.event(node + " " + state) }

func (o *outcomes) ClusterChanged(id string) { o.event("cluster " + id) }

func (o *outcomes) event(e string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, e)
}

// takeEvents returns what happened since it was called last.
func (o *outcomes) takeEvents() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	events := o.events
	o.events = nil
	return events
}

func (o *outcomes) all() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]string(nil), o.list...)
}
