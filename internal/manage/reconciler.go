package manage

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"sluice/internal/store"
	"sluice/internal/tenant"
)

// ReconcilerOptions are the parts of a Reconciler. Durations of 0 take their default.
type ReconcilerOptions struct {
	Store StreamStore
	Nodes Nodes
	// Audit is where records of changes are forgotten that are older than AuditKeep says
	// by then; 0 keeps them for ever. nil: none are forgotten here.
	Audit     AuditStore
	AuditKeep func() time.Duration
	Log       *zap.Logger
	Now       func() time.Time // nil = time.Now
	Random    io.Reader        // of ids
	// Holder names this replica among those that share the store.
	Holder string
	// Poll is how often the replica that has the lease looks for rows that are not
	// settled. 0 = 1 s.
	Poll time.Duration
	// Lease is for how long a replica has the work to itself; one that dies is followed
	// after that at the latest. 0 = 15 s.
	Lease time.Duration
	// Request is the deadline of one request to a node. 0 = 5 s.
	Request time.Duration
	// Late is for how long a request may take effect after its deadline (see the
	// package's comment). 0 = 10 s.
	Late time.Duration
	// Retry is the pause after a row that could not be settled; it doubles up to
	// MaxRetry. 0 = 500 ms and 15 s.
	Retry, MaxRetry time.Duration
}

// leaseName is what the replicas that share a store agree on.
const leaseName = "streams"

const (
	// passLimit bounds how many rows are looked at before the lease is renewed.
	passLimit = 64
	// lookLimit bounds how many streams a pass looks at because Ursula may have let them
	// go: what is more than that waits, and the nodes are not asked faster.
	lookLimit = 16
	// maxRemembered bounds the rows whose pauses and looks are remembered. Beyond it
	// all are forgotten: pauses are short again, and looks are taken anew.
	maxRemembered = 10_000
)

// Reconciler finishes or undoes what the handlers, or replicas that died, left of the
// making and deleting of streams, deletes those that expire, learns of declared ones, which
// a Keeper makes, what Ursula calls them, looks what became of those that clients make and
// delete at their own URL, and forgets old records of changes. One replica at a time
// does so, the one that has the lease; all may take a step of a row at once. Close ends
// its goroutine.
type Reconciler struct {
	o      ReconcilerOptions
	cancel context.CancelFunc
	done   chan struct{}
	wake   chan struct{}

	forgetAt time.Time // when records are to be looked at again; of the worker alone

	mu     sync.Mutex
	pauses map[string]time.Duration // the last pause of rows that are tried again, by id
	looks  map[string]time.Time     // when a node first answered what became of a row, by lookOf
}

// NewReconciler makes a reconciler and begins its work.
func NewReconciler(o ReconcilerOptions) *Reconciler {
	if o.Now == nil {
		o.Now = time.Now
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&o.Poll, time.Second},
		{&o.Lease, 15 * time.Second},
		{&o.Request, 5 * time.Second},
		{&o.Late, 10 * time.Second},
		{&o.Retry, 500 * time.Millisecond},
		{&o.MaxRetry, 15 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &Reconciler{
		o: o, cancel: cancel, done: make(chan struct{}), wake: make(chan struct{}, 1),
		pauses: map[string]time.Duration{}, looks: map[string]time.Time{},
	}
	go r.run(ctx)
	return r
}

// Close ends the reconciler, waits for it and gives the lease back.
func (r *Reconciler) Close() {
	r.cancel()
	<-r.done
}

// Wake has the replica that has the lease look now, where that is this one; another
// looks within its Poll.
func (r *Reconciler) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Trying is how many rows this replica could not settle and tries again.
func (r *Reconciler) Trying() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.pauses)
}

func (r *Reconciler) run(ctx context.Context) {
	defer close(r.done)
	holds, held := false, false
	for ctx.Err() == nil {
		before := holds
		holds = r.pass(ctx)
		held = held || holds
		if holds != before {
			r.o.Log.Info("reconciler of streams", zap.Bool("works_here", holds))
		}
		pause := r.o.Poll
		if !holds {
			pause = max(r.o.Poll, r.o.Lease/5)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-r.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
	if held { // and may have it still: the last pass may have been cut short
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.o.Request)
		defer cancel()
		if err := r.o.Store.LetGo(ctx, leaseName, r.o.Holder); err != nil {
			r.o.Log.Debug("lease not given back; it ends by itself", zap.Error(err))
		}
	}
}

// pass settles what there is to settle, as far as the lease lasts, and reports whether
// this replica has it.
func (r *Reconciler) pass(ctx context.Context) bool {
	began := r.o.Now()
	asking, cancel := context.WithTimeout(ctx, r.o.Request)
	defer cancel()
	held, err := r.o.Store.Hold(asking, leaseName, r.o.Holder, r.o.Lease)
	if err != nil || !held {
		r.complain(ctx, "lease of the reconciler", err)
		return false
	}
	rows, err := r.o.Store.Unsettled(asking, passLimit)
	if err != nil {
		r.complain(ctx, "look for streams that are not settled", err)
		return true
	}
	unsettled := len(rows)
	looks, err := r.o.Store.Looks(asking, lookLimit)
	if err != nil {
		r.complain(ctx, "look for streams that may be gone", err)
	}
	rows = append(rows, looks...)
	// What begins now ends with the lease: two requests to a node are a step's most.
	last := began.Add(r.o.Lease - 2*r.o.Request)
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i := range rows {
		if ctx.Err() != nil || r.o.Now().After(last) {
			break
		}
		group.Go(func() error {
			r.settle(ctx, &rows[i])
			return nil
		})
	}
	_ = group.Wait()
	r.forgetAudit(ctx)
	if unsettled == passLimit {
		r.Wake()
	}
	return true
}

// Records that are too old go in small steps: every pass has one while there are more, and
// else one a minute.
const (
	forgetLimit = 500
	forgetEvery = time.Minute
)

// forgetAudit takes one of the steps.
func (r *Reconciler) forgetAudit(ctx context.Context) {
	now := r.o.Now()
	if r.o.Audit == nil || now.Before(r.forgetAt) {
		return
	}
	keep := r.o.AuditKeep()
	if keep == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, r.o.Request)
	defer cancel()
	n, err := r.o.Audit.ForgetAudit(ctx, now.Add(-keep), forgetLimit)
	if err != nil || n < forgetLimit {
		r.forgetAt = now.Add(forgetEvery)
	}
	r.complain(ctx, "forget old records of changes", err)
}

