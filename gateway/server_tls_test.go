package gateway

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"sluice/internal/bubble"
	"sluice/internal/telemetry"
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
				guard := bubbleGuard(t)
				guard.Attach(s)
				done := make(chan struct{})
				go func() {
					defer close(done)
					_ = s.Serve(guard.Listener(l, config))
				}()
				ours, theirs := net.Pipe()
				began := time.Now()
				l.conns <- addressed{theirs}
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

// bubbleGuard is a guard of its own.
func bubbleGuard(t testing.TB) *ConnGuard {
	t.Helper()
	metrics, err := telemetry.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return NewConnGuard(ConnGuardOptions{Log: zap.NewNop(), Metrics: metrics, Now: time.Now, Random: rand.Reader})
}

// S07, S08, over TLS: the deadlines of the handshake and of the head, which are the
// connection's, ended what came behind them. A tail with an event each minute stands for
// three times the longest of them, and so does an append whose answer is as late.
func TestDeadlinesOfTheHandshakeEndNoTail(t *testing.T) {
	certificate := httptest.NewTLSServer(http.NotFoundHandler())
	config := &tls.Config{Certificates: certificate.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12}
	certificate.Close()
	const events = int(3 * idleDeadline / time.Minute)
	for _, protocol := range []string{"http/1.1", "h2"} {
		t.Run(protocol, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				l := &pipes{make(chan net.Conn), make(chan struct{})}
				s := NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					for range events {
						time.Sleep(time.Minute)
						if r.Method == http.MethodGet {
							_, _ = io.WriteString(w, "e")
							_ = http.NewResponseController(w).Flush()
						}
					}
				}), log.New(io.Discard, "", 0))
				guard := bubbleGuard(t)
				guard.Attach(s)
				done := make(chan struct{})
				go func() {
					defer close(done)
					_ = s.Serve(guard.Listener(l, config))
				}()
				var p http.Protocols
				p.SetHTTP1(protocol == "http/1.1")
				p.SetHTTP2(protocol == "h2")
				transport := &http.Transport{Protocols: &p, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DialContext: func(context.Context, string, string) (net.Conn, error) { //nolint:gosec // not about trust
					ours, theirs := net.Pipe()
					l.conns <- addressed{theirs}
					return ours, nil
				}}
				for method, want := range map[string]string{http.MethodGet: strings.Repeat("e", events), http.MethodPost: ""} {
					req, err := http.NewRequestWithContext(t.Context(), method, "https://edge/", strings.NewReader("body"))
					if err != nil {
						t.Fatal(err)
					}
					began := time.Now()
					res, err := transport.RoundTrip(req)
					if err != nil {
						t.Fatalf("%s: %v", method, err)
					}
					text, err := io.ReadAll(res.Body)
					_ = res.Body.Close()
					if err != nil || string(text) != want || time.Since(began) < 3*idleDeadline || res.StatusCode != http.StatusOK || (res.ProtoMajor == 2) != (protocol == "h2") {
						t.Errorf("%s over %s: %d %q, %v after %v", method, res.Proto, res.StatusCode, text, err, time.Since(began))
					}
				}
				transport.CloseIdleConnections()
				_ = s.Close()
				<-done
			})
		})
	}
}
