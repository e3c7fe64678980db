package wire

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// ready is a connection in memory whose server costs nothing: when the end of a
// request is written, its answer can be read.
type ready struct {
	*line
	states  [2]syscall.RawConn
	size    int // of a request
	answer  []byte
	pending int
}

// Write implements net.Conn.
func (r *ready) Write(p []byte) (int, error) {
	for r.pending += len(p); r.pending >= r.size; r.pending -= r.size {
		r.in.mark(func(f *flow) {
			f.segments = append(f.segments, r.answer)
			f.size += len(r.answer)
		})
	}
	return len(p), nil
}

// SyscallConn implements syscall.Conn.
func (r *ready) SyscallConn() (syscall.RawConn, error) {
	return rawSocket{&socket{line: r.line, quiet: r.states[0], loud: r.states[1]}}, nil
}

// Its deadlines cost nothing either: those of a socket are the runtime's.
func (r *ready) SetDeadline(time.Time) error      { return nil }
func (r *ready) SetReadDeadline(time.Time) error  { return nil }
func (r *ready) SetWriteDeadline(time.Time) error { return nil }

const benchTarget = "http://node.test/bucket/stream?offset=-1"

func benchRequest(b *testing.B, body int) *http.Request {
	b.Helper()
	method, in := http.MethodGet, io.Reader(nil)
	if body > 0 {
		method, in = http.MethodPost, strings.NewReader(strings.Repeat("x", body))
	}
	req, err := http.NewRequestWithContext(context.Background(), method, benchTarget, in)
	if err != nil {
		b.Fatal(err)
	}
	req.Header.Set("Content-Type", "text/plain")
	return req
}

// benchDial opens connections to a server that answers every request with body
// bytes: in memory for nothing, over TCP by one goroutine.
func benchDial(b *testing.B, overTCP bool, sent, body int) DialFunc {
	b.Helper()
	answer := []byte(answer(strings.Repeat("y", body)))
	size := requestSize(b, sent)
	if !overTCP {
		quiet, loud := states(b)
		return func(context.Context, string, string) (net.Conn, error) {
			near, _ := newLine()
			return &ready{line: near, states: [2]syscall.RawConn{quiet, loud}, size: size, answer: answer}, nil
		}
	}
	listen, err := (&net.ListenConfig{}).Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = listen.Close() })
	go func() {
		for {
			c, err := listen.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				for in := make([]byte, size); ; {
					if _, err := io.ReadFull(c, in); err != nil {
						return
					}
					if _, err := c.Write(answer); err != nil {
						return
					}
				}
			}()
		}
	}()
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", listen.Addr().String())
	}
}

// requestSize is how many bytes the benchmark's request takes.
func requestSize(b *testing.B, sent int) int {
	b.Helper()
	var out strings.Builder
	if err := benchRequest(b, sent).Write(&out); err != nil {
		b.Fatal(err)
	}
	return out.Len()
}

// BenchmarkExchange is one exchange on a kept connection, its answer read to the
// end: the way of a proxied small read, and of a body that no kernel takes at once.
// Target: fewer allocations and less time than http.Transport, in each of them.
func BenchmarkExchange(b *testing.B) {
	for _, place := range []string{"memory", "TCP"} {
		for _, size := range []struct{ sent, body int }{{0, 100}, {100, 0}, {64 << 10, 100}, {0, 64 << 10}} {
			name := place + "/" + strconv.Itoa(size.sent) + " up " + strconv.Itoa(size.body) + " down/"
			b.Run(name+"wire", func(b *testing.B) {
				conns := New(Options{
					Address: "node.test:80", Dial: benchDial(b, place == "TCP", size.sent, size.body),
					Idle: time.Minute, MaxIdle: 4, MaxHead: 64 << 10,
				})
				defer conns.Close()
				measure(b, size.sent, func(req *http.Request) (*http.Response, error) {
					x := &Exchange{Connect: time.Minute, Head: time.Minute}
					return x.Do(context.Background(), conns, req)
				})
			})
			b.Run(name+"transport", func(b *testing.B) {
				transport := &http.Transport{
					DialContext: benchDial(b, place == "TCP", size.sent, size.body), DisableCompression: true,
					IdleConnTimeout: time.Minute, ResponseHeaderTimeout: time.Minute, MaxResponseHeaderBytes: 64 << 10,
				}
				defer transport.CloseIdleConnections()
				measure(b, size.sent, transport.RoundTrip)
			})
		}
	}
}

// measure makes exchanges one after the other.
func measure(b *testing.B, sent int, do func(*http.Request) (*http.Response, error)) {
	b.Helper()
	text := strings.Repeat("x", sent)
	buffer := make([]byte, 32<<10)
	req := benchRequest(b, sent)
	b.ReportAllocs()
	for b.Loop() {
		if sent > 0 {
			req.Body = io.NopCloser(strings.NewReader(text))
		}
		res, err := do(req)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, res.Body, buffer); err != nil {
			b.Fatal(err)
		}
		_ = res.Body.Close()
	}
}
