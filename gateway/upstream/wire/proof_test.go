package wire

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/bubble"
)

// proof is what an exchange that failed tells of what may have reached the server.
type proof struct{ Connected, Wrote, Unanswered bool }

func proofOf(x *Exchange) proof { return proof{x.Connected(), x.Wrote(), x.Unanswered()} }

// death is how a connection dies under a request.
type death struct {
	name   string
	large  bool                  // only a request that takes many writes can die so
	serve  func(*peer)           // what the server does with it
	near   func(near, far *line) // what happens to it before; nil = nothing
	wrote  bool
	part   bool // less than a record of TLS has left: nobody can read it, so it is nothing
	heard  bool // a byte of an answer has come, or our own time was over
	reason error
}

func deaths() []death {
	waits := func(p *peer) { p.request(); p.stay() }
	says := func(part string) func(*peer) { return func(p *peer) { p.request(); p.say(part) } }
	lives := func(n int) func(near, _ *line) {
		return func(near, _ *line) { near.out.mark(func(f *flow) { f.lives = n }) }
	}
	return []death{
		// Between the look at it and the first byte.
		{name: "dead before the request", serve: waits, near: func(near, _ *line) { near.before = near.reset }, reason: syscall.EPIPE},
		// The kernel takes what the server's will refuse: nobody can know.
		{name: "left before the request", serve: waits, near: func(near, far *line) { near.before = func() { _ = far.Close() } }, wrote: true},
		{name: "dead after the first byte", serve: waits, near: lives(1), wrote: true, part: true},
		{name: "dead in the head", serve: waits, near: lives(40), wrote: true, part: true},
		{name: "dead in the body", large: true, serve: waits, near: lives(200_000), wrote: true},
		// What the kernel has of a write that waits nobody knows until it returns.
		{name: "ended while the first write waits", large: true, serve: (*peer).stay, near: func(near, far *line) {
			near.out.mark(func(f *flow) { f.room = 100 })
			near.before = far.endWriting
		}, wrote: true, part: true},
		{name: "ended after the request", serve: func(p *peer) { p.request() }, wrote: true},
		{name: "reset after the request", serve: func(p *peer) { p.request(); p.reset() }, wrote: true},
		{name: "ended after a byte", serve: says("H"), wrote: true, heard: true},
		{name: "reset after a byte", serve: func(p *peer) { p.request(); p.say("H"); p.reset() }, wrote: true, heard: true, reason: syscall.ECONNRESET},
		{name: "ended after a 1xx", serve: says("HTTP/1.1 100 Continue\r\n\r\n"), wrote: true, heard: true},
		{name: "ended in the head", serve: says("HTTP/1.1 200 OK\r\nA: b\r\n"), wrote: true, heard: true},
		{name: "no HTTP", serve: says("SSH-2.0-x\r\n"), wrote: true, heard: true},
		{name: "switched", serve: says("HTTP/1.1 101 Switching Protocols\r\n\r\n"), wrote: true, heard: true, reason: ErrSwitched},
		{name: "silent", serve: waits, wrote: true, heard: true, reason: ErrHeadTimeout},
	}
}

// What an exchange says of its end is what it proves: with a word too much a
// request is sent twice (U03), with one too few it is lost (U01).
func TestWhatADeathProves(t *testing.T) {
	for _, tt := range deaths() {
		t.Run(tt.name, func(t *testing.T) {
			each(t, func(t *testing.T, k kind) {
				for _, size := range []int{1, tooLarge} {
					if !tt.large || size == tooLarge {
						die(t, k, tt, size, true)
						if !k.secure || tt.near == nil { // a handshake would be in its way
							die(t, k, tt, size, false)
						}
					}
				}
			})
		})
	}
}

func die(t *testing.T, k kind, tt death, size int, kept bool) {
	t.Helper()
	r := newRig(t, k, func(p *peer) {
		if kept {
			p.request()
			p.say(answer("next"))
		}
		tt.serve(p)
	})
	meet := func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if far, ok := r.peers[0].under.(*line); ok && tt.near != nil {
			tt.near(r.lines[0], far)
		}
	}
	if kept {
		r.get().want(t, "next")
		meet()
	} else {
		r.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			defer meet()
			return r.dial(ctx, network, address)
		}
	}
	var o outcome
	took := timed(func() { o = r.run(r.exchange(), newRequest(t, http.MethodPost, strings.Repeat("x", size))) })
	if o.err == nil {
		t.Fatal("it was answered")
	}
	if want := map[bool]time.Duration{true: o.x.Head}[errors.Is(tt.reason, ErrHeadTimeout)]; took != want {
		t.Errorf("size %d, kept %t: it took %s, want %s", size, kept, took, want)
	}
	want := proof{Connected: true, Wrote: tt.wrote && (!tt.part || !k.secure), Unanswered: kept && !tt.heard}
	if diff := cmp.Diff(want, proofOf(o.x)); diff != "" {
		t.Errorf("size %d, kept %t (-want +got):\n%s\n%v", size, kept, diff, o.err)
	}
	if tt.reason != nil && !errors.Is(o.err, tt.reason) {
		t.Errorf("size %d, kept %t: error %v, want %v", size, kept, o.err, tt.reason)
	}
	if tt.reason != ErrHeadTimeout && errors.Is(o.err, ErrHeadTimeout) || errors.Is(o.err, ErrRequest) { //nolint:errorlint // of the table
		t.Errorf("size %d, kept %t: error %v", size, kept, o.err)
	}
	r.wantDialed(1)
	r.wantOpen(0)
}

// A connection that does not come about proves that nothing was sent.
func TestWhatARefusalProves(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		r := newRig(t, k, func(p *peer) { _ = p.under.Close() })
		if !k.secure {
			r.Dial = func(context.Context, string, string) (net.Conn, error) {
				return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
			}
		}
		o := r.run(r.exchange(), newRequest(t, http.MethodPost, "body"))
		if !k.secure && !errors.Is(o.err, syscall.ECONNREFUSED) || o.err == nil {
			t.Errorf("error %v", o.err)
		}
		if got := proofOf(o.x); got != (proof{}) {
			t.Errorf("%+v, want nothing", got)
		}
	})
}

// Of an exchange that failed the proof stays what it was, whoever has used the
// connection's place since: it was read off the connection, which went on.
func TestProofStays(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, plain(), func(p *peer) {
			if p.n == 1 {
				p.request()
				return
			}
			replying(p)
		})
		o := r.run(r.exchange(), newRequest(t, http.MethodPost, "body"))
		before := proofOf(o.x)
		r.get().want(t, "next")
		o.x.Cut(errCut)
		if diff := cmp.Diff(before, proofOf(o.x)); diff != "" || !before.Wrote {
			t.Errorf("it changed (-before +after):\n%s", diff)
		}
	})
}
