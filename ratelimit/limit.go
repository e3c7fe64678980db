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
	// its subject is admitted: at most a second, or ClosedRetryAfter, within one
	// process. Where replicas share the bucket it may be longer, since they carry
	// over-use as a debt. Who writes the header rounds it up to whole seconds, at
	// least 1.
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
	// Look is what Allow would answer at this instant, and counts nothing: no bucket is
	// made, changed or refilled by it. Remaining is what the request would leave.
	Look(s Subject, r Rate) Decision
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
	// LookTail is the error that Acquire would give at this instant, as far as this process
	// knows: nil or ErrExhausted. It takes nothing and asks nobody, so that slots which
	// others hold of a shared limit are not seen.
	LookTail(s Subject, limit int) error
	// TailsOf is the number of tails that s has open in this process.
	TailsOf(s Subject) int
}

// Lease is one slot taken.
type Lease interface {
	// Release gives the slot back. Calls after the first do nothing. It is safe
	// for concurrent use.
	Release()
}

// ErrUploadsExhausted says that a subject has all the large bodies under way that
// it may have.
var ErrUploadsExhausted = errors.New("uploads exhausted")

// ErrUploadBytesExhausted says that a subject's large bodies under way may hold
// no more bytes.
var ErrUploadBytesExhausted = errors.New("upload bytes exhausted")

// UploadLimits bound a subject's large bodies at one time. Zero or less in either
// field is closed.
type UploadLimits struct {
	Uploads int   // bodies
	Bytes   int64 // of all of them
}

// closed is the error of limits that let no body through.
func (l UploadLimits) closed() error {
	switch {
	case l.Uploads <= 0:
		return ErrUploadsExhausted
	case l.Bytes <= 0:
		return ErrUploadBytesExhausted
	default:
		return nil
	}
}

// Uploads counts the large request bodies that are being read at one time, and
// their bytes (design §6). What is large is for the caller to say; a body of
// undeclared length becomes so when it outgrows small (facts U3).
type Uploads interface {
	// AcquireUpload takes a slot for a large body of so many bytes. The only one
	// under way always has its bytes, however many (facts Q6). The error is
	// ErrUploadsExhausted, ErrUploadBytesExhausted, or wraps ctx's where that had
	// ended; with an error nothing is taken. It is safe for concurrent use.
	AcquireUpload(ctx context.Context, s Subject, l UploadLimits, bytes int64) (Upload, error)
	// LookUpload is the error that AcquireUpload would give at this instant, as far as this
	// process knows, or nil. It takes nothing and asks nobody.
	LookUpload(s Subject, l UploadLimits, bytes int64) error
}

// Upload is the slot and the bytes of one large body.
type Upload interface {
	// Release gives both back: as soon as the body is whole, or has ended.
	Lease
	// Resize makes the body hold so many bytes in all. Fewer than before never
	// fails. The error is ErrUploadBytesExhausted, or wraps ctx's; with an error it
	// holds what it held. It does nothing after Release. Calls for one Upload must
	// not overlap, except with Release.
	Resize(ctx context.Context, bytes int64) error
}
