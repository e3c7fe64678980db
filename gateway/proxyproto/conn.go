package proxyproto

import (
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// firstRead holds every header of version 1, and those of version 2 that name no more than
// addresses and a few words.
const firstRead = 256

// conn is a connection whose header is read before anything else. Of one that is not trusted
// only as much is looked at as tells that there is none.
type conn struct {
	net.Conn

	listener *listener
	trusted  bool
	began    time.Time // when it was taken; trusted only

	begin  sync.Once // guards what the header says
	err    error     // of each read
	client net.Addr  // whom the header names; the peer, where it names nobody
	own    bool      // the header names nobody
	rest   []byte    // what was read with it, and was not given yet; of the one reader

	mu      sync.Mutex
	give    func() // gives back what the connection is counted as; nil: nothing
	closed  bool
	reading bool          // the header, which has a deadline of its own
	wanted  time.Time     // the read deadline that was set
	took    time.Duration // what the header took, until the next deadline is set
}

// Own is the local address of a connection whose header names no client: the balancer's own,
// or one that it could not name. Whatever comes on it speaks for nobody else.
type Own struct{ net.Addr }

// Read implements net.Conn. It is for one reader at a time.
func (c *conn) Read(p []byte) (int, error) {
	c.begin.Do(c.front)
	if c.err != nil {
		return 0, c.err
	}
	if len(c.rest) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.rest)
	if c.rest = c.rest[n:]; len(c.rest) == 0 {
		c.rest = nil // lets go of the buffer
	}
	return n, nil
}

// RemoteAddr implements net.Conn: the client that a trusted peer has named, else the peer.
// It waits for the header of a trusted peer.
func (c *conn) RemoteAddr() net.Addr {
	if c.trusted {
		c.begin.Do(c.front)
	}
	return c.client
}

// LocalAddr implements net.Conn. It waits for the header of a trusted peer. Handlers find it
// under http.LocalAddrContextKey, which is how they come to know of [Own].
func (c *conn) LocalAddr() net.Addr {
	if c.trusted {
		c.begin.Do(c.front)
		if c.own {
			return Own{c.Conn.LocalAddr()}
		}
	}
	return c.Conn.LocalAddr()
}

// CloseWrite is for net/http, which has the client read what is on its way.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.mu.Lock()
	give := c.give
	c.give, c.closed = nil, true
	c.mu.Unlock()
	if give != nil {
		give()
	}
	return c.Conn.Close()
}

// count has the connection be counted as something else; nil: as nothing.
func (c *conn) count(give func()) {
	c.mu.Lock()
	before := c.give
	if c.give = give; c.closed {
		c.give, before = nil, give // Close has given back what was before
	}
	c.mu.Unlock()
	if before != nil {
		before()
	}
}

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn. The first deadline behind a header is the sooner by
// what the header took: a server gives what it reads first its time from there on, and both
// together have the time of one (H16).
func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reading && !t.IsZero() {
		t = t.Add(-c.took)
		c.took = 0
	}
	c.wanted = t
	return c.Conn.SetReadDeadline(c.deadline())
}

// deadline is the one in force. The caller holds mu.
func (c *conn) deadline() time.Time {
	if own := c.began.Add(headerTime); c.reading && (c.wanted.IsZero() || own.Before(c.wanted)) {
		return own
	}
	return c.wanted
}

// waitHeader puts the header's own deadline in force, and takes it away again.
func (c *conn) waitHeader(reading bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading = reading
	if !reading && c.wanted.IsZero() {
		c.took = time.Since(c.began)
	}
	_ = c.Conn.SetReadDeadline(c.deadline()) // a read on what is closed tells it
}

// front reads the header, and says whose connection it is.
func (c *conn) front() {
	if !c.trusted {
		c.look()
		return
	}
	peer := c.client
	c.waitHeader(true)
	why, err := c.header()
	c.waitHeader(false)
	if err == nil {
		return
	}
	c.fail(peer, err)
	if why == "" {
		_ = c.Close()
		return
	}
	c.listener.refuse(c, why, peer)
}

// fail has all reads fail, in a way that net/http answers nothing to.
func (c *conn) fail(peer net.Addr, err error) {
	c.err = &net.OpError{Op: "read", Net: peer.Network(), Addr: peer, Err: err}
}

// look sees to it that nobody who is not trusted begins with a header. What fails here
// fails again with the next read.
func (c *conn) look() {
	buffer, _, is, _ := c.fill(func(is found) bool { return is != undecided })
	if is == begun || is == whole {
		c.fail(c.client, errUntrusted)
		c.listener.refuse(c, Untrusted, c.client)
		return
	}
	c.rest = buffer
}

// header reads that of a trusted peer. An error without a refusal is of a connection that
// ended before anything came, as those of some health checks do, or of a client that has
// too many, which are counted elsewhere.
func (c *conn) header() (Refusal, error) {
	buffer, length, is, err := c.fill(func(is found) bool { return is == nothing || is == whole })
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return Late, err
	case err != nil && len(buffer) == 0, errors.Is(err, net.ErrClosed):
		return "", err
	case errors.Is(err, io.EOF):
		return Malformed, errCut
	case err != nil:
		return Malformed, err
	case is == nothing && c.listener.options.Required:
		return Missing, errMissing
	case is == nothing:
		c.rest = buffer
		c.count(nil)
		c.listener.options.Taken(WithoutHeader)
		return "", nil
	}
	client, err := parse(buffer[:length])
	if err != nil {
		return Malformed, err
	}
	var give func()
	as := OfBalancer
	if client.IsValid() {
		var ok bool
		if give, ok = c.listener.options.Clients.Count(client.Addr()); !ok {
			return "", errCrowded
		}
		c.client, as = net.TCPAddrFromAddrPort(client), OfClient
	}
	c.own = !client.IsValid()
	c.rest = buffer[length:]
	c.count(give)
	c.listener.options.Taken(as)
	return "", nil
}

// fill reads until what the connection begins with is enough, or an error; it gives what was
// read, and the length of a whole header.
func (c *conn) fill(enough func(found) bool) ([]byte, int, found, error) {
	buffer := make([]byte, 0, firstRead)
	for {
		n, err := c.Conn.Read(buffer[len(buffer):cap(buffer)])
		buffer = buffer[:len(buffer)+n]
		length, is, long := measure(buffer)
		switch {
		case enough(is):
			return buffer, length, is, nil // an error comes again
		case long != nil:
			return buffer, 0, is, long
		case err != nil:
			return buffer, 0, is, err
		case length > cap(buffer):
			buffer = slices.Grow(buffer, length-len(buffer))
		}
	}
}
