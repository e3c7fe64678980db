package replica

import (
	"sync"
	"sync/atomic"
	"time"
)

// reach is whether the store can be asked, and how long what is known of it may be used.
// One goroutine, that follows the log, says what became of each try; anybody reads.
type reach struct {
	now      func() time.Time
	start    time.Time
	staleFor time.Duration

	until atomic.Int64 // what is known holds before; on clock(); 0 = nothing is known yet
	lost  atomic.Bool  // the last try to read the log failed

	mu    sync.Mutex
	since time.Time // when the log was read last, or it was begun to
	cause error     // of the last failure
}

func newReach(now func() time.Time, staleFor time.Duration) *reach {
	start := now()
	return &reach{now: now, start: start, since: start, staleFor: staleFor}
}

// clock is the time since the start. It does not follow a clock that is set.
func (r *reach) clock() time.Duration { return r.now().Sub(r.start) }

// holds reports whether what is known may be used.
func (r *reach) holds() bool { return int64(r.clock()) < r.until.Load() }

// heldWithin reports whether what is known may be used, or might be that time ago.
func (r *reach) heldWithin(ago time.Duration) bool {
	until := r.until.Load()
	return until > 0 && int64(r.clock()-ago) < until
}

// begun reports whether anything was known ever.
func (r *reach) begun() bool { return r.until.Load() > 0 }

// gone is why what is known may not be used.
func (r *reach) gone() error {
	if r.begun() {
		return errStale
	}
	return errGone
}

// end says that nothing is known any more.
func (r *reach) end() { r.until.Store(0) }

// isLost reports whether the store is known to be out of reach.
func (r *reach) isLost() bool { return r.lost.Load() }

// heard says that the whole log was read, as it was at that time. It tells how long the
// store was out of reach, and whether it was.
func (r *reach) heard(at time.Time) (gone time.Duration, back bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	gone, back = at.Sub(r.since), r.lost.Load()
	r.since, r.cause = at, nil
	// With no time to be stale it has to hold until the next try is over.
	r.until.Store(int64(at.Sub(r.start) + r.staleFor + pollEvery + 2*logTime))
	r.lost.Store(false)
	return gone, back
}

// failed says that the log could not be read, and tells whether that is news.
func (r *reach) failed(cause error) (news bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	news = !r.lost.Load()
	r.cause = cause
	if r.until.Load() > 0 {
		r.until.Store(max(1, int64(r.since.Sub(r.start)+r.staleFor)))
	}
	r.lost.Store(true)
	return news
}

// state is when the log was read last, and since when the store is out of reach
// (zero = it is not) and why.
func (r *reach) state() (read, lost time.Time, cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost.Load() {
		lost = r.since
	}
	return r.since, lost, r.cause
}
