package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	// connectWithin bounds the first call of a session, connecting included.
	connectWithin = time.Second
	// firstRetry and lastRetry are how long after a failed try the next one begins:
	// each time twice as long.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 500 * time.Millisecond
	// A session that ends within settled was no return of Redis: it answers at times, or
	// fails at what is asked of it later. Then the next try waits up to lastPause, and
	// nobody is told of a return before it has lasted for settled.
	settled   = time.Second
	lastPause = 4 * time.Second
	// holdBatch is how many holds one call tells of, and holdCalls how many calls go
	// out before their answers are read.
	holdBatch = 100
	holdCalls = 8
)

// talker is the goroutine's own state: it alone begins sessions and speaks of
// slots, one call after the other, so that what it says of a hold is said in order.
type talker struct {
	r       *Redis
	session *session
	number  int64 // of the last incarnation
	beat    time.Time
	refresh time.Time
	retry   time.Time
	backoff time.Duration
	joined  time.Time // when the session began
	early   int       // how many sessions in a row ended early
	since   time.Time // when the limits stopped being shared
	told    bool      // that they are not
}

// talk keeps a session with Redis and tells it of slots, until ctx ends. tried is
// closed after the first try.
func (r *Redis) talk(ctx context.Context, tried chan<- struct{}) {
	t := &talker{r: r, since: time.Now()}
	timer := time.NewTimer(0)
	defer timer.Stop()
	t.step(ctx)
	close(tried)
	for {
		timer.Reset(t.due())
		select {
		case <-ctx.Done():
			t.leave(ctx, errClosed)
			return
		case <-r.holds.wake:
		case <-timer.C:
		}
		t.step(ctx)
	}
}

// due is how long nothing has to be done by itself.
func (t *talker) due() time.Duration {
	if t.session == nil {
		return max(0, time.Until(t.retry))
	}
	due := t.beat
	if t.told && t.joined.Add(settled).Before(due) {
		due = t.joined.Add(settled)
	}
	return max(0, time.Until(due))
}

// step does what has to be done now. A call that is under way when ctx ends goes on
// to its end, so that the replica can leave after it.
func (t *talker) step(ctx context.Context) {
	if s := t.session; s != nil && !s.servers.equal(*t.r.servers.Load()) {
		t.leave(ctx, ErrServersChanged)
	}
	if s := t.session; s != nil && s.ended() {
		t.lost(s.err)
	}
	if t.session == nil {
		if time.Now().Before(t.retry) || !t.join(ctx) {
			return
		}
	}
	defer t.tellReturn()
	// Under constant load there is always something to tell; the replica has to be
	// heard of all the same.
	for s := t.session; !s.ended() && ctx.Err() == nil; {
		now := time.Now()
		if !now.Before(t.refresh) {
			t.r.holds.refresh()
			t.refresh = now.Add(refreshEvery)
		}
		if !now.Before(t.beat) {
			t.live(ctx, s, t.r.o.CallTimeout)
		}
		if t.tell(ctx, s) == 0 {
			return
		}
	}
}

// join begins a session, tells it of everything that is held, and reports whether
// requests are decided by it from now on.
func (t *talker) join(ctx context.Context) bool {
	r := t.r
	t.number++
	s, err := newSession(*r.servers.Load(), t.number, r.names)
	if err == nil {
		// Who closes does not wait for a Redis that may not be there.
		stop := context.AfterFunc(ctx, func() { s.end(errClosed) })
		err = t.introduce(ctx, s)
		stop()
	}
	if err != nil {
		if s != nil {
			r.fail(s, err)
		}
		t.lost(err)
		t.backoff = min(lastRetry, max(firstRetry, 2*t.backoff))
		t.retry = time.Now().Add(t.backoff)
		return false
	}
	t.session, t.backoff, t.joined, t.told = s, 0, time.Now(), true
	r.link.Store(s)
	if s.ended() { // meanwhile, before requests knew it
		r.link.CompareAndSwap(s, nil)
	}
	t.tellReturn()
	return true
}

// tellReturn says once that limits are shared: at once, but where the last session
// ended early only when this one has lasted.
func (t *talker) tellReturn() {
	if t.session == nil || t.session.ended() || !t.told || t.early > 0 && time.Since(t.joined) < settled {
		return
	}
	t.told = false
	t.r.emitShared(t.joined.Sub(t.since))
}

// introduce tries what will be asked of Redis, and registers the session's incarnation,
// beside an earlier one: what that holds counts until it has been told again, once.
// Then Redis has to answer within half of the time that a request waits: a claim that
// comes during a call waits for that one and for its own.
func (t *talker) introduce(ctx context.Context, s *session) error {
	r := t.r
	calm := context.WithoutCancel(ctx)
	if err := s.try(calm, r.scripts, r.o); err != nil {
		return err
	}
	live, err := r.register(calm, s, r.o.CallTimeout, "join")
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	t.joined = time.Now()
	t.replicas(live)
	t.beat = t.joined.Add(r.o.beatEvery)
	// What changes meanwhile is told later: under constant load there would be no end.
	for left := r.holds.begin(s); left > 0 && !s.ended(); {
		n := t.tell(ctx, s)
		if n == 0 {
			break
		}
		left -= n
		if !time.Now().Before(t.beat) {
			t.live(ctx, s, r.o.CallTimeout)
		}
	}
	if t.live(ctx, s, r.o.Wait/2); s.ended() {
		return s.err
	}
	t.refresh = time.Now().Add(refreshEvery)
	return nil
}

