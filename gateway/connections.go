package gateway

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"sluice/gateway/proxyproto"
)

// Connections bound how many connections one client address may have open at one
// time (IPv6: one /64), before TLS and before a byte is read (H16). It is safe for
// concurrent use. Its memory is that of the connections that are open.
type Connections struct {
	limit   atomic.Int64
	trusted atomic.Pointer[[]netip.Prefix]
	refused atomic.Int64
	all     atomic.Int64 // open, counted by address or not

	mu   sync.Mutex
	open map[netip.Addr]int
}

// NewConnections makes a bound with nobody counted.
func NewConnections() *Connections { return &Connections{open: make(map[netip.Addr]int)} }

// Set puts a limit in force for connections that come from now on; 0 is none.
// Those of trusted proxies are not counted, since they bring many clients' requests, but
// for whom they name (Count).
func (c *Connections) Set(limit int, trusted []netip.Prefix) {
	c.limit.Store(int64(limit))
	c.trusted.Store(&trusted)
}

// Refused is how many connections were closed unread.
func (c *Connections) Refused() int64 { return c.refused.Load() }

// Open is how many connections are open, those of trusted proxies too.
func (c *Connections) Open() int64 { return c.all.Load() }

// Addresses is how many addresses have connections open.
func (c *Connections) Addresses() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open)
}

// Trusted reports whether a peer is a trusted proxy, as it is in force now.
func (c *Connections) Trusted(peer netip.Addr) bool {
	trusted := c.trusted.Load()
	return trusted != nil && isTrusted(peer, *trusted)
}

// Count counts a connection that a trusted proxy has passed on for client, who was not known
// when it came (proxyproto.Clients).
func (c *Connections) Count(client netip.Addr) (give func(), ok bool) {
	if c.Trusted(client) {
		return func() {}, true
	}
	from := addressPrefix(client)
	if !c.take(from) {
		c.refused.Add(1)
		return nil, false
	}
	return func() { c.give(from) }, true
}

// Listener counts the connections of l.
func (c *Connections) Listener(l net.Listener) net.Listener { return &countingListener{l, c} }

type countingListener struct {
	net.Listener
	count *Connections
}

// Accept implements net.Listener. A connection too many is closed at once, and
// costs the others nothing but that.
func (l *countingListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		peer := addressOf(conn.RemoteAddr().String())
		if l.count.Trusted(peer) {
			l.count.all.Add(1)
			return &countedConn{Conn: conn, count: l.count}, nil
		}
		from := addressPrefix(peer)
		if l.count.take(from) {
			l.count.all.Add(1)
			return &countedConn{Conn: conn, count: l.count, from: &from}, nil
		}
		l.count.refused.Add(1)
		_ = conn.Close()
	}
}

func (c *Connections) take(from netip.Addr) bool {
	limit := c.limit.Load()
	c.mu.Lock()
	defer c.mu.Unlock()
	if limit > 0 && int64(c.open[from]) >= limit {
		return false
	}
	c.open[from]++
	return true
}

func (c *Connections) give(from netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[from]--; c.open[from] <= 0 {
		delete(c.open, from)
	}
}

// countedConn is counted until it is closed.
type countedConn struct {
	net.Conn
	count *Connections
	from  *netip.Addr // nil: it counts for no address
	once  sync.Once
}

// CloseWrite is for net/http, which has the client read what is on its way.
func (c *countedConn) CloseWrite() error {
	if half, ok := c.Conn.(halfCloser); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	c.once.Do(func() {
		c.count.all.Add(-1)
		if c.from != nil {
			c.count.give(*c.from)
		}
	})
	return c.Conn.Close()
}

var (
	_ proxyproto.Clients = (*Connections)(nil)
	_ net.Listener       = (*countingListener)(nil)
	_ net.Conn           = (*countedConn)(nil)
)
