package gateway

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// lingerTime is how long a client may take for what is on its way to it, behind the end
// of its connection.
const lingerTime = 30 * time.Second

// Lingering has connections that a server closes end as their clients do. What is closed
// at once while its client still sends is reset, and what the client has not read by then
// is lost: over HTTP/2 a client tells all the while how much it has read, and net/http
// closes the connection a second after a GOAWAY's last answer was written. It is for a
// server that is leaving, and does nothing before Begin. It is safe for concurrent use.
type Lingering struct {
	on atomic.Bool

	mu   sync.Mutex
	open map[*lingeringConn]struct{}
	none chan struct{} // closed when the last has gone; nil = there is none
}

// NewLingering makes one that has not begun.
func NewLingering() *Lingering {
	return &Lingering{open: make(map[*lingeringConn]struct{})}
}

// Begin has connections that are closed from now on linger.
func (l *Lingering) Begin() { l.on.Store(true) }

// Wait waits until none lingers any more; with the end of ctx those that do are closed.
func (l *Lingering) Wait(ctx context.Context) {
	l.mu.Lock()
	none := l.none
	l.mu.Unlock()
	if none == nil {
		return
	}
	select {
	case <-none:
		return
	case <-ctx.Done():
	}
	l.mu.Lock()
	for c := range l.open {
		_ = c.Conn.Close()
	}
	l.mu.Unlock()
	<-none
}

// Listener looks after the connections of one over TCP; it comes before all that wraps
// them.
func (l *Lingering) Listener(inner net.Listener) net.Listener {
	return &lingeringListener{inner, l}
}

type lingeringListener struct {
	net.Listener

	all *Lingering
}

// Accept implements net.Listener.
func (l *lingeringListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if half, ok := c.(halfCloser); ok {
		return &lingeringConn{Conn: c, half: half, all: l.all}, nil
	}
	return c, nil
}

type halfCloser interface{ CloseWrite() error }

type lingeringConn struct {
	net.Conn

	half    halfCloser
	all     *Lingering
	closing atomic.Bool
}

// CloseWrite is for net/http, which has a reason of its own to linger.
func (c *lingeringConn) CloseWrite() error { return c.half.CloseWrite() }

// Close implements net.Conn. It does not wait.
func (c *lingeringConn) Close() error {
	if c.closing.Swap(true) {
		return net.ErrClosed
	}
	if !c.all.on.Load() || c.half.CloseWrite() != nil || c.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return c.Conn.Close()
	}
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	if len(c.all.open) == 0 {
		c.all.none = make(chan struct{})
	}
	c.all.open[c] = struct{}{}
	go c.linger()
	return nil
}

// linger reads what the client still sends, until it has closed its side.
func (c *lingeringConn) linger() {
	_, _ = io.Copy(io.Discard, c.Conn)
	_ = c.Conn.Close()
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	delete(c.all.open, c)
	if len(c.all.open) == 0 {
		close(c.all.none)
		c.all.none = nil
	}
}

var (
	_ net.Listener = (*lingeringListener)(nil)
	_ net.Conn     = (*lingeringConn)(nil)
)
