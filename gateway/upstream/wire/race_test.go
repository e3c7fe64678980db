package wire

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// echoing answers with the request's own name, in one of the ways of framing.
func echoing(p *peer) {
	for n := 0; ; n++ {
		req := p.request()
		if req == nil {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		name := req.Header.Get("X-Name")
		switch n % 4 {
		case 0:
			p.say(answer(name))
		case 1:
			p.say(chunkedHead, fmt.Sprintf("%x\r\n%s\r\n", len(name), name), "0\r\n\r\n")
		case 2:
			p.say("HTTP/1.1 204 No Content\r\nX-Name: " + name + "\r\n\r\n")
		case 3:
			p.say("HTTP/1.1 103 Early Hints\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n", name+strings.Repeat(" ", 40-len(name)))
		}
	}
}

// named makes a request of one of the sizes that go other ways.
func named(t testing.TB, name string, size int) *http.Request {
	t.Helper()
	req := newRequest(t, http.MethodPost, strings.Repeat("x", size))
	req.Header.Set("X-Name", name)
	return req
}

// saysIts checks that an answer is the request's own.
func saysIts(status int, header http.Header, body, name string) bool {
	return strings.TrimSpace(body) == name || status == http.StatusNoContent && header.Get("X-Name") == name
}

// hammered are the kinds that are hammered; short of TLS over TCP, whose reading
// and writing are TLS's.
func hammered() []kind {
	return []kind{plain(), {name: "no socket"}, {name: "TLS", socket: true, secure: true}, tcp()}
}

// Many exchanges at once, each of which is cut at some moment, or after its end, by
// somebody who does not wait: each ends with its own answer or its own cause. A Cut
// that came late ended the exchange that had the connection next.
func TestCutsRaceWithExchanges(t *testing.T) {
	const workers, rounds = 6, 100
	for _, k := range hammered() {
		t.Run(k.name, func(t *testing.T) {
			r := newRig(t, k, echoing)
			var wait sync.WaitGroup
			for worker := range workers {
				wait.Go(func() {
					random := rand.New(rand.NewPCG(1, uint64(worker))) //nolint:gosec // moments, not secrets
					for round := range rounds {
						r.race(random, fmt.Sprintf("%d/%d", worker, round))
					}
				})
			}
			wait.Wait()
			r.Close()
			r.wantOpen(0)
		})
	}
}

// race makes one exchange and has it cut.
func (r *rig) race(random *rand.Rand, name string) {
	cause := fmt.Errorf("cut %s", name)
	x := r.exchange()
	var wait sync.WaitGroup
	defer wait.Wait()
	cut := func(yields int) {
		wait.Go(func() {
			for range yields {
				runtime.Gosched()
			}
			x.Cut(cause)
		})
	}
	when, yields := random.IntN(4), random.IntN(200)
	if when == 0 {
		cut(yields)
	}
	req := named(r.t, name, []int{1, 100, writeBuffer, 300_000}[random.IntN(4)])
	res, err := x.Do(context.Background(), r.Conns, req)
	if err == nil {
		if when == 1 {
			cut(yields / 20)
		}
		var body []byte
		body, err = io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err == nil && !saysIts(res.StatusCode, res.Header, string(body), name) {
			r.t.Errorf("%s was answered %q", name, body)
		}
	}
	if n := r.endings(x); n != 1 {
		r.t.Errorf("%s ended %d times", name, n)
	}
	if err != nil && (err != cause || when > 1) { //nolint:errorlint // the very cause
		r.t.Errorf("%s: error %v", name, err)
	}
	if when == 2 {
		cut(yields)
	}
}

// Exchanges at once, with Reap and CloseIdle between them, lose nothing.
func TestExchangesAtOnce(t *testing.T) {
	for _, k := range append(hammered(), overTCP()[1]) {
		t.Run(k.name, func(t *testing.T) {
			r := newRig(t, k, echoing)
			var wait, sweep sync.WaitGroup
			done := make(chan struct{})
			sweep.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-done:
						return
					default:
						runtime.Gosched()
						r.Reap()
						if n%50 == 0 {
							r.CloseIdle()
						}
					}
				}
			})
			for worker := range 6 {
				wait.Go(func() {
					for round := range 100 {
						name := fmt.Sprintf("%d/%d", worker, round)
						o := r.run(r.exchange(), named(t, name, []int{1, 40_000}[round%2]))
						if o.err != nil || o.readErr != nil || !saysIts(o.status, o.header, o.body, name) {
							t.Errorf("%s was answered %q, error %v, %v", name, o.body, o.err, o.readErr)
						}
					}
				})
			}
			wait.Wait()
			close(done)
			sweep.Wait()
			r.CloseIdle()
			r.wantOpen(0)
		})
	}
}

// descriptors counts this process' own; it skips the test where that cannot be.
func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	return len(list)
}

// Nothing is left of exchanges over TCP, however they end: no goroutine and no
// descriptor.
func TestNothingIsLeft(t *testing.T) {
	endings := map[string]func(*peer){
		"answered":     serving(answer("next")),
		"ended":        func(p *peer) { p.request() },
		"reset":        func(p *peer) { p.head(); p.reset() },
		"half a head":  func(p *peer) { p.request(); p.say("HTTP/1.1 2") },
		"half a body":  func(p *peer) { p.request(); p.say("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf") },
		"unread":       refusing(refusal, (*peer).stay),
		"never":        (*peer).stay,
		"no handshake": func(p *peer) { _ = p.under.Close() },
	}
	for name, serve := range endings {
		for _, k := range overTCP() {
			t.Run(name+"/"+k.name, func(t *testing.T) {
				newRig(t, k, serve).close()
				before, routines := descriptors(t), runtime.NumGoroutine()
				r := newRig(t, k, serve)
				for i := range 4 {
					x := r.exchange()
					x.Connect, x.Head = time.Second/20, time.Second/20
					r.run(x, named(t, "", []int{1, unread}[i%2]))
				}
				r.close()
				by := time.Now().Add(10 * time.Second)
				for descriptors(t) > before || runtime.NumGoroutine() > routines {
					if time.Now().After(by) {
						t.Fatalf("%d descriptors, %d before; %d goroutines, %d before",
							descriptors(t), before, runtime.NumGoroutine(), routines)
					}
					runtime.Gosched()
				}
			})
		}
	}
}
