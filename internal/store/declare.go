package store

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"

	"sluice/internal/tenant"
)

// Declare makes what the operator's file states true: it adds, changes and marks it, and
// what was declared before and is not any more goes: keys are revoked, streams are
// forgotten while Ursula keeps their data, and accounts are deleted where they hold
// nothing that people made; else people manage them from now on. An account that left the
// file may come back in it; one that was deleted by the API may not.
//
// What people made becomes declared where the file states it: an account by its id, a
// stream by its name, a key by its name or its digest, which keeps its id. All of it is in
// force at once or none is. Nothing is written where nothing differs. The error wraps
// ErrTaken where the file contradicts itself or what people made, ErrNotFound where it
// names an account that it does not state, or ErrUnavailable.
func (s *Store) Declare(ctx context.Context, d Declaration) error {
	declare := func(ctx context.Context, c *change) error {
		accounts, err := c.declareAccounts(ctx, d.Accounts)
		if err != nil {
			return err
		}
		if err := c.declareStreams(ctx, d.Streams, accounts); err != nil {
			return err
		}
		if err := c.declareKeys(ctx, d.Keys, accounts); err != nil {
			return err
		}
		// Last, when it is known what they hold.
		return c.undeclareAccounts(ctx, accounts)
	}
	if s.changesNothing(ctx, declareTime, declare) {
		return nil
	}
	return s.change(ctx, "declare what the file states", declareTime, byFile(), declare)
}

// declareAccounts returns the ids that are declared.
func (c *change) declareAccounts(ctx context.Context, declared []Account) (map[tenant.AccountID]bool, error) {
	ids := make(map[tenant.AccountID]bool, len(declared))
	for _, a := range declared {
		if ids[a.ID] {
			return nil, fmt.Errorf("account %s: %w: it is stated twice", a.ID, ErrTaken)
		}
		ids[a.ID], a.Declared = true, true
		if err := c.declareAccount(ctx, a); err != nil {
			return nil, fmt.Errorf("account %s: %w", a.ID, err)
		}
	}
	return ids, nil
}

func (c *change) declareAccount(ctx context.Context, a Account) error {
	have, err := list(ctx, c.tx, scanAccount, `SELECT `+accountColumns+` FROM accounts WHERE id = $1`, string(a.ID))
	if err != nil {
		return err
	}
	if len(have) == 0 {
		c.record(AccountCreate, a.ID, string(a.ID), made(a.facts()))
		return c.insertAccount(ctx, a)
	}
	deleted, err := list(ctx, c.tx, text, `SELECT id FROM accounts WHERE id = $1 AND deleted_at <> 0`, string(a.ID))
	switch {
	case err != nil:
		return err
	case len(deleted) > 0 && !have[0].Declared:
		return fmt.Errorf("%w: it was deleted, and its id is never given out again (design §1)", ErrTaken)
	case len(deleted) == 0 && sameAccount(have[0], a):
		return nil
	case len(deleted) > 0:
		c.record(AccountCreate, a.ID, string(a.ID), made(a.facts())) // it is back
	default:
		c.record(AccountUpdate, a.ID, string(a.ID), became(have[0].facts(), a.facts()))
	}
	return c.updateAccount(ctx, a)
}

