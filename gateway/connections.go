package gateway

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"sluice/gateway/proxyproto"
)

// Connections bound how many connections clients may have open at one time: each
// address (IPv6: one /64), and all together (O08), before TLS and before a byte is read
// (H16). It is safe for concurrent use. Its memory is that of the connections that are
// open.
type Connections struct {
	surplus
	limit   atomic.Int64
	trusted atomic.Pointer[[]netip.Prefix]
	refused atomic.Int64
	all     atomic.Int64  // open, counted by address or not
	stall   time.Duration // see countedConn.Write

	mu   sync.Mutex
	open map[netip.Addr]int
}

// NewConnections makes a bound with nobody counted.
func NewConnections() *Connections {
	return &Connections{surplus: newSurplus(), stall: readStall, open: make(map[netip.Addr]int)}
}

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

// Listener counts the connections of l. Those over the bound of all are closed.
func (c *Connections) Listener(l net.Listener) net.Listener { return &countingListener{l, c, false} }

type countingListener struct {
	net.Listener
	count *Connections
	tells bool // those over the bound of all are told so
}

// Accept implements net.Listener. A connection too many is turned away at once, and
// costs the others nothing but that. What may pass is an error that has net/http wait a
// while and go on.
func (l *countingListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, l.count.unaccepted(err)
		}
		if !l.count.enter() {
			l.count.turnAway(conn, l.tells)
			continue
		}
		peer := addressOf(conn.RemoteAddr().String())
		if l.count.Trusted(peer) {
			return l.count.hold(conn, nil), nil
		}
		from := addressPrefix(peer)
		if l.count.take(from) {
			return l.count.hold(conn, &from), nil
		}
		l.count.all.Add(-1)
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
	late  *time.Timer // ends a write that takes too long
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
		c.late.Stop()
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
