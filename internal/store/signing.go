package store

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"

	"sluice/internal/tenant"
)

// SigningKeys are our own, unsealed: new values with each call. The error wraps
// ErrUnavailable.
func (s *Store) SigningKeys(ctx context.Context) ([]tenant.SigningKey, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	keys, err := s.signingKeys(ctx, s.read)
	return keys, failed("signing keys", err)
}

// signingKeys are in the order in which they sign.
func (s *Store) signingKeys(ctx context.Context, q querier) ([]tenant.SigningKey, error) {
	return list(ctx, q, s.scanSigningKey, `SELECT id, sealed, sign_from, sign_until, verify_until FROM signing_keys ORDER BY sign_from, id`)
}

func (s *Store) scanSigningKey(r row) (tenant.SigningKey, error) {
	var id string
	var sealed []byte
	var from, until, verify int64
	if err := r.Scan(&id, &sealed, &from, &until, &verify); err != nil {
		return tenant.SigningKey{}, err
	}
	plain, err := s.seal.open(id, sealed)
	if err != nil {
		return tenant.SigningKey{}, fmt.Errorf("the signing key %s: %w", id, err)
	}
	defer clear(plain)
	private, err := x509.ParseECPrivateKey(plain)
	if err != nil {
		return tenant.SigningKey{}, fmt.Errorf("the signing key %s: %w", id, errSealed)
	}
	k, err := tenant.NewSigningKey(private)
	k.SignFrom, k.SignUntil, k.VerifyUntil = moment(from), moment(until), moment(verify)
	return k, err
}

// RotateSigningKeys makes and takes out signing keys where it is time to, and reports
// whether it did. It is to be called at the start and then about once an hour, by any
// number of replicas. The error wraps ErrUnavailable.
func (s *Store) RotateSigningKeys(ctx context.Context, r tenant.Rotation) (changed bool, err error) {
	err = s.change(ctx, "rotate the signing keys", callTime, BySystem(), func(ctx context.Context, c *change) error {
		keys, err := s.signingKeys(ctx, c.tx)
		if err != nil {
			return err
		}
		next, different, err := r.Next(keys, c.now, s.random)
		if err != nil || !different {
			return err
		}
		changed = true
		for _, k := range keys {
			if !slices.ContainsFunc(next, func(n tenant.SigningKey) bool { return n.ID == k.ID }) {
				if err := run(ctx, c.tx, `DELETE FROM signing_keys WHERE id = $1`, k.ID); err != nil {
					return err
				}
			}
		}
		for _, k := range next {
			if err := c.putSigningKey(ctx, k); err != nil {
				return err
			}
		}
		c.record(SigningKeysRotate, "", "", became(signingFacts(keys), signingFacts(next)))
		c.tell(tenant.Change{Kind: tenant.SigningKeysChanged})
		return nil
	})
	return changed && err == nil, err
}

// signingFacts are the ids, which everybody sees in the JWKS.
func signingFacts(keys []tenant.SigningKey) facts {
	ids := make([]string, 0, len(keys))
	for _, k := range keys {
		ids = append(ids, k.ID)
	}
	return facts{"keys": ids}
}

func (c *change) putSigningKey(ctx context.Context, k tenant.SigningKey) error {
	plain, err := x509.MarshalECPrivateKey(k.Private)
	if err != nil {
		return err
	}
	defer clear(plain)
	sealed, err := c.s.seal.seal(k.ID, plain)
	if err != nil {
		return err
	}
	return run(ctx, c.tx, `INSERT INTO signing_keys (id, sealed, sign_from, sign_until, verify_until) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (id) DO UPDATE SET sign_from = excluded.sign_from, sign_until = excluded.sign_until, verify_until = excluded.verify_until`,
		k.ID, sealed, micros(k.SignFrom), micros(k.SignUntil), micros(k.VerifyUntil))
}
