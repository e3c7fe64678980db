package ratelimit

import (
	"maps"
	"strings"
	"time"

	"golang.org/x/time/rate"
)

const (
	// minSweep is the number of buckets in a shard below which memory is no
	// reason to sweep.
	minSweep = 32
	// sweepEvery is how long full buckets may lie in a shard that does not grow.
	sweepEvery = time.Minute
)

// own is s with a text of its own: a request's account is mostly a piece of its
// path, and a key kept in a map would keep the whole path alive.
func (s Subject) own() Subject {
	s.Account = strings.Clone(s.Account)
	return s
}

// bucket is one subject's requests.
type bucket struct {
	limiter *rate.Limiter
	rate    Rate // what limiter is set to
}

// buckets are those of one shard. The shard's lock guards them.
type buckets struct {
	bySubject map[Subject]bucket
	latest    time.Time // the latest time seen
	swept     time.Time // of the last sweep
	sweepAt   int       // a new bucket beyond this number sweeps first
}

func (b *buckets) allow(s Subject, r Rate, now time.Time) Decision {
	// Two goroutines may read the clock in one order and come here in the other.
	// rate.Limiter goes back with the time it is told and would then refill the
	// same span twice, so time never goes back here.
	if now.Before(b.latest) {
		now = b.latest
	}
	b.latest = now
	if now.Sub(b.swept) >= sweepEvery {
		b.sweep(now)
	}
	limiter := b.limiter(s, r, now)
	if !limiter.AllowN(now, 1) {
		return Decision{RetryAfter: wait(limiter, now)}
	}
	return Decision{Allowed: true, Remaining: max(0, int(limiter.TokensAt(now)))}
}

// limiter finds the subject's bucket, set to r, or makes a full one.
func (b *buckets) limiter(s Subject, r Rate, now time.Time) *rate.Limiter {
	if known, ok := b.bySubject[s]; ok {
		if known.rate != r {
			// In this order the time up to now counts at the old rate and the level is
			// cut to the old burst before the new one is in force: nothing is refilled.
			known.limiter.SetLimitAt(now, rate.Limit(r.PerSecond))
			known.limiter.SetBurstAt(now, r.Burst)
			known.rate = r
			b.bySubject[s.own()] = known
		}
		return known.limiter
	}
	if len(b.bySubject) >= max(minSweep, b.sweepAt) {
		b.sweep(now)
	}
	if b.bySubject == nil {
		b.bySubject = make(map[Subject]bucket)
	}
	made := bucket{limiter: rate.NewLimiter(rate.Limit(r.PerSecond), r.Burst), rate: r}
	b.bySubject[s.own()] = made
	return made.limiter
}

// sweep drops the buckets that are full again. The shard may then grow to twice
// what is left, so that a sweep costs each new bucket a constant.
func (b *buckets) sweep(now time.Time) {
	before := len(b.bySubject)
	maps.DeleteFunc(b.bySubject, func(_ Subject, k bucket) bool {
		return k.limiter.TokensAt(now) >= float64(k.rate.Burst)
	})
	if len(b.bySubject) <= before/2 {
		// A map never gives memory back, so what is left moves to one of its size.
		fresh := make(map[Subject]bucket, len(b.bySubject))
		maps.Copy(fresh, b.bySubject)
		b.bySubject = fresh
	}
	b.sweepAt = 2 * len(b.bySubject)
	b.swept = now
}

// wait is the shortest wait after now that brings the bucket to one token.
//
// The first guess is rounded down to whole nanoseconds, as the limiter rounds
// when it decides. What it would decide at the end of that wait is asked, so that
// a float's last digit never sends a client back once more, nor turns one second
// into two.
func wait(l *rate.Limiter, now time.Time) time.Duration {
	d := shortfall(l, now)
	return d + shortfall(l, now.Add(d))
}

// shortfall is how long after t the limiter has one token, by its own arithmetic.
func shortfall(l *rate.Limiter, t time.Time) time.Duration {
	missing := 1 - l.TokensAt(t)
	if missing <= 0 {
		return 0
	}
	return time.Duration(missing / float64(l.Limit()) * float64(time.Second))
}
