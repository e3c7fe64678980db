package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"sluice/internal/bubble"
)

// timed runs f and tells how long it took, less what a look at a connection takes.
func timed(f func()) time.Duration {
	began := time.Now()
	f()
	return time.Since(began).Round(time.Millisecond)
}

func wantTook(t testing.TB, got, want time.Duration) {
	t.Helper()
	if got != want {
		t.Errorf("took %s, want %s", got, want)
	}
}

// Connect bounds the dial and the handshake together, and its end is a timeout.
func TestConnectTimeout(t *testing.T) {
	tests := []struct {
		name string
		dial func(r *rig) DialFunc
	}{
		{"dial", func(*rig) DialFunc {
			return func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
		}},
		{"a dialer with a clock of its own", func(*rig) DialFunc {
			return func(context.Context, string, string) (net.Conn, error) {
				time.Sleep(5 * time.Second)
				return nil, &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
			}
		}},
		{"dial and handshake", func(r *rig) DialFunc {
			r.server, r.TLS = certificate(r.t)
			return func(ctx context.Context, network, address string) (net.Conn, error) {
				time.Sleep(3 * time.Second)
				return r.dial(ctx, network, address)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := newRig(t, plain(), (*peer).stay)
				r.Dial = tt.dial(r)
				x := r.exchange()
				var o outcome
				wantTook(t, timed(func() { o = r.run(x, newRequest(t, http.MethodGet, "")) }), x.Connect)
				var timeout net.Error
				if !errors.As(o.err, &timeout) || !timeout.Timeout() || errors.Is(o.err, ErrHeadTimeout) || x.Connected() {
					t.Errorf("error %v, connected %t", o.err, x.Connected())
				}
				r.wantOpen(0)
			})
		})
	}
}

// The head's time begins when the connection stands, whatever connecting took;
// interim answers do not begin it anew, nor does a head that comes in drops.
func TestHeadTimeout(t *testing.T) {
	drip := func(part string) func(*peer) {
		return func(p *peer) {
			p.request()
			for range 20 {
				p.say(part)
				time.Sleep(time.Second)
			}
		}
	}
	tests := []struct {
		name  string
		body  int
		serve func(*peer)
	}{
		{"nothing", 1, func(p *peer) { p.request(); p.stay() }},
		{"interim answers", 1, drip("HTTP/1.1 102 Processing\r\n\r\n")},
		{"a head in drops", 1, drip("HT")},
		{"fields in drops", 1, func(p *peer) {
			p.request()
			p.say("HTTP/1.1 200 OK\r\n")
			for range 20 {
				p.say("A: b\r\n")
				time.Sleep(time.Second)
			}
		}},
		{"a small request that nobody reads", 1, func(p *peer) { p.head(); p.stay() }},
		{"a request that nobody reads", tooLarge, func(p *peer) { p.head(); p.stay() }},
		{"a request that is read in drops", tooLarge, func(p *peer) {
			for {
				if _, err := io.CopyN(io.Discard, p.in, 1000); err != nil {
					return
				}
				time.Sleep(time.Second / 4)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			each(t, func(t *testing.T, k kind) {
				r := newRig(t, k, tt.serve)
				r.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
					time.Sleep(2 * time.Second)
					return r.dial(ctx, network, address)
				}
				x := r.exchange()
				var o outcome
				took := timed(func() { o = r.run(x, newRequest(t, http.MethodPost, strings.Repeat("x", tt.body))) })
				wantTook(t, took, 2*time.Second+x.Head)
				if !errors.Is(o.err, ErrHeadTimeout) || !x.Connected() || !x.Wrote() || x.Unanswered() {
					t.Errorf("error %v, connected %t, wrote %t, unanswered %t", o.err, x.Connected(), x.Wrote(), x.Unanswered())
				}
				r.wantOpen(0)
			})
		})
	}
}

// Time that ran out on a kept connection is nothing that the server has ended: a
// request must not be sent again because of it.
func TestHeadTimeoutOnKeptConnection(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		r := newRig(t, k, func(p *peer) {
			p.request()
			p.say(answer("next"))
			p.request()
			p.stay()
		})
		r.get().want(t, "next")
		var o outcome
		wantTook(t, timed(func() { o = r.get() }), 5*time.Second)
		if !errors.Is(o.err, ErrHeadTimeout) || !o.x.Wrote() || o.x.Unanswered() {
			t.Errorf("error %v, wrote %t, unanswered %t", o.err, o.x.Wrote(), o.x.Unanswered())
		}
		r.wantDialed(1)
	})
}

// A body may take as long as it likes, whatever bounds its head had, and so may
// the next one on that connection: a deadline that was left cut them.
func TestNoDeadlineIsLeft(t *testing.T) {
	ways := map[string]string{"chunks": chunkedHead, "a length": "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n"}
	sizes := map[string]int{"small": 1, "large": 1 << 20}
	for way, head := range ways {
		for size, n := range sizes {
			t.Run(way+"/"+size, func(t *testing.T) {
				each(t, func(t *testing.T, k kind) {
					r := newRig(t, k, func(p *peer) {
						for p.request() != nil {
							p.say(head)
							for range 4 {
								time.Sleep(time.Minute / 4)
								if head == chunkedHead {
									p.say("5\r\nhello\r\n")
								} else {
									p.say("hello")
								}
							}
							if head == chunkedHead {
								p.say("0\r\n\r\n")
							}
						}
					})
					for range 2 {
						r.run(r.exchange(), newRequest(t, http.MethodPost, strings.Repeat("x", n))).want(t, "hellohellohellohello")
						time.Sleep(r.Idle / 2)
					}
					r.wantDialed(1)
				})
			})
		}
	}
}

