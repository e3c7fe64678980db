package replica

import (
	"context"
	"fmt"
	"time"

	"sluice/internal/store"
	"sluice/internal/store/watch"
	"sluice/internal/tenant"
)

const (
	// pollEvery is how often the store is asked for its revision, whether a change was
	// notified or not: with logTime, a lost notification costs less than two seconds.
	pollEvery = time.Second
	logTime   = 500 * time.Millisecond // the deadline of reading the revision, or a part of the log
	logPart   = 1000                   // changes
	wholeTime = 2 * time.Second        // the deadline of reading cutoffs or signing keys
	// gather is the pause after each reading of the log: many changes one after the other,
	// as of an import, are read together.
	gather = 20 * time.Millisecond
	// probeEvery is how often a store that is out of reach is tried.
	probeEvery = 250 * time.Millisecond
	// suspectAfter is how old the last reading of the log has to be for a failed look-up
	// to have it read at once.
	suspectAfter = 100 * time.Millisecond
	// listenAgain is the pause before notifications are listened to again.
	listenAgain = time.Second
	// rotateEvery is how often signing keys are rotated, where it is time, and forgotten
	// cutoffs forgotten here. Where it fails it is tried again every usesEvery.
	rotateEvery = time.Hour
	rotateTime  = 5 * time.Second
)

// nudge has the log read now. It does not block.
func (r *Replica) nudge() {
	select {
	case r.nudged <- struct{}{}:
	default:
	}
}

// suspect has the log read after a look-up that failed, so that a store that is gone is
// known to be, and nobody waits for it any more.
func (r *Replica) suspect() {
	if read, lost, _ := r.reach.state(); lost.IsZero() && r.o.Now().Sub(read) > suspectAfter {
		r.nudge()
	}
}

// listen nudges at each notification, for as long as ctx goes on.
func (r *Replica) listen(ctx context.Context) {
	for {
		// Its error says what was lost: notifications, for which there is the poll.
		_ = r.o.Source.Notified(ctx, r.nudge)
		if !pause(ctx, listenAgain) {
			return
		}
	}
}

// pause reports whether ctx goes on after it.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// follow reads the log until ctx ends: at a nudge, and after a while in any case.
func (r *Replica) follow(ctx context.Context) {
	f := &follower{Replica: r}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.nudged:
		case <-timer.C:
		}
		read := r.o.Now() // before it is asked: what comes later is not read
		err := f.catchUp(ctx)
		if ctx.Err() != nil {
			return
		}
		timer.Reset(f.settle(read, err))
		if !pause(ctx, gather) {
			return
		}
	}
}

// follower is where the log was read to. Only follow uses it.
type follower struct {
	*Replica
	untold  []tenant.Change // in force, and to be told; at most watch.MaxTold + 1
	expired bool            // it was told that nothing known may be used any more
	cutoffs time.Time       // when they were read last
}

// settle says what became of reading the log, tells what is in force, and returns when
// to read again.
func (f *follower) settle(read time.Time, err error) (next time.Duration) {
	if err == nil {
		f.expired = false
		if gone, back := f.reach.heard(read); back && f.o.Events.Back != nil {
			f.o.Events.Back(gone)
		}
		f.tell()
		return pollEvery
	}
	news := f.reach.failed(err)
	if f.loaded.Load() != nil && !f.reach.holds() && !f.expired {
		f.expired = true
		f.note(tenant.Change{Kind: tenant.Everything})
	}
	f.tell()
	if news && f.o.Events.Lost != nil {
		f.o.Events.Lost(err)
	}
	return probeEvery
}

func (f *follower) note(c tenant.Change) {
	if len(f.untold) <= watch.MaxTold {
		f.untold = append(f.untold, c)
	}
}

func (f *follower) tell() {
	if len(f.untold) > 0 {
		told := f.untold
		f.untold = nil
		f.watchers.Tell(told)
	}
}

// catchUp brings all changes into force that are in the log.
func (f *follower) catchUp(ctx context.Context) error {
	newest, err := f.newest(ctx)
	if err != nil {
		return err
	}
	if f.loaded.Load() == nil {
		return f.load(ctx, newest)
	}
	if newest < f.revision.Load() { // it is another store than before, or an older copy
		return f.anew(ctx, newest)
	}
	for after := f.revision.Load(); after < newest; after = f.revision.Load() {
		list, err := f.part(ctx, after)
		if err != nil {
			return err
		}
		if list == nil {
			return f.anew(ctx, newest)
		}
		if err := f.apply(ctx, list, newest); err != nil {
			return err
		}
	}
	if f.o.Now().Sub(f.cutoffs) >= rotateEvery { // those that the store has forgotten
		return f.reload(ctx, true, false)
	}
	return nil
}

func (f *follower) newest(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, logTime)
	defer cancel()
	newest, err := f.o.Source.Revision(ctx)
	if err != nil {
		return 0, fmt.Errorf("the revision of the store: %w", err)
	}
	return newest, nil
}

