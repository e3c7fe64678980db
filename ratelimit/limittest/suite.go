package limittest

import (
	"testing"
	"time"

	"sluice/ratelimit"
)

// System is an implementation under test, with nothing counted yet.
type System struct {
	Limiter ratelimit.Limiter
	Tails   ratelimit.Tails
	Uploads ratelimit.Uploads
	// Advance moves the clock of the system by d and returns when the move is in
	// force. Between two calls the clock stands still.
	Advance func(d time.Duration)
	// TailsOf is the number of tails that a subject has open.
	TailsOf func(s ratelimit.Subject) int
	// UploadsOf is the number of uploads that a subject has under way, and their bytes.
	UploadsOf func(s ratelimit.Subject) (int, int64)
}

// Suite runs all rules of ratelimit.Limiter, ratelimit.Tails and ratelimit.Uploads. newSystem is
// called for each of them and ends with t what it starts.
func Suite(t *testing.T, newSystem func(t *testing.T) System) {
	t.Helper()
	for _, rule := range []struct {
		name string
		run  func(*testing.T, System)
	}{
		{"exactly the burst and the rate are admitted", admitsBurstAndRate},
		{"a schedule of any kind is admitted as the bucket says", followsModel},
		{"who waits RetryAfter is admitted", retryAfterIsTrue},
		{"who waits RetryAfter is admitted, asked at any moment", retryAfterIsTrueAtAnyMoment},
		{"a refused request costs nothing", refusalIsFree},
		{"zero is closed", zeroIsClosed},
		{"the largest rate is exact", largestRate},
		{"the largest burst is exact", largestBurst},
		{"Remaining counts down", remainingCountsDown},
		{"a look says what follows, and takes nothing", lookingTakesNothing},
		{"a look at slots says what follows, and takes nothing", lookingAtSlotsTakesNothing},
		{"a change of limits refills nothing", changeRefillsNothing},
		{"subjects do not share", subjectsDoNotShare},
		{"requests at one time are counted each", concurrentRequests},
		{"tails up to the limit", tailsUpToLimit},
		{"a lease is given back once", leaseIsGivenBackOnce},
		{"zero tails is closed", zeroTailsIsClosed},
		{"a lower limit ends no tail", lowerTailLimit},
		{"tails of subjects do not share", tailsDoNotShare},
		{"an ended context takes no slot", endedContext},
		{"churn never beats the cap", churn},
		{"uploads up to the count", uploadsUpToCount},
		{"uploads up to the bytes", uploadsUpToBytes},
		{"the only upload has its bytes", onlyUploadPasses},
		{"an upload grows and shrinks", uploadResizes},
		{"zero uploads is closed", zeroUploadsIsClosed},
		{"uploads and tails of subjects do not share", uploadsDoNotShare},
		{"an ended context takes no upload", uploadEndedContext},
		{"churn never beats the bounds of uploads", uploadChurn},
	} {
		t.Run(rule.name, func(t *testing.T) { rule.run(t, newSystem(t)) })
	}
}

// subject is the one most rules use.
func subject() ratelimit.Subject { return ratelimit.Subject{Account: "acme"} }

// admitted sends n requests at one instant and counts those let in.
func admitted(sys System, s ratelimit.Subject, r ratelimit.Rate, n int) int {
	in := 0
	for range n {
		if sys.Limiter.Allow(s, r).Allowed {
			in++
		}
	}
	return in
}
