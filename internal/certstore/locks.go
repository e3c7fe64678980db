package certstore

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// lockLife is how long a lock outlives a holder that was killed. It is made to last
	// longer every lockEvery, so that two calls may fail before another one has it.
	lockLife  = 20 * time.Second
	lockEvery = 6 * time.Second
	// lockPoll is how often a lock that somebody has is asked for.
	lockPoll = time.Second
	// leasePrefix tells these leases from others of the store.
	leasePrefix = "tls/"
)

// locks are those that this process holds or waits for.
type locks struct {
	store  Store
	holder string

	mu   sync.Mutex
	held map[string]*lock // a lock that is waited for is there too
}

// lock is one that somebody of this process has. The store knows no difference between two
// of one process, so they wait for each other here.
type lock struct {
	free chan struct{} // closed by unlock
	stop context.CancelFunc
	done chan struct{} // closed once nothing makes it last longer
}

// lock waits until nobody else has the lock, or ctx ends. A store that is out of reach is
// an error at once: whoever wants the lock will want the store.
func (l *locks) lock(ctx context.Context, name string) error {
	mine := &lock{free: make(chan struct{}), done: make(chan struct{})}
	for {
		l.mu.Lock()
		other := l.held[name]
		if other == nil {
			l.held[name] = mine
		}
		l.mu.Unlock()
		if other == nil {
			break
		}
		select {
		case <-other.free:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := l.take(ctx, name); err != nil {
		close(mine.done)
		l.forget(name, mine)
		return fmt.Errorf("lock %s: %w", name, err)
	}
	// It is held past the end of ctx, which is that of the wait.
	holding, stop := context.WithCancel(context.WithoutCancel(ctx))
	mine.stop = stop
	go func() {
		defer close(mine.done)
		l.keep(holding, name)
	}()
	return nil
}

func (l *locks) take(ctx context.Context, name string) error {
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		held, err := l.store.Hold(ctx, leasePrefix+name, l.holder, lockLife)
		if held || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// keep has a lock last longer until ctx ends. What fails is tried again: whether it was
// lost is not told, since certmagic's work cannot be broken off, and is done twice at
// worst.
func (l *locks) keep(ctx context.Context, name string) {
	tick := time.NewTicker(lockEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			_, _ = l.store.Hold(ctx, leasePrefix+name, l.holder, lockLife)
		}
	}
}

func (l *locks) unlock(ctx context.Context, name string) error {
	l.mu.Lock()
	mine := l.held[name]
	l.mu.Unlock()
	if mine == nil || mine.stop == nil {
		return fmt.Errorf("unlock %s: %w", name, errNotHeld)
	}
	mine.stop()
	<-mine.done // else it could be taken again below
	err := l.store.LetGo(ctx, leasePrefix+name, l.holder)
	l.forget(name, mine)
	return err
}

func (l *locks) forget(name string, mine *lock) {
	l.mu.Lock()
	delete(l.held, name)
	l.mu.Unlock()
	close(mine.free)
}
