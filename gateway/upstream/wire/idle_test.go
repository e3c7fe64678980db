package wire

import (
	"context"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"sluice/internal/bubble"
)

// hold has n exchanges hold a connection each, and ends them all.
func (r *rig) hold(n int) {
	r.t.Helper()
	bodies := make([]*http.Response, n)
	for i := range bodies {
		var err error
		bodies[i], err = r.exchange().Do(context.Background(), r.Conns, newRequest(r.t, http.MethodGet, "")) //nolint:bodyclose // below, all of them
		if err != nil {
			r.t.Fatal(err)
		}
	}
	for _, res := range bodies {
		if body, err := io.ReadAll(res.Body); string(body) != "next" || err != nil {
			r.t.Errorf("got %q, error %v", body, err)
		}
		_ = res.Body.Close()
	}
}

func replying(p *peer) {
	for p.request() != nil {
		p.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nnext\r\n", "0\r\n\r\n")
	}
}

func (r *rig) wantOpen(n int) {
	r.t.Helper()
	if got := r.open(); got != n {
		r.t.Errorf("%d connections are open, want %d", got, n)
	}
}

// A connection is used until it has been idle for Idle, and not after.
func TestIdle(t *testing.T) {
	tests := []struct {
		rest   time.Duration
		dialed int
	}{
		{0, 1},
		{time.Minute - time.Millisecond, 1},
		{time.Minute, 2},
		{time.Hour, 2},
	}
	for _, tt := range tests {
		t.Run(tt.rest.String(), func(t *testing.T) {
			each(t, func(t *testing.T, k kind) {
				r := newRig(t, k, replying)
				r.get().want(t, "next")
				time.Sleep(tt.rest)
				r.get().want(t, "next")
				r.wantDialed(tt.dialed)
			})
		})
	}
}

// Of connections that rest no more than MaxIdle are kept, the last one used is the
// next one to be used, and Reap closes those that are too old and no others.
func TestMaxIdleAndReap(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, plain(), replying)
		r.hold(r.MaxIdle + 3)
		r.wantDialed(r.MaxIdle + 3)
		r.wantOpen(r.MaxIdle)

		time.Sleep(r.Idle / 2)
		r.get().want(t, "next") // makes one of them young
		r.Reap()
		r.wantOpen(r.MaxIdle)

		time.Sleep(r.Idle / 2)
		r.Reap()
		r.wantOpen(1)
		r.get().want(t, "next")
		r.wantDialed(r.MaxIdle + 3)

		time.Sleep(r.Idle)
		r.Reap()
		r.wantOpen(0)
		r.Reap()
		r.get().want(t, "next")
		r.wantDialed(r.MaxIdle + 4)
	})
}

// CloseIdle closes what rests, and nothing of what carries a request; Close keeps
// nothing from then on.
func TestCloseIdleAndClose(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		ask := make(chan struct{})
		r := newRig(t, k, func(p *peer) {
			for p.request() != nil {
				<-ask
				p.say(answer("next"))
			}
		})
		under := func(meanwhile func()) {
			t.Helper()
			var wait sync.WaitGroup
			wait.Go(func() { r.get().want(t, "next") })
			bubble.Wait()
			meanwhile()
			ask <- struct{}{}
			wait.Wait()
		}
		under(r.CloseIdle)
		r.wantOpen(1) // it went on, and rests
		r.CloseIdle()
		r.wantOpen(0)
		under(r.Close)
		r.wantOpen(0)
		under(func() {}) // exchanges still go well
		r.wantOpen(0)
		r.wantDialed(3)
	})
}

// Fresh takes no kept connection, and leaves it where it is.
func TestFresh(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, plain(), replying)
		r.get().want(t, "next")
		x := r.exchange()
		x.Fresh = true
		r.run(x, newRequest(t, http.MethodGet, "")).want(t, "next")
		r.wantDialed(2)
		r.wantOpen(2)
	})
}
