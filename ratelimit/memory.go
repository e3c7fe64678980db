package ratelimit

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

// shardCount spreads the subjects over as many locks, so that neither cores nor
// a sweep hold each other up for long.
const shardCount = 256

// MemoryOptions are what a Memory needs.
type MemoryOptions struct {
	// Now is the clock; nil = time.Now. It should be monotonic as time.Now is:
	// while it stands behind a time it has shown before, nothing refills.
	Now func() time.Time
}

// Memory is the Limiter, the Tails and the Uploads of this process. It starts no
// goroutine and needs no Close.
//
// Its size is bounded by use, not by the number of subjects ever seen. A bucket
// that is full again is the same as none, so those are dropped, and only those:
// dropping changes no decision, and no abuser gets a new burst by pushing its
// bucket out (L12). A bucket is full again at most Burst/PerSecond seconds after
// its last admitted request (2 s at the default limits; 1/PerSecond after a
// single one). Each of the 256 shards holds at most the larger of 32 buckets and
// twice those that were not full at its last sweep, about 300 bytes each; it
// sweeps when it would grow beyond that, and with the first request a minute
// after its last sweep. Tails and uploads cost memory only while they are open.
type Memory struct {
	now    func() time.Time
	seed   maphash.Seed // of this process: nobody outside can aim at one shard
	open   atomic.Int64 // tails
	bodies atomic.Int64 // uploads
	shards [shardCount]shard
}

// shard is a share of the subjects. Its lock is held for a few map steps, or for
// one sweep of a 256th of all buckets.
type shard struct {
	mu      sync.Mutex
	rates   buckets
	tails   map[Subject]*tailCount
	uploads map[Subject]*uploadCount
}

// NewMemory makes a Memory with nothing counted.
func NewMemory(o MemoryOptions) *Memory {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Memory{now: o.Now, seed: maphash.MakeSeed()}
}

// shard spreads by account, so that a subject's two sides share a lock; that
// costs nothing and saves hashing a flag.
func (m *Memory) shard(s Subject) *shard {
	return &m.shards[maphash.String(m.seed, s.Account)%shardCount]
}

// Allow implements Limiter. It allocates only for a subject whose bucket is not
// in memory.
func (m *Memory) Allow(s Subject, r Rate) Decision {
	if r.PerSecond <= 0 || r.Burst <= 0 {
		// No bucket is made or changed: one that is there refills meanwhile as if
		// idle, which is what a subject that admits nothing is.
		return Decision{RetryAfter: ClosedRetryAfter}
	}
	now := m.now()
	sh := m.shard(s)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.rates.allow(s, r, now)
}

// Look implements Limiter.
func (m *Memory) Look(s Subject, r Rate) Decision {
	if r.PerSecond <= 0 || r.Burst <= 0 {
		return Decision{RetryAfter: ClosedRetryAfter}
	}
	now := m.now()
	sh := m.shard(s)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.rates.look(s, r, now)
}

// Subjects is the number of buckets in memory, for metrics and tests.
func (m *Memory) Subjects() int {
	n := 0
	for i := range m.shards {
		sh := &m.shards[i]
		sh.mu.Lock()
		n += len(sh.rates.bySubject)
		sh.mu.Unlock()
	}
	return n
}

// tailCount is the number of tails that a subject has open; it is in its shard's
// map exactly while that is not zero.
type tailCount struct {
	subject Subject
	open    int
}

// Acquire implements Tails. It never waits; ctx is only asked whether it has
// ended, since a tail nobody is left to read needs no slot.
func (m *Memory) Acquire(ctx context.Context, s Subject, limit int) (Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("open a tail: %w", err)
	}
	if limit <= 0 {
		return nil, ErrExhausted
	}
	sh := m.shard(s)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	count := sh.tails[s]
	if count == nil {
		if sh.tails == nil {
			sh.tails = make(map[Subject]*tailCount)
		}
		count = &tailCount{subject: s.own()}
		sh.tails[count.subject] = count
	}
	if count.open >= limit {
		return nil, ErrExhausted
	}
	count.open++
	m.open.Add(1)
	return &memoryLease{memory: m, shard: sh, count: count}, nil
}

// memoryLease is one slot of a tailCount.
type memoryLease struct {
	memory   *Memory
	shard    *shard
	count    *tailCount
	released atomic.Bool
}

// Release implements Lease.
func (l *memoryLease) Release() {
	if l.released.Swap(true) {
		return
	}
	l.shard.mu.Lock()
	defer l.shard.mu.Unlock()
	l.count.open--
	l.memory.open.Add(-1)
	if l.count.open == 0 {
		delete(l.shard.tails, l.count.subject)
	}
}

// LookTail implements Tails.
func (m *Memory) LookTail(s Subject, limit int) error {
	if limit <= 0 || m.TailsOf(s) >= limit {
		return ErrExhausted
	}
	return nil
}

// OpenTails is the number of tails open, of all subjects, for metrics.
func (m *Memory) OpenTails() int { return int(m.open.Load()) }

// TailsOf implements Tails.
func (m *Memory) TailsOf(s Subject) int {
	sh := m.shard(s)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if count := sh.tails[s]; count != nil {
		return count.open
	}
	return 0
}

var (
	_ Limiter = (*Memory)(nil)
	_ Tails   = (*Memory)(nil)
	_ Uploads = (*Memory)(nil)
	_ Lease   = (*memoryLease)(nil)
	_ Upload  = (*memoryUpload)(nil)
)