// part is a part of the log; nil where it is not whole.
func (f *follower) part(ctx context.Context, after int64) ([]store.Change, error) {
	ctx, cancel := context.WithTimeout(ctx, logTime)
	defer cancel()
	list, whole, err := f.o.Source.Changes(ctx, after, logPart)
	switch {
	case err != nil:
		return nil, fmt.Errorf("the store's log of changes: %w", err)
	case !whole || len(list) == 0: // the revision said that there is more
		return nil, nil
	}
	for _, c := range list {
		if after++; c.Revision != after {
			return nil, nil
		}
	}
	return list, nil
}

// load reads the store for the first time. Keys are rotated before, so that a new store
// has one that signs; one that has, and cannot be written (its disk is full), is read.
func (f *follower) load(ctx context.Context, newest int64) error {
	if err := f.rotate(ctx); err != nil && !f.signs(ctx) {
		return err
	}
	if err := f.reload(ctx, true, true); err != nil {
		return err
	}
	f.revision.Store(newest)
	return nil
}

// signs reports whether the store has a key that signs now.
func (f *follower) signs(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, wholeTime)
	defer cancel()
	keys, err := f.o.Source.SigningKeys(ctx)
	if err != nil {
		return false
	}
	_, ok := tenant.Signer(keys, f.o.Now())
	return ok
}

// anew forgets all. newest is a revision that was read before.
func (f *follower) anew(ctx context.Context, newest int64) error {
	f.keys.clear()
	f.accounts.clear()
	f.streams.clear()
	if err := f.reload(ctx, true, true); err != nil {
		return err
	}
	f.revision.Store(newest)
	f.note(tenant.Change{Kind: tenant.Everything})
	return nil
}

// apply brings a part of the log into force. Where that fails half-way it is repeated
// as a whole.
func (f *follower) apply(ctx context.Context, list []store.Change, newest int64) error {
	var cutoffs, signing bool
	for _, c := range list {
		switch c.Kind {
		case tenant.KeyChanged:
			f.keys.dropGroup(c.KeyID)
			cutoffs = true
		case tenant.AccountChanged:
			f.accounts.drop(c.Account)
		case tenant.StreamChanged:
			f.streams.drop(streamID{c.Account, c.Stream})
		case tenant.SigningKeysChanged:
			signing = true
		case tenant.Everything:
			return f.anew(ctx, newest)
		default: // of a newer version, which shares the store
			return f.anew(ctx, newest)
		}
	}
	if err := f.reload(ctx, cutoffs, signing); err != nil {
		return err
	}
	f.revision.Store(list[len(list)-1].Revision)
	for _, c := range list {
		f.note(c.Change)
	}
	return nil
}

// reload reads what is held whole.
func (f *follower) reload(ctx context.Context, cutoffs, signing bool) error {
	if !cutoffs && !signing {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, wholeTime)
	defer cancel()
	next := whole{}
	if prev := f.loaded.Load(); prev != nil {
		next = *prev
	}
	if cutoffs {
		read := f.o.Now()
		list, err := f.o.Source.Cutoffs(ctx)
		if err != nil {
			return fmt.Errorf("the store's cutoffs: %w", err)
		}
		next.cutoffs = make(map[string]time.Time, len(list))
		for _, c := range list {
			next.cutoffs[c.KeyID] = c.At
		}
		f.cutoffs = read
	}
	if signing {
		keys, err := f.o.Source.SigningKeys(ctx)
		if err != nil {
			return fmt.Errorf("the store's signing keys: %w", err)
		}
		next.signing = tenant.SigningKeysAsBefore(keys, next.signing)
	}
	f.loaded.Store(&next)
	return nil
}

// rotate replaces signing keys where it is time.
func (r *Replica) rotate(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, rotateTime)
	defer cancel()
	if _, err := r.o.Source.RotateSigningKeys(ctx, r.o.Rotation); err != nil {
		return fmt.Errorf("rotate the store's signing keys: %w", err)
	}
	r.rotated.Store(int64(r.reach.clock()))
	return nil
}

// housekeep does until ctx ends what can wait: last uses are written, signing keys
// rotated. What it changes is in the log, which is followed.
func (r *Replica) housekeep(ctx context.Context) {
	tick := time.NewTicker(usesEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		// What fails here is tried again at the next tick; that the store is out of
		// reach is for follow to say.
		_ = r.uses.write(ctx, r.o.Source)
		if r.reach.begun() && r.reach.clock()-time.Duration(r.rotated.Load()) >= rotateEvery {
			_ = r.rotate(ctx)
		}
	}
}

// lastUses writes what is left when the replica is closed.
func (r *Replica) lastUses() error {
	ctx, cancel := context.WithTimeout(context.Background(), lastUsesTime)
	defer cancel()
	if err := r.uses.write(ctx, r.o.Source); err != nil {
		return fmt.Errorf("write when keys were last used: %w", err)
	}
	return nil
}
