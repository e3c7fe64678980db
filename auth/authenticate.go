package auth

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"strings"
	"time"

	"sluice/internal/tenant"
)

// Principal is who a credential stands for. Values are never changed once
// handed out and may be shared between goroutines.
type Principal struct {
	KeyID     string           // id of the key, for logs and revocation; not secret
	Account   tenant.AccountID // whose streams it reaches
	Access    tenant.Access    // write includes reading; anything unknown reaches nothing
	Streams   tenant.StreamSet // the zero value reaches none
	ActsAs    tenant.ActsAs
	ExpiresAt time.Time // the credential is dead at and after this; zero = never
}

// Options are what an Authenticator needs.
type Options struct {
	Directory tenant.Directory // required; answers from memory
	Now       func() time.Time // clock for expiry; nil = time.Now
}

// Authenticator turns credentials into principals. It keeps no state of its own
// and is safe for concurrent use.
type Authenticator struct {
	directory tenant.Directory
	now       func() time.Time
}

// New makes an Authenticator.
func New(o Options) *Authenticator {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Authenticator{directory: o.Directory, now: o.Now}
}

// Authenticate reads the values of a request's Authorization headers and finds
// out who sent it; nil, nil is an anonymous request.
//
// Errors wrap exactly one of ErrInvalidCredential, ErrCredentialExpired and
// ErrUnavailable. What does not have the form of a credential is refused without
// a look-up. ErrUnavailable covers everything that keeps the directory from
// giving a sure answer, the end of ctx too: an outage must never read as "this
// key is wrong" (A11).
func (a *Authenticator) Authenticate(ctx context.Context, authorization []string) (*Principal, error) {
	token, present, err := Bearer(authorization)
	if err != nil {
		return nil, err
	}
	if !present {
		return nil, nil // anonymous is an answer, not a fault: the access rules decide on it
	}
	if strings.HasPrefix(token, KeyPrefix) {
		return a.byKey(ctx, token)
	}
	// Signed tokens get their verifier here, as a second kind of credential.
	return nil, ErrInvalidCredential
}

func (a *Authenticator) byKey(ctx context.Context, token string) (*Principal, error) {
	if err := CheckKey(token); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	digest := tenant.DigestOf(token)
	key, err := a.directory.Key(ctx, digest)
	switch {
	case errors.Is(err, tenant.ErrNotFound):
		return nil, ErrUnknownKey
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	case key == nil:
		return nil, fmt.Errorf("%w: the directory gave neither a key nor an error", ErrUnavailable)
	}
	// A look-up may go by less than the whole digest, and stops at the first
	// differing byte where it does not; what decides is compared in constant time.
	if subtle.ConstantTimeCompare(key.Digest[:], digest[:]) != 1 {
		return nil, ErrUnknownKey
	}
	if err := a.usable(key); err != nil {
		return nil, err
	}
	return &Principal{
		KeyID: key.ID, Account: key.Account, Access: key.Access,
		Streams: key.Streams, ActsAs: key.ActsAs, ExpiresAt: key.ExpiresAt,
	}, nil
}

// usable says whether a known key may be used directly, now. What can never
// become good again goes before expiry, so that a client with a revoked key is
// not told to renew it.
func (a *Authenticator) usable(key *tenant.Key) error {
	switch {
	case !key.RevokedAt.IsZero():
		return ErrRevokedKey
	case key.ActsAs != tenant.User: // unknown values are no users
		return ErrAgentKey
	case !key.ExpiresAt.IsZero() && !a.now().Before(key.ExpiresAt):
		return ErrCredentialExpired
	}
	return nil
}
