package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

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
	wait := strconv.Itoa(wholeSeconds(d.RetryAfter))
	ref := refusal.Because(refusal.RateLimited, "Too many requests with a credential that is not valid come from here: replace it before you go on.", err).
		With("Retry-After", wait).
		With("RateLimit-Policy", fmt.Sprintf(`"failures";q=%d;w=%d`, rate.Burst, (rate.Burst+rate.PerSecond-1)/rate.PerSecond)).
		With("RateLimit", `"failures";r=0;t=`+wait)
	var exchange *auth.ExchangeError
	if errors.As(err, &exchange) {
		ref.OAuth = &refusal.OAuth{
			Status: http.StatusTooManyRequests, Error: auth.CodeTemporarilyUnavailable,
			Description: "too many subject tokens that are not valid come from here: replace yours before you go on",
		}
	}
	return ref
}
