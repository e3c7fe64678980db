package auth

import (
	"context"
	"fmt"

	"sluice/internal/tenant"
)

// Recheck says whether the credential that p stood for still stands, and what
// it reaches now, for requests that outlive the moment: open tails. nil, nil is
// a stranger, who has no credential to lose; whether the stream is still public,
// and what the account's state is, the caller looks up.
//
// It answers from memory, without the credential's text. Errors are as those of
// Authenticate; ErrUnavailable says that it cannot be told, not that the
// credential fell.
func (a *Authenticator) Recheck(ctx context.Context, p *Principal) (*Principal, error) {
	return a.recheck(ctx, p, a.usable)
}

func (a *Authenticator) recheck(ctx context.Context, p *Principal, good func(*tenant.Key) error) (*Principal, error) {
	if p == nil {
		return nil, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if p.IsToken() {
		if err := a.stands(ctx, p); err != nil {
			return nil, err
		}
		return p, nil
	}
	key, err := a.byDigest(ctx, p.digest)
	if err != nil {
		return nil, err
	}
	if err := good(key); err != nil {
		return nil, err
	}
	return keyPrincipal(key), nil
}

// stands says whether a verified token is still good: its key, its root, the
// cutoff of the key it was made from, its expiry. What can never become good
// again goes before expiry.
func (a *Authenticator) stands(ctx context.Context, p *Principal) error {
	var err error
	switch {
	case p.grounds == nil: // no value of Authenticate's
		err = ErrTokenKey
	case p.Issuer == a.origin:
		err = a.ownStands(ctx, p)
	default:
		err = a.issuers.stands(p)
	}
	switch {
	case err != nil:
		return err
	case !a.now().Before(p.ExpiresAt):
		return ErrCredentialExpired
	}
	return nil
}

func (a *Authenticator) ownStands(ctx context.Context, p *Principal) error {
	key, err := a.signingKey(ctx, p.grounds.kid)
	if err != nil {
		return err
	}
	if p.grounds.key != any(key.Private) {
		return ErrTokenKey
	}
	return a.rootStands(p)
}

// rootStands says whether what a chain of exchanges began with still stands.
func (a *Authenticator) rootStands(p *Principal) error {
	if p.grounds.root != nil {
		return a.issuers.rootStands(p.grounds.root, p.Account)
	}
	if !p.grounds.issuedAt.After(a.directory.Cutoff(p.KeyID)) {
		return ErrRevokedToken
	}
	return nil
}

// signingKey finds a key of ours that is published. ErrTokenKey says that there
// is none of that id, surely.
func (a *Authenticator) signingKey(ctx context.Context, kid string) (tenant.SigningKey, error) {
	keys, err := a.directory.SigningKeys(ctx)
	if err != nil {
		return tenant.SigningKey{}, fmt.Errorf("%w: signing keys: %w", ErrUnavailable, err)
	}
	for _, k := range keys {
		if k.ID == kid && k.Verifies(a.now()) {
			return k, nil
		}
	}
	return tenant.SigningKey{}, ErrTokenKey
}
