package ratelimit

import "time"

// level is a token bucket. It decides as rate.Limiter does, and the suite holds
// both to the same rules; but it can be set to what another replica has left of
// it, fractions and debts included.
type level struct {
	tokens float64       // at the time at; below zero is a debt
	at     time.Duration // on its owner's clock
	rate   Rate
}

func (l *level) tokensAt(now time.Duration) float64 {
	return min(l.tokens+(now-l.at).Seconds()*float64(l.rate.PerSecond), float64(l.rate.Burst))
}

// set makes it hold so many tokens now.
func (l *level) set(tokens float64, now time.Duration) {
	l.tokens, l.at = min(tokens, float64(l.rate.Burst)), now
}

// change puts another rate in force from now on. The time up to now counts at the
// old one, so that nothing is refilled by the change.
func (l *level) change(r Rate, now time.Duration) {
	tokens := l.tokensAt(now)
	l.rate = r
	l.set(tokens, now)
}

// take takes a token, if there is one, to the nanosecond.
func (l *level) take(now time.Duration) bool {
	left := l.tokensAt(now) - 1
	if left < 0 && l.span(-left) > 0 {
		return false
	}
	l.tokens, l.at = left, now
	return true
}

// look is what taking one would come to now; the copy is all that it is taken from.
func (l level) look(now time.Duration) Decision {
	if !l.take(now) {
		return Decision{RetryAfter: l.wait(now)}
	}
	return Decision{Allowed: true, Remaining: max(0, int(l.tokensAt(now)))}
}

// wait is the shortest wait after now that brings it to one token; why it looks
// twice says wait in bucket.go.
func (l *level) wait(now time.Duration) time.Duration {
	d := l.span(1 - l.tokensAt(now))
	return d + l.span(1-l.tokensAt(now+d))
}

// span is the time in which so many tokens come.
func (l *level) span(tokens float64) time.Duration {
	if tokens <= 0 {
		return 0
	}
	return time.Duration(tokens / float64(l.rate.PerSecond) * float64(time.Second))
}
