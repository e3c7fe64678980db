package usage

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Sink is where batches are delivered.
type Sink interface {
	// Write delivers a batch. After an error it is not known whether it arrived, and it is
	// written again; a batch that has arrived already changes nothing, and is no error.
	Write(ctx context.Context, b *Batch) error
}

// SinkFunc is a function that is a Sink.
type SinkFunc func(ctx context.Context, b *Batch) error

// Write implements Sink.
func (f SinkFunc) Write(ctx context.Context, b *Batch) error { return f(ctx, b) }

// Bounds of what waits to be delivered.
const (
	defaultPending    = 64      // batches
	maxPendingRecords = 100_000 // records: some 30 MB
	// writeTime bounds one try.
	writeTime = 15 * time.Second
	// Tries that follow a failed one.
	retryFirst, retryMost = time.Second, 15 * time.Second
)

// OutboxOptions are those of an Outbox.
type OutboxOptions struct {
	Sink Sink
	// Replica is what its batches are known by, together with their number. It is never
	// used twice, nor for two outboxes.
	Replica string
	// Pending bounds how many batches wait before further ones become a part of the last;
	// 0 = 64.
	Pending int
	// Principals and StreamReads bound what is kept apart when batches are merged, as in
	// Options.
	Principals, StreamReads int
	// Failed tells that batches cannot be delivered, once, and Back that they can again;
	// nil = nobody is told.
	Failed func(error)
	Back   func()
}

// Outbox numbers batches and delivers them, in their order. It is safe for concurrent
// use.
type Outbox struct {
	o    OutboxOptions
	wake chan struct{}

	mu      sync.Mutex
	last    int64    // number given
	pending []*Batch // the first may have been delivered where tried
	records int      // of pending
	tried   bool
	stats   OutboxStats
	failing bool
}

// OutboxStats are for metrics.
type OutboxStats struct {
	Pending  int       // batches
	Merged   int64     // batches that were merged into another, since too many were pending
	Failures int64     // tries
	Written  time.Time // when the last one was delivered; zero = none was
}

// NewOutbox makes an outbox that has nothing. Run delivers.
func NewOutbox(o OutboxOptions) *Outbox {
	if o.Principals <= 0 {
		o.Principals = defaultPrincipals
	}
	if o.Pending <= 0 {
		o.Pending = defaultPending
	}
	return &Outbox{o: o, wake: make(chan struct{}, 1)}
}

// put takes a batch. Where too many are pending it becomes a part of the last one that
// has surely not been delivered (facts M4).
func (x *Outbox) put(b Batch) {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := len(x.pending)
	free := n > 1 || n == 1 && !x.tried
	if free && (n >= x.o.Pending || x.records+len(b.Records) > maxPendingRecords) {
		into := x.pending[n-1]
		x.records -= len(into.Records)
		into.merge(&b, x.o.Principals, x.o.StreamReads)
		x.records += len(into.Records)
		x.stats.Merged++
		return
	}
	x.last++
	b.Replica, b.Sequence = x.o.Replica, x.last
	x.pending = append(x.pending, &b)
	x.records += len(b.Records)
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// first is the batch to be delivered next; nil = none. It is not changed from now on.
func (x *Outbox) first() *Batch {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.pending) == 0 {
		return nil
	}
	x.tried = true
	return x.pending[0]
}

// deliver delivers what is pending until nothing is, or one fails.
func (x *Outbox) deliver(ctx context.Context, now func() time.Time) error {
	for {
		b := x.first()
		if b == nil {
			return nil
		}
		try, cancel := context.WithTimeout(ctx, writeTime)
		err := x.o.Sink.Write(try, b)
		cancel()
		if err != nil && ctx.Err() != nil {
			return err // it was told to stop, which says nothing of the sink
		}
		x.note(err, now())
		if err != nil {
			return err
		}
	}
}

// note takes a delivered batch off, or counts a failure.
func (x *Outbox) note(err error, at time.Time) {
	x.mu.Lock()
	told := x.failing
	x.failing = err != nil
	if err != nil {
		x.stats.Failures++
	} else {
		x.records -= len(x.pending[0].Records)
		x.pending[0] = nil
		x.pending, x.tried = x.pending[1:], false
		x.stats.Written = at
	}
	x.mu.Unlock()
	switch {
	case err != nil && !told && x.o.Failed != nil:
		x.o.Failed(err)
	case err == nil && told && x.o.Back != nil:
		x.o.Back()
	}
}

// run delivers until ctx ends.
func (x *Outbox) run(ctx context.Context, now func() time.Time) {
	wait := retryFirst
	for {
		if err := x.deliver(ctx, now); err == nil {
			wait = retryFirst
			select {
			case <-ctx.Done():
				return
			case <-x.wake:
			}
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		wait = min(2*wait, retryMost)
	}
}

// Stats are what it has done.
func (x *Outbox) Stats() OutboxStats {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.stats
	s.Pending = len(x.pending)
	return s
}

var errPending = errors.New("batches of usage are lost that were not delivered")
