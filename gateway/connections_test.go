package gateway

import (
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
)

// comingConn is a connection that comes from an address.
type comingConn struct {
	net.Conn
	from   net.Addr
	closed atomic.Bool
}

func (c *comingConn) RemoteAddr() net.Addr { return c.from }
func (c *comingConn) Close() error         { c.closed.Store(true); return nil }

// coming is a listener to which connections come as a test says.
type coming chan *comingConn

func (c coming) Accept() (net.Conn, error) {
	conn, ok := <-c
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}
func (c coming) Close() error   { return nil }
func (c coming) Addr() net.Addr { return &net.TCPAddr{} }

func (c coming) from(address string) *comingConn {
	conn := &comingConn{from: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))}
	c <- conn
	return conn
}

// H16, L11: one address took all connections that there were, and an IPv6 client
// had 2^64 addresses to do so with. Each address, and each /64, has its own
// number; what is over it is closed unread, and what closes makes room.
func TestConnectionsOfOneAddress(t *testing.T) {
	c := NewConnections()
	c.Set(2, []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")})
	in := make(coming, 32)
	l := c.Listener(in)
	accept := func(addresses ...string) (taken []net.Conn) {
		t.Helper()
		before := c.Refused()
		for _, a := range addresses {
			in.from(a)
		}
		in.from("192.0.2.250:1") // marks the end
		for {
			conn, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			if conn.RemoteAddr().String() == "192.0.2.250:1" {
				_ = conn.Close()
				break
			}
			taken = append(taken, conn)
		}
		if got := int(c.Refused() - before); got != len(addresses)-len(taken) {
			t.Errorf("%d counted as refused of %d, %d taken", got, len(addresses), len(taken))
		}
		return taken
	}
	v4 := accept("192.0.2.1:1", "192.0.2.1:2", "192.0.2.1:3", "[::ffff:192.0.2.1]:4", "192.0.2.2:1")
	if len(v4) != 3 {
		t.Errorf("%d taken, want 2 of one address, one of the other", len(v4))
	}
	if got := len(accept("[2001:db8::1]:1", "[2001:db8::2]:1", "[2001:db8:0:0:ffff::3]:1", "[2001:db8:0:1::1]:1")); got != 3 {
		t.Errorf("%d of IPv6 taken, want 2 of one /64, one of the other", got)
	}
	if got := len(accept("10.9.0.1:1", "10.9.0.1:2", "10.9.0.1:3")); got != 3 {
		t.Errorf("%d of a trusted proxy taken, want all", got)
	}
	_, _ = v4[0].Close(), v4[0].Close() // a second Close gives nothing back
	if got := len(accept("192.0.2.1:5", "192.0.2.1:6")); got != 1 {
		t.Errorf("%d taken after one was closed, want 1", got)
	}
	c.Set(0, nil)
	if got := len(accept("192.0.2.1:7", "192.0.2.1:8")); got != 2 {
		t.Errorf("%d taken without a limit, want 2", got)
	}
	if got := c.Addresses(); got != 4 {
		t.Errorf("%d addresses in memory, want those with open connections: 4", got)
	}
}

// H16, H09: behind a load balancer that speaks the PROXY protocol a client has its number by
// the address in the header, together with what it opens itself; a proxy of ours in front of
// the balancer has none.
func TestConnectionsOfANamedClient(t *testing.T) {
	c := NewConnections()
	c.Set(2, []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")})
	in := make(coming, 8)
	l := c.Listener(in)
	in.from("[2001:db8::1]:1")
	direct, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	give, ok := c.Count(netip.MustParseAddr("2001:db8::2"))
	if _, more := c.Count(netip.MustParseAddr("2001:db8::3")); !ok || more || c.Refused() != 1 {
		t.Errorf("the second of one /64: %t, the third: %t, %d refused", ok, more, c.Refused())
	}
	for range 5 {
		if _, ok := c.Count(netip.MustParseAddr("10.9.0.1")); !ok {
			t.Error("a trusted proxy is counted")
		}
	}
	give()
	_ = direct.Close()
	if n := c.Addresses(); n != 0 {
		t.Errorf("%d addresses in memory", n)
	}
	if !c.Trusted(netip.MustParseAddr("10.9.3.4")) || c.Trusted(netip.MustParseAddr("10.10.0.1")) {
		t.Error("trust is not by the list")
	}
}

func (c *comingConn) CloseWrite() error { return errClosedHalf }

var errClosedHalf = errors.New("closed by half")

// net/http closes one side of a connection first, so that the client reads its last answer:
// that has to reach the connection itself.
func TestCountedConnectionIsClosedByHalf(t *testing.T) {
	in := make(coming, 1)
	in.from("192.0.2.1:1")
	conn, err := NewConnections().Listener(in).Accept()
	if err != nil {
		t.Fatal(err)
	}
	if half, ok := conn.(halfCloser); !ok || !errors.Is(half.CloseWrite(), errClosedHalf) {
		t.Error("the write side stays open")
	}
}
