package proxyproto

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"sluice/internal/bubble"
)

const named = "PROXY TCP4 203.0.113.7 10.0.0.1 56324 443\r\n"

// H09, H16: whoever connected and sent half a header, or nothing, held up all others, or had
// a connection for ever. Accept waits for nobody, and a header has 10 s.
func TestSilence(t *testing.T) {
	for name, sent := range map[string]string{"nothing": "", "a letter": "P", "half a line": named[:20], "half a header": v2(proxy, tcp4, from4("203.0.113.7:1"))[:20]} {
		for _, required := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					r := newRig(required)
					ours, theirs := net.Pipe()
					silent := r.connect(t, balancer, theirs)
					go func() { _, _ = io.WriteString(ours, sent) }()
					began, done := time.Now(), make(chan struct{})
					go func() {
						defer close(done)
						if got := silent.RemoteAddr().String(); got != balancer {
							t.Errorf("of %s", got)
						}
					}()
					bubble.Wait()
					// Others come meanwhile.
					other, far := net.Pipe()
					next := r.connect(t, balancer, far)
					go func() { _, _ = io.WriteString(other, named) }()
					if got := next.RemoteAddr().String(); got != "203.0.113.7:56324" {
						t.Errorf("the next one is of %s", got)
					}
					if took := time.Since(began); took > 0 {
						t.Errorf("the next one waited for %s", took)
					}
					<-done
					if took := time.Since(began); took != headerTime {
						t.Errorf("closed after %s", took)
					}
					if _, err := ours.Read(make([]byte, 1)); err == nil {
						t.Error("it was answered")
					}
					if _, err := silent.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
						t.Errorf("read: %v", err)
					}
					if r.why() != Late {
						t.Errorf("refused as %q", r.why())
					}
					_ = next.Close()
				})
			})
		}
	}
}

// H16: a header, then a request's head, each as slow as may be, had twice the time. The
// first deadline behind a header is the sooner by what it took; later ones are as they are
// set.
func TestTimeIsShared(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(true)
		ours, theirs := net.Pipe()
		c := r.connect(t, balancer, theirs)
		began := time.Now()
		go func() {
			time.Sleep(4 * time.Second)
			_, _ = io.WriteString(ours, named)
		}()
		_ = c.RemoteAddr()
		if took := time.Since(began); took != 4*time.Second {
			t.Fatalf("the header took %s", took)
		}
		_ = c.SetReadDeadline(time.Now().Add(headerTime))
		_, err := c.Read(make([]byte, 1))
		if took := time.Since(began); took != headerTime || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the head had until %s: %v", took, err)
		}
		_ = c.SetReadDeadline(time.Now().Add(headerTime))
		if _, err := c.Read(make([]byte, 1)); err == nil || time.Since(began) != 20*time.Second {
			t.Errorf("the next one had until %s: %v", time.Since(began), err)
		}
		_ = c.SetDeadline(time.Time{})
		go func() { _, _ = io.WriteString(ours, "x") }()
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Errorf("without a deadline: %v", err)
		}
		_ = c.Close()
	})
}

// A deadline that is set first holds for the header too, where it is the sooner, and is in
// force behind it.
func TestDeadlineBeforeTheHeader(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for _, tc := range []struct {
			set, header, until time.Duration
		}{{set: 3 * time.Second, until: 3 * time.Second}, {set: time.Minute, until: headerTime}, {set: time.Minute, header: time.Second, until: time.Minute}} {
			r := newRig(true)
			ours, theirs := net.Pipe()
			c := r.connect(t, balancer, theirs)
			began := time.Now()
			_ = c.SetDeadline(began.Add(tc.set))
			if tc.header > 0 {
				go func() {
					time.Sleep(tc.header)
					_, _ = io.WriteString(ours, named)
				}()
			}
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != tc.until {
				t.Errorf("%+v: read until %s: %v", tc, time.Since(began), err)
			}
			_ = c.Close()
		}
	})
}

