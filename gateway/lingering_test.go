package gateway

import (
	"bytes"
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"
)

// gatedConn is a client's connection of which nothing is read beyond a first part, until
// the gate is opened.
type gatedConn struct {
	net.Conn

	mu   sync.Mutex
	left int
	gate <-chan struct{}
}

func (c *gatedConn) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left <= 0 {
		<-c.gate
		return c.Conn.Read(p)
	}
	n, err := c.Conn.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// bufferingListener has the kernel hold an answer whole that its client does not take.
type bufferingListener struct{ *net.TCPListener }

func (l bufferingListener) Accept() (net.Conn, error) {
	c, err := l.AcceptTCP()
	if err == nil {
		err = c.SetWriteBuffer(1 << 20)
	}
	return c, err
}

// slowRead reads an answer over HTTP/2 whose server leaves and has closed the connection
// before the client has read the larger part of it.
func slowRead(t *testing.T, lingering *Lingering, body []byte) (got []byte, err error) {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	server := NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		_, _ = w.Write(body)
	}), log.New(io.Discard, "", 0))
	closed := make(chan struct{})
	server.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed {
			close(closed)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(lingering.Listener(bufferingListener{l}))
	}()
	defer func() {
		_ = server.Close()
		<-done
	}()
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &protocols, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 16<<10) })
		}}
		c, err := d.DialContext(ctx, network, address)
		return &gatedConn{Conn: c, left: len(body) / 16, gate: closed}, err
	}}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+l.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	return io.ReadAll(res.Body)
}

// O06: a read over HTTP/2 whose client was slow was cut at a stop, though all of it had
// been written: net/http closes the connection a second after the last answer, and what
// the client then says of what it has read has the connection reset.
func TestLastAnswerOfAConnectionIsRead(t *testing.T) {
	t.Parallel()
	body := bytes.Repeat([]byte("0123456789abcdef"), 128<<10/16)
	lingering := NewLingering()
	lingering.Begin()
	got, err := slowRead(t, lingering, body)
	if err != nil || !bytes.Equal(got, body) {
		t.Errorf("%d bytes of %d, %v", len(got), len(body), err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	lingering.Wait(ctx)
	if ctx.Err() != nil {
		t.Error("the client has closed, and the connection lingers on")
	}
}

// A client that does not close keeps nobody waiting for longer than there is time.
func TestLingeringIsCut(t *testing.T) {
	t.Parallel()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	lingering := NewLingering()
	wrapped := lingering.Listener(l)
	defer func() { _ = wrapped.Close() }()
	accept := func() (server, client net.Conn) {
		client, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		if server, err = wrapped.Accept(); err != nil {
			t.Fatal(err)
		}
		return server, client
	}
	gone := func(client net.Conn) bool {
		_, err := io.ReadAll(client) // it sees the end in either case
		return err == nil
	}
	server, client := accept()
	if err := server.Close(); err != nil || !gone(client) {
		t.Errorf("before it has begun: %v", err)
	}
	lingering.Wait(t.Context()) // none
	lingering.Begin()
	server, client = accept()
	if err := server.Close(); err != nil || !gone(client) {
		t.Errorf("closed: %v", err)
	}
	_ = server.Close() // net/http closes twice: that cuts nothing
	if _, err := client.Write([]byte("still here")); err != nil {
		t.Errorf("the client's side: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	lingering.Wait(ctx)
	lingering.mu.Lock()
	defer lingering.mu.Unlock()
	if len(lingering.open) != 0 {
		t.Error("one lingers on")
	}
}
