package replica

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// usesEvery is how often the last uses of keys are written.
	usesEvery = 30 * time.Second
	// usesTime is the deadline of writing a batch of them, usesBatch at most.
	usesTime  = 5 * time.Second
	usesBatch = 1000
	// lastUsesTime is the deadline of writing all when the Replica is closed.
	lastUsesTime = 2 * time.Second
)

// uses are the last uses of keys, in minutes since 1970. Where there are more than most
// keys to be written, the use of the others in that minute is lost: it is what people
// see of a key, and decides nothing.
type uses struct {
	most int

	mu sync.Mutex
	// seen is the minute in which the use of a key was noted last; read without mu.
	seen    cache[string, *atomic.Int64]
	pending map[string]int64 // not written yet
}

func newUses(most int) *uses {
	return &uses{most: most, seen: cache[string, *atomic.Int64]{max: most}, pending: make(map[string]int64)}
}

func (u *uses) note(id string, minute int64) {
	seen, known := u.seen.get(id)
	if known && seen.Load() >= minute {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if seen, known = u.seen.get(id); !known {
		seen = new(atomic.Int64)
		u.seen.put(id, seen)
	}
	seen.Store(max(seen.Load(), minute))
	u.keep(id, minute)
}

// keep notes what is to be written; u.mu is held.
func (u *uses) keep(id string, minute int64) {
	if have, ok := u.pending[id]; ok || len(u.pending) < u.most {
		u.pending[id] = max(have, minute)
	}
}

// write hands over what is noted, a batch at a time. What could not be written is kept
// for the next time.
func (u *uses) write(ctx context.Context, source Source) error {
	u.mu.Lock()
	left := u.pending
	u.pending = make(map[string]int64)
	u.mu.Unlock()
	for len(left) > 0 {
		batch := make(map[string]time.Time, min(len(left), usesBatch))
		for id, minute := range left {
			if len(batch) == usesBatch {
				break
			}
			batch[id] = time.Unix(minute*60, 0).UTC()
		}
		if err := writeBatch(ctx, source, batch); err != nil {
			u.mu.Lock()
			defer u.mu.Unlock()
			for id, minute := range left {
				u.keep(id, minute)
			}
			return err
		}
		for id := range batch {
			delete(left, id)
		}
	}
	return nil
}

func writeBatch(ctx context.Context, source Source, batch map[string]time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, usesTime)
	defer cancel()
	return source.UseKeys(ctx, batch)
}

func (u *uses) waiting() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.pending)
}
