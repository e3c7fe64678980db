package store

import (
	"context"
	"database/sql"
	"time"

	"sluice/internal/tenant"
)

// change is one transaction that changes what is stored, says so in the log, and has a
// record of it.
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

	by      Author
	auditID int64 // of the newest record
	records []Record
	known   bool // what is told was recorded before
}

// change runs one. do may return an error of this package, which undoes everything.
func (s *Store) change(ctx context.Context, what string, most time.Duration, by Author, do func(context.Context, *change) error) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	return failed(what, s.transact(ctx, by, do))
}

func (s *Store) transact(ctx context.Context, by Author, do func(context.Context, *change) error) error {
	if by.actor.Kind == "" {
		return ErrNobody
	}
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // nothing where it is committed
	c := &change{s: s, tx: tx, by: by}
	if err := tx.QueryRowContext(ctx, `UPDATE meta SET revision = revision WHERE id = 1 RETURNING revision, audit_id`).Scan(&c.revision, &c.auditID); err != nil {
		return err
	}
	// Now that the row is held: a time read before could lie before that of the change
	// that was waited for.
	c.now = s.now()
	if err := do(ctx, c); err != nil {
		return err
	}
	if err := c.writeRecords(ctx); err != nil {
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

// changesNothing reports whether a change would surely write nothing. It is tried where
// nothing can be written, so that it waits for no other change, and works on a full disk.
func (s *Store) changesNothing(ctx context.Context, most time.Duration, do func(context.Context, *change) error) bool {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	o := sql.TxOptions{ReadOnly: true}
	if s.shared {
		o.Isolation = sql.LevelRepeatableRead // all of it as of one moment; a transaction of SQLite is so by itself
	}
	tx, err := s.read.BeginTx(ctx, &o)
	if err != nil {
		return false
	}
	defer func() { _ = tx.Rollback() }() // there is nothing to commit
	c := &change{s: s, tx: tx, now: s.now()}
	return do(ctx, c) == nil && len(c.told)+len(c.records) == 0
}
