package gateway

import (
	"errors"
	"net/http"

	"sluice/auth"
	"sluice/internal/refusal"
	"sluice/internal/tenant"
	"sluice/ratelimit"
)

// failed counts a credential that is not good against the address that it came
// from, and says so where there are too many, so that clients do not spin (A19).
// Good ones are never looked at here: nobody behind the same address is locked
// out. A credential that was good and has expired is counted by itself, since its
// holder has to hear that, whatever the neighbours do, to get another.
func (c *chain) failed(s *Scope, credential string, err error) error {
	subject := ratelimit.Subject{Account: addressKey(s.Client)}
	switch {
	case c.FailedPerMinute == 0:
		return err
	case errors.Is(err, auth.ErrCredentialExpired):
		digest := tenant.DigestOf(credential)
		subject.Account = string(digest[:])
	case !errors.Is(err, auth.ErrInvalidCredential):
		return err
	}
	rate := ratelimit.Rate{PerSecond: max(1, c.FailedPerMinute/60), Burst: c.FailedPerMinute}
	d := c.Failures.Allow(subject, rate)
	if d.Allowed {
		return err
	}
	ref := refusal.Because(refusal.RateLimited, "Too many requests with a credential that is not valid come from here: replace it before you go on.", err).
		OverRate("failures", rate.PerSecond, rate.Burst, 0, d.RetryAfter)
	var exchange *auth.ExchangeError
	if errors.As(err, &exchange) {
		ref.OAuth = &refusal.OAuth{
			Status: http.StatusTooManyRequests, Error: auth.CodeTemporarilyUnavailable,
			Description: "too many subject tokens that are not valid come from here: replace yours before you go on",
		}
	}
	return ref
}
