package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"sluice/internal/bubble"
)

var (
	errCut   = errors.New("cut")
	errAgain = errors.New("cut again")
)

// cutPoint is where in an exchange a Cut meets it.
type cutPoint struct {
	name      string
	method    string
	body      string
	serve     func(*peer)
	connected bool // the exchange had a connection
	head      bool // it had an answer
}

func cutPoints() []cutPoint {
	large := strings.Repeat("x", tooLarge)
	says := func(parts ...string) func(*peer) {
		return func(p *peer) {
			p.request()
			p.say(parts...)
			p.stay()
		}
	}
	return []cutPoint{
		{"no answer", "GET", "", says(), true, false},
		{"half a head", "GET", "", says("HTTP/1.1 200 OK\r\nContent-"), true, false},
		{"behind an interim answer", "GET", "", says("HTTP/1.1 100 Continue\r\n\r\n"), true, false},
		{"while the body is written", "POST", large, func(p *peer) { p.head(); p.stay() }, true, false},
		{"in the body", "GET", "", says("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"), true, true},
		{"in chunks", "GET", "", says(chunkedHead + "4\r\nhalf\r\n"), true, true},
		{"before the last chunk's end", "GET", "", says(chunkedHead + "4\r\nhalf\r\n0\r\n"), true, true},
		{"in a body without a length", "GET", "", says("HTTP/1.1 200 OK\r\n\r\nhalf"), true, true},
		{"in the body, while ours is written", "POST", large, func(p *peer) {
			p.head()
			p.say("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
			p.stay()
		}, true, true},
		// The answer is whole, and waits a moment for the writer.
		{"behind an empty answer, while ours is written", "POST", large, func(p *peer) {
			p.head()
			p.say(answer(""))
			p.stay()
		}, true, false},
		{"behind an answer, while ours is written", "POST", large, func(p *peer) {
			p.head()
			p.say(answer("half"))
			p.stay()
		}, true, true},
	}
}

// Whatever an exchange waits for, a Cut ends it with its cause, at once, and
// nothing of it is left.
func TestCut(t *testing.T) {
	for _, tt := range cutPoints() {
		t.Run(tt.name, func(t *testing.T) {
			each(t, func(t *testing.T, k kind) {
				for _, kept := range []bool{false, true} {
					warm := kept
					r := newRig(t, k, func(p *peer) {
						if warm && p.n == 1 {
							p.request()
							p.say(answer("next"))
						}
						tt.serve(p)
					})
					if kept {
						r.get().want(t, "next")
					}
					cutOnce(t, r, tt)
				}
			})
		})
	}
}

// cutOnce makes an exchange and cuts it when nothing moves any more.
func cutOnce(t *testing.T, r *rig, tt cutPoint) {
	t.Helper()
	x := r.exchange()
	done := make(chan outcome, 1)
	go func() { done <- r.run(x, newRequest(t, tt.method, tt.body)) }()
	time.Sleep(20 * glance) // what cannot be asked is looked at for so long
	bubble.Wait()
	began := time.Now()
	x.Cut(errCut)
	x.Cut(errAgain) // the first counts
	o := <-done
	got := o.err
	if tt.head {
		got = o.readErr
		if o.err != nil || o.body != "half" {
			t.Errorf("got %q, error %v", o.body, o.err)
		}
	}
	if got != errCut { //nolint:errorlint // the very cause
		t.Errorf("error %v, want the cause", got)
	}
	if x.Connected() != tt.connected || x.Unanswered() {
		t.Errorf("connected %t, unanswered %t", x.Connected(), x.Unanswered())
	}
	if took := time.Since(began); took != 0 {
		t.Errorf("it took %s", took)
	}
	r.wantOpen(0)
}

// An exchange that was cut before it began sends nothing.
func TestCutBeforeDo(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		for _, kept := range []bool{false, true} {
			r := newRig(t, k, serving(answer("next")))
			if kept {
				r.get().want(t, "next")
			}
			x := r.exchange()
			x.Cut(errCut)
			o := r.run(x, newRequest(t, http.MethodPost, "body"))
			if o.err != errCut || x.Wrote() || x.Connected() || x.Unanswered() { //nolint:errorlint // the very cause
				t.Errorf("error %v, wrote %t, connected %t", o.err, x.Wrote(), x.Connected())
			}
			r.wantOpen(0)
			if kept {
				r.wantDialed(1)
			} else {
				r.wantDialed(0)
			}
		}
	})
}

