package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/internal/tenant"
)

// greeter makes connections when it is told to.
type greeter struct {
	driver.Connector
	dials atomic.Int64
	greet chan error
	open  atomic.Int64
}

func (g *greeter) Connect(ctx context.Context) (driver.Conn, error) {
	g.dials.Add(1)
	select {
	case err := <-g.greet:
		if err != nil {
			return nil, err
		}
		g.open.Add(1)
		return &greeted{g: g}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type greeted struct {
	driver.Conn
	g    *greeter
	dead bool
}

func (c *greeted) Close() error {
	c.g.open.Add(-1)
	return nil
}

func (c *greeted) Ping(context.Context) error {
	if c.dead {
		return driver.ErrBadConn
	}
	return nil
}

// A server that takes longer to greet than a look-up waits, as one with too much to do, was
// never reached again: each look-up took the connection with it that it had opened.
func TestConnectionThatComesLate(t *testing.T) {
	t.Parallel()
	g := &greeter{greet: make(chan error)}
	d := newDialer(g, 2, time.Minute)
	patience, leave := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	for range 2 {
		asking.Go(func() {
			if _, err := d.Connect(patience); !errors.Is(err, context.Canceled) {
				t.Errorf("who left was told %v", err)
			}
		})
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for g.dials.Load() < 2 {
		<-tick.C
	}
	leave()
	asking.Wait()
	g.greet <- nil
	first, err := d.Connect(t.Context())
	if err != nil || g.dials.Load() > 3 {
		t.Fatalf("the next was told %v, after %d greetings", err, g.dials.Load())
	}
	if c, ok := first.(*greeted); !ok || c.g != g {
		t.Errorf("the next was given %v", first)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	refused := errors.New("refused")
	done := make(chan error)
	go func() {
		_, err := d.Connect(t.Context())
		done <- err
	}()
	for told := false; !told; {
		select {
		case g.greet <- refused: // of the one who left, or of this one
		case err := <-done:
			if told = true; !errors.Is(err, refused) {
				t.Errorf("with a server that refuses: %v", err)
			}
		}
	}
	if err := d.Close(); err != nil || g.open.Load() != 0 {
		t.Errorf("closed: %v, %d connections are open", err, g.open.Load())
	}
}

// What came late and died meanwhile is given to nobody.
func TestLateConnectionThatDied(t *testing.T) {
	t.Parallel()
	g := &greeter{greet: make(chan error, 1)}
	d := newDialer(g, 1, time.Minute)
	g.open.Add(1)
	d.late <- &greeted{g: g, dead: true}
	g.greet <- nil
	c, err := d.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := c.(*greeted); !ok || got.dead {
		t.Errorf("given %+v", c)
	}
	if err := errors.Join(c.Close(), d.Close()); err != nil || g.open.Load() != 0 {
		t.Errorf("%v, %d connections are open", err, g.open.Load())
	}
}

// Look-ups that come many at one time closed the connections that they had just used, and
// the next ones had to be greeted again.
func TestLookupsKeepTheirConnections(t *testing.T) {
	t.Parallel()
	r := newRig(t, postgres.Database(t))
	r.account(t, "acme")
	must(t, r.CreateKey(t.Context(), someone(), r.aKey("acme", "known")))
	for range 20 {
		var all sync.WaitGroup
		for range 4 * postgresReaders {
			all.Go(func() {
				_, err := r.KeyOf(t.Context(), tenant.DigestOf("known"))
				wantsNil(t, err)
			})
		}
		all.Wait()
	}
	for name, pool := range map[string]*sql.DB{"reads": r.read, "changes": r.write} {
		if s := pool.Stats(); s.MaxIdleClosed > 0 {
			t.Errorf("of %s, %d connections were closed since too many were idle", name, s.MaxIdleClosed)
		}
	}
}
