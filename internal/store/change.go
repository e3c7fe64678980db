package store

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"sluice/internal/tenant"
)

// change is one transaction that changes what is stored and says so in the log.
//
// Changes of all replicas go one by one: each begins with the one row of meta, and has it
// until it is committed. So what a change reads stays true until it is in force, and the
// order of revisions is that of commits. There are few changes: people make them.
type change struct {
	s        *Store
	tx       *sql.Tx
	now      time.Time
	revision int64 // of the newest change before this one
	told     []tenant.Change
}

// change runs one. do may return an error of this package, which undoes everything.
func (s *Store) change(ctx context.Context, what string, most time.Duration, do func(context.Context, *change) error) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	return failed(what, s.transact(ctx, do))
}

// begin begins a transaction. A server that was restarted has ended the connections of
// the pool, each of which says so once: nothing was asked of it yet, so another one is
// taken.
func (s *Store) begin(ctx context.Context) (tx *sql.Tx, err error) {
	for range postgresWriters + 1 {
		if tx, err = s.write.BeginTx(ctx, nil); err == nil || ctx.Err() != nil || !ended(err) {
			break
		}
	}
	return tx, err
}

// ended reports an error by which Postgres ends a connection (class 57P).
func ended(err error) bool {
	var said *pgconn.PgError
	return errors.As(err, &said) && strings.HasPrefix(said.Code, "57P")
}

func (s *Store) transact(ctx context.Context, do func(context.Context, *change) error) error {
	tx, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // nothing where it is committed
	c := &change{s: s, tx: tx}
	if err := tx.QueryRowContext(ctx, `UPDATE meta SET revision = revision WHERE id = 1 RETURNING revision`).Scan(&c.revision); err != nil {
		return err
	}
	// Now that the row is held: a time read before could lie before that of the change
	// that was waited for.
	c.now = s.now()
	if err := do(ctx, c); err != nil {
		return err
	}
	if err := c.writeLog(ctx); err != nil {
		return err
	}
	if len(c.told) > 0 {
		if err := s.notify(ctx, tx); err != nil {
			return err
		}
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	s.feed.wake()
	return nil
}
