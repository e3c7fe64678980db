package wire

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// DialFunc opens a connection.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// Options configure the connections to one server. All are needed but TLS.
type Options struct {
	Address string      // host:port
	TLS     *tls.Config // nil = plain
	Dial    DialFunc
	Idle    time.Duration // how long a connection is kept without a request
	MaxIdle int           // how many are
	MaxHead int64         // bytes of an answer's head and all 1xx before it
}

const (
	// readBuffer holds most heads whole; bodies are read past it.
	readBuffer = 4 << 10
	// writeBuffer is how large a request may be to go out at once, with one call:
	// the kernel takes as much of a connection that is at rest, so that the call
	// does not wait for the server to read.
	writeBuffer = 16 << 10
)

// Conns are the connections to one server. It is safe for concurrent use and
// starts no goroutine: somebody has to call Reap now and then.
type Conns struct {
	Options
	writers sync.Pool // *bufio.Writer

	mu     sync.Mutex
	kept   []*conn // the one used last is the last
	closed bool
}

// New makes a set without a connection.
func New(o Options) *Conns {
	return &Conns{Options: o, writers: sync.Pool{New: func() any { return bufio.NewWriterSize(nil, writeBuffer) }}}
}

// take returns a kept connection on which nothing has happened since its last
// answer, or nil. One that the server has ended, or on which it spoke unasked, is
// closed: what came would answer somebody else's request (U05).
func (c *Conns) take() *conn {
	for {
		l := c.pop(time.Now())
		if l == nil {
			return nil
		}
		if l.atRest() {
			l.reused = true
			return l
		}
		l.close()
	}
}

func (c *Conns) pop(now time.Time) *conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := len(c.kept) - 1
	if last < 0 || now.Sub(c.kept[last].since) >= c.Idle {
		return nil // all others are older; Reap closes them
	}
	l := c.kept[last]
	c.kept[last] = nil
	c.kept = c.kept[:last]
	return l
}

// put keeps a connection for the next request.
func (c *Conns) put(l *conn) {
	l.since = time.Now()
	c.mu.Lock()
	keep := !c.closed && len(c.kept) < c.MaxIdle
	if keep {
		c.kept = append(c.kept, l)
	}
	c.mu.Unlock()
	if !keep {
		l.close()
	}
}

// dial opens a connection, its handshake included.
func (c *Conns) dial(ctx context.Context) (*conn, error) {
	under, err := c.Dial(ctx, "tcp", c.Address)
	if err != nil {
		return nil, err
	}
	if c.TLS == nil {
		return newConn(c, under, under), nil
	}
	secured := tls.Client(under, c.TLS)
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = under.Close()
		return nil, err
	}
	return newConn(c, secured, under), nil
}

// Reap closes the connections that are kept for longer than Idle.
func (c *Conns) Reap() {
	now := time.Now()
	c.mu.Lock()
	old := 0
	for old < len(c.kept) && now.Sub(c.kept[old].since) >= c.Idle {
		old++
	}
	gone := slices.Clone(c.kept[:old])
	c.kept = slices.Delete(c.kept, 0, old)
	c.mu.Unlock()
	for _, l := range gone {
		l.close()
	}
}

// CloseIdle closes the connections that carry no request.
func (c *Conns) CloseIdle() {
	c.mu.Lock()
	gone := c.kept
	c.kept = nil
	c.mu.Unlock()
	for _, l := range gone {
		l.close()
	}
}

// Close is CloseIdle, and keeps no connection any more: those that carry a
// request are closed with its answer's end.
func (c *Conns) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.CloseIdle()
}

// write writes the request out on l, whole. An error that is not the connection's
// is an ErrRequest; the connection's comes as it was, since http.Request.Write hides
// it in one that has no Unwrap.
func (c *Conns) write(l *conn, req *http.Request) error {
	w, _ := c.writers.Get().(*bufio.Writer)
	w.Reset(l)
	err := req.Write(w)
	if err == nil {
		err = w.Flush()
	}
	w.Reset(nil)
	c.writers.Put(w)
	switch {
	case err == nil:
		return nil
	case l.broke != nil:
		return l.broke
	default:
		return fmt.Errorf("%w: %w", ErrRequest, err)
	}
}
