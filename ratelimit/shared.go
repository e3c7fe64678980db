package ratelimit

import (
	"hash/maphash"
	"sync"
	"time"
)

// sharedBucket is this replica's copy of a bucket that lies in Redis. Requests are
// taken from the copy at once; a pass (pass.go) takes them from the bucket, and
// sets the copy to what is left there where other replicas use it too. Copies
// differ only by what has not been told yet.
type sharedBucket struct {
	level
	subject Subject
	account Rate   // the account's own rate, which level.rate is a part of while alone
	names   *keys  // by which key and tag are
	key     string // in Redis
	tag     int
	// used is how many requests were taken from the copy in all, by a count that
	// never restarts (shardOfShared.used); told is how many of them Redis has surely
	// been told of.
	used, told uint64
	// first is when the first request was admitted that is not told, and sent when the
	// last call that tells was made.
	first, sent time.Duration
	// others is what other replicas were seen to take at the last pass, at the time
	// synced: about as much may be under way again.
	others float64
	synced time.Duration
	// spread is whether others use the bucket too; while Redis has not said, they may.
	// began is when the use here began after a pause, last when a request was admitted
	// last, and from the count of used at the last pass but one, or when it began: what
	// others took since may not have been seen.
	spread      bool
	began, last time.Duration
	from        uint64
	// asked is when a request was decided last. Until followFor after it a bucket that
	// is low is told of in each pass, if only to learn what others take of it.
	asked  time.Duration
	queued bool // among the shard's queue
	flying bool // in a pass
}

// shardOfShared is a share of the subjects. The buckets of its queue are those
// that a pass has to tell of.
type shardOfShared struct {
	mu   sync.Mutex
	kept kept[*sharedBucket]
	// used counts the requests of all the shard's buckets, ever: a bucket that is
	// made anew begins to count from here, which is never below where it had been.
	used  uint64
	queue []*sharedBucket
}

func (sh *shardOfShared) enqueue(b *sharedBucket) {
	if !b.queued {
		b.queued = true
		sh.queue = append(sh.queue, b)
	}
}

// sharedRates are the copies of all buckets.
type sharedRates struct {
	now      func() time.Time
	start    time.Time // of the clock that levels are kept on
	seed     maphash.Seed
	interval time.Duration
	replicas func() int // that share the buckets, this one included
	shards   [shardCount]shardOfShared
}

func newSharedRates(now func() time.Time, interval time.Duration, replicas func() int) *sharedRates {
	return &sharedRates{now: now, start: now(), seed: maphash.MakeSeed(), interval: interval, replicas: replicas}
}

func (r *sharedRates) shard(s Subject) *shardOfShared {
	return &r.shards[maphash.String(r.seed, s.Account)%shardCount]
}

// idle reports whether the copy is the same as a new one: full, with nothing left
// to tell. What Redis has of it stays there.
func (r *sharedRates) idle(b *sharedBucket, now time.Time) bool {
	return !b.queued && !b.flying && b.tokensAt(now.Sub(r.start)) >= float64(b.rate.Burst)
}

// allow decides one request under rate: the account's own, or a part of it while
// there is no Redis. Then it is not counted for Redis either: what all replicas
// used under their own limits is no debt, or the account would pay for the outage
// when it is over.
func (r *sharedRates) allow(s Subject, account, rate Rate, counted bool) Decision {
	read := r.now()
	sh := r.shard(s)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	at := sh.kept.tick(read, r.idle)
	now := at.Sub(r.start)
	b := sh.kept.bySubject[s]
	if b == nil {
		b = sh.fresh(s.own(), rate, now)
		sh.kept.add(b.subject, b, at, r.idle)
	}
	r.hold(b, rate, counted, now)
	b.account, b.asked = account, now
	if !b.take(now) {
		if counted {
			sh.enqueue(b) // what others have used may be less, or more, than is known here
		}
		return r.refused(b, counted, now)
	}
	if counted {
		if b.used == b.told {
			b.first = now
		}
		if now-b.last > 2*r.interval {
			b.began, b.from = now, b.used
		}
		b.last = now
		b.used++
		sh.used++
		sh.enqueue(b)
	}
	return Decision{Allowed: true, Remaining: max(0, int(b.tokensAt(now)))}
}