// A Cut ends the wait for a connection, and the handshake on one.
func TestCutWhileConnecting(t *testing.T) {
	tests := []struct {
		name string
		dial func(r *rig, release chan struct{}) DialFunc
	}{
		{"dialing", func(*rig, chan struct{}) DialFunc {
			return func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
		}},
		// The connection is there after all: it must not be left open.
		{"dialing, by one that does not listen", func(r *rig, release chan struct{}) DialFunc {
			return func(_ context.Context, network, address string) (net.Conn, error) {
				<-release
				return r.dial(context.WithoutCancel(r.t.Context()), network, address)
			}
		}},
		{"the handshake", func(r *rig, _ chan struct{}) DialFunc {
			r.server, r.TLS = certificate(r.t)
			return r.dial
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := newRig(t, plain(), (*peer).stay)
				release := make(chan struct{})
				r.Dial = tt.dial(r, release)
				x := r.exchange()
				done := make(chan outcome, 1)
				go func() { done <- r.run(x, newRequest(t, http.MethodGet, "")) }()
				bubble.Wait()
				began := time.Now()
				x.Cut(errCut)
				close(release)
				o := <-done
				wantTook(t, time.Since(began), 0)
				if o.err != errCut || x.Connected() || x.Wrote() { //nolint:errorlint // the very cause
					t.Errorf("error %v, connected %t, wrote %t", o.err, x.Connected(), x.Wrote())
				}
				r.wantOpen(0)
			})
		})
	}
}

// The end of Do's context ends a dial, and nothing that comes after it.
func TestContext(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, plain(), func(p *peer) {
			p.request()
			time.Sleep(time.Second)
			p.say(answer("next"))
		})
		ctx, cancel := context.WithCancel(t.Context())
		x := r.exchange()
		time.AfterFunc(time.Second/2, cancel)
		res, err := x.Do(ctx, r.Conns, newRequest(t, http.MethodGet, ""))
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(res.Body); string(body) != "next" || err != nil {
			t.Errorf("got %q, error %v", body, err)
		}
		_ = res.Body.Close()
		x = r.exchange()
		x.Fresh = true
		r.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		if res, err = x.Do(ctx, r.Conns, newRequest(t, http.MethodGet, "")); err == nil {
			_ = res.Body.Close()
		}
		if !errors.Is(err, context.Canceled) || x.Connected() {
			t.Errorf("error %v, connected %t", err, x.Connected())
		}
	})
}

// A Cut after the end does nothing, above all not to the next exchange of that
// connection.
func TestCutAfterTheEnd(t *testing.T) {
	for _, first := range []string{answer("next"), answer(""), "HTTP/1.1 204 No Content\r\n\r\n"} {
		each(t, func(t *testing.T, k kind) {
			r := newRig(t, k, serving(first))
			o := r.get()
			if o.err != nil || o.readErr != nil {
				t.Fatal(o.err, o.readErr)
			}
			x := r.exchange()
			res, err := x.Do(t.Context(), r.Conns, newRequest(t, http.MethodGet, ""))
			if err != nil {
				t.Fatal(err)
			}
			o.x.Cut(errCut)
			body, err := io.ReadAll(res.Body)
			if string(body) != "next" || err != nil {
				t.Errorf("got %q, error %v", body, err)
			}
			_ = res.Body.Close()
			o.x.Cut(errCut)
			r.next(1)
		})
	}
}

// A Cut that comes when the whole answer is here, but nobody has read its end,
// is a Cut all the same: the reader is told, and the connection is closed.
func TestCutBeforeTheEndIsRead(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		r := newRig(t, k, serving(answer("mine")))
		x := r.exchange()
		res, err := x.Do(t.Context(), r.Conns, newRequest(t, http.MethodGet, ""))
		if err != nil {
			t.Fatal(err)
		}
		x.Cut(errCut)
		if _, err := io.ReadAll(res.Body); err != errCut { //nolint:errorlint // the very cause
			t.Errorf("error %v, want the cause", err)
		}
		_ = res.Body.Close()
		if n := r.endings(x); n != 1 {
			t.Errorf("ended %d times", n)
		}
		r.wantOpen(0)
		if r.pop(time.Now()) != nil {
			t.Error("the closed connection is kept")
		}
	})
}
