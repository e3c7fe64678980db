package wire

import (
	"crypto/tls"
	"net/http"
	"testing"
	"time"

	"sluice/internal/bubble"
)

const (
	chunkedHead = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	evil        = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
)

// What a server may send that nobody asked for, behind a whole answer.
func unaskedCases() []struct{ name, method, answer, more string } {
	return []struct{ name, method, answer, more string }{
		{"an answer", "GET", answer("mine"), evil},
		{"an answer behind chunks", "GET", chunkedHead + "4\r\nmine\r\n0\r\n\r\n", evil},
		{"one byte", "GET", answer("mine"), "\n"},
		{"a new line behind chunks", "GET", chunkedHead + "4\r\nmine\r\n0\r\n\r\n", "\r\n"},
		{"an interim answer", "GET", answer("mine"), "HTTP/1.1 100 Continue\r\n\r\n"},
		{"a timeout", "GET", answer("mine"), "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n"},
		{"the body of HEAD", "HEAD", answer("mine")[:len(answer("mine"))-4], "mine"},
		{"the body of 304", "GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\n", "mine"},
		{"the body of 204", "DELETE", "HTTP/1.1 204 No Content\r\n\r\n", evil},
		{"more than its length", "GET", answer("mine"), "mine, all of it"},
	}
}

// U05: bytes that a server sent behind its answer were the answer to the next
// request, which was somebody else's.
func TestUnaskedBytesAreNobodysAnswer(t *testing.T) {
	when := map[string]func(p *peer, answer, more string){
		"in the same segment": func(p *peer, answer, more string) { p.together(func() { p.say(answer, more) }) },
		"right behind":        func(p *peer, answer, more string) { p.say(answer, more) },
		"a second later": func(p *peer, answer, more string) {
			p.say(answer)
			time.Sleep(time.Second)
			p.say(more)
		},
		"and then the end": func(p *peer, answer, more string) {
			p.say(answer, more)
			_ = p.Close()
		},
	}
	for name, send := range when {
		for _, tt := range unaskedCases() {
			t.Run(name+"/"+tt.name, func(t *testing.T) {
				each(t, func(t *testing.T, k kind) {
					r := newRig(t, k, func(p *peer) {
						for n := 0; p.request() != nil; n++ {
							if p.n > 1 {
								p.say(answer("next"))
							} else if n == 0 {
								send(p, tt.answer, tt.more)
							} else {
								t.Error("another request came on that connection")
							}
						}
					})
					if o := r.run(r.exchange(), newRequest(t, tt.method, "")); o.err != nil || o.readErr != nil {
						t.Fatal(o.err, o.readErr)
					}
					time.Sleep(2 * time.Second)
					r.next(2)
				})
			})
		}
	}
}

// U05, on the connections of a kernel. What comes with the answer can be waited
// for there without a clock: the server says when it has written it.
func TestUnaskedBytesOverTCP(t *testing.T) {
	for _, k := range overTCP() {
		t.Run(k.name, func(t *testing.T) {
			for _, tt := range unaskedCases() {
				t.Run(tt.name, func(t *testing.T) {
					said := make(chan struct{})
					r := newRig(t, k, func(p *peer) {
						for n := 0; p.request() != nil; n++ {
							if p.n > 1 {
								p.say(answer("next"))
								continue
							}
							p.say(tt.answer, tt.more)
							close(said)
						}
					})
					if o := r.run(r.exchange(), newRequest(t, tt.method, "")); o.err != nil || o.readErr != nil {
						t.Fatal(o.err, o.readErr)
					}
					<-said // on the loopback what is written has arrived
					r.next(2)
				})
			}
		})
	}
}

// U05: a server gave up a connection at rest, with a word of why, after it was
// looked at and before the request: that word is no answer to what was not sent.
func TestUnaskedBytesBeforeTheFirstByte(t *testing.T) {
	for _, k := range inMemory() {
		if !k.socket { // read and written at once: which was first cannot be told
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := newRig(t, k, serving(answer("next")))
				r.get().want(t, "next")
				r.mu.Lock()
				near, p := r.lines[0], r.peers[0]
				r.mu.Unlock()
				near.before = func() {
					p.say("HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
					p.reset()
				}
				if o := r.get(); o.err == nil || o.x.Wrote() || !o.x.Unanswered() {
					t.Errorf("error %v, wrote %t, unanswered %t", o.err, o.x.Wrote(), o.x.Unanswered())
				}
			})
		})
	}
}

// U05: TLS reads ahead, so that bytes nobody asked for have left the kernel and
// are in no buffer of ours.
func TestUnaskedRecordReadAhead(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for _, k := range inMemory() {
			if !k.secure {
				continue
			}
			t.Run(tls.VersionName(version)+"/"+k.name, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					r := newRig(t, k, serving(answer("mine"), evil)) // two records, one segment
					r.server.MaxVersion = version
					r.get().want(t, "mine")
					r.mu.Lock()
					near := r.lines[0]
					r.mu.Unlock()
					near.in.mark(func(f *flow) {
						if f.size != 0 {
							t.Errorf("%d bytes still wait: this tests nothing", f.size)
						}
					})
					r.next(2)
				})
			})
		}
	}
}

// Tickets, which a server sends behind the handshake by itself, are no unasked
// bytes: with them each request had a connection and a handshake of its own.
func TestTicketsAreNotUnasked(t *testing.T) {
	for _, k := range append(inMemory(), overTCP()...) {
		if !k.secure {
			continue
		}
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			t.Run(tls.VersionName(version)+"/"+k.name, func(t *testing.T) {
				run := func(t *testing.T) {
					r := newRig(t, k, serving(answer("next")))
					r.server.MaxVersion = version
					r.TLS.ClientSessionCache = tls.NewLRUClientSessionCache(4)
					for range 5 {
						r.next(1)
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

// A record that is here in part says nothing yet, and must not be lost by looking;
// when the rest of it comes it is unasked all the same.
func TestUnaskedRecordInParts(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		if !k.secure {
			t.Skip("records are TLS's")
		}
		r := newRig(t, k, func(p *peer) {
			for n := 0; p.request() != nil; n++ {
				if p.n > 1 || n > 0 {
					p.say(answer("next"))
					continue
				}
				p.cork.in = true
				p.say(answer("mine"), evil)
				p.cork.in = false
				all := p.cork.held.Bytes()
				_, _ = p.under.Write(all[:len(all)-5])
				time.Sleep(time.Second)
				_, _ = p.under.Write(all[len(all)-5:])
			}
		})
		r.get().want(t, "mine")
		time.Sleep(2 * time.Second)
		r.next(2)
	})
}

// Looking at a connection leaves nothing behind: no deadline that would fail the
// exchange, and no byte that was read.
func TestLookingLeavesNothing(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		r := newRig(t, k, serving(answer("next")))
		for range 3 {
			r.next(1)
			bubble.Wait()
			for range 3 {
				l := r.take()
				if l == nil {
					t.Fatal("it was taken for broken")
				}
				r.put(l)
			}
		}
		x := r.exchange()
		x.Head = time.Hour
		r.run(x, newRequest(t, http.MethodGet, "")).want(t, "next")
		r.wantDialed(1)
	})
}
