package gateway

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

const (
	// smallBody is the largest body that may use the headroom, and the size at
	// which one of undeclared length begins to be accounted for.
	smallBody = 1 << 20
	// maxHeadroom of the budget is kept for small bodies, so that a few large
	// uploads cannot keep appends waiting (facts §7).
	maxHeadroom = 32 << 20
)

// BodyBudget bounds the bytes of all request bodies held at one time. It is
// safe for concurrent use.
type BodyBudget struct {
	all   *semaphore.Weighted
	large *semaphore.Weighted // what large bodies may use of all
	total int64
	used  atomic.Int64
}

// NewBodyBudget makes a budget of so many bytes, an eighth of which, and at the
// most 32 MiB, is kept for bodies of up to 1 MiB.
func NewBodyBudget(bytes int64) *BodyBudget {
	headroom := min(maxHeadroom, bytes/8)
	return &BodyBudget{
		all: semaphore.NewWeighted(bytes), large: semaphore.NewWeighted(bytes - headroom), total: bytes,
	}
}

// Used is how many bytes are taken now.
func (b *BodyBudget) Used() int64 { return b.used.Load() }

// Size is the whole budget in bytes.
func (b *BodyBudget) Size() int64 { return b.total }

// fits reports whether a body of n bytes would have its room at this instant, as far as what
// is taken in all tells. It takes nothing.
func (b *BodyBudget) fits(n int64) bool { return b.used.Load()+n <= b.total }

// reservation is what one body holds of the budget.
type reservation struct {
	budget *BodyBudget
	held   int64
	large  bool
}

// resize waits until the body may hold n bytes, or ctx ends. On an error it
// holds what it held.
func (r *reservation) resize(ctx context.Context, n int64) error {
	if n <= r.held {
		r.shrink(n)
		return nil
	}
	becomesLarge := !r.large && n > smallBody
	large := int64(0)
	switch {
	case becomesLarge:
		large = n
	case r.large:
		large = n - r.held
	}
	if large > 0 {
		if err := r.budget.large.Acquire(ctx, large); err != nil {
			return err
		}
	}
	if err := r.budget.all.Acquire(ctx, n-r.held); err != nil {
		if large > 0 {
			r.budget.large.Release(large)
		}
		return err
	}
	r.budget.used.Add(n - r.held)
	r.held, r.large = n, r.large || becomesLarge
	return nil
}

func (r *reservation) shrink(n int64) {
	freed := r.held - n
	if freed == 0 {
		return
	}
	// Told before it is given back, so that Used never says more than there is.
	r.budget.used.Add(-freed)
	r.budget.all.Release(freed)
	if r.large {
		r.budget.large.Release(freed)
	}
	r.held = n
}

func (r *reservation) release() { r.shrink(0) }