// H16: the limit by address took the balancer for the client. A client is counted from its
// header on, before anything else is read; one too many is closed, and what closes makes room.
func TestClientIsCounted(t *testing.T) {
	r := newRig(true)
	r.limit = 2
	open := make([]net.Conn, 0, r.limit)
	for range 2 {
		over := &script{pieces: pieces(named+payload, 1<<20)}
		c := r.connect(t, balancer, over)
		if n := r.open("203.0.113.7"); n != len(open) {
			t.Errorf("%d counted, with a header that nobody has read", n)
		}
		_ = c.RemoteAddr()
		open = append(open, c)
	}
	if n := r.open("203.0.113.7"); n != 2 {
		t.Errorf("%d counted", n)
	}
	over := &script{pieces: pieces(named+payload, 1<<20)}
	c := r.connect(t, balancer, over)
	if got := c.RemoteAddr().String(); got != balancer || !over.closed {
		t.Errorf("one too many: of %s, closed %t", got, over.closed)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil || r.why() != "" {
		t.Errorf("one too many: %v, refused as %q", err, r.why())
	}
	_ = c.Close()
	_, _ = open[0].Close(), open[0].Close() // a second Close gives nothing back
	if n := r.open("203.0.113.7"); n != 1 {
		t.Errorf("%d counted after one was closed", n)
	}
	own := r.connect(t, balancer, &script{pieces: pieces("PROXY UNKNOWN\r\n", 1<<20)})
	_ = own.RemoteAddr()
	if n := r.open("10.0.0.9"); n != 0 {
		t.Errorf("the balancer's own connections are counted: %d", n)
	}
}

// H16: connections whose header never came were bounded by nothing. A balancer has so many
// at one time, and another one has its own.
func TestAwaitedHeadersAreBounded(t *testing.T) {
	r := newRig(true)
	waiting := make([]net.Conn, 0, headersAwaited)
	for range headersAwaited {
		waiting = append(waiting, r.connect(t, balancer, &script{}))
	}
	refused, next := &script{}, &script{pieces: pieces(named+payload, 1<<20)}
	r.in <- comingConn{refused, addr(balancer)}
	if c := r.connect(t, "10.0.0.10:1", next); c.RemoteAddr().String() != "203.0.113.7:56324" || !refused.closed || r.why() != Crowded {
		t.Errorf("one too many: closed %t, %q; another balancer's is of %s", refused.closed, r.why(), c.RemoteAddr())
	}
	_ = waiting[0].Close()
	c := r.connect(t, balancer, &script{pieces: pieces(named+payload, 1<<20)})
	_ = c.RemoteAddr() // has its header, and makes room for another one
	r.connect(t, balancer, &script{})
	for _, c := range waiting {
		_ = c.Close()
	}
	if n := len(r.Listener.(*listener).awaited); n != 1 { //nolint:errcheck // it is no other
		t.Errorf("%d balancers in memory, want the one with a connection", n)
	}
}

// A server that stops closes connections whose header has not come: whoever waits for it
// goes on at once, and nothing is counted as refused or stays counted.
func TestCloseWhileTheHeaderIsAwaited(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(true)
		_, theirs := net.Pipe()
		c := r.connect(t, balancer, theirs)
		began, done := time.Now(), make(chan struct{})
		go func() {
			defer close(done)
			_ = c.RemoteAddr()
		}()
		bubble.Wait()
		_ = c.Close()
		<-done
		if took := time.Since(began); took != 0 || r.why() != "" {
			t.Errorf("waited for %s, refused as %q", took, r.why())
		}
	})
	// The header came at that very moment.
	r := newRig(true)
	l := r.Listener.(*listener)                                                //nolint:errcheck // it is no other
	c := r.connect(t, balancer, &script{pieces: pieces(named, 1<<20)}).(*conn) //nolint:errcheck // it is no other
	_ = c.Close()
	give, _ := r.Count(addrPort(addr("203.0.113.7:1")).Addr())
	c.count(give)
	if r.open("203.0.113.7") != 0 || len(l.awaited) != 0 {
		t.Errorf("a closed connection stays counted: %d, %v", r.open("203.0.113.7"), l.awaited)
	}
}

// A balancer that looks whether the port answers connects and leaves. That is no fault.
func TestPortCheck(t *testing.T) {
	r := newRig(true)
	c := r.connect(t, balancer, &script{})
	_ = c.RemoteAddr()
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) || r.why() != "" {
		t.Errorf("%v, refused as %q", err, r.why())
	}
	cut := r.connect(t, balancer, &script{pieces: pieces(named[:20], 1<<20)})
	_ = cut.RemoteAddr()
	if r.why() != Malformed {
		t.Errorf("half a line, then the end: refused as %q", r.why())
	}
}

// net/http closes one side of a connection first, so that its last answer is read.
func TestCloseWrite(t *testing.T) {
	r := newRig(true)
	over := &script{pieces: pieces(named, 1<<20)}
	c := r.connect(t, balancer, over)
	half, ok := c.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || !over.closed {
		t.Error("the write side cannot be closed")
	}
}
