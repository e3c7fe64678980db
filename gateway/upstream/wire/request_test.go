package wire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"sluice/internal/bubble"
)

// opaque is a reader whose kind net/http does not know.
type opaque struct{ io.Reader }

// What is written is what http.Transport writes, byte for byte.
func TestRequestBytes(t *testing.T) {
	body := func(text string, length int64) func(*http.Request) {
		return func(r *http.Request) {
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader([]byte(text))), length
		}
	}
	tests := []struct {
		name, method, target string
		change               func(*http.Request)
		want                 string // a part of it
	}{
		{"read", "GET", "http://node.test/b/s", nil, "GET /b/s HTTP/1.1\r\nHost: node.test\r\nUser-Agent: Go-http-client/1.1\r\n\r\n"},
		{"method not told", "", "http://node.test/b/s", nil, "GET /b/s HTTP/1.1\r\n"},
		{"query", "GET", "http://node.test/b/s?offset=-1&live=sse&&x=%zz", nil, "GET /b/s?offset=-1&live=sse&&x=%zz HTTP/1.1\r\n"},
		{"escaped path", "GET", "http://node.test/b%2Fs/%E2%82%AC%20x", nil, "GET /b%2Fs/%E2%82%AC%20x HTTP/1.1\r\n"},
		{"port", "GET", "http://node.test:4437/", nil, "Host: node.test:4437\r\n"},
		{"another host", "GET", "http://node.test/", func(r *http.Request) { r.Host = "else.test" }, "Host: else.test\r\n"},
		{"host with a zone", "GET", "http://[fe80::1%25eth0]:80/", nil, "Host: [fe80::1]:80\r\n"},
		{"invalid host", "GET", "http://node.test/", func(r *http.Request) { r.Host = "a b" }, "Host: \r\n"},
		{"no path", "GET", "http://node.test", nil, "GET / HTTP/1.1\r\n"},
		{"fields", "GET", "http://node.test/", func(r *http.Request) {
			r.Header["x-lower"] = []string{"1", " 2 "}
			r.Header["Accept-Encoding"] = []string{"gzip"}
			r.Header["Range"] = []string{"bytes=0-1"}
			r.Header["User-Agent"] = []string{""}
		}, "Host: node.test\r\nAccept-Encoding: gzip\r\nRange: bytes=0-1\r\nx-lower: 1\r\nx-lower: 2\r\n\r\n"},
		{"framing of the caller's", "POST", "http://node.test/", func(r *http.Request) {
			r.Header["Content-Length"], r.Header["Transfer-Encoding"] = []string{"7"}, []string{"chunked"}
			r.Header["Host"], r.Header["Trailer"] = []string{"evil"}, []string{"A"}
			body("body", 4)(r)
		}, "Content-Length: 4\r\n\r\nbody"},
		{"append", "POST", "http://node.test/b/s", body("body", 4), "\r\nContent-Length: 4\r\n\r\nbody"},
		{"empty append", "POST", "http://node.test/b/s", nil, "\r\nContent-Length: 0\r\n\r\n"},
		{"empty append, without a body at all", "POST", "http://node.test/b/s", func(r *http.Request) { r.Body = http.NoBody }, "\r\nContent-Length: 0\r\n\r\n"},
		{"put", "PUT", "http://node.test/b/s", body("", 0), "PUT"},
		{"delete", "DELETE", "http://node.test/b/s", nil, "DELETE /b/s HTTP/1.1\r\nHost: node.test\r\nUser-Agent: Go-http-client/1.1\r\n\r\n"},
		{"delete with a body", "DELETE", "http://node.test/b/s", body("x", 1), "Content-Length: 1\r\n\r\nx"},
		{"another method", "PURGE", "http://node.test/", body("x", 1), "PURGE / HTTP/1.1\r\n"},
		{"large", "POST", "http://node.test/", body(strings.Repeat("x", 100_000), 100_000), "Content-Length: 100000\r\n\r\nx"},
		{"no length", "POST", "http://node.test/", body("body", -1), "Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"},
		{"large, no length", "POST", "http://node.test/", body(strings.Repeat("x", 100_000), -1), "Transfer-Encoding: chunked\r\n\r\n"},
		{"no length, read", "GET", "http://node.test/", body("body", -1), "Transfer-Encoding: chunked\r\n\r\n1\r\nb\r\n3\r\nody\r\n0\r\n\r\n"},
		{"opaque body", "POST", "http://node.test/", func(r *http.Request) {
			r.Body, r.ContentLength = io.NopCloser(opaque{strings.NewReader("body")}), 4
		}, "Content-Length: 4\r\n\r\nbody"},
		{"trailer", "POST", "http://node.test/", func(r *http.Request) {
			body("body", -1)(r)
			r.Trailer = http.Header{"A": {"1"}}
		}, "Trailer: A\r\n\r\n4\r\nbody\r\n0\r\nA: 1\r\n\r\n"},
		{"closing", "GET", "http://node.test/", func(r *http.Request) { r.Close = true }, "Connection: close\r\n"},
		{"expecting", "POST", "http://node.test/", func(r *http.Request) {
			body("body", 4)(r)
			r.Header["Expect"] = []string{"100-continue"}
		}, "Expect: 100-continue\r\n\r\nbody"},
	}
	quiet, loud := states(t)
	for _, tt := range tests {
		for name, states := range map[string][2]syscall.RawConn{"socket": {quiet, loud}, "no socket": {}} {
			t.Run(tt.name+"/"+name, func(t *testing.T) {
				got := sameRequest(t, states, func() *http.Request {
					req, err := http.NewRequestWithContext(context.Background(), tt.method, tt.target, nil)
					if err != nil {
						t.Fatal(err)
					}
					req.Method = tt.method
					if tt.change != nil {
						tt.change(req)
					}
					return req
				})
				if !strings.Contains(got, tt.want) {
					t.Errorf("got\n%q\nwant in it\n%q", short(got), tt.want)
				}
			})
		}
	}
}