// fresh is a full bucket, of which nothing is known yet.
func (sh *shardOfShared) fresh(s Subject, rate Rate, now time.Duration) *sharedBucket {
	return &sharedBucket{
		subject: s, level: level{tokens: float64(rate.Burst), at: now, rate: rate},
		used: sh.used, told: sh.used, from: sh.used, began: now, last: now, spread: true,
	}
}

// hold puts another rate in force for a bucket.
func (r *sharedRates) hold(b *sharedBucket, rate Rate, counted bool, now time.Duration) {
	if b.rate != rate {
		b.change(rate, now)
		b.set(max(b.tokens, -r.mostDebt(rate, counted)), now)
	}
}

func (r *sharedRates) refused(b *sharedBucket, counted bool, now time.Duration) Decision {
	if !counted {
		return Decision{RetryAfter: b.wait(now)}
	}
	return Decision{RetryAfter: r.wait(b, now)}
}

// look is what allow would decide, by a copy of the bucket.
func (r *sharedRates) look(s Subject, rate Rate, counted bool) Decision {
	read := r.now()
	sh := r.shard(s)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if read.Before(sh.kept.latest) {
		read = sh.kept.latest
	}
	now := read.Sub(r.start)
	b := sh.fresh(s, rate, now)
	if known := sh.kept.bySubject[s]; known != nil {
		*b = *known
		r.hold(b, rate, counted, now)
	}
	if !b.take(now) {
		return r.refused(b, counted, now)
	}
	return Decision{Allowed: true, Remaining: max(0, int(b.tokensAt(now)))}
}

// followFor is how long a low bucket is followed that nobody asks for.
const followFor = 5 * time.Second

// follow reports whether the next pass has to tell of the bucket though it may not have
// been used here: where it is low, who is refused next has to be told how long to wait
// in view of what others take.
func (r *sharedRates) follow(b *sharedBucket, now time.Duration) bool {
	return r.replicas() > 1 && now-b.asked < followFor && b.tokensAt(now) < max(1, float64(b.rate.Burst)/2)
}

// mostDebt is what all replicas together can have admitted beyond a bucket of that
// rate, as rate.lua has it: a debt from larger limits than are in force now, or than
// this replica has alone, must not outlive them.
func (r *sharedRates) mostDebt(rate Rate, shared bool) float64 {
	if !shared {
		return 0
	}
	return float64(r.replicas()) * (float64(rate.Burst) + float64(rate.PerSecond)*2*r.interval.Seconds() + 1)
}

// wait is how long a client has to wait that is alone in its subject, and stops
// now. Where it has used other replicas too, part of that is not known here yet:
// about what they took between the last two passes, at the most twice as much; or,
// since who asks through a balancer asks all alike, what was taken here.
func (r *sharedRates) wait(b *sharedBucket, now time.Duration) time.Duration {
	var unseen float64
	age := now - b.synced
	if b.others > 0 && age < 4*r.interval {
		unseen = b.others * min(2, 1+float64(age)/float64(r.interval))
	}
	if b.spread && (now-b.began < 3*r.interval || age < 4*r.interval) {
		unseen = max(unseen, float64(b.used-b.from)*float64(r.replicas()-1))
	}
	// What was taken under larger limits than these is no debt under them.
	unseen = min(unseen, max(0, b.tokensAt(now)+r.mostDebt(b.rate, true)))
	return b.wait(now) + b.span(unseen)
}

// subjects is the number of copies in memory.
func (r *sharedRates) subjects() int {
	n := 0
	for i := range r.shards {
		sh := &r.shards[i]
		sh.mu.Lock()
		n += len(sh.kept.bySubject)
		sh.mu.Unlock()
	}
	return n
}