// Of a body that goes on both directions are free once the request is written:
// TLS answers what its peer asks of it while it reads. Only Idle bounds reading.
func TestNoDeadlineInTheBody(t *testing.T) {
	for _, early := range []bool{false, true} { // before the request was written
		for _, size := range []int{1, 1 << 20} {
			t.Run(fmt.Sprintf("early %t, size %d", early, size), func(t *testing.T) {
				each(t, func(t *testing.T, k kind) {
					noDeadlineInTheBody(t, k, early, size)
				})
			})
		}
	}
}

func noDeadlineInTheBody(t *testing.T, k kind, early bool, size int) {
	t.Helper()
	for _, watched := range []bool{false, true} {
		ask := make(chan struct{})
		r := newRig(t, k, func(p *peer) {
			if early {
				p.head()
			} else {
				p.request()
			}
			p.say(chunkedHead, "4\r\nhalf\r\n")
			<-ask
			if early {
				_, _ = io.CopyN(io.Discard, p.in, int64(size))
			}
			p.say("4\r\nmore\r\n")
			p.stay()
		})
		x := r.exchange()
		if watched {
			x.Idle, x.IdleAfter = func() error { return nil }, time.Second
		}
		res, err := x.Do(t.Context(), r.Conns, newRequest(t, http.MethodPost, strings.Repeat("x", size)))
		if err != nil {
			t.Fatal(err)
		}
		close(ask)
		if _, err := io.ReadFull(res.Body, make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond) // the writer is told
		r.mu.Lock()
		read, write := r.lines[0].deadlines()
		r.mu.Unlock()
		if read.IsZero() == watched || !write.IsZero() {
			t.Errorf("reading is bound by %v, writing by %v", read, write)
		}
		_ = res.Body.Close()
	}
}

// Half a request is answered soon or never: the answer of a server that has
// refused the rest has come by then. The wait never goes beyond the head's own.
func TestAnswerToHalfARequest(t *testing.T) {
	tests := []struct {
		name   string
		breaks time.Duration // when writing begins to fail, after the connection
		comes  time.Duration // when the answer does, after that; negative = never
		took   time.Duration
		ok     bool
	}{
		{"the answer is there", time.Second, 0, time.Second, true},
		{"it comes soon", time.Second, graceAfterWriteError - time.Millisecond, 2*time.Second - time.Millisecond, true},
		{"it comes late", time.Second, graceAfterWriteError + time.Millisecond, 2 * time.Second, false},
		{"it never comes", time.Second, -1, 2 * time.Second, false},
		{"near the head's own end", 4500 * time.Millisecond, -1, 5 * time.Second, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			each(t, func(t *testing.T, k kind) {
				r := newRig(t, k, func(p *peer) {
					if !p.head() {
						return
					}
					l, ok := p.under.(*line)
					if !ok {
						return
					}
					time.Sleep(tt.breaks)
					l.in.mark(func(f *flow) { f.broken = true })
					if tt.comes >= 0 {
						time.Sleep(tt.comes)
						p.say(refusal)
					}
					p.stay()
				})
				var o outcome
				took := timed(func() { o = r.run(r.exchange(), newRequest(t, http.MethodPost, strings.Repeat("x", tooLarge))) })
				wantTook(t, took, tt.took)
				if tt.ok {
					o.want(t, "too large")
				} else if o.err == nil || errors.Is(o.err, ErrHeadTimeout) || !o.x.Wrote() {
					t.Errorf("error %v, wrote %t; want what broke the writing", o.err, o.x.Wrote())
				}
				r.wantOpen(0)
			})
		})
	}
}

// The answer of a server that refuses a body goes on as it likes when it has ended
// the reading of it: only a head is waited for in haste.
func TestAnswerThatGoesOnWhenWritingBreaks(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		r := newRig(t, k, func(p *peer) {
			p.head()
			p.say("HTTP/1.1 413 Content Too Large\r\nContent-Length: 9\r\n\r\ntoo ")
			time.Sleep(time.Second)
			if l, ok := p.under.(*line); ok {
				l.in.mark(func(f *flow) { f.broken = true })
			}
			time.Sleep(10 * time.Second)
			p.say("large")
		})
		r.run(r.exchange(), newRequest(t, http.MethodPost, strings.Repeat("x", tooLarge))).want(t, "too large")
		r.wantOpen(0)
	})
}

// A writer that runs out of time together with its reader must not lend it a
// moment more: the two met at random.
func TestBlockedWriteEndsWithTheHead(t *testing.T) {
	for range 50 {
		each(t, func(t *testing.T, k kind) {
			r := newRig(t, k, func(p *peer) { p.head(); p.stay() })
			x := r.exchange()
			x.Head = 500 * time.Millisecond // less than the grace
			var o outcome
			wantTook(t, timed(func() { o = r.run(x, newRequest(t, http.MethodPost, strings.Repeat("x", tooLarge))) }), x.Head)
			if !errors.Is(o.err, ErrHeadTimeout) {
				t.Error(o.err)
			}
		})
	}
}
