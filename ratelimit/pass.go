package ratelimit

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"
)

const (
	// rateBatch is how many buckets one call takes: about 1 ms of Redis' time, so
	// that even a slow one is not held up for 5 ms (design §6).
	rateBatch = 250
	// rateCalls is how many calls go out before their answers are read.
	rateCalls = 8
	// micro is the unit of levels in Redis: with it, a microsecond at a request a
	// second is a whole number.
	micro = 1e6
)

// told is a bucket in a pass, and its count when the pass told of it.
type told struct {
	bucket *sharedBucket
	shard  *shardOfShared
	used   uint64
}

// collect takes the buckets that were used since the last pass, with their names
// in Redis.
func (r *sharedRates) collect(names *keys) []told {
	var rows []told
	for i := range r.shards {
		sh := &r.shards[i]
		sh.mu.Lock()
		for _, b := range sh.queue {
			b.queued, b.flying = false, true
			if b.names != names {
				b.names, b.key, b.tag = names, names.of(keyRate, b.subject), names.tag(b.subject.Account)
			}
			rows = append(rows, told{bucket: b, shard: sh})
		}
		clear(sh.queue)
		sh.queue = sh.queue[:0]
		sh.mu.Unlock()
	}
	return rows
}

// requeue puts back what a pass could not tell.
func (r *sharedRates) requeue(rows []told) {
	for _, row := range rows {
		row.shard.mu.Lock()
		row.bucket.flying = false
		row.shard.enqueue(row.bucket)
		row.shard.mu.Unlock()
	}
}

// pass tells Redis of all requests that were admitted since the last one, and
// learns what is left of their buckets. It returns how many buckets there were.
func (r *Redis) pass(ctx context.Context, s *session) (int, error) {
	rows := r.rates.collect(s.keys)
	n := len(rows)
	if len(s.keys.tags) > 1 {
		slices.SortFunc(rows, func(a, b told) int { return a.bucket.tag - b.bucket.tag })
	}
	for len(rows) > 0 {
		batches := batchesOf(rows, rateBatch, rateCalls, func(row told) int { return row.bucket.tag })
		calls := make([]call, len(batches))
		sent := 0
		for i, batch := range batches {
			calls[i] = r.rates.call(batch, r.o.Replica)
			sent += len(batch)
		}
		answers, err := s.run(ctx, r.o.CallTimeout, r.scripts.rate, calls)
		for i := 0; err == nil && i < len(batches); i++ {
			err = r.rates.apply(batches[i], answers[i])
		}
		if err != nil {
			r.rates.requeue(rows)
			return n, err
		}
		rows = rows[sent:]
	}
	return n, nil
}

// batchesOf cuts rows that are sorted by tag into at most so many batches of one
// tag and of a size at most. What is left is for the next time.
func batchesOf[R any](rows []R, size, most int, tag func(R) int) [][]R {
	var batches [][]R
	for len(rows) > 0 && len(batches) < most {
		n := 1
		for n < min(size, len(rows)) && tag(rows[n]) == tag(rows[0]) {
			n++
		}
		batches = append(batches, rows[:n])
		rows = rows[n:]
	}
	return batches
}

// call is one call of rate.lua. It notes in the rows what it tells.
func (r *sharedRates) call(rows []told, replica string) call {
	c := call{keys: make([]string, len(rows)), args: make([]any, 0, 2+6*len(rows))}
	c.args = append(c.args, replica, 2*r.interval.Microseconds())
	now := r.now().Sub(r.start)
	for i := range rows {
		row := &rows[i]
		row.shard.mu.Lock()
		b := row.bucket
		row.used, b.sent = b.used, now
		c.keys[i] = b.key
		c.args = append(c.args, b.used, b.told, max(0, now-b.first).Microseconds(),
			int64(math.Floor(b.tokensAt(max(now, b.at))*micro)), b.account.PerSecond, b.account.Burst)
		row.shard.mu.Unlock()
	}
	return c
}

// apply takes the answer to a call.
func (r *sharedRates) apply(rows []told, levels []any) error {
	if len(levels) != len(rows) {
		return fmt.Errorf("%w: %d levels for %d buckets", errProtocol, len(levels), len(rows))
	}
	now := r.now().Sub(r.start)
	for i, level := range levels {
		left, shared := level.(int64)
		if !shared && level != nil {
			return fmt.Errorf("%w: %T for a level", errProtocol, level)
		}
		row := rows[i]
		row.shard.mu.Lock()
		row.bucket.learn(row.used, float64(left)/micro, shared, now)
		if r.follow(row.bucket, now) {
			row.shard.enqueue(row.bucket)
		}
		row.shard.mu.Unlock()
	}
	return nil
}

// learn notes that Redis knows of used, and sets the copy to what was left there
// then, less what was taken since.
func (b *sharedBucket) learn(used uint64, left float64, shared bool, now time.Duration) {
	b.from = max(b.from, b.told)
	b.flying, b.told, b.others, b.spread = false, used, 0, shared
	if b.used > used {
		// The first of those may have come at any time since the call.
		b.first = b.sent
	}
	if !shared {
		return
	}
	now = max(now, b.at)
	left -= float64(b.used - used)
	b.others = max(0, b.tokensAt(now)-left)
	b.synced = now
	b.set(left, now)
}