// replicas notes how many replicas live. A Redis that came back without its data does
// not know of the others yet: they find that out with their next sign of life.
func (t *talker) replicas(live int) {
	if live < t.r.Replicas() && time.Since(t.joined) < t.r.o.beatEvery*3/2 {
		return
	}
	t.r.setReplicas(live)
}

// live says that the replica lives, and ends its earlier incarnations.
func (t *talker) live(ctx context.Context, s *session, within time.Duration) {
	live, err := t.r.register(context.WithoutCancel(ctx), s, within, "beat")
	if err != nil {
		t.r.fail(s, err)
		return
	}
	t.replicas(live)
	t.beat = time.Now().Add(t.r.o.beatEvery)
}

// tell tells of holds that changed, asks for those that are wanted, and returns
// of how many: none where there is nothing more to say, or nobody to say it to.
func (t *talker) tell(ctx context.Context, s *session) int {
	if s.ended() {
		return 0
	}
	r := t.r
	rows := r.holds.collect(s.keys, holdBatch*holdCalls)
	n := len(rows)
	slices.SortStableFunc(rows, func(a, b toldHold) int { return a.tag - b.tag })
	batches := batchesOf(rows, holdBatch, n, func(row toldHold) int { return row.tag })
	for len(batches) > 0 {
		sent := batches[:min(holdCalls, len(batches))]
		batches = batches[len(sent):]
		if err := t.say(ctx, s, sent); err != nil {
			r.fail(s, err)
			for _, batch := range append(sent, batches...) {
				for _, row := range batch {
					r.holds.failed(row)
				}
			}
			return 0
		}
	}
	return n
}

// say makes one call of slots.lua for each batch.
func (t *talker) say(ctx context.Context, s *session, batches [][]toldHold) error {
	r := t.r
	calls := make([]call, len(batches))
	for i, batch := range batches {
		c := call{keys: []string{s.keys.register(batch[0].tag)}}
		c.args = []any{r.o.Replica, s.number, r.o.deadAfter.Microseconds(), slotsLifetime.Milliseconds()}
		for _, row := range batch {
			c.keys = append(c.keys, s.keys.of(row.hold.key.what, row.hold.key.subject))
			c.args = append(c.args, row.slots, row.bytes,
				row.ask.limits.Uploads, row.ask.limits.Bytes, row.ask.slots, row.ask.bytes, len(row.claims))
		}
		calls[i] = c
	}
	answers, err := s.run(context.WithoutCancel(ctx), r.o.CallTimeout, r.scripts.slots, calls)
	if err != nil {
		return err
	}
	for i, batch := range batches {
		numbers, err := whole(answers[i], len(batch))
		if err != nil {
			return err
		}
		for j, row := range batch {
			r.holds.apply(row, int(numbers[j]/4), numbers[j]%4 == 2)
		}
	}
	return nil
}

// lost notes, and says once, that there is no session.
func (t *talker) lost(cause error) {
	if t.session != nil {
		now := time.Now()
		t.session, t.retry = nil, now
		if !t.told {
			t.since = now
		}
		if now.Sub(t.joined) >= settled || errors.Is(cause, ErrServersChanged) {
			t.early = 0
		} else {
			t.retry = now.Add(min(lastPause, firstRetry<<min(t.early, 10)))
			t.early++
		}
	}
	if !t.told {
		t.told = true
		t.r.emitDegraded(cause)
	}
}

// leave ends the session in good order: Redis forgets what this replica holds.
func (t *talker) leave(ctx context.Context, cause error) {
	s := t.session
	if s == nil {
		return
	}
	if !s.ended() {
		// Where it fails, the replica's lease ends by itself.
		_, _ = t.r.register(context.WithoutCancel(ctx), s, t.r.o.CallTimeout, "leave")
	}
	t.r.fail(s, cause)
}

// reconcile makes a pass every interval until ctx ends. Where passes take long the
// interval becomes longer, so that Redis is this replica's for half of the time at
// most.
func (r *Redis) reconcile(ctx context.Context) {
	timer := time.NewTimer(r.o.Interval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		began := time.Now()
		if s := r.link.Load(); s != nil {
			n, err := r.pass(context.WithoutCancel(ctx), s)
			if err != nil {
				r.fail(s, err)
			} else if n > 0 {
				r.emitPass(n, time.Since(began))
			}
		}
		took := time.Since(began)
		timer.Reset(max(r.o.Interval-took, took))
	}
}
