package store

import (
	"context"
	"database/sql/driver"
	"fmt"
	"sync"
	"time"
)

// dialer makes connections for a pool, for longer than those wait who want one. A look-up
// has 250 ms. Were the connection that it opens given up with it, then a server that takes
// longer than that to greet, as one with too much to do, would never be reached: each try
// would cost it a greeting, and leave nothing behind. Here what comes too late for one is
// there for the next.
//
// It is safe for concurrent use. Close, which sql.DB.Close calls, ends its goroutines.
type dialer struct {
	driver.Connector
	most time.Duration // of one greeting

	life    context.Context
	end     context.CancelFunc
	running sync.WaitGroup
	dialing chan struct{}    // holds one for each greeting under way
	late    chan driver.Conn // nobody has waited for these
}

// newDialer is one for a pool of at most so many connections: as many more may be under
// way or late.
func newDialer(c driver.Connector, conns int, most time.Duration) *dialer {
	d := &dialer{Connector: c, most: most, dialing: make(chan struct{}, conns), late: make(chan driver.Conn, conns)}
	d.life, d.end = context.WithCancel(context.Background())
	return d
}

// dialed is what became of a greeting.
type dialed struct {
	conn driver.Conn
	err  error
}

// Connect implements driver.Connector.
func (d *dialer) Connect(ctx context.Context) (driver.Conn, error) {
	asked, leave := context.WithCancel(ctx)
	defer leave()
	result, begin := make(chan dialed), d.dialing
	for {
		select {
		case c := <-d.late:
			if lives(ctx, c) {
				return c, nil
			}
			_ = c.Close() // it is of no use
		case begin <- struct{}{}:
			begin = nil // one is enough
			d.running.Go(func() { d.dial(asked, result) })
		case r := <-result:
			return r.conn, r.err
		case <-ctx.Done():
			return nil, fmt.Errorf("connect: %w", context.Cause(ctx))
		}
	}
}

// dial makes one connection, for whoever waits for the result or for later.
func (d *dialer) dial(asked context.Context, result chan<- dialed) {
	defer func() { <-d.dialing }()
	ctx, cancel := context.WithTimeout(d.life, d.most)
	defer cancel()
	c, err := d.Connector.Connect(ctx) //nolint:contextcheck // it is to outlive who asked
	select {
	case result <- dialed{c, err}:
		return
	case <-asked.Done():
	}
	if err != nil {
		return
	}
	select {
	case d.late <- c:
	default:
		_ = c.Close() // there are enough
	}
}

// lives tries a connection that has waited for somebody.
func lives(ctx context.Context, c driver.Conn) bool {
	p, ok := c.(driver.Pinger)
	return !ok || p.Ping(ctx) == nil
}

// Close implements io.Closer.
func (d *dialer) Close() error {
	d.end()
	d.running.Wait()
	for {
		select {
		case c := <-d.late:
			_ = c.Close() // nobody uses it
		default:
			return nil
		}
	}
}
