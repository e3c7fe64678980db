package upstream

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// room is how many connections to nodes the requests may have, those included that
// are kept for the next one. Probes have connections of their own, which it leaves
// alone. It is safe for concurrent use.
type room struct {
	most  atomic.Int64 // 0 = any number
	open  atomic.Int64
	short atomic.Int64
}

var errNoRoom = errors.New("as many connections to nodes are open as may be")

// SetMaxConnections bounds the connections to all nodes together that requests may
// have open from now on; 0 is any number. A request that needs one more ends as NoRoom.
func (p *Pool) SetMaxConnections(most int) { p.room.most.Store(int64(most)) }

// MaxConnections is the bound in force; 0 is any number.
func (p *Pool) MaxConnections() int64 { return p.room.most.Load() }

// Connections is how many connections to nodes requests have open, those that are
// kept for the next one included.
func (p *Pool) Connections() int64 { return p.room.open.Load() }

// Short is how many requests had to do without a connection to a node, since the
// gateway had none to spare.
func (p *Pool) Short() int64 { return p.room.short.Load() }

// isOurs reports an error of connecting that says nothing of the node: what is used
// up is the process' descriptors, the machine's memory for sockets, or its ports
// towards that address (O08).
func isOurs(err error) bool {
	for _, used := range []error{errNoRoom, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL} {
		if errors.Is(err, used) {
			return true
		}
	}
	// The resolver keeps no more than the text of why it could not ask.
	var name *net.DNSError
	return errors.As(err, &name) && strings.Contains(name.Err, syscall.EMFILE.Error())
}

// bounded is a dial that counts what it opens. Where there is no room it closes the
// connections that wait for a request, and tries once more.
func (p *Pool) bounded(dial DialFunc) DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := p.room.dial(ctx, dial, network, address)
		if err == nil || !isOurs(err) {
			return c, err
		}
		for _, n := range *p.nodes.Load() {
			n.conns.CloseIdle()
		}
		c, err = p.room.dial(ctx, dial, network, address)
		if err != nil && isOurs(err) {
			p.room.short.Add(1)
		}
		return c, err
	}
}

func (r *room) dial(ctx context.Context, dial DialFunc, network, address string) (net.Conn, error) {
	if open, most := r.open.Add(1), r.most.Load(); most > 0 && open > most {
		r.open.Add(-1)
		return nil, errNoRoom
	}
	c, err := dial(ctx, network, address)
	if err != nil {
		r.open.Add(-1)
		return nil, err
	}
	held := &heldConn{Conn: c, room: r}
	if socket, ok := c.(syscall.Conn); ok {
		return heldSocket{held, socket}, nil // else nobody could look at it
	}
	return held, nil
}

// heldConn is counted until it is closed.
type heldConn struct {
	net.Conn

	room *room
	once sync.Once
}

// Close implements net.Conn.
func (c *heldConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { c.room.open.Add(-1) })
	return err
}

type heldSocket struct {
	*heldConn
	syscall.Conn
}

var (
	_ net.Conn     = heldSocket{}
	_ syscall.Conn = heldSocket{}
)
