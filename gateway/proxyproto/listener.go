package proxyproto

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	// headerTime is how long a header may take to come, from when its connection was
	// taken. What it took is gone from what comes next, TLS or a request's head (H16).
	headerTime = 10 * time.Second
	// headersAwaited is how many connections of one balancer may be without their header at
	// one time. Good ones are for a moment: the header is the first that a balancer sends.
	headersAwaited = 4096
)

// Refusal says why a connection was closed.
type Refusal string

// The refusals.
const (
	Untrusted Refusal = "untrusted" // the peer is no trusted proxy: a header of its, or, where one is required, anything
	Missing   Refusal = "missing"   // a trusted proxy left the header out, where it is required
	Malformed Refusal = "malformed" // no header, too long, of another transport, or cut
	Late      Refusal = "late"      // it did not come within headerTime
	Crowded   Refusal = "crowded"   // headersAwaited of the peer's connections have none yet
)

// Taken says whose connection a trusted peer's is that goes on.
type Taken string

// What is taken.
const (
	OfClient      Taken = "client"   // whom its header names
	OfBalancer    Taken = "balancer" // its header names nobody: a health check, as a rule
	WithoutHeader Taken = "none"     // its header was left out, where none is required
)

// Refusals lists them all.
func Refusals() []Refusal { return []Refusal{Untrusted, Missing, Malformed, Late, Crowded} }

// Clients know whose header is believed, and count whom it names. They are asked by many
// goroutines at once, and not for long.
type Clients interface {
	// Trusted reports whether a peer's header is believed.
	Trusted(peer netip.Addr) bool
	// Count counts a connection of client until it is given back, once; false: it is one
	// too many, and there is nothing to give back.
	Count(client netip.Addr) (give func(), ok bool)
}

// Options of a listener; all but Required have to be there.
type Options struct {
	// Required: each connection has to come of a trusted peer and begin with a header. Else
	// trusted peers may leave it out.
	Required bool
	Clients  Clients
	// Refused is told of each connection that was closed for its header, and of its peer. It
	// is called by many goroutines at once.
	Refused func(why Refusal, peer net.Addr)
	// Taken is told of each connection of a trusted peer that goes on, under the same terms.
	Taken func(as Taken)
}

// NewListener takes the headers of l's connections, which are over TCP. It stands below TLS.
// A header is read where its connection is first read of or asked for its addresses, which
// servers do on a goroutine of the connection's own, so that Accept never waits for one. A
// connection that is refused is closed, and its reads fail.
func NewListener(l net.Listener, o Options) net.Listener {
	return &listener{Listener: l, options: o, awaited: make(map[netip.Addr]int)}
}

type listener struct {
	net.Listener

	options Options

	mu      sync.Mutex
	awaited map[netip.Addr]int // connections without their header, by trusted peer
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		address := c.RemoteAddr()
		peer := addrPort(address).Addr()
		trusted := l.options.Clients.Trusted(peer)
		switch {
		case !trusted && l.options.Required:
			l.refuse(c, Untrusted, address)
		case !trusted:
			return &conn{Conn: c, listener: l, client: address}, nil
		case !l.await(peer):
			l.refuse(c, Crowded, address)
		default:
			return &conn{Conn: c, listener: l, client: address, trusted: true, began: time.Now(), give: func() { l.arrived(peer) }}, nil
		}
	}
}

func (l *listener) refuse(c net.Conn, why Refusal, peer net.Addr) {
	_ = c.Close()
	l.options.Refused(why, peer)
}

func (l *listener) await(peer netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.awaited[peer] >= headersAwaited {
		return false
	}
	l.awaited[peer]++
	return true
}

func (l *listener) arrived(peer netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.awaited[peer]--; l.awaited[peer] <= 0 {
		delete(l.awaited, peer)
	}
}

// addrPort is an address in its one spelling: IPv4 in IPv6 form is IPv4, zones are dropped
// (L11). What is not over TCP has none.
func addrPort(a net.Addr) netip.AddrPort {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := tcp.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
}

var (
	_ net.Listener = (*listener)(nil)
	_ net.Conn     = (*conn)(nil)
)
