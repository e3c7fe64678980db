package store

import (
	"context"
	"fmt"

	"sluice/internal/tenant"
)

// keyName tells keys that are not revoked apart.
type keyName struct {
	account tenant.AccountID
	name    string
}

// keyClaim is a declared key and what it is to become of: nil = nothing stands for it yet.
type keyClaim struct {
	key tenant.Key
	row *Key
}

func (c *change) declareKeys(ctx context.Context, declared []tenant.Key, accounts map[tenant.AccountID]bool) error {
	before, err := list(ctx, c.tx, scanWholeKey, selectKeys+` WHERE k.declared AND k.revoked_at = 0`)
	if err != nil {
		return err
	}
	claims, err := c.claimKeys(ctx, declared, before, accounts)
	if err != nil {
		return err
	}
	claimed := make(map[string]bool, len(claims))
	for _, cl := range claims {
		if cl.row != nil {
			claimed[cl.row.ID] = true
		}
	}
	// Names and digests become free before others take them.
	for _, k := range before {
		if !claimed[k.ID] {
			if err := c.revoke(ctx, k); err != nil {
				return err
			}
		}
	}
	for _, cl := range claims {
		if cl.row == nil || cl.row.Digest == cl.key.Digest && cl.row.OldUntil.IsZero() {
			continue
		}
		if err := c.dropSecrets(ctx, cl); err != nil {
			return err
		}
	}
	for _, cl := range claims {
		if err := c.declareKey(ctx, cl); err != nil {
			return fmt.Errorf("key %s: %w", cl.key.ID, err)
		}
	}
	return nil
}

// claimKeys finds what stands for each declared key, each for one at the most.
func (c *change) claimKeys(ctx context.Context, declared []tenant.Key, before []Key, accounts map[tenant.AccountID]bool) ([]keyClaim, error) {
	known := make(map[keyName]*Key, len(before))
	for i, k := range before {
		known[keyName{k.Account, k.Name}] = &before[i]
	}
	taken := make(map[any]bool, 3*len(declared))
	take := func(key tenant.Key, what string, one any) error {
		if taken[one] {
			return fmt.Errorf("key %s: %w: %s stands for another declared key", key.ID, ErrTaken, what)
		}
		taken[one] = true
		return nil
	}
	claims := make([]keyClaim, 0, len(declared))
	for _, k := range declared {
		if !accounts[k.Account] {
			return nil, fmt.Errorf("key %s: its account: %w", k.ID, ErrNotFound)
		}
		k.Declared = true
		name := keyName{k.Account, k.Name}
		if err := take(k, "its digest", k.Digest); err != nil {
			return nil, err
		}
		if err := take(k, "its name", name); err != nil {
			return nil, err
		}
		row := known[name]
		if row == nil || row.Digest != k.Digest {
			var err error
			if row, err = c.findKey(ctx, k); err != nil {
				return nil, fmt.Errorf("key %s: %w", k.ID, err)
			}
		}
		if row != nil {
			if err := take(k, "the key "+row.ID, row.ID); err != nil {
				return nil, err
			}
		}
		claims = append(claims, keyClaim{k, row})
	}
	return claims, nil
}

// findKey finds what is to become of a declared key: what has its name and is good, what
// people made with its digest, and else what had its id before.
func (c *change) findKey(ctx context.Context, k tenant.Key) (*Key, error) {
	find := func(where string, args ...any) (*Key, error) {
		found, err := list(ctx, c.tx, scanWholeKey, selectKeys+where, args...)
		if err != nil || len(found) == 0 {
			return nil, err
		}
		if found[0].Account != k.Account {
			return nil, fmt.Errorf("%w: another account has it", ErrTaken)
		}
		return &found[0], nil
	}
	named, err := find(` WHERE k.account = $1 AND k.name = $2 AND k.revoked_at = 0`, string(k.Account), k.Name)
	if err != nil {
		return nil, err
	}
	same, err := find(` JOIN key_secrets d ON d.key_id = k.id WHERE d.digest = $1 AND NOT k.declared`, k.Digest[:])
	switch {
	case err != nil:
		return nil, err
	case named != nil && same != nil && named.ID != same.ID:
		return nil, fmt.Errorf("%w: its name is that of the key %s, its digest that of the key %s: revoke the first or name it otherwise in the file", ErrTaken, named.ID, same.ID)
	case named != nil:
		return named, nil
	case same != nil:
		return same, nil
	}
	return find(` WHERE k.id = $1`, k.ID)
}

// dropSecrets has a key that stays lose all secrets, the tokens made from them included.
func (c *change) dropSecrets(ctx context.Context, cl keyClaim) error {
	if cl.row.RevokedAt.IsZero() {
		if err := c.cut(ctx, cl.row.ID, true); err != nil {
			return err
		}
		c.tellKey(cl.row.Key)
	}
	return run(ctx, c.tx, `DELETE FROM key_secrets WHERE key_id = $1`, cl.row.ID)
}

// declareKey makes what the file states of one key true.
func (c *change) declareKey(ctx context.Context, cl keyClaim) error {
	// What still has the digest and is declared has left the file: what stays and has
	// another one has lost it before.
	free := func() error {
		return run(ctx, c.tx, `DELETE FROM key_secrets WHERE digest = $1 AND key_id IN (SELECT id FROM api_keys WHERE declared)`, cl.key.Digest[:])
	}
	if cl.row == nil {
		if err := free(); err != nil {
			return err
		}
		c.record(KeyCreate, cl.key.Account, cl.key.ID, made(keyFacts(cl.key)))
		return c.createKey(ctx, Key{Key: cl.key})
	}
	k := cl.key
	k.ID = cl.row.ID
	sameSecret := cl.row.Digest == k.Digest && cl.row.OldUntil.IsZero()
	switch {
	case !cl.row.RevokedAt.IsZero():
		c.record(KeyCreate, k.Account, k.ID, made(keyFacts(k))) // it is back
	case !sameKey(cl.row.Key, k):
		c.record(KeyUpdate, k.Account, k.ID, became(cl.row.seen(c.now).facts(), Key{Key: k}.facts()))
	case !sameSecret:
		c.record(KeyRotate, k.Account, k.ID, became(cl.row.seen(c.now).facts(), Key{Key: k}.facts()))
	}
	if err := c.updateKey(ctx, cl.row.Key, k); err != nil {
		return err
	}
	if sameSecret {
		return nil
	}
	if err := free(); err != nil {
		return err
	}
	return c.addSecret(ctx, k.ID, k.Digest, k.Hint)
}