func (r *Reconciler) complain(ctx context.Context, what string, err error) {
	if err != nil && ctx.Err() == nil {
		r.o.Log.Debug(what, zap.Error(err))
	}
}

// settle takes one step of a row, and puts the row off where it has to be taken again.
func (r *Reconciler) settle(ctx context.Context, s *store.Stream) {
	ctx, cancel := context.WithTimeout(ctx, 3*r.o.Request)
	defer cancel()
	var err error
	switch {
	case s.State == store.Deleting:
		err = r.remove(ctx, s)
	case s.State == store.Creating && !s.Protocol:
		err = r.create(ctx, s)
	case s.Declared && s.Incarnation == "" && s.Unanswered == 0:
		err = r.learn(ctx, s)
	default:
		err = r.look(ctx, s)
	}
	var refused *refusedError
	switch {
	case errors.Is(err, errLater):
		pause := r.pauseOf(s.ID)
		r.log(s).Debug("stream not settled yet", zap.Duration("again_in", pause), zap.Error(err))
		if err := r.o.Store.Leave(ctx, s.ID, r.o.Now().Add(pause)); err != nil && !errors.Is(err, store.ErrNotFound) {
			r.complain(ctx, "put a stream off", err)
		}
	case errors.Is(err, errUnanswered):
		r.log(s).Debug("waiting for a late request", zap.Error(err))
	case err == nil, errors.Is(err, errSuperseded), errors.As(err, &refused):
		r.forgetPause(s.ID)
	default:
		r.complain(ctx, "settle a stream", err)
	}
}

// Create takes the first steps of a row that was just kept, for the handler that kept
// it, until it is active or wait is over; a step begun goes on, also when the client has
// left. What is left is the reconciler's.
func (r *Reconciler) Create(ctx context.Context, s *store.Stream, wait time.Duration) error {
	ctx, cancel := r.handling(ctx, wait)
	defer cancel()
	over := time.NewTimer(wait)
	defer over.Stop()
	for pause := r.o.Retry / 4; ; pause = min(2*pause, r.o.MaxRetry) {
		err := r.create(ctx, s)
		if !errors.Is(err, errLater) {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-over.C:
			timer.Stop()
			r.release(ctx, s)
			return err
		case <-timer.C:
		}
	}
}

// handling is the context of a handler's steps: a client that leaves ends none midway.
func (r *Reconciler) handling(ctx context.Context, wait time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), wait+2*r.o.Request)
}

// Delete takes the first step of a row that was just made Deleting. Only the stream of
// a row that is quiet can be deleted at once; what is left is the reconciler's.
func (r *Reconciler) Delete(ctx context.Context, s *store.Stream) error {
	if !quiet(s) {
		r.Wake()
		return errUnanswered
	}
	ctx, cancel := r.handling(ctx, 0)
	defer cancel()
	err := r.remove(ctx, s)
	if err != nil {
		r.release(ctx, s)
	}
	return err
}

// release leaves a row to the reconciler at once: nothing is under way.
func (r *Reconciler) release(ctx context.Context, s *store.Stream) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.o.Request)
	defer cancel()
	if err := r.o.Store.Leave(ctx, s.ID, r.o.Now()); err != nil && !errors.Is(err, store.ErrNotFound) {
		r.complain(ctx, "leave a stream to the reconciler", err)
	}
	r.Wake()
}

// pauseOf is the next pause of a row.
func (r *Reconciler) pauseOf(id string) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.pauses) >= maxRemembered {
		clear(r.pauses)
	}
	pause := r.o.Retry
	if last, ok := r.pauses[id]; ok {
		pause = min(2*last, r.o.MaxRetry)
	}
	r.pauses[id] = pause
	return pause
}

// tried reports whether a row is one that is tried again.
func (r *Reconciler) tried(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.pauses[id]
	return ok
}

func (r *Reconciler) forgetPause(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pauses, id)
}

func (r *Reconciler) forget(s *store.Stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pauses, s.ID)
	delete(r.looks, lookOf(s))
}

func (r *Reconciler) log(s *store.Stream) *zap.Logger {
	return r.o.Log.With(zap.String("stream", tenant.StreamPath(s.Account, s.Name)))
}

// Beginnings of ids, which say what an id is of.
const (
	streamIDPrefix = "str_"
	keyIDPrefix    = "key_"
)

// newID makes an id that no other thing has.
func newID(random io.Reader, prefix string) (string, error) {
	var raw [12]byte
	if _, err := io.ReadFull(random, raw[:]); err != nil {
		return "", fmt.Errorf("make an id: %w", err)
	}
	return prefix + hex.EncodeToString(raw[:]), nil
}

// headStart is for how long a new row is left to the handler that kept it: until its
// first request is surely over.
func (r *Reconciler) headStart() time.Duration { return r.o.Request + r.o.Late }
