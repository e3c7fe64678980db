package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/gateway/upstream"
	"sluice/internal/bubble"
)

// pipeListener gives a server one end of pipes in memory, so that a whole
// gateway runs on the clock of a test's bubble.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once

	dialled atomic.Int64 // by clients
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

// addressed is a pipe's end that has a client's address.
type addressed struct{ net.Conn }

func (addressed) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 40000}
}

// storing is a way to the nodes that stores every write.
type storing struct {
	mu     sync.Mutex
	stored []int // the bodies' sizes
}

func (s *storing) Send(_ context.Context, r *http.Request, m upstream.Meta) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stored = append(s.stored, len(m.Body))
	h := http.Header{"Stream-Next-Offset": {fmt.Sprint(len(m.Body))}}
	return &http.Response{StatusCode: http.StatusNoContent, Header: h, Body: http.NoBody, Request: r, ProtoMajor: 1, ProtoMinor: 1}, nil
}

func (*storing) Identity() (upstream.Identity, error) {
	return upstream.Identity{}, upstream.ErrNotIdentified
}

// newBubbleRig is a rig without a real connection anywhere: with the contract's
// own times, on the clock of the bubble in which it is called. Its nodes store what
// comes, but where o changes Upstream.
func newBubbleRig(t *testing.T, o rigOptions) (*rig, *storing, *pipeListener) {
	t.Helper()
	rg, nodes := newRigParts(t, o), &storing{}
	rg.Options.Upstream = nodes
	rg.begin(t, o)
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	server := NewServer(rg.Gateway, log.New(rg.Log, "server: ", 0))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return rg, nodes, l
}

// pacedBody is a body as its client sends it: pieces of a size, so far apart.
type pacedBody struct {
	piece, pieces int
	every         time.Duration
	ends          bool // with the last piece; else the client goes on to wait
}

// Facts B2, B4, B7: bodies that stop or trickle, through the whole gateway, on the
// contract's own times: a refused one is answered 5 s after its last byte, or
// after 30 s in all; an admitted one is 408 when nothing came for 30 s, and when
// less than 1024 B/s came over 30 s. Either way nothing reached a node.
func TestBodiesOnTheContractsClock(t *testing.T) {
	const s = time.Second
	const admitted, stranger, ownLimit = "full", "", "8388609"
	tests := []struct {
		name, key, length string // length "" = in chunks
		body              pacedBody
		status            int
		took              time.Duration
		fate              string // of a refused body
	}{
		{"B2 silent", stranger, "100", pacedBody{}, 401, 5 * s, "cut"},
		{"B2 silent, chunked", stranger, "", pacedBody{}, 401, 5 * s, "cut"},
		{"B2 stops", stranger, "100", pacedBody{piece: 10, pieces: 4, every: 3 * s}, 401, 14 * s, "cut"},
		{"B2 stops, chunked", stranger, "", pacedBody{piece: 10, pieces: 4, every: 3 * s}, 401, 14 * s, "cut"},
		{"B2 a piece a second", stranger, "8388608", pacedBody{piece: 1000, pieces: 60, every: s}, 401, 30 * s, "cut"},
		{"B2 a chunk a second", stranger, "", pacedBody{piece: 1, pieces: 60, every: s}, 401, 30 * s, "cut"},
		{"B2 ends in time", stranger, "", pacedBody{piece: 1, pieces: 8, every: 4 * s, ends: true}, 401, 28 * s, "read"},
		{"B4 declared over the limit", stranger, ownLimit, pacedBody{}, 401, 0, "unread"},
		{"B4 declared over the account's", admitted, ownLimit, pacedBody{}, 413, 0, "unread"},
		{"B7 silent", admitted, "100", pacedBody{}, 408, 30 * s, ""},
		{"B7 stops", admitted, "100000", pacedBody{piece: 30720, pieces: 2, every: 20 * s}, 408, 50 * s, ""},
		{"B7 stops, chunked", admitted, "", pacedBody{piece: 30720, pieces: 2, every: 20 * s}, 408, 50 * s, ""},
		{"B7 trickles", admitted, "8388608", pacedBody{piece: 500, pieces: 600, every: s}, 408, 30 * s, ""},
		{"B7 trickles, chunked", admitted, "", pacedBody{piece: 500, pieces: 600, every: s}, 408, 30 * s, ""},
		// 31 pieces fall into the first 30 s, and 30 into the next.
		{"B7 just below the floor", admitted, "8388608", pacedBody{piece: 1000, pieces: 600, every: 990 * time.Millisecond}, 408, 60 * s, ""},
		{"B7 much, and rarely", admitted, "8388608", pacedBody{piece: 30000, pieces: 600, every: 29500 * time.Millisecond}, 408, 60 * s, ""},
		{"slow, but above the floor", admitted, "132000", pacedBody{piece: 1100, pieces: 120, every: s, ends: true}, 204, 119 * s, ""},
		{"the same, chunked", admitted, "", pacedBody{piece: 1100, pieces: 120, every: s, ends: true}, 204, 119 * s, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				rg, nodes, l := newBubbleRig(t, rigOptions{})
				server, client := net.Pipe()
				l.conns <- addressed{server}
				start := time.Now()
				sent := make(chan struct{})
				go func() {
					defer close(sent)
					tt.body.send(client, "POST /acme/s.priv HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"+bearer(rg.Keys[tt.key]), tt.length)
				}()
				br := bufio.NewReader(client)
				res := readAnswer(t, br, http.MethodPost)
				if took := time.Since(start); res.StatusCode != tt.status || took != tt.took {
					t.Errorf("%d %s after %s, want %d after %s", res.StatusCode, res.Text, took, tt.status, tt.took)
				}
				goesOn := tt.body.ends
				if res.Close == goesOn {
					t.Errorf("Connection: close %t", res.Close)
				}
				if !goesOn {
					if _, err := br.ReadByte(); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) {
						t.Errorf("the connection goes on: %v", err)
					}
				}
				_ = client.Close()
				<-sent
				bubble.Wait()
				if stored := len(nodes.stored); (stored == 1) != (tt.status == 204) || stored > 1 {
					t.Errorf("%d requests went to the nodes", stored)
				}
				if tt.fate != "" && drained(t, rg, tt.fate) != 1 {
					t.Errorf("the body is not counted as %s", tt.fate)
				}
				if used := rg.Budget.Used(); used != 0 {
					t.Errorf("%d bytes of the budget are held", used)
				}
			})
		})
	}
}

// bearer is the header line of a key; "" is none.
func bearer(k string) string {
	if k == "" {
		return ""
	}
	return "Authorization: Bearer " + k + "\r\n"
}

// send writes a request's head and its body, and ends early when the gateway has
// closed the connection.
func (p pacedBody) send(w io.Writer, head, length string) {
	frame := func(s string) string { return s }
	if length == "" {
		head += "Transfer-Encoding: chunked\r\n\r\n"
		frame = chunk
	} else {
		head += "Content-Length: " + length + "\r\n\r\n"
	}
	if _, err := io.WriteString(w, head); err != nil {
		return
	}
	for i := range p.pieces {
		if i > 0 {
			time.Sleep(p.every)
		}
		if _, err := io.WriteString(w, frame(strings.Repeat(" ", p.piece))); err != nil {
			return
		}
	}
	if p.ends && length == "" {
		_, _ = io.WriteString(w, "0\r\n\r\n")
	}
}

// dial opens a connection to the server.
func (l *pipeListener) dial() net.Conn {
	server, client := net.Pipe()
	l.conns <- addressed{server}
	return client
}
