package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"sluice/auth"
	"sluice/internal/refusal"
	"sluice/internal/tenant"
	"sluice/ratelimit"
)

const (
	maxRequestBytesHeader = "Ursula-Max-Request-Bytes"
	// tailRetry is when a client that has all its tails open may try again:
	// nobody can know when one of them will close.
	tailRetry = time.Second
)

// subject is whose allowance a request uses: strangers that read an account's
// public streams have one of their own (design §6).
func (s *Scope) subject() ratelimit.Subject {
	return ratelimit.Subject{Account: string(s.Route.Account), Public: s.Standing == auth.Public}
}

// declaredSize refuses a body that says itself that it is too large.
func (c *chain) declaredSize(next handler) handler {
	return func(s *Scope, w http.ResponseWriter, r *http.Request) error {
		if r.ContentLength > s.Account.Limits.RequestBytes {
			return tooLarge(s.Account.Limits.RequestBytes)
		}
		return next(s, w, r)
	}
}

func tooLarge(limit int64) error {
	return refusal.Because(refusal.RequestTooLarge, fmt.Sprintf("The request body is larger than the %d bytes that this account may send at once: send it in smaller pieces.", limit), nil).
		With(maxRequestBytesHeader, strconv.FormatInt(limit, 10))
}

// rate counts the request, once, against the account whose stream it names.
func (c *chain) rate(next handler) handler {
	return func(s *Scope, w http.ResponseWriter, r *http.Request) error {
		limits := s.Account.Limits
		d := c.Limiter.Allow(s.subject(), ratelimit.Rate{PerSecond: limits.RequestsPerSecond, Burst: limits.Burst})
		if d.Allowed {
			return next(s, w, r)
		}
		return overRate(limits, d)
	}
}

// overRate refuses by the account's rate. One of 0 is closed.
func overRate(limits tenant.Limits, d ratelimit.Decision) error {
	ref, quota := refusal.New(refusal.RateLimited, nil), limits.Burst
	if limits.RequestsPerSecond <= 0 {
		quota = 0
		ref.Message = "The account may make no requests at the moment: ask the operator of this service."
	}
	return ref.OverRate("requests", limits.RequestsPerSecond, quota, d.Remaining, d.RetryAfter)
}

func noTail(limit int) error {
	ref, wait := refusal.New(refusal.LiveReadsExhausted, nil), tailRetry
	if limit <= 0 {
		ref.Message = "The account may open no tails at the moment: ask the operator of this service."
		wait = ratelimit.ClosedRetryAfter
	}
	return ref.With("Retry-After", strconv.Itoa(refusal.WholeSeconds(wait)))
}

// tail holds a slot for as long as a live read is open; every way out gives it
// back.
func (c *chain) tail(next handler) handler {
	return func(s *Scope, w http.ResponseWriter, r *http.Request) error {
		if s.Route.Tail == NoTail {
			return next(s, w, r)
		}
		step := s.span.Child("take tail slot")
		lease, err := c.Tails.Acquire(r.Context(), s.subject(), s.Account.Limits.OpenTails)
		step.End()
		switch {
		case errors.Is(err, ratelimit.ErrExhausted):
			return noTail(s.Account.Limits.OpenTails)
		case err != nil:
			return orGone(r.Context(), err)
		}
		defer lease.Release()
		return next(s, w, r)
	}
}

// orGone is err, unless the client has left meanwhile: what it was to be told is
// nobody's fault then (S12).
func orGone(client context.Context, err error) error {
	if client.Err() != nil {
		return errClientGone
	}
	return err
}
