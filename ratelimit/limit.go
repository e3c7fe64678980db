package ratelimit

import (
	"context"
	"errors"
	"time"
)

// Subject is who is counted.
type Subject struct {
	// Account is the account whose stream the request names.
	Account string
	// Public is set for strangers who read that account's public streams. They
	// have an allowance of their own, of the same size, so that they cannot lock
	// the owner out (design §6).
	Public bool
}

// Rate is a token bucket: Burst requests at once after a pause, PerSecond
// sustained. Over any t seconds at most Burst + PerSecond·t requests are
// admitted. Zero or less in either field closes the subject; it never means
// "unlimited". Counts are exact up to 10^9 in each field.
type Rate struct {
	PerSecond int // requests a second
	Burst     int // requests
}

// ClosedRetryAfter is the RetryAfter of a closed subject, which no wait of its
// own opens: long enough to keep clients from spinning, short enough that they
// notice an operator's change.
const ClosedRetryAfter = time.Minute

// Decision is the answer to one request.
type Decision struct {
	Allowed bool
	// RetryAfter, on a refusal, is the shortest wait after which a client alone in
	// its subject is admitted: at most a second, or ClosedRetryAfter. Who writes
	// the header rounds it up to whole seconds, at least 1.
	RetryAfter time.Duration
	// Remaining is how many more requests would be admitted at this instant.
	Remaining int
}

// Limiter counts requests.
type Limiter interface {
	// Allow counts one request of s under r and says whether it is admitted. A
	// refused request costs nothing. r may differ from call to call (a reload): the
	// bucket keeps its level, cut to a smaller Burst, and is never refilled by the
	// change. Allow never blocks and never calls out, and is safe for concurrent
	// use.
	Allow(s Subject, r Rate) Decision
}

// ErrExhausted says that a subject has all the tails open that it may have.
var ErrExhausted = errors.New("open tails exhausted")

// Tails counts the tails open at one time.
type Tails interface {
	// Acquire takes a slot for s, unless limit or more are taken; zero or
	// less is closed. The error is ErrExhausted, or wraps ctx's where that had
	// ended; with an error nothing is taken. A slot is taken until its Lease is
	// released. It is safe for concurrent use.
	Acquire(ctx context.Context, s Subject, limit int) (Lease, error)
}

// Lease is one slot taken.
type Lease interface {
	// Release gives the slot back. Calls after the first do nothing. It is safe
	// for concurrent use.
	Release()
}
