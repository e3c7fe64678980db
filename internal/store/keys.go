package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"sluice/internal/tenant"
)

const keyColumns = `k.id, k.account, k.name, k.access, k.acts_as, k.all_streams, k.patterns, k.declared, k.created_at, k.expires_at, k.revoked_at, k.last_used_at`

// selectKeys gives each key with its newest secret, which one that left the operator's
// file may have lost, and the one before.
const selectKeys = `SELECT ` + keyColumns + `, n.digest, COALESCE(n.hint, ''), COALESCE(o.hint, ''), COALESCE(o.ends_at, 0) FROM api_keys k
	LEFT JOIN key_secrets n ON n.key_id = k.id AND n.ends_at = 0
	LEFT JOIN key_secrets o ON o.key_id = k.id AND o.ends_at <> 0`

// scanKey reads keyColumns and then more.
func scanKey(r row, more ...any) (tenant.Key, time.Time, error) {
	var k tenant.Key
	var all bool
	var only string
	var created, expires, revoked, used int64
	err := r.Scan(append([]any{&k.ID, &k.Account, &k.Name, &k.Access, &k.ActsAs, &all, &only, &k.Declared, &created, &expires, &revoked, &used}, more...)...)
	if err != nil {
		return k, time.Time{}, err
	}
	k.CreatedAt, k.ExpiresAt, k.RevokedAt = moment(created), moment(expires), moment(revoked)
	k.Streams, err = streamSet(all, only)
	return k, moment(used), err
}

func scanWholeKey(r row) (Key, error) {
	var whole Key
	var digest []byte
	var hint string
	var until int64
	k, used, err := scanKey(r, &digest, &hint, &whole.OldHint, &until)
	copy(k.Digest[:], digest)
	k.Hint = hint
	whole.Key, whole.LastUsedAt, whole.OldUntil = k, used, moment(until)
	return whole, err
}

// key is an account's key, with an old secret that may be over.
func key(ctx context.Context, q querier, account tenant.AccountID, id string) (Key, error) {
	return scanWholeKey(q.QueryRowContext(ctx, selectKeys+` WHERE k.account = $1 AND k.id = $2`, string(account), id))
}

// seen is a key as it is shown: a secret that is over is none.
func (k Key) seen(now time.Time) Key {
	if !k.OldUntil.After(now) {
		k.OldHint, k.OldUntil = "", time.Time{}
	}
	return k
}

// Key looks an account's key up, a revoked one too. The error wraps ErrNotFound or
// ErrUnavailable.
func (s *Store) Key(ctx context.Context, account tenant.AccountID, id string) (Key, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	k, err := key(ctx, s.read, account, id)
	return k.seen(s.now()), failed("key", err)
}

// Keys lists an account's keys, revoked ones too, in the order of their ids. The error
// wraps ErrUnavailable.
func (s *Store) Keys(ctx context.Context, account tenant.AccountID, p Page) ([]Key, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	all, err := list(ctx, s.read, scanWholeKey, selectKeys+` WHERE k.account = $1 AND k.id > $2 ORDER BY k.id LIMIT $3`, string(account), clean(p.After), p.Limit)
	for i, k := range all {
		all[i] = k.seen(s.now())
	}
	return all, failed("keys", err)
}

// KeyOf is the key that has that secret, revoked or expired or not: its Digest and Hint
// are those of that secret. A secret that was replaced expires when its time is over, if
// the key does not before. The error wraps ErrNotFound or ErrUnavailable.
func (s *Store) KeyOf(ctx context.Context, d tenant.Digest) (tenant.Key, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	var hint string
	var ends int64
	r := s.read.QueryRowContext(ctx, `SELECT `+keyColumns+`, s.hint, s.ends_at FROM key_secrets s JOIN api_keys k ON k.id = s.key_id WHERE s.digest = $1`, d[:])
	k, _, err := scanKey(r, &hint, &ends)
	k.Digest, k.Hint = d, hint
	if end := moment(ends); !end.IsZero() && (k.ExpiresAt.IsZero() || end.Before(k.ExpiresAt)) {
		k.ExpiresAt = end
	}
	return k, failed("key", err)
}

// CreateKey adds a key to an account. The error wraps ErrTaken (its name, by one of the
// account's keys that are not revoked, its id or its digest), ErrNotFound (the account) or
// ErrUnavailable.
func (s *Store) CreateKey(ctx context.Context, by Author, k Key) error {
	return s.change(ctx, "create a key", callTime, by, func(ctx context.Context, c *change) error {
		if _, err := account(ctx, c.tx, k.Account); err != nil {
			return err
		}
		k.Declared = false
		c.record(KeyCreate, k.Account, k.ID, made(k.facts()))
		return c.createKey(ctx, k)
	})
}