// What cannot be one request of HTTP/1.1 is refused, by http.Transport too, before
// a connection is asked for: no node is to blame (facts L18).
func TestRefusedRequests(t *testing.T) {
	tests := map[string]func(*http.Request){
		"no URL":                    func(r *http.Request) { r.URL = nil },
		"no host":                   func(r *http.Request) { r.URL.Host, r.Host = "", "node.test" },
		"method":                    func(r *http.Request) { r.Method = "GET / HTTP/1.1\r\nA: b\r\n\r\nGET" },
		"method with a space":       func(r *http.Request) { r.Method = "G T" },
		"field name":                func(r *http.Request) { r.Header["A b"] = []string{"c"} },
		"empty field name":          func(r *http.Request) { r.Header[""] = []string{"c"} },
		"field name with a colon":   func(r *http.Request) { r.Header["A:b"] = []string{"c"} },
		"field value":               func(r *http.Request) { r.Header["A"] = []string{"b\r\nC: d"} },
		"field value, second":       func(r *http.Request) { r.Header["A"] = []string{"b", "\x00"} },
		"trailer name":              func(r *http.Request) { r.Trailer = http.Header{"A\r\n": {"b"}} },
		"trailer value":             func(r *http.Request) { r.Trailer = http.Header{"A": {"b\r\nC: d"}} },
		"a query with a line's end": func(r *http.Request) { r.URL.RawQuery = "a\r\nb" },
		"a length without a body":   func(r *http.Request) { r.ContentLength = 3 },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := newRig(t, plain(), serving(answer("next")))
				req := newRequest(t, http.MethodGet, "")
				change(req)
				o := r.run(r.exchange(), req)
				if !errors.Is(o.err, ErrRequest) || o.x.Wrote() || o.x.Unanswered() {
					t.Errorf("error %v, wrote %t, unanswered %t", o.err, o.x.Wrote(), o.x.Unanswered())
				}
				r.wantOpen(0)
			})
			sameRequest(t, [2]syscall.RawConn{}, func() *http.Request {
				req := newRequest(t, http.MethodGet, "")
				change(req)
				return req
			})
		})
	}
}

// A body that is not what was declared ends the exchange at once: the server would
// wait for the rest of it, or take what is left for another request.
func TestBodyOfAnotherLength(t *testing.T) {
	text := func(n int) func() io.Reader {
		return func() io.Reader { return strings.NewReader(strings.Repeat("x", n)) }
	}
	tests := []struct {
		name   string
		body   func() io.Reader
		length int64
		wrote  bool
	}{
		{"shorter", text(4), 5, false},
		{"longer", text(5), 4, false},
		{"broken", func() io.Reader { return io.MultiReader(strings.NewReader("four"), errorReader{}) }, 5, true},
		{"large and shorter", text(tooLarge), tooLarge + 1, true},
		{"large and longer", text(tooLarge + 1), tooLarge, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				for _, k := range inMemory()[:2] {
					r := newRig(t, k, func(p *peer) {
						for n := 0; p.request() != nil; n++ {
							if p.n == 1 && n == 0 {
								p.say(answer("next"))
							} else {
								t.Error("the server has a request of it")
							}
						}
					})
					r.get().want(t, "next")
					req := newRequest(t, http.MethodPost, "")
					req.Body, req.ContentLength = io.NopCloser(tt.body()), tt.length
					var o outcome
					wantTook(t, timed(func() { o = r.run(r.exchange(), req) }), 0)
					if !errors.Is(o.err, ErrRequest) || o.x.Wrote() != tt.wrote || o.x.Unanswered() {
						t.Errorf("error %v, wrote %t, unanswered %t", o.err, o.x.Wrote(), o.x.Unanswered())
					}
					r.wantOpen(0)
				}
			})
		})
	}
}

// errorReader is a body that cannot be read.
type errorReader struct{}

func (errorReader) Read([]byte) (int, error) { return 0, errors.New("no more of it") }
