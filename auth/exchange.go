package auth

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"sluice/internal/secret"
	"sluice/internal/tenant"
)

// maxAhead is how far in the future a token may be issued so as not to be dead
// at once by its key's cutoff: the skew of replicas that share a store lies 20 s ahead
// (tenant.Directory.Cutoff). It is within our own leeway; who else verifies an "iat"
// without one may refuse a token in the first seconds after its key was narrowed.
const maxAhead = 25 * time.Second

// ExchangeOptions are what an Exchanger needs.
type ExchangeOptions struct {
	Authenticator *Authenticator // required, with an Origin
	Random        io.Reader      // for the ids of tokens; nil = crypto/rand.Reader
	TokenLifetime time.Duration  // where none is asked for; 0 = DefaultTokenLifetime; at most tenant.MaxTokenLife
}

// Exchanger makes Streams tokens from keys and tokens (RFC 8693). What it makes
// never reaches more, and never lives longer, than what it was made from. It is
// safe for concurrent use.
type Exchanger struct {
	a        *Authenticator
	random   io.Reader
	lifetime time.Duration
}

// NewExchanger makes an Exchanger.
func NewExchanger(o ExchangeOptions) *Exchanger {
	if o.Random == nil {
		o.Random = rand.Reader
	}
	if o.TokenLifetime <= 0 {
		o.TokenLifetime = DefaultTokenLifetime
	}
	return &Exchanger{a: o.Authenticator, random: o.Random, lifetime: min(o.TokenLifetime, tenant.MaxTokenLife)}
}

// ExchangeResponse is an exchange that was made.
type ExchangeResponse struct {
	AccessToken     secret.Secret
	IssuedTokenType string
	ExpiresIn       time.Duration // whole seconds
	Scope           string

	TokenID string // the token's "jti", for the log; no part of the answer
}

// JSON is the answer's body (RFC 8693 §2.2.1). It holds the token in clear.
func (r *ExchangeResponse) JSON() ([]byte, error) {
	text, err := json.Marshal(struct { //nolint:gosec // the one place where a token leaves in clear, to its owner
		AccessToken     string `json:"access_token"`
		IssuedTokenType string `json:"issued_token_type"`
		TokenType       string `json:"token_type"`
		ExpiresIn       int64  `json:"expires_in"`
		Scope           string `json:"scope"`
	}{r.AccessToken.Reveal(), r.IssuedTokenType, scheme, int64(r.ExpiresIn / time.Second), r.Scope})
	if err != nil {
		return nil, fmt.Errorf("encode an exchange: %w", err)
	}
	return text, nil
}

// Exchange is Subject and Issue in one.
func (x *Exchanger) Exchange(ctx context.Context, r ExchangeRequest) (*ExchangeResponse, *ExchangeError) {
	parent, err := x.Subject(ctx, r)
	if err != nil {
		return nil, err
	}
	return x.Issue(ctx, parent, r)
}

// Subject finds out whom the subject token stands for. It may be an agent's key.
// The error's code is invalid_grant, or temporarily_unavailable where that could
// not be told.
func (x *Exchanger) Subject(ctx context.Context, r ExchangeRequest) (*Principal, *ExchangeError) {
	parent, err := x.subject(ctx, r.SubjectToken.Reveal())
	if err != nil {
		return nil, grantError(err)
	}
	account, err := x.a.directory.Account(ctx, parent.Account)
	switch {
	case errors.Is(err, tenant.ErrNotFound):
		return nil, grantError(ErrRevokedKey)
	case err != nil:
		return nil, grantError(fmt.Errorf("%w: %w", ErrUnavailable, err))
	case account == nil || account.State != tenant.Active:
		return nil, refuse(CodeInvalidGrant, "the account of the subject token is not active")
	}
	return parent, nil
}

func (x *Exchanger) subject(ctx context.Context, token string) (*Principal, error) {
	if len(token) > maxToken || !b64token(token) {
		return nil, ErrMalformedCredential
	}
	if !strings.HasPrefix(token, KeyPrefix) {
		return x.a.byToken(ctx, token)
	}
	key, err := x.a.byKey(ctx, token)
	if err != nil {
		return nil, err
	}
	if err := x.a.exchangeable(key); err != nil {
		return nil, err
	}
	return keyPrincipal(key), nil
}

func grantError(err error) *ExchangeError {
	e := &ExchangeError{Code: CodeInvalidGrant, cause: err}
	switch {
	case errors.Is(err, ErrUnavailable):
		e.Code, e.Description = CodeTemporarilyUnavailable, "the subject token cannot be checked now: try again later"
	case errors.Is(err, ErrCredentialExpired):
		e.Description = "the subject token has expired"
	default:
		e.Description = "the subject token is not valid, or was revoked"
	}
	return e
}

