package gateway

import (
	"net"
	"net/netip"
	"time"
)

// Of the answers of which a client reads nothing, or next to nothing, each held its
// connection and the one to the node for as long as it liked (S09, H16). For each
// readPiece of what is written to it a client has readStall: on the connection, whatever
// is spoken on it. That is long, since a client that reads all along may make room in
// large steps: its kernel opens a window that was shut by a 16th of its buffer, which is
// 400 KiB and more, and ours lets a writer go on once half of unsentBytes has gone
// (cmd/sluice/listen_linux.go). One that makes no room at all is found by the kernel
// before, after clientUserTimeout.
// Over HTTP/2 each stream has Pace.StreamWrite too, whose client may stop one alone. Only the time in which a
// write waits for the client counts, so that a silent tail, or a node that takes its
// time, is cut by neither.
const (
	readStall = 5 * time.Minute
	readPiece = 32 << 10
)

func (c *Connections) hold(conn net.Conn, from *netip.Addr) *countedConn {
	held := &countedConn{Conn: conn, count: c, from: from}
	// In the past, so that the write under way ends as one whose deadline passes.
	held.late = time.AfterFunc(c.stall, func() { _ = conn.SetWriteDeadline(time.Unix(1, 0)) })
	held.late.Stop()
	return held
}

// Write implements net.Conn. What net/http and TLS write comes one at a time.
func (c *countedConn) Write(p []byte) (int, error) {
	c.late.Reset(c.count.stall * time.Duration(1+len(p)/readPiece))
	defer c.late.Stop()
	return c.Conn.Write(p)
}
