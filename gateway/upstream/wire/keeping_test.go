package wire

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"sluice/internal/bubble"
)

// serving answers the first request of all with first, and every other with
// "next", on as many connections as it takes.
func serving(first ...string) func(*peer) {
	return func(p *peer) {
		for n := 0; p.request() != nil; n++ {
			if p.n == 1 && n == 0 {
				p.together(func() { p.say(first...) })
			} else {
				p.say(answer("next"))
			}
		}
	}
}

// next makes a second exchange and wants it answered on connection n.
func (r *rig) next(n int) {
	r.t.Helper()
	r.get().want(r.t, "next")
	r.wantDialed(n)
	if open := r.open(); open != 1 {
		r.t.Errorf("%d connections are open, want the last one", open)
	}
}

// Exchanges one after the other use one connection, whatever their requests are.
func TestOneConnectionForManyExchanges(t *testing.T) {
	large := strings.Repeat("a large body ", 100_000) // no kernel takes it at once
	kinds := append(inMemory(), overTCP()...)
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			run := func(t *testing.T) {
				r := newRig(t, k, func(p *peer) {
					for req := p.request(); req != nil; req = p.request() {
						body, _ := io.ReadAll(req.Body)
						p.say(answer(req.Method + " " + string(body)))
					}
				})
				for range 5 {
					r.get().want(t, "GET ")
					for _, body := range []string{"small", strings.Repeat("x", writeBuffer), large} {
						r.run(r.exchange(), newRequest(t, http.MethodPost, body)).want(t, "POST "+body)
					}
				}
				r.wantDialed(1)
			}
			if k.real {
				run(t)
			} else {
				bubble.Test(t, run)
			}
		})
	}
}

// What makes a connection unfit for another request, and what does not.
func TestWhatIsKept(t *testing.T) {
	chunked := "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	tests := []struct {
		name, method, answer string
		kept                 bool
	}{
		{"a length", "GET", answer("body"), true},
		{"no body", "GET", answer(""), true},
		{"chunks", "GET", chunked + "4\r\nbody\r\n0\r\n\r\n", true},
		{"chunks and a trailer", "GET", chunked + "4\r\nbody\r\n0\r\nA: b\r\n\r\n", true},
		{"204", "POST", "HTTP/1.1 204 No Content\r\n\r\n", true},
		{"304 that tells a length", "GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\n", true},
		{"HEAD that tells a length", "HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", true},
		{"HEAD of chunks", "HEAD", chunked, true},
		{"1xx before", "GET", "HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n" + answer("body"), true},
		{"HTTP/1.0 that stays", "GET", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 4\r\n\r\nbody", true},
		{"HTTP/1.0", "GET", "HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\nbody", false},
		{"HTTP/1.0 without a body", "GET", "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", false},
		{"Connection: close", "GET", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbody", false},
		{"Connection: close, 204", "GET", "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n", false},
		{"a status that HTTP has not", "GET", "HTTP/1.1 099 What\r\nContent-Length: 4\r\n\r\nbody", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			each(t, func(t *testing.T, k kind) {
				r := newRig(t, k, serving(tt.answer))
				if o := r.run(r.exchange(), newRequest(t, tt.method, "")); o.err != nil || o.readErr != nil {
					t.Fatal(o.err, o.readErr)
				}
				if tt.kept {
					r.next(1)
				} else {
					r.next(2)
				}
			})
		})
	}
}

// A request that asks the server to end the connection was kept when the server
// forgot to say so: the next request met the end of it.
func TestRequestThatAsksToClose(t *testing.T) {
	for name, ask := range map[string]func(*http.Request){
		"field":  func(r *http.Request) { r.Close = true },
		"header": func(r *http.Request) { r.Header.Set("Connection", "keep-alive, Close") },
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := newRig(t, plain(), serving(answer("body")))
				req := newRequest(t, http.MethodGet, "")
				ask(req)
				r.run(r.exchange(), req).want(t, "body")
				r.next(2)
			})
		})
	}
}

// A body that is not read to its end takes its connection with it, even when all
// of it is here.
func TestBodyThatIsNotRead(t *testing.T) {
	tests := []struct {
		name, answer string
		read         int
	}{
		{"nothing of a length", answer("body"), 0},
		{"half of a length", answer("body"), 2},
		{"half of chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n", 2},
		{"chunks but for their end", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n", 4},
		{"half of one that is not here", "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nbo", 2},
		{"half of one without a length", "HTTP/1.1 200 OK\r\n\r\nbody", 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			each(t, func(t *testing.T, k kind) {
				r := newRig(t, k, serving(tt.answer))
				x := r.exchange()
				res, err := x.Do(context.Background(), r.Conns, newRequest(t, http.MethodGet, ""))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(res.Body, make([]byte, tt.read)); err != nil {
					t.Error(err)
				}
				for range 2 {
					if err := res.Body.Close(); err != nil {
						t.Error(err)
					}
				}
				if _, err := res.Body.Read(make([]byte, 1)); err == nil || err == io.EOF {
					t.Errorf("a read after Close: %v", err)
				}
				if n := r.endings(x); n != 1 {
					t.Errorf("ended %d times", n)
				}
				r.next(2)
			})
		})
	}
}

// The server ends a connection that rests, in whole or its own half only: the next
// request goes out on another one, and does not fail.
func TestServerEndsAConnectionAtRest(t *testing.T) {
	for name, end := range map[string]func(*peer){
		"closed": func(p *peer) { _ = p.Close() },
		"reset":  (*peer).reset,
		"half": func(p *peer) {
			if l, ok := p.under.(*line); ok {
				l.endWriting()
			}
			p.request() // it would still read one
		},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, k kind) {
				r := newRig(t, k, func(p *peer) {
					for p.request() != nil {
						p.say(answer("next"))
						if p.n == 1 {
							end(p)
							return
						}
					}
				})
				r.get().want(t, "next")
				r.next(2)
			})
		})
	}
}
