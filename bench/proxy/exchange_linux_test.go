package proxy

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"sluice/gateway/upstream"
)

// instantConn is a connection to a node that answers each request at once: what
// is left is what transport and pool do themselves.
type instantConn struct {
	answers chan []byte
	rest    []byte
}

var _ net.Conn = (*instantConn)(nil)

const instantAnswer = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nUrsula-Protocol: 1\r\nUrsula-Cluster-Id: bench\r\n" +
	"Stream-Next-Offset: 00000000000000000042\r\nContent-Length: 2\r\n\r\n[]"

func dialInstant(context.Context, string, string) (net.Conn, error) {
	return &instantConn{answers: make(chan []byte, 1)}, nil
}

func (c *instantConn) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		answer, ok := <-c.answers
		if !ok {
			return 0, io.EOF
		}
		c.rest = answer
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *instantConn) Write(p []byte) (int, error) {
	answer := []byte(instantAnswer)
	if bytes.HasPrefix(p, []byte("HEAD ")) {
		answer = answer[:len(answer)-2]
	}
	c.answers <- answer
	return len(p), nil
}

func (c *instantConn) Close() error                   { return nil }
func (*instantConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (*instantConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (*instantConn) SetDeadline(time.Time) error      { return nil }
func (*instantConn) SetReadDeadline(time.Time) error  { return nil }
func (*instantConn) SetWriteDeadline(time.Time) error { return nil }

// BenchmarkExchange is the same comparison without network, server and
// ReverseProxy: what an exchange costs by the transport alone, and by the pool.
func BenchmarkExchange(b *testing.B) {
	transport := bareTransport()
	transport.DialContext = dialInstant
	pool, err := upstream.New(upstream.Options{Nodes: []string{"http://127.0.0.1:1"}, Observer: newCounter(), Dial: dialInstant})
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	for _, bc := range []struct {
		name string
		send func(*http.Request) (*http.Response, error)
	}{
		{"bare", transport.RoundTrip},
		{"pool", func(r *http.Request) (*http.Response, error) {
			return pool.Send(r.Context(), r, upstream.Meta{Path: r.URL.Path, Read: true, CatchUp: true})
		}},
	} {
		b.Run(bc.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				exchange(b, bc.send)
			}
		})
	}
}

// exchange is one, under a context of its own as each of a server's requests has.
func exchange(b *testing.B, send func(*http.Request) (*http.Response, error)) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:1"+target, nil)
	if err != nil {
		b.Fatal(err)
	}
	res, err := send(req)
	if err != nil {
		b.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
}
