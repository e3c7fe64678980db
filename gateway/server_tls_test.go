package gateway

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"sluice/internal/bubble"
)

// pipes is a listener in a bubble: connections are handed to it.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	close(p.closed)
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// H16: whoever connected and never began or never finished a handshake, or a head after it,
// had a connection for ever.
func TestHandshakesEnd(t *testing.T) {
	certificate := httptest.NewTLSServer(http.NotFoundHandler())
	config := &tls.Config{Certificates: certificate.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12}
	certificate.Close()
	shake := func(ctx context.Context, c net.Conn, protocols ...string) {
		_ = tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: protocols}).HandshakeContext(ctx) //nolint:gosec // not about trust
	}
	for name, begin := range map[string]func(context.Context, net.Conn){
		"nothing":           func(context.Context, net.Conn) {},
		"half a hello":      func(_ context.Context, c net.Conn) { _, _ = c.Write([]byte{22, 3, 1, 2, 0, 1}) },
		"no head after it":  func(ctx context.Context, c net.Conn) { shake(ctx, c) },
		"no HTTP/2 preface": func(ctx context.Context, c net.Conn) { shake(ctx, c, "h2") },
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				l := &pipes{make(chan net.Conn), make(chan struct{})}
				s := NewServer(http.NotFoundHandler(), log.New(io.Discard, "", 0))
				done := make(chan struct{})
				go func() {
					defer close(done)
					_ = s.Serve(tls.NewListener(l, config))
				}()
				ours, theirs := net.Pipe()
				began := time.Now()
				l.conns <- theirs
				begin(t.Context(), ours)
				_, _ = io.Copy(io.Discard, ours) // until the server closes it
				if took := time.Since(began); took > 2*headDeadline {
					t.Errorf("closed after %v", took)
				}
				_ = ours.Close()
				_ = s.Close()
				<-done
			})
		})
	}
}
