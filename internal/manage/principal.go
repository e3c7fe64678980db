package manage

import (
	"errors"

	"sluice/auth"
	"sluice/internal/refusal"
	"sluice/internal/tenant"
)

// The challenges of RFC 6750 §3; those of the request path are the gateway's.
const (
	challenge        = `Bearer realm="management"`
	challengeInvalid = challenge + `, error="invalid_token", error_description="The key is malformed, unknown or revoked"`
	challengeExpired = challenge + `, error="invalid_token", error_description="The key has expired"`
	challengeRequest = challenge + `, error="invalid_request", error_description="Send one Authorization header"`
	challengeScope   = challenge + `, error="insufficient_scope", error_description="A token does not manage: use an API key"`
)

// admitOwner finds out whose call it is, in the order of the request path: who asks,
// whether that may manage, then the standing of the account (design §2, §10).
func (a *API) admitOwner(c *call) error {
	ctx := c.r.Context()
	p, err := a.o.Authenticator.Authenticate(ctx, c.r.Header["Authorization"])
	if err == nil && p == nil {
		err = auth.ErrNoCredential
	}
	if err != nil {
		return credentialRefusal(err)
	}
	c.principal = p
	if err := mayManage(p); err != nil {
		return err
	}
	account, err := a.o.Directory.Account(ctx, p.Account)
	switch {
	case errors.Is(err, tenant.ErrNotFound):
		return refusal.New(refusal.AccountRevoked, err)
	case err != nil:
		return refusal.New(refusal.AuthorizationUnavailable, err)
	case account.State == tenant.Unpaid:
		return refusal.New(refusal.PaymentRequired, nil)
	case account.State != tenant.Active:
		return refusal.New(refusal.AccountRevoked, nil)
	}
	if a.o.Allow != nil {
		if allowance := a.o.Allow(p.Account); !allowance.OK {
			return tooMany(allowance)
		}
	}
	c.account = p.Account
	return nil
}

// mayManage says whether a good credential may: a key that acts as a user, writes, and
// is not narrowed.
func mayManage(p *auth.Principal) error {
	forbidden := func(message string) *refusal.Refusal {
		return refusal.Because(refusal.Forbidden, message, auth.ErrForbidden)
	}
	const use = " Use a key that acts as a user, writes, and reaches all streams."
	switch {
	case p.IsToken():
		return forbidden("A token does not manage."+use).With("WWW-Authenticate", challengeScope)
	case p.ActsAs != tenant.User:
		return forbidden("An agent's key does not manage." + use)
	case p.Access != tenant.WriteAccess:
		return forbidden("A key that only reads does not manage." + use)
	case p.Streams.Narrowed():
		return forbidden("A key that is narrowed to some streams does not manage." + use)
	}
	return nil
}

// credentialRefusal answers what is not a good credential.
func credentialRefusal(err error) error {
	const header = "WWW-Authenticate"
	invalid := func(challenge string) error {
		return refusal.New(refusal.InvalidCredential, err).With(header, challenge)
	}
	switch {
	case errors.Is(err, auth.ErrAgentKey):
		return mayManage(&auth.Principal{ActsAs: tenant.Agent})
	case errors.Is(err, auth.ErrNoCredential):
		return invalid(challenge)
	case errors.Is(err, auth.ErrSeveralCredentials):
		return invalid(challengeRequest)
	case errors.Is(err, auth.ErrInvalidCredential):
		return invalid(challengeInvalid)
	case errors.Is(err, auth.ErrCredentialExpired):
		return refusal.New(refusal.CredentialExpired, err).With(header, challengeExpired)
	default:
		return refusal.New(refusal.AuthenticationUnavailable, err)
	}
}
