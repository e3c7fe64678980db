package wire

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// conn is one connection. Between put and take nobody uses it; else one exchange
// does.
type conn struct {
	conns *Conns
	net   net.Conn // speaks HTTP
	under net.Conn // the same, or what lies below TLS: closing it waits for nobody
	raw   syscall.RawConn
	look  look
	ask   func(fd uintptr) // asks look for raw; made once
	rest  bool             // what it found
	in    *bufio.Reader
	head  int64 // bytes that may still be read of a head; negative = no bound
	since time.Time

	reused bool        // it has carried a request before
	wrote  atomic.Bool // a byte of the request has left, or may have
	heard  atomic.Bool // a byte has come since the request began
	broke  error       // what writing to it failed with; its writer's alone
	dried  error       // what reading it failed with; its reader's alone

	// Of an answer's body, while it is read: who is told that nothing comes.
	idle      func() error
	idleAfter time.Duration
	heardAt   time.Time
}

// glance is how long a look at a connection takes that only reading shows: a read
// whose time is over already would fail before it looks. Sockets of Unix are asked
// and never waited for.
const glance = 50 * time.Microsecond

func newConn(c *Conns, spoken, under net.Conn) *conn {
	l := &conn{conns: c, net: spoken, under: under, head: -1}
	l.in = bufio.NewReaderSize(reader{l}, readBuffer)
	if s, ok := under.(syscall.Conn); ok {
		// Without it the connection is looked at in another way.
		l.raw, _ = s.SyscallConn()
	}
	l.ask = func(fd uintptr) { l.rest = l.look.atRest(fd) }
	return l
}

// begin readies the connection for a request. Writing has the same end as the
// wait for the answer, even of what a kernel takes at once as a rule: a server may
// have answered the last request without reading it, and be full of it.
func (l *conn) begin(by time.Time) error {
	l.wrote.Store(false)
	l.heard.Store(false)
	l.broke, l.dried = nil, nil
	l.head, l.idle = l.conns.MaxHead, nil
	return l.net.SetDeadline(by)
}

// buffered reports whether the kernel takes a small request at once. A
// connection in memory, as tests have it, waits for its reader.
func (l *conn) buffered() bool { return l.raw != nil }

// atRest reports whether the server has neither ended the connection nor sent
// anything.
func (l *conn) atRest() bool {
	by := time.Now().Add(glance)
	if l.raw != nil && canLook {
		l.rest = false
		if l.raw.Control(l.ask) != nil || !l.rest {
			return false
		}
		if l.conns.TLS == nil {
			return true
		}
		by = time.Unix(1, 0) // what TLS has read ahead is all that there can be
	}
	if err := l.net.SetReadDeadline(by); err != nil {
		return false
	}
	var one [1]byte
	n, err := l.net.Read(one[:])
	return n == 0 && errors.Is(err, os.ErrDeadlineExceeded)
}

func (l *conn) close() { _ = l.under.Close() }

// Write implements io.Writer for a request.
func (l *conn) Write(p []byte) (int, error) {
	n, err := l.net.Write(p)
	if n > 0 {
		l.wrote.Store(true)
	}
	if err != nil {
		l.broke = err
	}
	return n, err
}

// reader is a conn as its buffer reads it.
type reader struct{ l *conn }

// Read implements io.Reader. It holds the bound on heads.
func (r reader) Read(p []byte) (int, error) {
	l := r.l
	if l.head == 0 {
		l.dried = ErrHeadTooLong
		return 0, l.dried
	}
	if l.head > 0 && int64(len(p)) > l.head {
		p = p[:l.head]
	}
	for {
		n, err := l.net.Read(p)
		if n > 0 {
			l.noteHeard(n)
		}
		if n == 0 && l.idle != nil && errors.Is(err, os.ErrDeadlineExceeded) {
			if err = l.wait(); err == nil {
				continue
			}
		}
		if err != nil {
			l.dried = err
		}
		return n, err
	}
}

func (l *conn) noteHeard(n int) {
	l.heard.Store(true)
	if l.head > 0 {
		l.head -= int64(n)
	}
	if l.idle != nil {
		l.heardAt = time.Now()
	}
}

// wait tells that nothing has come for a while, if that is so, and sets when it is
// looked at again.
func (l *conn) wait() error {
	if now := time.Now(); now.Sub(l.heardAt) >= l.idleAfter {
		if err := l.idle(); err != nil {
			return err
		}
		l.heardAt = now
	}
	return l.net.SetReadDeadline(l.heardAt.Add(l.idleAfter))
}

var (
	_ io.Writer = (*conn)(nil)
	_ io.Reader = reader{}
)
