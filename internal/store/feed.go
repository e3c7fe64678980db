package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"sluice/internal/tenant"
)

// The log of changes keeps what replicas need who were away for a while; who was away
// longer looks at everything again.
const (
	changesKept = 2 * time.Hour // at least, within maxChanges
	maxChanges  = 100_000
	maxTold     = 256 // of one transaction; more are told as tenant.Everything
	pruneEvery  = 64  // revisions
)

var errClosed = errors.New("the store is closed")

// Revision is that of the newest change; 0 = there was none.
func (s *Store) Revision(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	var revision int64
	err := s.read.QueryRowContext(ctx, `SELECT revision FROM meta WHERE id = 1`).Scan(&revision)
	return revision, failed("revision", err)
}

// Changes are the oldest of those behind a revision, in their order, which is that in
// which they came into force. whole is false where some are forgotten already, or where
// the store has not come to that revision, as one restored from a copy: who asks has to
// look at everything again. limit is at least 1.
func (s *Store) Changes(ctx context.Context, after int64, limit int) (changes []Change, whole bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	// Asked before the list, so that nothing which the list lacks is missed.
	newest, err := s.Revision(ctx)
	if err != nil {
		return nil, false, err
	}
	changes, err = list(ctx, s.read, func(r row) (Change, error) {
		var c Change
		return c, r.Scan(&c.Revision, &c.Kind, &c.KeyID, &c.Account, &c.Stream)
	}, `SELECT revision, kind, key_id, account, stream FROM changes WHERE revision > $1 ORDER BY revision LIMIT $2`, after, limit)
	if err != nil {
		return nil, false, failed("changes", err)
	}
	if len(changes) == 0 {
		return nil, after == newest, nil
	}
	return changes, changes[0].Revision == after+1, nil
}

// Notified calls wake at its beginning, and then soon after each change, of whichever
// replica; several changes may be one call. It returns when ctx ends, the connection is
// lost or the store is closed, with an error that wraps ErrUnavailable; what changes until
// it is called again is for the log to tell. wake must not block for long.
func (s *Store) Notified(ctx context.Context, wake func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.life, func() { cancel(errClosed) })() //nolint:contextcheck // the store ends the call too
	if s.listen != nil {
		return failed("notifications", s.heard(ctx, wake))
	}
	changed, stop := s.feed.subscribe()
	defer stop()
	for {
		// What changed before this subscribed is for the first call.
		wake()
		select {
		case <-changed:
		case <-ctx.Done():
			return failed("notifications", context.Cause(ctx))
		}
	}
}

// feed wakes those in this process who wait for changes. The zero value is ready.
type feed struct {
	mu   sync.Mutex
	list map[chan struct{}]bool
}

// subscribe gives a channel that has a value after a change.
func (f *feed) subscribe() (changed <-chan struct{}, stop func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := make(chan struct{}, 1)
	if f.list == nil {
		f.list = make(map[chan struct{}]bool)
	}
	f.list[c] = true
	return c, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.list, c)
	}
}

func (f *feed) wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.list {
		select {
		case c <- struct{}{}:
		default: // it has yet to look at the change before
		}
	}
}

// forget takes out of the log and of the cutoffs what is too old.
func (c *change) forget(ctx context.Context, newest int64) error {
	err := run(ctx, c.tx, `DELETE FROM changes WHERE revision <= $1 OR made_at < $2`, newest-maxChanges, micros(c.now.Add(-changesKept)))
	if err != nil {
		return err
	}
	// An hour more: replicas' clocks differ, and a cutoff that is gone early is a token
	// that lives again.
	return run(ctx, c.tx, `DELETE FROM cutoffs WHERE set_at < $1`, micros(c.now.Add(-tenant.CutoffKept-time.Hour)))
}

// tell adds an entry to the log, for when the transaction ends.
func (c *change) tell(one tenant.Change) {
	if len(c.told) <= maxTold {
		c.told = append(c.told, one)
	}
}

// writeLog puts down what the transaction told.
func (c *change) writeLog(ctx context.Context) error {
	if len(c.told)+len(c.records) == 0 {
		return nil
	}
	if len(c.told) > maxTold {
		c.told = []tenant.Change{{Kind: tenant.Everything}}
	}
	revision := c.revision
	for _, one := range c.told {
		revision++
		err := run(ctx, c.tx, `INSERT INTO changes (revision, kind, key_id, account, stream, made_at) VALUES ($1, $2, $3, $4, $5, $6)`,
			revision, int(one.Kind), one.KeyID, string(one.Account), string(one.Stream), micros(c.now))
		if err != nil {
			return err
		}
	}
	if err := run(ctx, c.tx, `UPDATE meta SET revision = $1, audit_id = $2 WHERE id = 1`, revision, c.auditID); err != nil {
		return err
	}
	if revision/pruneEvery != c.revision/pruneEvery {
		if err := c.forget(ctx, revision); err != nil {
			return fmt.Errorf("forget old changes: %w", err)
		}
	}
	return nil
}
