package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// The pools of a replica: few connections, since changes go one by one and look-ups are
// short. A server takes 100 by itself. Changes that wait for one another must not keep
// those who read from a connection: the request path is among them.
const (
	postgresReaders = 8
	postgresWriters = 4
	connIdleTime    = 5 * time.Minute
	connLife        = 30 * time.Minute // so that a server that came back gets its share
	connectTime     = 5 * time.Second
)

// channel is what replicas listen on.
const channel = "sluice_changes"

// aliveEvery is how often the connection that listens is tried, and how long it may take
// to answer.
const aliveEvery = 5 * time.Second

func (s *Store) openPostgres(ctx context.Context, o Options) error {
	config, err := postgresConfig(o.URL)
	if err != nil {
		return err
	}
	if o.SealingKey == nil {
		return fmt.Errorf("%w: set auth.sealing_key, the same for each replica, to 32 bytes in base64 (openssl rand -base64 32)", ErrUnusable)
	}
	// A replica that is frozen within a change must not hold up the others: less than
	// callTime, so that theirs succeed.
	config.RuntimeParams["idle_in_transaction_session_timeout"] = "5s"
	s.shared, s.listen = true, config.Copy()
	pool := func(most int) *sql.DB {
		// A connection is tried before each use: of a server that was restarted or replaced
		// none is left, and no call should be the one that finds out.
		connector := stdlib.GetConnector(*config, stdlib.OptionShouldPing(func(context.Context, stdlib.ShouldPingParams) bool { return true }))
		db := sql.OpenDB(newDialer(connector, most, connectTime))
		db.SetMaxOpenConns(most)
		// All are kept that were needed at one time: of those beyond, each would be closed
		// after one look-up and made anew for the next, which costs a server far more.
		db.SetMaxIdleConns(most)
		db.SetConnMaxIdleTime(connIdleTime)
		db.SetConnMaxLifetime(connLife)
		return db
	}
	s.write, s.read = pool(postgresWriters), pool(postgresReaders)
	if err := migrate(ctx, s.write, true); err != nil {
		if errors.Is(err, errNewer) {
			return fmt.Errorf("%w: %w", ErrUnusable, err)
		}
		return err
	}
	s.clock = func(ctx context.Context, q querier) (time.Time, error) {
		var now int64
		err := q.QueryRowContext(ctx, `SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)`).Scan(&now)
		return moment(now), err
	}
	s.notify = func(ctx context.Context, q querier) error { return run(ctx, q, `NOTIFY `+channel) }
	return s.useSealingKey(ctx, o.SealingKey)
}

// heard listens on a connection of its own until ctx ends or the connection does.
func (s *Store) heard(ctx context.Context, wake func()) error {
	conn, err := pgx.ConnectConfig(ctx, s.listen)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(ctx) // what ended it is the error
	}()
	begin, done := context.WithTimeout(ctx, s.alive)
	_, err = conn.Exec(begin, `LISTEN `+channel)
	done()
	if err != nil {
		return err
	}
	for {
		// What changed before this connection listened is for the first call.
		wake()
		if err := s.await(ctx, conn); err != nil {
			return err
		}
	}
}

// await returns after a notification. A server that is gone without a word is found out
// within twice s.alive.
func (s *Store) await(ctx context.Context, conn *pgx.Conn) error {
	for {
		wait, cancel := context.WithTimeout(ctx, s.alive)
		_, err := conn.WaitForNotification(wait)
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return errors.Join(err, ctx.Err())
		}
		ping, cancel := context.WithTimeout(ctx, s.alive)
		err = conn.Ping(ping)
		cancel()
		if err != nil {
			return err
		}
	}
}
