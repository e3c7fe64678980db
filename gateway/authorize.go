package gateway

import (
	"context"
	"errors"
	"net/http"

	"sluice/auth"
	"sluice/internal/refusal"
	"sluice/internal/tenant"
)

// authorize decides whether the principal, or anybody, reaches this stream with
// this operation.
func (c *chain) authorize(next handler) handler {
	return func(s *Scope, w http.ResponseWriter, r *http.Request) error {
		step := s.span.Child("authorize")
		var err error
		s.Public, s.Standing, err = c.access(r.Context(), s.Principal, s.Route)
		step.End()
		if err != nil {
			return err
		}
		return next(s, w, r)
	}
}

// access decides who reaches a route's stream. The directory says what is public,
// not what exists, so a missing stream and a private one take the same way (A16).
func (c *chain) access(ctx context.Context, p *auth.Principal, rt Route) (public bool, standing auth.Standing, err error) {
	stream, err := c.Directory.Stream(ctx, rt.Account, rt.Stream)
	switch {
	case err == nil:
		public = stream.Public
	case !errors.Is(err, tenant.ErrNotFound):
		return false, 0, refusal.New(refusal.AuthorizationUnavailable, err)
	}
	target := auth.Resource{Account: rt.Account, Name: rt.Stream, Public: public}
	standing, err = auth.Decide(p, target, rt.Operation.Writes())
	return public, standing, err
}

// account refuses by the standing of the stream's account.
func (c *chain) account(next handler) handler {
	return func(s *Scope, w http.ResponseWriter, r *http.Request) error {
		var err error
		if s.Account, err = c.accountOf(r.Context(), s.Route.Account); err != nil {
			return err
		}
		return next(s, w, r)
	}
}

// accountOf finds an account that may be used. A state that is not known is
// refused like a revoked one.
func (c *chain) accountOf(ctx context.Context, id tenant.AccountID) (*tenant.Account, error) {
	account, err := c.Directory.Account(ctx, id)
	switch {
	case errors.Is(err, tenant.ErrNotFound):
		return nil, refusal.New(refusal.AccountRevoked, err)
	case err != nil:
		return nil, refusal.New(refusal.AuthorizationUnavailable, err)
	}
	switch account.State {
	case tenant.Active:
		return account, nil
	case tenant.Unpaid:
		return account, refusal.New(refusal.PaymentRequired, nil)
	default:
		return account, refusal.New(refusal.AccountRevoked, nil)
	}
}
