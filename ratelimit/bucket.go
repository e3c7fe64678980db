package ratelimit

import (
	"time"

	"golang.org/x/time/rate"
)

// bucket is one subject's requests in this process alone.
type bucket struct {
	limiter *rate.Limiter
	rate    Rate // what limiter is set to
}

// full reports whether the bucket is the same as a new one.
func (b bucket) full(now time.Time) bool { return b.limiter.TokensAt(now) >= float64(b.rate.Burst) }

// buckets are those of one shard. The shard's lock guards them.
type buckets struct{ kept[bucket] }

func (b *buckets) allow(s Subject, r Rate, now time.Time) Decision {
	now = b.tick(now, bucket.full)
	limiter := b.limiter(s, r, now)
	if !limiter.AllowN(now, 1) {
		return Decision{RetryAfter: wait(limiter, now)}
	}
	return Decision{Allowed: true, Remaining: max(0, int(limiter.TokensAt(now)))}
}

// look is what allow would decide. It changes nothing: a bucket that is missing is a full
// one, and one of another rate counts as it would after the change.
func (b *buckets) look(s Subject, r Rate, now time.Time) Decision {
	if now.Before(b.latest) {
		now = b.latest
	}
	known, ok := b.bySubject[s]
	switch {
	case !ok:
		return Decision{Allowed: true, Remaining: r.Burst - 1}
	case known.rate != r:
		l := level{rate: r}
		l.set(known.limiter.TokensAt(now), 0)
		return l.look(0)
	case shortfall(known.limiter, now) > 0:
		return Decision{RetryAfter: wait(known.limiter, now)}
	default:
		return Decision{Allowed: true, Remaining: max(0, int(known.limiter.TokensAt(now)-1))}
	}
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
	made := bucket{limiter: rate.NewLimiter(rate.Limit(r.PerSecond), r.Burst), rate: r}
	b.add(s.own(), made, now, bucket.full)
	return made.limiter
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
