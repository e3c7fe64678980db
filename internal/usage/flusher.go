package usage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// maxRecords is how many records a batch has at most, but for one that others were merged
// into.
const maxRecords = 10_000

// DefaultInterval is how often what was counted is taken where no interval is given.
const DefaultInterval = 30 * time.Second

// Flusher takes what a Meter has counted, at each interval and at each hour's end, and
// has it delivered by each outbox.
type Flusher struct {
	meter    *Meter
	interval time.Duration
	now      func() time.Time
	out      []*Outbox
	stop     context.CancelFunc
	done     sync.WaitGroup

	mu   sync.Mutex // one flush at a time
	last time.Time
}

// NewFlusher makes a flusher, whose Start begins to flush. now is the clock of those who
// use the meter; interval 0 = DefaultInterval.
func NewFlusher(m *Meter, interval time.Duration, now func() time.Time, out ...*Outbox) *Flusher {
	if interval <= 0 {
		interval = DefaultInterval
	}
	return &Flusher{meter: m, interval: interval, now: now, out: out, stop: func() {}, last: now()}
}

// Start begins to flush and to deliver, until Close.
func (f *Flusher) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	f.stop = cancel
	for _, x := range f.out {
		f.done.Go(func() { x.run(ctx, f.now) })
	}
	f.done.Go(func() { f.tick(ctx) })
}

// tick flushes in time until ctx ends.
func (f *Flusher) tick(ctx context.Context) {
	for {
		timer := time.NewTimer(f.wait(f.now()))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
			f.flush(f.due(f.now()))
		}
	}
}

// wait is how long it is to the next flush: an interval after the last, and not beyond
// the hour.
func (f *Flusher) wait(now time.Time) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := f.last.Add(f.interval)
	if hour := HourOf(f.last).Time().Add(time.Hour); hour.Before(next) {
		next = hour
	}
	// A clock that was set back must not stop it.
	return min(f.interval, max(0, next.Sub(now)))
}

// due is the time that a flush is for: the end of the hour, where that has passed since
// the last one.
func (f *Flusher) due(now time.Time) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if hour := HourOf(now).Time(); f.last.Before(hour) {
		return hour
	}
	return now
}

// Flush takes what was used until now and hands it to the outboxes.
func (f *Flusher) Flush() { f.flush(f.now()) }

func (f *Flusher) flush(at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.meter.drain(at)
	b.WindowStart, b.WindowEnd = f.last.UnixMilli(), max(f.last.UnixMilli(), at.UnixMilli())
	f.last = at
	if b.empty() {
		return
	}
	for _, p := range b.split() {
		for _, x := range f.out {
			x.put(p.clone())
		}
	}
}

// split makes batches of maxRecords each.
func (b Batch) split() []Batch {
	var all []Batch
	for len(b.Records) > maxRecords {
		all = append(all, Batch{WindowStart: b.WindowStart, WindowEnd: b.WindowEnd, ChunkBytes: b.ChunkBytes, Records: b.Records[:maxRecords]})
		b.Records = b.Records[maxRecords:]
	}
	return append(all, b)
}

// clone is a batch that an outbox may merge others into.
func (b Batch) clone() Batch {
	b.Records = append(make([]Record, 0, len(b.Records)), b.Records...)
	b.StreamReads = append([]StreamReads(nil), b.StreamReads...)
	return b
}

// Close flushes a last time and delivers what is pending, until ctx ends. The error says
// what was lost.
func (f *Flusher) Close(ctx context.Context) error {
	f.stop()
	f.done.Wait()
	f.Flush()
	errs := make(chan error, len(f.out))
	for _, x := range f.out {
		go func() {
			err := x.deliver(ctx, f.now)
			if err != nil {
				err = fmt.Errorf("%w: %d of %s: %w", errPending, x.Stats().Pending, x.o.Replica, err)
			}
			errs <- err
		}()
	}
	var all error
	for range f.out {
		if err := <-errs; err != nil {
			all = errors.Join(all, err)
		}
	}
	return all
}
