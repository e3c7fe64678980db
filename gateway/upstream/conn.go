package upstream

import (
	"context"
	"errors"
	"net"
	"sync"
)

// errUnasked ends a connection on which a node spoke without being asked.
var errUnasked = errors.New("bytes of a node that nobody asked for")

// watchedConn is a connection to a node under net/http's transport, which gives
// a kept connection to the next request before it has looked for bytes beyond
// the last answer: a node that sends too much would answer somebody else's
// request with them (U05). It also tells whether anything of a request was
// written at all.
//
// What a node sends unasked after its connection has been given on cannot be
// told from an answer in HTTP/1.1; nor can TLS be watched, since it reads when
// nobody asks. A node that does so is broken; this holds what came with, or right
// behind, the last answer.
type watchedConn struct {
	net.Conn

	mu      sync.Mutex
	reading bool          // the transport waits for bytes: it has used up all before
	closed  bool          // by the transport
	quiet   bool          // a request has it and has not begun to write: nothing may come
	touched bool          // bytes of that request were, or are being, written
	turn    chan struct{} // closed once reading or closed; nil = nobody waits
}

var _ net.Conn = (*watchedConn)(nil)

func watched(dial DialFunc) DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &watchedConn{Conn: conn}, nil
	}
}

// Read implements net.Conn.
func (c *watchedConn) Read(p []byte) (int, error) {
	c.mu.Lock()
	c.reading = true
	c.signal()
	c.mu.Unlock()
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading = false
	if n > 0 && c.quiet {
		return 0, errUnasked
	}
	return n, err
}

// Write implements net.Conn.
func (c *watchedConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	before := c.touched
	c.quiet, c.touched = false, true
	c.mu.Unlock()
	n, err := c.Conn.Write(p)
	if n == 0 {
		c.mu.Lock()
		c.touched = before
		c.mu.Unlock()
	}
	return n, err
}

// Close implements net.Conn.
func (c *watchedConn) Close() error {
	c.mu.Lock()
	c.closed = true
	c.signal()
	c.mu.Unlock()
	return c.Conn.Close()
}

// signal wakes handOver; c.mu is held.
func (c *watchedConn) signal() {
	if c.turn != nil {
		close(c.turn)
		c.turn = nil
	}
}

// handOver gives the connection to a request. It waits, for as long as it takes
// to schedule the transport's reader, until that has used up or choked on what
// came with the last answer, and has given that answer to whom it is for: the
// connection comes here before, and ending it would lose the answer. So the wait
// does not end with the request either.
func (c *watchedConn) handOver() {
	for {
		c.mu.Lock()
		if c.reading || c.closed {
			c.quiet, c.touched = true, false
			c.mu.Unlock()
			return
		}
		if c.turn == nil {
			c.turn = make(chan struct{})
		}
		turn := c.turn
		c.mu.Unlock()
		<-turn
	}
}

// untouched reports whether not a byte was written since handOver.
func (c *watchedConn) untouched() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.touched
}
