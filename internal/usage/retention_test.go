package usage

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/internal/bubble"
)

// kept is a store that has so many rows that are old.
type kept struct {
	held  bool
	mu    sync.Mutex
	fail  error
	old   int
	calls []time.Time // of the drops
	args  [2]time.Time
}

func (k *kept) Hold(context.Context, string, string, time.Duration) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.held, k.fail
}

func (k *kept) DropUsage(_ context.Context, batches, hours time.Time, most int) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls, k.args = append(k.calls, time.Now()), [2]time.Time{batches, hours}
	n := min(k.old, most)
	k.old -= n
	return n, nil
}

// What is old goes in steps, with pauses, by whoever has the lease; what fails is told,
// and tried again.
func TestForget(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		k, began := &kept{held: true, old: 1200}, time.Now()
		var told atomic.Int64
		// after lets time pass, and then nobody else in.
		after := func(d time.Duration, look func()) {
			time.Sleep(d)
			k.mu.Lock()
			defer k.mu.Unlock()
			look()
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			Forget(ctx, RetentionOptions{
				Store: k, Holder: "one", Batches: 48 * time.Hour, Hours: 72 * time.Hour, Now: time.Now,
				Failed: func(error) { told.Add(1) },
			})
		}()
		after(forgetEvery/2, func() {
			if k.old != 0 || len(k.calls) != 4 || k.calls[3].Sub(began) != 3*forgetPause {
				t.Errorf("%d left after %d steps", k.old, len(k.calls))
			}
			if age := k.calls[3].Sub(k.args[0]); age != 48*time.Hour || k.calls[3].Sub(k.args[1]) != 72*time.Hour {
				t.Errorf("older than %v and %v", age, k.calls[3].Sub(k.args[1]))
			}
			k.held, k.old = false, 10
		})
		after(forgetEvery, func() { k.fail = errors.New("gone") })
		after(forgetEvery, func() {
			if k.old != 10 || told.Load() != 1 {
				t.Errorf("without the lease: %d left, told of %d failures", k.old, told.Load())
			}
			k.held, k.fail = true, nil
		})
		time.Sleep(forgetEvery)
		cancel()
		<-done
		if k.old != 0 {
			t.Errorf("with the lease again: %d left", k.old)
		}
	})
}
