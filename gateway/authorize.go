package gateway

import (
	"errors"
	"net/http"

	"sluice/auth"
	"sluice/internal/refusal"
	"sluice/internal/tenant"
)

// authorize decides whether the principal, or anybody, reaches this stream with
// this operation. The directory says what is public, not what exists, so a
// missing stream and a private one take the same way (A16).
func (c *chain) authorize(next handler) handler {
	return func(s *Scope, w http.ResponseWriter, r *http.Request) error {
		stream, err := c.Directory.Stream(r.Context(), s.Route.Account, s.Route.Stream)
		switch {
		case err == nil:
			s.Public = stream.Public
		case !errors.Is(err, tenant.ErrNotFound):
			return refusal.New(refusal.AuthorizationUnavailable, err)
		}
		target := auth.Resource{Account: s.Route.Account, Name: s.Route.Stream, Public: s.Public}
		s.Standing, err = auth.Decide(s.Principal, target, s.Route.Operation.Writes())
		if err != nil {
			return err
		}
		return next(s, w, r)
	}
}

// account refuses by the standing of the stream's account. A state that is not
// known is refused like a revoked one.
func (c *chain) account(next handler) handler {
	return func(s *Scope, w http.ResponseWriter, r *http.Request) error {
		account, err := c.Directory.Account(r.Context(), s.Route.Account)
		switch {
		case errors.Is(err, tenant.ErrNotFound):
			return refusal.New(refusal.AccountRevoked, err)
		case err != nil:
			return refusal.New(refusal.AuthorizationUnavailable, err)
		}
		s.Account = account
		switch account.State {
		case tenant.Active:
			return next(s, w, r)
		case tenant.Unpaid:
			return refusal.New(refusal.PaymentRequired, nil)
		default:
			return refusal.New(refusal.AccountRevoked, nil)
		}
	}
}

// lifecycle keeps the making and deleting of streams for the operator.
func (c *chain) lifecycle(next handler) handler {
	return func(s *Scope, w http.ResponseWriter, r *http.Request) error {
		if op := s.Route.Operation; op == Create || op == Delete {
			return refusal.New(refusal.StreamLifecycle, nil)
		}
		return next(s, w, r)
	}
}