func (c *change) undeclareAccounts(ctx context.Context, declared map[tenant.AccountID]bool) error {
	before, err := list(ctx, c.tx, scanAccount, `SELECT `+accountColumns+` FROM accounts WHERE declared AND deleted_at = 0`)
	if err != nil {
		return err
	}
	for _, a := range before {
		if declared[a.ID] {
			continue
		}
		held, err := list(ctx, c.tx, text, `SELECT id FROM api_keys WHERE account = $1 AND revoked_at = 0
			UNION ALL SELECT id FROM streams WHERE account = $1 LIMIT 1`, string(a.ID))
		if err != nil {
			return err
		}
		c.tell(tenant.Change{Kind: tenant.AccountChanged, Account: a.ID})
		if len(held) > 0 {
			left := a
			left.Declared = false
			c.record(AccountUpdate, a.ID, string(a.ID), became(a.facts(), left.facts()))
			err = run(ctx, c.tx, `UPDATE accounts SET declared = FALSE WHERE id = $1`, string(a.ID))
		} else {
			// It stays marked as declared: what tells it from one that the API deleted.
			c.record(AccountDelete, a.ID, string(a.ID), lost(a.facts()))
			err = run(ctx, c.tx, `UPDATE accounts SET deleted_at = $2 WHERE id = $1`, string(a.ID), micros(c.now))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// streamName tells streams apart.
type streamName struct {
	account tenant.AccountID
	name    tenant.StreamName
}

func (c *change) declareStreams(ctx context.Context, declared []tenant.Stream, accounts map[tenant.AccountID]bool) error {
	before, err := list(ctx, c.tx, scanStream, `SELECT `+streamColumns+` FROM streams WHERE declared`)
	if err != nil {
		return err
	}
	known := make(map[streamName]Stream, len(before))
	for _, st := range before {
		known[streamName{st.Account, st.Name}] = st
	}
	stated := make(map[streamName]bool, len(declared))
	for _, st := range declared {
		at := streamName{st.Account, st.Name}
		switch {
		case stated[at]:
			return fmt.Errorf("stream %s of %s: %w: it is stated twice", st.Name, st.Account, ErrTaken)
		case !accounts[st.Account]:
			return fmt.Errorf("stream %s of %s: its account: %w", st.Name, st.Account, ErrNotFound)
		}
		stated[at] = true
		have, ok := known[at]
		if err := c.settleDeclared(ctx, st, have, ok); err != nil {
			return fmt.Errorf("stream %s of %s: %w", st.Name, st.Account, err)
		}
	}
	for at, st := range known {
		if stated[at] {
			continue
		}
		if err := c.undeclareStream(ctx, st); err != nil {
			return err
		}
	}
	return nil
}

// settleDeclared adds or changes a stream. have is what is known of it, where it is
// declared already.
func (c *change) settleDeclared(ctx context.Context, st tenant.Stream, have Stream, ok bool) error {
	st.Declared = true
	if ok && have.Stream == st {
		return nil
	}
	there, err := list(ctx, c.tx, scanStream, `SELECT `+streamColumns+` FROM streams WHERE account = $1 AND name = $2`, string(st.Account), string(st.Name))
	if err != nil {
		return err
	}
	if len(there) == 0 {
		c.record(StreamCreate, st.Account, string(st.Name), made(Stream{Stream: st}.facts()))
		return c.declareStream(ctx, st)
	}
	// The file says nothing of an end, so it has none. One that is on its way out goes
	// first, and comes back when its name is free (RemoveStream). What a client is just
	// making is the client's to make until then.
	c.tellStream(there[0])
	c.record(StreamUpdate, st.Account, string(st.Name), became(there[0].facts(), Stream{Stream: st}.facts()))
	return run(ctx, c.tx, `UPDATE streams SET content_type = $2, public = $3, declared = TRUE, expires_at = 0, ttl = 0, look_at = 0,
		doomed = '', protocol = protocol AND state = 'creating' WHERE id = $1`, there[0].ID, st.ContentType, st.Public)
}

// declareStream adds one under an id of its own. It is Live: who keeps declared streams
// makes at the nodes what they lack.
func (c *change) declareStream(ctx context.Context, st tenant.Stream) error {
	var id [16]byte
	if _, err := io.ReadFull(c.s.random, id[:]); err != nil {
		return err
	}
	return c.insertStream(ctx, Stream{Stream: st, ID: hex.EncodeToString(id[:]), State: Live})
}

// undeclareStream takes one out. One that is being deleted is left to whoever settles it.
func (c *change) undeclareStream(ctx context.Context, st Stream) error {
	c.tellStream(st)
	c.record(StreamUndeclare, st.Account, string(st.Name), lost(st.facts()))
	if st.State == Deleting {
		return run(ctx, c.tx, `UPDATE streams SET declared = FALSE WHERE id = $1`, st.ID)
	}
	return run(ctx, c.tx, `DELETE FROM streams WHERE id = $1`, st.ID)
}
