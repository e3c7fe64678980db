package ratelimit

import (
	"maps"
	"strings"
	"time"
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

// kept are the buckets of one shard that differ from a new one. The shard's lock
// guards them.
type kept[B any] struct {
	bySubject map[Subject]B
	latest    time.Time // the latest time seen
	swept     time.Time // of the last sweep
	sweepAt   int       // a new bucket beyond this number sweeps first
}

// tick is the time to decide at. Two goroutines may read the clock in one order
// and come here in the other: with the time they are told, the same span would be
// refilled twice, so time never goes back here. The first call of a minute sweeps
// the buckets that idle says are the same as none.
func (k *kept[B]) tick(now time.Time, idle func(B, time.Time) bool) time.Time {
	if now.Before(k.latest) {
		now = k.latest
	}
	k.latest = now
	if now.Sub(k.swept) >= sweepEvery {
		k.sweep(now, idle)
	}
	return now
}

// add puts a new bucket in; s must own its text.
func (k *kept[B]) add(s Subject, b B, now time.Time, idle func(B, time.Time) bool) {
	if len(k.bySubject) >= max(minSweep, k.sweepAt) {
		k.sweep(now, idle)
	}
	if k.bySubject == nil {
		k.bySubject = make(map[Subject]B)
	}
	k.bySubject[s] = b
}

// sweep drops the idle buckets. The shard may then grow to twice what is left, so
// that a sweep costs each new bucket a constant.
func (k *kept[B]) sweep(now time.Time, idle func(B, time.Time) bool) {
	before := len(k.bySubject)
	maps.DeleteFunc(k.bySubject, func(_ Subject, b B) bool { return idle(b, now) })
	if len(k.bySubject) <= before/2 {
		// A map never gives memory back, so what is left moves to one of its size.
		fresh := make(map[Subject]B, len(k.bySubject))
		maps.Copy(fresh, k.bySubject)
		k.bySubject = fresh
	}
	k.sweepAt = 2 * len(k.bySubject)
	k.swept = now
}