// Issue makes the token that r asks for from what parent, which Subject gave,
// has. Anything more than the parent's is refused: invalid_scope,
// invalid_target; what ended since is invalid_grant.
func (x *Exchanger) Issue(ctx context.Context, parent *Principal, r ExchangeRequest) (*ExchangeResponse, *ExchangeError) {
	now := x.a.now()
	// The cutoff is read before the rights. A key narrowed in between, or later,
	// gets a cutoff behind this token's "iat" (tenant.Directory).
	issuedAt, late := x.issuedAt(parent, now)
	parent, err := x.a.recheck(ctx, parent, x.a.exchangeable)
	switch {
	case err != nil:
		return nil, grantError(err)
	case late:
		return nil, grantError(fmt.Errorf("%w: the key changes too often", ErrUnavailable))
	}
	scope, refused := narrowScope(parent, r.scopes)
	if refused != nil {
		return nil, refused
	}
	streams, refused := x.narrowStreams(parent, r)
	if refused != nil {
		return nil, refused
	}
	expires, refused := x.expires(parent, r, now)
	switch {
	case refused != nil:
		return nil, refused
	case !expires.After(issuedAt):
		return nil, grantError(ErrCredentialExpired)
	}
	id, err := newTokenID(x.random)
	if err != nil {
		return nil, grantError(fmt.Errorf("%w: %w", ErrUnavailable, err))
	}
	c := tokenClaims{
		Issuer: x.a.origin, Audience: x.a.origin, Subject: parent.KeyID, ClientID: parent.KeyID,
		Account: string(parent.Account), Scope: scope, Streams: streams.Patterns(),
		IssuedAt: issuedAt.Unix(), Expires: expires.Unix(), ID: id, Root: rootOf(parent, x.a.origin),
	}
	if parent.IsToken() {
		c.Subject = parent.Subject
	}
	token, err := x.a.sign(ctx, c, now)
	switch {
	case errors.Is(err, errTokenSize):
		return nil, refuse(CodeInvalidTarget, "the token would hold too many streams: narrow it with resource")
	case err != nil:
		return nil, grantError(fmt.Errorf("%w: %w", ErrUnavailable, err))
	}
	return &ExchangeResponse{
		AccessToken: token, IssuedTokenType: r.issuedType, Scope: scope, TokenID: id,
		ExpiresIn: expires.Sub(now.Truncate(time.Second)),
	}, nil
}

// issuedAt is the "iat" of a token made now: the second that has begun, or the
// first behind the key's cutoff. late says that this is too far ahead.
func (x *Exchanger) issuedAt(parent *Principal, now time.Time) (at time.Time, late bool) {
	at = now.Truncate(time.Second)
	if rootOf(parent, x.a.origin) == nil {
		if cutoff := x.a.directory.Cutoff(parent.KeyID); !cutoff.Before(at) {
			at = cutoff.Truncate(time.Second).Add(time.Second)
		}
	}
	return at, at.Sub(now) > maxAhead
}

// rootOf is what a child of parent states as its root: none where an API key
// began the chain.
func rootOf(parent *Principal, origin string) *root {
	switch {
	case !parent.IsToken():
		return nil
	case parent.Issuer == origin:
		return parent.grounds.root
	}
	return &root{Issuer: parent.Issuer, KeyID: parent.grounds.kid}
}

// narrowScope is the scope of the child: what is asked for, or the parent's.
func narrowScope(parent *Principal, asked []string) (string, *ExchangeError) {
	if len(asked) == 0 {
		switch {
		case parent.Access == tenant.WriteAccess && parent.IsToken() && !slices.Contains(parent.Scopes, ScopeRead):
			return ScopeWrite, nil
		case parent.Access == tenant.WriteAccess:
			return ScopeRead + " " + ScopeWrite, nil
		case parent.Access == tenant.ReadAccess:
			return ScopeRead, nil
		}
		return "", refuse(CodeInvalidScope, "the subject token has neither "+ScopeRead+" nor "+ScopeWrite)
	}
	access := accessOf(asked)
	if parent.Access != tenant.WriteAccess && (parent.Access != tenant.ReadAccess || access != tenant.ReadAccess) {
		return "", refuse(CodeInvalidScope, "scope is more than the subject token has")
	}
	return strings.Join(asked, " "), nil
}

// narrowStreams is what the child reaches: what is asked for, all of which the
// parent has to reach, or the parent's.
func (x *Exchanger) narrowStreams(parent *Principal, r ExchangeRequest) (tenant.StreamSet, *ExchangeError) {
	for _, audience := range r.audiences {
		if audience != x.a.origin {
			return tenant.StreamSet{}, refuse(CodeInvalidTarget, "audience can only be this service's origin")
		}
	}
	asked, refused := r.streams(x.a.origin, parent.Account)
	if refused != nil {
		return tenant.StreamSet{}, refused
	}
	granted := parent.Streams.Intersect(asked)
	if len(r.resources) > 0 && !asked.Within(parent.Streams) || granted.Empty() {
		return tenant.StreamSet{}, refuse(CodeInvalidTarget, "a resource is beyond what the subject token reaches")
	}
	return granted, nil
}

// expires is the end of the child: never behind the parent's.
func (x *Exchanger) expires(parent *Principal, r ExchangeRequest, now time.Time) (time.Time, *ExchangeError) {
	lifetime := r.lifetime
	if lifetime == 0 {
		lifetime = x.lifetime
	}
	expires := now.Truncate(time.Second).Add(lifetime)
	if end := parent.ExpiresAt; !end.IsZero() {
		if end.Sub(now) < time.Second {
			return expires, grantError(ErrCredentialExpired)
		}
		if end = end.Truncate(time.Second); end.Before(expires) {
			expires = end
		}
	}
	return expires, nil
}
