package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sluice/internal/bubble"
)

const (
	refusal = "HTTP/1.1 413 Content Too Large\r\nContent-Length: 9\r\n\r\ntoo large"
	// unread is a body that no buffer between two programs holds.
	unread = 8 << 20
)

// refusing answers the first request as soon as its head is there, then does what
// then does, and answers all others whole.
func refusing(refusal string, then func(*peer)) func(*peer) {
	return func(p *peer) {
		if p.n == 1 {
			if p.head() {
				p.say(refusal)
				then(p)
			}
			return
		}
		for p.request() != nil {
			p.say(answer("next"))
		}
	}
}

// What a server does that has refused a body unread.
func afterRefusing() map[string]func(*peer) {
	return map[string]func(*peer){
		"closes":      func(p *peer) { _ = p.under.Close() },
		"resets":      (*peer).reset,
		"stays":       (*peer).stay,
		"half closes": func(p *peer) { halfClose(p); p.stay() },
		"reads some and closes": func(p *peer) {
			_, _ = io.CopyN(io.Discard, p.in, 1<<20)
			_ = p.under.Close()
		},
	}
}

func halfClose(p *peer) {
	switch c := p.under.(type) {
	case *line:
		c.endWriting()
	case *net.TCPConn:
		_ = c.CloseWrite()
	}
}

// http.Transport dropped the answer of a server that refuses a large body before
// its end: the client was told of a broken connection, not of the reason.
func TestAnswerBeforeTheBodyIsWritten(t *testing.T) {
	body := strings.Repeat("x", unread)
	kinds := append(inMemory(), overTCP()...)
	for name, then := range afterRefusing() {
		for _, k := range kinds {
			t.Run(name+"/"+k.name, func(t *testing.T) {
				once := func(t *testing.T) {
					r := newRig(t, k, refusing(refusal, then))
					x := r.exchange()
					written := make(chan struct{})
					x.Ended = func() { // after run's own counting, which it replaces
						select {
						case <-x.written:
						default:
							t.Error("the writer has not ended")
						}
						close(written)
						r.mu.Lock()
						defer r.mu.Unlock()
						r.ended[x]++
					}
					o := r.run(x, newRequest(t, http.MethodPost, body))
					o.want(t, "too large")
					if o.err == nil && o.status != http.StatusRequestEntityTooLarge {
						t.Errorf("status %d", o.status)
					}
					<-written
					r.next(2) // what was not written whole is not kept
				}
				if !k.real {
					bubble.Test(t, once)
					return
				}
				for range 10 {
					once(t)
				}
			})
		}
	}
}

// The server answers and goes on reading: nothing is lost, and a connection that
// is kept is one on which all of the request was written.
func TestAnswerBeforeTheBodyIsRead(t *testing.T) {
	body := strings.Repeat("x", unread)
	kinds := append(inMemory(), overTCP()...)
	for _, refusal := range []string{refusal, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n"} {
		for _, k := range kinds {
			t.Run(k.name, func(t *testing.T) {
				run := func(t *testing.T) {
					var whole atomic.Bool
					r := newRig(t, k, refusing(refusal, func(p *peer) {
						n, _ := io.CopyN(io.Discard, p.in, unread)
						whole.Store(n == unread)
						if p.request() != nil {
							p.say(answer("next"))
						}
						p.stay()
					}))
					o := r.run(r.exchange(), newRequest(t, http.MethodPost, body))
					if o.err != nil || o.readErr != nil || o.status != http.StatusRequestEntityTooLarge {
						t.Fatal(o.err, o.readErr)
					}
					r.get().want(t, "next")
					if r.dialed.Load() == 1 && !whole.Load() {
						t.Error("a connection was kept whose request was cut short")
					}
					if !k.real {
						r.wantDialed(1) // its reader is as fast as our writer
					}
				}
				if k.real {
					run(t)
				} else {
					bubble.Test(t, run)
				}
			})
		}
	}
}

// A body without a length is written beside the reading too, however short its
// head is: written first, its server's refusal was read when it had left.
func TestAnswerBeforeABodyWithoutALength(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		r := newRig(t, k, refusing(refusal, (*peer).stay))
		req := newRequest(t, http.MethodPost, strings.Repeat("x", tooLarge))
		req.ContentLength = -1
		r.run(r.exchange(), req).want(t, "too large")
		r.next(2)
	})
}

// A connection that holds nothing takes no request before its server reads, so
// that even a small one is written beside the reading.
func TestAnswerOverAConnectionWithoutBuffers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		served := make(chan struct{})
		go func() {
			defer close(served)
			_, _ = io.WriteString(far, refusal)
		}()
		r := newRig(t, plain(), (*peer).stay)
		r.Dial = func(context.Context, string, string) (net.Conn, error) { return near, nil }
		r.run(r.exchange(), newRequest(t, http.MethodPost, "body")).want(t, "too large")
		<-served
	})
}

// A request that the kernel took whole, but the server never read, leaves a
// connection that is kept and full. The next request waited on it for ever, since
// a small one was written without a bound.
func TestKeptConnectionThatIsFull(t *testing.T) {
	for _, k := range inMemory() {
		t.Run(k.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := newRig(t, k, func(p *peer) {
					if p.n == 1 {
						if l, ok := p.under.(*line); ok {
							l.in.mark(func(f *flow) { f.room = unread + 1<<20 })
						}
					}
					refusing(refusal, (*peer).stay)(p)
				})
				r.run(r.exchange(), newRequest(t, http.MethodPost, strings.Repeat("x", unread))).want(t, "too large")
				r.wantOpen(1)
				r.mu.Lock()
				near := r.lines[0]
				r.mu.Unlock()
				near.out.mark(func(f *flow) { f.room = f.size + 10 })
				began := time.Now()
				o := r.get()
				if !errors.Is(o.err, ErrHeadTimeout) {
					t.Errorf("error %v", o.err)
				}
				if took := time.Since(began).Round(time.Millisecond); took != o.x.Head {
					t.Errorf("took %s, want %s", took, o.x.Head)
				}
				r.next(2)
			})
		})
	}
}
