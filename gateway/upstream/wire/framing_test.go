package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/bubble"
)

// framed is an answer and what it means.
type framed struct {
	name, method, answer, body string
	status                     int
	trailer                    http.Header
	open                       bool // it ends with the connection
}

func framings() []framed {
	return []framed{
		{name: "a length", method: "GET", answer: answer("the body"), body: "the body", status: 200},
		{name: "no body", method: "GET", answer: answer(""), status: 200},
		{name: "chunks", method: "GET", answer: chunkedHead + "4\r\nthe \r\n4;ext=1\r\nbody\r\n0\r\n\r\n", body: "the body", status: 200},
		{
			name: "chunks and a trailer", method: "GET", status: 200, body: "the body",
			answer:  "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: A, B\r\n\r\n8\r\nthe body\r\n0\r\nA: 1\r\nB: 2\r\n\r\n",
			trailer: http.Header{"A": {"1"}, "B": {"2"}},
		},
		{name: "to the end", method: "GET", answer: "HTTP/1.1 200 OK\r\n\r\nthe body", body: "the body", status: 200, open: true},
		{name: "204", method: "DELETE", answer: "HTTP/1.1 204 No Content\r\nA: b\r\n\r\n", status: 204},
		{name: "304", method: "GET", answer: "HTTP/1.1 304 Not Modified\r\nContent-Length: 8\r\n\r\n", status: 304},
		{name: "HEAD", method: "HEAD", answer: "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n", status: 200},
		{name: "HEAD of chunks", method: "HEAD", answer: chunkedHead, status: 200},
		{
			name: "behind interim ones", method: "GET", body: "the body", status: 404,
			answer: strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 3) + "HTTP/1.1 103 Early Hints\r\nLink: <a>\r\nContent-Length: 3\r\n\r\n" +
				"HTTP/1.1 404 Not Found\r\nContent-Length: 8\r\n\r\nthe body",
		},
	}
}

// An answer is read the same however its bytes are split.
func TestFramings(t *testing.T) {
	for _, tt := range framings() {
		t.Run(tt.name, func(t *testing.T) {
			each(t, func(t *testing.T, k kind) {
				var split int
				r := newRig(t, k, func(p *peer) {
					for p.request() != nil {
						p.say(tt.answer[:split], tt.answer[split:])
						if tt.open {
							return
						}
					}
				})
				for split = range tt.answer {
					o := r.run(r.exchange(), newRequest(t, tt.method, ""))
					o.want(t, tt.body)
					if o.err != nil {
						continue
					}
					if o.status != tt.status {
						t.Errorf("status %d, want %d", o.status, tt.status)
					}
					if diff := cmp.Diff(tt.trailer, o.trailer); diff != "" {
						t.Errorf("trailer (-want +got):\n%s", diff)
					}
				}
				if !tt.open {
					r.wantDialed(1)
				}
			})
		})
	}
}

// An answer that ends anywhere before its end is an error, never a shorter answer:
// for whoever reads a stream that would be lost data (design §8).
func TestAnswerCutShort(t *testing.T) {
	ends := map[string]func(*peer){
		"ended": func(*peer) {},
		"reset": (*peer).reset,
	}
	for name, end := range ends {
		for _, tt := range framings() {
			t.Run(name+"/"+tt.name, func(t *testing.T) {
				each(t, func(t *testing.T, k kind) {
					var length int
					r := newRig(t, k, func(p *peer) {
						p.request()
						if length > 0 {
							p.say(tt.answer[:length])
						}
						end(p)
					})
					head := strings.LastIndex(tt.answer, "\r\n\r\nthe body") + 4
					step := 1
					if k.secure {
						step = 11 // each has a handshake
					}
					for length = 0; length < len(tt.answer); length += step {
						o := r.run(r.exchange(), newRequest(t, tt.method, ""))
						whole := o.err == nil && o.readErr == nil
						// A body that ends with its connection cannot be told from a shorter
						// one, but for a reset.
						if whole && (!tt.open || length < head || name == "reset") {
							t.Errorf("%d bytes of it were a whole answer, %q", length, o.body)
						}
						if !strings.HasPrefix(tt.body, o.body) {
							t.Errorf("%d bytes of it were read as %q", length, o.body)
						}
						r.wantOpen(0)
					}
				})
			})
		}
	}
}

// sized is a head of exactly n bytes, for a body of 8.
func sized(n int) string {
	const head = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\nA: %s\r\n\r\n"
	return fmt.Sprintf(head, strings.Repeat("a", n-len(head)+len("%s")))
}

// MaxHead bounds the head and all that came before it, and nothing of the body.
func TestMaxHead(t *testing.T) {
	const limit = 9000 // more than a buffer
	interim := "HTTP/1.1 100 Continue\r\n\r\n"
	many := strings.Repeat(interim, 100)
	tests := []struct {
		name, answer string
		ok           bool
	}{
		{"at the bound", sized(limit) + "the body", true},
		{"one above", sized(limit+1) + "the body", false},
		{"interim ones, at the bound", many + sized(limit-len(many)) + "the body", true},
		{"interim ones, one above", many + sized(limit-len(many)+1) + "the body", false},
		{"interim ones without an end", strings.Repeat(interim, limit), false},
		{"a line without an end", strings.Repeat("x", 2*limit), false},
		{"a field without an end", "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", 2*limit), false},
		{"fields without an end", "HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", limit), false},
		{"a large body", strings.Replace(answer(strings.Repeat("x", 3*limit)), "OK", "Fine", 1), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			each(t, func(t *testing.T, k kind) {
				r := newRig(t, k, func(p *peer) {
					for p.request() != nil {
						p.say(tt.answer)
					}
				})
				r.MaxHead = limit
				for range 2 { // the bound of one head is not the next one's
					o := r.get()
					if tt.ok && (o.err != nil || o.readErr != nil) || !tt.ok && !errors.Is(o.err, ErrHeadTooLong) {
						t.Errorf("error %v, then %v", o.err, o.readErr)
					}
				}
			})
		})
	}
}

// Nobody asks a node to switch protocols; what follows would be read by nobody.
func TestSwitchedProtocols(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		r := newRig(t, k, serving("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"))
		if o := r.get(); !errors.Is(o.err, ErrSwitched) {
			t.Errorf("error %v", o.err)
		}
		r.next(2)
	})
}

// wrapped is a connection whose errors are wrapped, io.EOF too.
type wrapped struct{ *line }

func (w wrapped) Read(p []byte) (int, error) {
	n, err := w.line.Read(p)
	if err != nil {
		err = fmt.Errorf("wrapped: %w", err)
	}
	return n, err
}

// An end that a connection wraps is an error of the connection to net/http, and
// was a clean end to us: the connection was kept.
func TestWrappedEndIsNoCleanEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, kind{name: "no socket"}, func(p *peer) {
			p.request()
			p.say("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf")
			if l, ok := p.under.(*line); ok {
				l.endWriting()
			}
			p.stay()
		})
		dial := r.Dial
		r.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := dial(ctx, network, address)
			if l, ok := c.(*line); ok {
				return wrapped{l}, nil
			}
			return c, err
		}
		o := r.get()
		if o.err != nil || o.readErr == nil || o.readErr == io.EOF || o.body != "half" { //nolint:errorlint // exactly
			t.Errorf("got %q, error %v, then %v", o.body, o.err, o.readErr)
		}
		r.wantOpen(0)
	})
}
