package proxyproto

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"
)

const (
	balancer = "10.0.0.9:4000" // trusted
	stranger = "192.0.2.66:5000"
	payload  = "GET /acme/s.events HTTP/1.1\r\n\r\n"
)

// coming is a listener to which connections come as a test says.
type coming chan net.Conn

func (c coming) Accept() (net.Conn, error) {
	conn, ok := <-c
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}
func (c coming) Close() error   { return nil }
func (c coming) Addr() net.Addr { return &net.TCPAddr{} }

// comingConn is a connection of an address.
type comingConn struct {
	net.Conn

	from net.Addr
}

func (c comingConn) RemoteAddr() net.Addr { return c.from }
func (c comingConn) CloseWrite() error    { return c.Close() }

func addr(text string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(text)) }

// rig is a listener, and those who are told of its connections.
type rig struct {
	net.Listener

	in coming

	mu      sync.Mutex
	counted map[netip.Addr]int
	limit   int
	refused []Refusal
	taken   []Taken
}

func newRig(required bool) *rig {
	r := &rig{in: make(coming, 2*headersAwaited), counted: make(map[netip.Addr]int), limit: 1000}
	r.Listener = NewListener(r.in, Options{Required: required, Clients: r, Refused: func(why Refusal, _ net.Addr) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.refused = append(r.refused, why)
	}, Taken: func(as Taken) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.taken = append(r.taken, as)
	}})
	return r
}

// Trusted implements Clients.
func (r *rig) Trusted(peer netip.Addr) bool {
	return netip.MustParsePrefix("10.0.0.0/24").Contains(peer) || netip.MustParsePrefix("fd00::/64").Contains(peer)
}

// Count implements Clients.
func (r *rig) Count(client netip.Addr) (give func(), ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counted[client] >= r.limit {
		return nil, false
	}
	r.counted[client]++
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.counted[client]--
	}, true
}

// why is the refusal that there was; "" for none.
func (r *rig) why() Refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.refused) == 0 {
		return ""
	}
	return r.refused[len(r.refused)-1]
}

func (r *rig) open(client string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counted[netip.MustParseAddr(client)]
}

// connect has a connection come from an address, over a pipe or anything else.
func (r *rig) connect(t testing.TB, from string, over net.Conn) net.Conn {
	t.Helper()
	r.in <- comingConn{over, addr(from)}
	c, err := r.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// script is a connection on which pieces come, and then the end.
type script struct {
	pieces [][]byte
	read   int // bytes that were taken
	closed bool
}

func (s *script) Read(p []byte) (int, error) {
	if s.closed {
		return 0, net.ErrClosed
	}
	if len(s.pieces) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.pieces[0])
	if s.pieces[0] = s.pieces[0][n:]; len(s.pieces[0]) == 0 {
		s.pieces = s.pieces[1:]
	}
	s.read += n
	return n, nil
}

func (s *script) Write([]byte) (int, error) { return 0, net.ErrClosed }
func (s *script) Close() error {
	s.closed = true
	return nil
}
func (s *script) LocalAddr() net.Addr              { return addr("10.0.0.1:443") }
func (s *script) RemoteAddr() net.Addr             { return nil }
func (s *script) SetDeadline(time.Time) error      { return nil }
func (s *script) SetReadDeadline(time.Time) error  { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }

// pieces cuts data after each n bytes.
func pieces(data string, n int) [][]byte {
	var all [][]byte
	for len(data) > n {
		all = append(all, []byte(data[:n]))
		data = data[n:]
	}
	if data == "" {
		return all
	}
	return append(all, []byte(data))
}

const (
	tcp4, udp4, tcp6, unixStream, unspec = 0x11, 0x12, 0x21, 0x31, 0x00

	local, proxy = 0x20, 0x21
)

// v2 is a header of version 2 (proxy-protocol.txt §2.2).
func v2(command, family byte, body string) string {
	length := binary.BigEndian.AppendUint16(nil, uint16(len(body))) //nolint:gosec // a test's
	return signatureV2 + string([]byte{command, family}) + string(length) + body
}

// from4 and from6 are the addresses of a header of version 2, to one of ours.
func from4(client string) string {
	a := netip.MustParseAddrPort(client)
	ip := a.Addr().As4()
	return string(ip[:]) + "\x0a\x00\x00\x01" + string(binary.BigEndian.AppendUint16(nil, a.Port())) + "\x01\xbb"
}

func from6(client string) string {
	a := netip.MustParseAddrPort(client)
	ip := a.Addr().As16()
	return string(ip[:]) + string(make([]byte, 16)) + string(binary.BigEndian.AppendUint16(nil, a.Port())) + "\x01\xbb"
}

// tlv is a value that a balancer adds to the addresses.
func tlv(kind byte, value string) string {
	return string([]byte{kind}) + string(binary.BigEndian.AppendUint16(nil, uint16(len(value)))) + value //nolint:gosec // a test's
}
