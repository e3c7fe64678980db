package usage

import (
	"context"
	"time"
)

// Kept is where batches and hours are kept for a while.
type Kept interface {
	// Hold takes or renews a lease, on the store's clock; false: somebody else has it.
	Hold(ctx context.Context, lease, holder string, life time.Duration) (bool, error)
	// DropUsage forgets batches written before one time, and hours before another, at most so
	// many of each. It returns how many it forgot.
	DropUsage(ctx context.Context, batches, hours time.Time, most int) (int, error)
}

// RetentionOptions are those of Forget. All are needed.
type RetentionOptions struct {
	Store          Kept
	Holder         string // who this replica is
	Batches, Hours time.Duration
	Now            func() time.Time
	Failed         func(error)
}

// How what is old is forgotten.
const (
	forgetEvery = 10 * time.Minute
	forgetStep  = 500                    // rows of one change
	forgetPause = 200 * time.Millisecond // between two, for whoever else writes
	forgetLease = "usage-retention"
)

// Forget drops what is older than it is to be kept, in small steps, until ctx ends. Of
// several replicas the one does that has the lease.
func Forget(ctx context.Context, o RetentionOptions) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		wait := forgetEvery
		switch dropped, err := forget(ctx, o); {
		case err != nil && ctx.Err() == nil:
			o.Failed(err)
		case dropped > 0:
			wait = forgetPause
		}
		timer.Reset(wait)
	}
}

func forget(ctx context.Context, o RetentionOptions) (int, error) {
	held, err := o.Store.Hold(ctx, forgetLease, o.Holder, 2*forgetEvery)
	if err != nil || !held {
		return 0, err
	}
	now := o.Now()
	return o.Store.DropUsage(ctx, now.Add(-o.Batches), now.Add(-o.Hours), forgetStep)
}