// createKey adds a key that is not revoked and has one secret.
func (c *change) createKey(ctx context.Context, k Key) error {
	if k.CreatedAt.IsZero() {
		k.CreatedAt = c.now
	}
	err := run(ctx, c.tx, `INSERT INTO api_keys (id, account, name, access, acts_as, all_streams, patterns, declared, created_at, expires_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
		k.ID, string(k.Account), k.Name, string(k.Access), string(k.ActsAs), !k.Streams.Narrowed(), patterns(k.Streams), k.Declared,
		micros(k.CreatedAt), micros(k.ExpiresAt))
	if err != nil {
		return err
	}
	c.tellKey(k.Key)
	return c.addSecret(ctx, k.ID, k.Digest, k.Hint)
}

func (c *change) addSecret(ctx context.Context, key string, d tenant.Digest, hint string) error {
	return run(ctx, c.tx, `INSERT INTO key_secrets (digest, key_id, hint) VALUES ($1, $2, $3)`, d[:], key, hint)
}

func (c *change) tellKey(k tenant.Key) {
	c.tell(tenant.Change{Kind: tenant.KeyChanged, KeyID: k.ID, Account: k.Account})
}

// ChangeKey narrows a key or names it anew, and returns what it is then. The error wraps
// ErrNotFound, ErrGone, ErrDeclared, ErrWider, ErrTaken (the name) or ErrUnavailable.
func (s *Store) ChangeKey(ctx context.Context, by Author, account tenant.AccountID, id string, to KeyChange) (Key, error) {
	var k Key
	err := s.change(ctx, "change a key", callTime, by, func(ctx context.Context, c *change) (err error) {
		if k, err = c.changeable(ctx, account, id); err != nil {
			return err
		}
		before := k.Key
		if to.Name != nil {
			k.Name = *to.Name
		}
		if to.Access != nil {
			k.Access = *to.Access
		}
		if to.ActsAs != nil {
			k.ActsAs = *to.ActsAs
		}
		if to.Streams != nil {
			k.Streams = *to.Streams
		}
		if to.ExpiresAt != nil {
			k.ExpiresAt = moment(micros(*to.ExpiresAt))
		}
		// A key that is narrowed to all streams by their names still does not manage.
		if before.GrantsLess(k.Key) || before.Streams.Narrowed() && !k.Streams.Narrowed() {
			return ErrWider
		}
		if !sameKey(before, k.Key) {
			c.record(KeyUpdate, account, id, became(keyFacts(before), keyFacts(k.Key)))
		}
		return c.updateKey(ctx, before, k.Key)
	})
	return k.seen(s.now()), err
}

// changeable is a key that the API may change.
func (c *change) changeable(ctx context.Context, account tenant.AccountID, id string) (Key, error) {
	k, err := key(ctx, c.tx, account, id)
	switch {
	case err != nil:
		return k, err
	case !k.RevokedAt.IsZero():
		return k, ErrGone
	case k.Declared:
		return k, ErrDeclared
	}
	return k, nil
}

// updateKey writes what is another in k, which is not revoked, and cuts what it loses.
func (c *change) updateKey(ctx context.Context, before, k tenant.Key) error {
	if sameKey(before, k) {
		return nil
	}
	back := !before.RevokedAt.IsZero()
	// A key that is back keeps nothing alive from before.
	if back || k.GrantsLess(before) {
		if err := c.cut(ctx, k.ID, true); err != nil {
			return err
		}
	}
	c.tellKey(k)
	return run(ctx, c.tx, `UPDATE api_keys SET name = $2, access = $3, acts_as = $4, all_streams = $5, patterns = $6, declared = $7, expires_at = $8, revoked_at = 0
		WHERE id = $1`,
		k.ID, k.Name, string(k.Access), string(k.ActsAs), !k.Streams.Narrowed(), patterns(k.Streams), k.Declared, micros(k.ExpiresAt))
}

// sameKey compares what can be changed, but for the secrets.
func sameKey(a, b tenant.Key) bool {
	return a.Name == b.Name && a.Access == b.Access && a.ActsAs == b.ActsAs && a.Streams.Narrowed() == b.Streams.Narrowed() &&
		patterns(a.Streams) == patterns(b.Streams) && a.Declared == b.Declared && micros(a.ExpiresAt) == micros(b.ExpiresAt) &&
		a.RevokedAt.IsZero() == b.RevokedAt.IsZero()
}

// RotateKey gives a key another secret; the one that it has is good until OldUntil. Where
// one older than that is good too, it ends now if that is asked for, else nothing is done.
// Tokens made from a secret that ends now are void, those of one that ends later live to
// their own end. The error wraps ErrNotFound, ErrGone, ErrExpired, ErrDeclared,
// ErrTwoSecrets, ErrTaken (the digest) or ErrUnavailable.
func (s *Store) RotateKey(ctx context.Context, by Author, account tenant.AccountID, id string, to NewSecret) (Key, error) {
	var k Key
	err := s.change(ctx, "rotate a key", callTime, by, func(ctx context.Context, c *change) error {
		before, err := c.changeable(ctx, account, id)
		if err != nil {
			return err
		}
		switch {
		case !before.ExpiresAt.IsZero() && !before.ExpiresAt.After(c.now):
			return ErrExpired
		case before.OldUntil.After(c.now) && !to.EndOlder:
			return ErrTwoSecrets
		}
		// The key's own secrets, which make way below, are no new one.
		known, err := list(ctx, c.tx, text, `SELECT key_id FROM key_secrets WHERE digest = $1`, to.Digest[:])
		if err != nil {
			return err
		}
		if len(known) > 0 {
			return ErrTaken
		}
		if err := c.retire(ctx, before, moment(micros(to.OldUntil))); err != nil {
			return err
		}
		if err := c.addSecret(ctx, id, to.Digest, to.Hint); err != nil {
			return err
		}
		if k, err = key(ctx, c.tx, account, id); err != nil {
			return err
		}
		c.record(KeyRotate, account, id, became(before.seen(c.now).facts(), k.seen(c.now).facts()))
		return nil
	})
	return k.seen(s.now()), err
}

// retire makes way for a new secret: the newest is the old one until then, and the one
// before ends.
func (c *change) retire(ctx context.Context, k Key, until time.Time) error {
	ends := !until.After(c.now)
	if ends || k.OldUntil.After(c.now) {
		if err := c.cut(ctx, k.ID, true); err != nil {
			return err
		}
	}
	c.tellKey(k.Key)
	if err := run(ctx, c.tx, `DELETE FROM key_secrets WHERE key_id = $1 AND ends_at <> 0`, k.ID); err != nil {
		return err
	}
	if ends {
		return run(ctx, c.tx, `DELETE FROM key_secrets WHERE key_id = $1`, k.ID)
	}
	return run(ctx, c.tx, `UPDATE key_secrets SET ends_at = $2 WHERE key_id = $1`, k.ID, micros(until))
}

// RevokeKey ends a key and the tokens made from it. Repeating it is no error. The error
// wraps ErrNotFound, ErrDeclared or ErrUnavailable.
func (s *Store) RevokeKey(ctx context.Context, by Author, account tenant.AccountID, id string) error {
	return s.change(ctx, "revoke a key", callTime, by, func(ctx context.Context, c *change) error {
		k, err := c.changeable(ctx, account, id)
		if errors.Is(err, ErrGone) {
			return nil
		}
		if err != nil {
			return err
		}
		return c.revoke(ctx, k)
	})
}

func (c *change) revoke(ctx context.Context, k Key) error {
	if err := c.cut(ctx, k.ID, false); err != nil {
		return err
	}
	c.tellKey(k.Key)
	c.record(KeyRevoke, k.Account, k.ID, lost(k.seen(c.now).facts()))
	return run(ctx, c.tx, `UPDATE api_keys SET revoked_at = $2 WHERE id = $1`, k.ID, micros(c.now))
}

// usedAtOnce bounds a statement of UseKeys.
const usedAtOnce = 500

// UseKeys notes when keys were used last, to the minute. A time never moves back, and
// keys that are unknown are left out. The log of changes says nothing of it. The error
// wraps ErrUnavailable; some may be noted then, and all can be noted again.
func (s *Store) UseKeys(ctx context.Context, lastUsed map[string]time.Time) error {
	minutes := make(map[int64][]string)
	for id, at := range lastUsed {
		minute := micros(at.Truncate(time.Minute))
		minutes[minute] = append(minutes[minute], id)
	}
	for minute, ids := range minutes {
		for some := range slices.Chunk(ids, usedAtOnce) {
			// A transaction for each: others wait for it.
			err := s.change(ctx, "note the use of keys", callTime, BySystem(), func(ctx context.Context, c *change) error {
				return c.useKeys(ctx, some, minute)
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// useKeys is one statement of always the same text, so that it is prepared once: where
// there are fewer ids the last one is said again.
func (c *change) useKeys(ctx context.Context, ids []string, minute int64) error {
	args := make([]any, 0, 1+usedAtOnce)
	args = append(args, minute)
	var places strings.Builder
	for i := range usedAtOnce {
		args = append(args, ids[min(i, len(ids)-1)])
		fmt.Fprintf(&places, ", $%d", i+2)
	}
	return run(ctx, c.tx, `UPDATE api_keys SET last_used_at = $1 WHERE last_used_at < $1 AND id IN (`+places.String()[2:]+`)`, args...)
}
