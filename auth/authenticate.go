package auth

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"sluice/internal/tenant"
)

// Options are what an Authenticator needs.
type Options struct {
	Directory  tenant.Directory // required; answers from memory
	Now        func() time.Time // clock for expiry; nil = time.Now
	Origin     string           // issuer and audience of our own tokens; "" = there are none
	Issuers    *Issuers         // whose tokens are taken besides; nil = nobody's
	TokenCache int              // verified tokens remembered, about 1 KB each; 0 = DefaultTokenCache
	// Used is told the id of a key of ours that was used, or whose token was; nil: nobody
	// is. It must not block.
	Used func(keyID string)
}

// Authenticator turns credentials into principals. Of its own it keeps only
// which tokens it has verified. It is safe for concurrent use.
type Authenticator struct {
	directory tenant.Directory
	now       func() time.Time
	origin    string
	issuers   *Issuers
	used      func(keyID string)
	tokens    *tokenCache
	checks    chan struct{} // holds one for each signature that is being checked
}

// New makes an Authenticator.
func New(o Options) *Authenticator {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Used == nil {
		o.Used = func(string) {}
	}
	return &Authenticator{
		directory: o.Directory, now: o.Now, origin: o.Origin, issuers: o.Issuers, used: o.Used,
		tokens: newTokenCache(o.TokenCache), checks: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)),
	}
}

// Quiet is an Authenticator that decides as a does, tells nobody that a key was used and
// remembers no token: for questions that are no requests. As with a, the first token that names
// a new key of another issuer may have that issuer asked.
func (a *Authenticator) Quiet() *Authenticator {
	quiet := *a
	quiet.used, quiet.tokens = func(string) {}, newTokenCache(1)
	return &quiet
}

// Authenticate reads the values of a request's Authorization headers and finds
// out who sent it; nil, nil is an anonymous request.
//
// Errors wrap exactly one of ErrInvalidCredential, ErrCredentialExpired and
// ErrUnavailable. What does not have the form of a credential is refused without
// a look-up. ErrUnavailable covers everything that keeps the directory or an
// issuer from giving a sure answer, the end of ctx too: an outage must never
// read as "this key is wrong" (A11).
//
// It answers from memory, but for the first token that names a new key of
// another issuer: that one may wait for the issuer, maxKeyWait at most.
func (a *Authenticator) Authenticate(ctx context.Context, authorization []string) (*Principal, error) {
	token, present, err := Bearer(authorization)
	if err != nil {
		return nil, err
	}
	if !present {
		return nil, nil // anonymous is an answer, not a fault: the access rules decide on it
	}
	if !strings.HasPrefix(token, KeyPrefix) {
		p, err := a.byToken(ctx, token)
		if err == nil && p.Issuer == a.origin && rootOf(p, a.origin) == nil { // an API key began its chain
			a.used(p.KeyID)
		}
		return p, err
	}
	key, err := a.byKey(ctx, token)
	if err != nil {
		return nil, err
	}
	if err := a.usable(key); err != nil {
		return nil, err
	}
	a.used(key.ID)
	return keyPrincipal(key), nil
}

// byKey finds the record of a key; whether it may be used is another question.
func (a *Authenticator) byKey(ctx context.Context, token string) (*tenant.Key, error) {
	if err := CheckKey(token); err != nil {
		return nil, err
	}
	return a.byDigest(ctx, tenant.DigestOf(token))
}

func (a *Authenticator) byDigest(ctx context.Context, digest tenant.Digest) (*tenant.Key, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
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
	return key, nil
}

// usable says whether a known key may be used directly, now. What can never
// become good again goes before expiry, so that a client with a revoked key is
// not told to renew it.
func (a *Authenticator) usable(key *tenant.Key) error {
	if key.RevokedAt.IsZero() && key.ActsAs != tenant.User { // unknown values are no users
		return ErrAgentKey
	}
	return a.exchangeable(key)
}

// exchangeable says whether a known key is good for the token exchange, now:
// an agent's is.
func (a *Authenticator) exchangeable(key *tenant.Key) error {
	switch {
	case !key.RevokedAt.IsZero():
		return ErrRevokedKey
	case !key.ExpiresAt.IsZero() && !a.now().Before(key.ExpiresAt):
		return ErrCredentialExpired
	}
	return nil
}
