package store

import (
	"context"

	"sluice/internal/tenant"
)

const accountColumns = `id, state, requests_per_second, burst, open_tails, uploads, upload_bytes, request_bytes, declared, created_at`

func scanAccount(r row) (Account, error) {
	var a Account
	var created int64
	l := &a.Limits
	err := r.Scan(&a.ID, &a.State, &l.RequestsPerSecond, &l.Burst, &l.OpenTails, &l.Uploads, &l.UploadBytes, &l.RequestBytes, &a.Declared, &created)
	a.CreatedAt = moment(created)
	return a, err
}

func account(ctx context.Context, q querier, id tenant.AccountID) (Account, error) {
	return scanAccount(q.QueryRowContext(ctx, `SELECT `+accountColumns+` FROM accounts WHERE id = $1 AND deleted_at = 0`, string(id)))
}

// Account looks an account up. The error wraps ErrNotFound, where it is deleted too, or
// ErrUnavailable.
func (s *Store) Account(ctx context.Context, id tenant.AccountID) (Account, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	a, err := account(ctx, s.read, id)
	return a, failed("account", err)
}

// Accounts lists accounts in the order of their ids. The error wraps ErrUnavailable.
func (s *Store) Accounts(ctx context.Context, p Page) ([]Account, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	after, from, to := p.bounds()
	all, err := list(ctx, s.read, scanAccount,
		`SELECT `+accountColumns+` FROM accounts WHERE deleted_at = 0 AND id > $1 AND id >= $2 AND id < $3 ORDER BY id LIMIT $4`, after, from, to, p.Limit)
	return all, failed("accounts", err)
}

// CreateAccount makes an account and, unless it is nil, its first key, both or neither, of
// which there is one record.
// The error wraps ErrTaken, where the id was that of an account now deleted too, or
// ErrUnavailable.
func (s *Store) CreateAccount(ctx context.Context, by Author, a Account, first *Key) error {
	return s.change(ctx, "create an account", callTime, by, func(ctx context.Context, c *change) error {
		a.Declared = false
		is := a.facts()
		if first != nil {
			is["api_key.id"], is["api_key.hint"] = first.ID, first.Hint
		}
		c.record(AccountCreate, a.ID, string(a.ID), made(is))
		if err := c.insertAccount(ctx, a); err != nil || first == nil {
			return err
		}
		k := *first
		k.Declared = false
		return c.createKey(ctx, k)
	})
}

func (c *change) insertAccount(ctx context.Context, a Account) error {
	l := a.Limits
	if a.CreatedAt.IsZero() {
		a.CreatedAt = c.now
	}
	c.tell(tenant.Change{Kind: tenant.AccountChanged, Account: a.ID})
	return run(ctx, c.tx, `INSERT INTO accounts (`+accountColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
		string(a.ID), string(a.State), l.RequestsPerSecond, l.Burst, l.OpenTails, l.Uploads, l.UploadBytes, l.RequestBytes, a.Declared, micros(a.CreatedAt))
}

// ChangeAccount changes the state or the limits of an account, and returns what it is
// then. The error wraps ErrNotFound, ErrDeclared or ErrUnavailable.
func (s *Store) ChangeAccount(ctx context.Context, by Author, id tenant.AccountID, to AccountChange) (Account, error) {
	var a Account
	err := s.change(ctx, "change an account", callTime, by, func(ctx context.Context, c *change) (err error) {
		if a, err = account(ctx, c.tx, id); err != nil {
			return err
		}
		if a.Declared {
			return ErrDeclared
		}
		before := a
		if to.State != nil {
			a.State = *to.State
		}
		if to.Limits != nil {
			to.Limits(&a.Limits)
		}
		if sameAccount(before, a) {
			return nil
		}
		c.record(AccountUpdate, id, string(id), became(before.facts(), a.facts()))
		return c.updateAccount(ctx, a)
	})
	return a, err
}

func (c *change) updateAccount(ctx context.Context, a Account) error {
	l := a.Limits
	c.tell(tenant.Change{Kind: tenant.AccountChanged, Account: a.ID})
	return run(ctx, c.tx, `UPDATE accounts SET state = $2, requests_per_second = $3, burst = $4, open_tails = $5, uploads = $6,
		upload_bytes = $7, request_bytes = $8, declared = $9, deleted_at = 0 WHERE id = $1`,
		string(a.ID), string(a.State), l.RequestsPerSecond, l.Burst, l.OpenTails, l.Uploads, l.UploadBytes, l.RequestBytes, a.Declared)
}

// sameAccount compares what can be changed.
func sameAccount(a, b Account) bool {
	return a.State == b.State && a.Declared == b.Declared &&
		same(a.Limits.RequestsPerSecond, b.Limits.RequestsPerSecond) && same(a.Limits.Burst, b.Limits.Burst) &&
		same(a.Limits.OpenTails, b.Limits.OpenTails) && same(a.Limits.Uploads, b.Limits.Uploads) &&
		same(a.Limits.UploadBytes, b.Limits.UploadBytes) && same(a.Limits.RequestBytes, b.Limits.RequestBytes)
}

func same[T comparable](a, b *T) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// DeleteAccount deletes an account for ever: its keys are revoked, its streams become
// Deleting, and its id is taken. The error wraps ErrNotFound, ErrDeclared or
// ErrUnavailable.
func (s *Store) DeleteAccount(ctx context.Context, by Author, id tenant.AccountID) error {
	return s.change(ctx, "delete an account", declareTime, by, func(ctx context.Context, c *change) error {
		a, err := account(ctx, c.tx, id)
		if err != nil {
			return err
		}
		if a.Declared {
			return ErrDeclared
		}
		if err := run(ctx, c.tx, `UPDATE accounts SET deleted_at = $2 WHERE id = $1`, string(id), micros(c.now)); err != nil {
			return err
		}
		c.tell(tenant.Change{Kind: tenant.AccountChanged, Account: id})
		keys, err := c.revokeAll(ctx, id)
		if err != nil {
			return err
		}
		names, err := list(ctx, c.tx, text, `UPDATE streams SET state = 'deleting' WHERE account = $1 AND state <> 'deleting' RETURNING name`, string(id))
		for _, name := range names {
			c.tell(tenant.Change{Kind: tenant.StreamChanged, Account: id, Stream: tenant.StreamName(name)})
		}
		was := a.facts()
		was["api_keys"], was["streams"] = keys, len(names)
		c.record(AccountDelete, id, string(id), lost(was))
		return err
	})
}

// revokeAll revokes all keys of an account, and returns how many those are.
func (c *change) revokeAll(ctx context.Context, id tenant.AccountID) (int, error) {
	err := run(ctx, c.tx, `INSERT INTO cutoffs (key_id, at, set_at) SELECT id, CAST($2 AS BIGINT), CAST($3 AS BIGINT) FROM api_keys WHERE account = $1 AND revoked_at = 0 `+cutoffMoves,
		string(id), micros(c.now), micros(c.now))
	if err != nil {
		return 0, err
	}
	ids, err := list(ctx, c.tx, text, `UPDATE api_keys SET revoked_at = $2 WHERE account = $1 AND revoked_at = 0 RETURNING id`, string(id), micros(c.now))
	for _, key := range ids {
		c.tell(tenant.Change{Kind: tenant.KeyChanged, KeyID: key, Account: id})
	}
	return len(ids), err
}
