package replica

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"sluice/internal/store"
	"sluice/internal/store/watch"
	"sluice/internal/tenant"
)

// DefaultStaleFor is how long a replica goes on with what it knows without the store.
const DefaultStaleFor = 15 * time.Minute

// cutoffGrace is how much longer cutoffs are told than anything else. A token is held
// to the signing keys first, and then to its key's cutoff: time must not run out in
// between, where it would read as "revoked" and not as "cannot be told" (A11).
const cutoffGrace = time.Second

// Options are the parts of a Replica.
type Options struct {
	Source Source
	// Defaults are the limits of an account that has none of its own.
	Defaults tenant.Limits
	// StaleFor is how long what is known goes on to be used after the log of changes
	// was read last; 0 = not at all (DefaultStaleFor is the operator's default).
	StaleFor time.Duration
	// Rotation is when signing keys are replaced; zero = tenant.DefaultRotation.
	Rotation tenant.Rotation

	// The most things that are remembered of each kind, above 0; 0 = 100,000 keys,
	// 20,000 accounts, 100,000 streams. One takes about 600 bytes.
	Keys, Accounts, Streams int

	Now    func() time.Time // nil = time.Now
	Events Events
}

// Events are told of what happens. Each may be nil. They are called one at a time, by a
// goroutine of the Replica, and must not block or call Close.
type Events struct {
	// Lost is called once when the store is out of reach.
	Lost func(cause error)
	// Back is called once when it is back, or there for the first time after Lost, and
	// says for how long nothing was heard of it.
	Back func(after time.Duration)
}

func (o Options) withDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Rotation == (tenant.Rotation{}) {
		o.Rotation = tenant.DefaultRotation()
	}
	for _, f := range []struct {
		size *int
		most int
	}{{&o.Keys, 100_000}, {&o.Accounts, 20_000}, {&o.Streams, 100_000}} {
		if *f.size <= 0 {
			*f.size = f.most
		}
	}
	return o
}

// Replica is a tenant.Directory over a store. Look-ups of what is known take no lock and
// allocate nothing. One of what is not known waits for the store, 250 ms at most; it is
// ErrUnavailable at once where 64 of its kind are under way, where the store is known to
// be out of reach, and before the store was read for the first time. What was known until
// a change waits for its turn among the 64, within the 250 ms, and goes first.
//
// Without the store, what is known is used for Options.StaleFor after the log of changes
// was read last. After that, until the log has been caught up with, all is
// ErrUnavailable, and Cutoff is in the far future.
//
// It has three goroutines, and one for each question to the store, until Close.
type Replica struct {
	o        Options
	reach    *reach
	watchers watch.List
	uses     *uses

	keys     *table[tenant.Digest, *tenant.Key]
	accounts *table[tenant.AccountID, *account]
	streams  *table[streamID, *tenant.Stream]
	defaults atomic.Pointer[tenant.Limits]
	// loaded is what is held whole; nil before the first time.
	loaded   atomic.Pointer[whole]
	revision atomic.Int64 // of the newest change in force; -1 = nothing is

	rotated atomic.Int64  // when signing keys were, on the clock of reach
	nudged  chan struct{} // holds one where the log is to be read now

	stop    context.CancelFunc
	running sync.WaitGroup
	closing sync.Once
}

var _ tenant.Directory = (*Replica)(nil)

type streamID struct {
	account tenant.AccountID
	name    tenant.StreamName
}

// whole is what is known entirely, and never changes once it is published.
type whole struct {
	cutoffs map[string]time.Time // by key; of those that lost rights within tenant.CutoffKept, which bounds it
	signing []tenant.SigningKey
}

// New begins to read the store and does not wait for it. ctx gives its values to what is
// asked; its end does not end the Replica: Close does.
func New(ctx context.Context, o Options) *Replica {
	o = o.withDefaults()
	r := &Replica{o: o, reach: newReach(o.Now, o.StaleFor), nudged: make(chan struct{}, 1)}
	r.uses = newUses(o.Keys)
	r.revision.Store(-1)
	r.rotated.Store(-int64(rotateEvery)) // never
	r.SetDefaults(o.Defaults)
	ctx, r.stop = context.WithCancel(context.WithoutCancel(ctx))
	r.keys = newTable(ctx, r.reach, o.Keys, func(k *tenant.Key) string { return k.ID }, r.askKey)
	r.accounts = newTable(ctx, r.reach, o.Accounts, nil, r.askAccount)
	r.streams = newTable(ctx, r.reach, o.Streams, nil, r.askStream)
	r.keys.failed, r.accounts.failed, r.streams.failed = r.suspect, r.suspect, r.suspect
	r.running.Go(func() { r.follow(ctx) })
	r.running.Go(func() { r.listen(ctx) })
	r.running.Go(func() { r.housekeep(ctx) })
	return r
}

// Close ends what runs, and writes the last uses of keys that are not written yet: it
// takes two seconds at most. After it nothing is known. The error says that those uses
// could not be written. Calls after the first wait for it and do nothing.
func (r *Replica) Close() (err error) {
	r.closing.Do(func() {
		r.stop()
		r.running.Wait()
		r.keys.close()
		r.accounts.close()
		r.streams.close()
		r.reach.end()
		err = r.lastUses()
	})
	return err
}

// Key implements tenant.Directory.
func (r *Replica) Key(ctx context.Context, d tenant.Digest) (*tenant.Key, error) {
	return r.keys.get(ctx, d)
}

// Account implements tenant.Directory. Its limits are its own, laid over the defaults in
// force now.
func (r *Replica) Account(ctx context.Context, id tenant.AccountID) (*tenant.Account, error) {
	a, err := r.accounts.get(ctx, id)
	if err != nil {
		return nil, err
	}
	return a.over(r.defaults.Load()), nil
}

// Stream implements tenant.Directory. A stream that is being deleted is not found.
func (r *Replica) Stream(ctx context.Context, account tenant.AccountID, name tenant.StreamName) (*tenant.Stream, error) {
	return r.streams.get(ctx, streamID{account, name})
}

// Cutoff implements tenant.Directory. A key that has none in the store has none: that of
// one that is revoked or removed is there for as long as a token of it could live.
func (r *Replica) Cutoff(keyID string) time.Time {
	w := r.loaded.Load()
	if w == nil || !r.reach.heldWithin(cutoffGrace) {
		return never()
	}
	return w.cutoffs[keyID]
}

// never lies beyond the end of every token.
func never() time.Time { return time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC) }

// SigningKeys implements tenant.Directory.
func (r *Replica) SigningKeys(context.Context) ([]tenant.SigningKey, error) {
	w := r.loaded.Load()
	if w == nil || !r.reach.holds() {
		return nil, r.reach.gone()
	}
	return w.signing, nil
}

// Watch implements tenant.Directory. When what is known may not be used any more, since
// the store is out of reach, tenant.Everything is told too.
func (r *Replica) Watch(changed func(tenant.Change)) (stop func()) { return r.watchers.Add(changed) }

// SetDefaults replaces the limits of accounts that have none of their own. What was
// handed out before keeps those that it had.
func (r *Replica) SetDefaults(l tenant.Limits) { r.defaults.Store(&l) }

// Used notes that a key was used now; it is written to the store within about half a
// minute, to the minute. It does not block, and after the first time in a minute it
// costs next to nothing. keyID is that of a key which is known to exist.
func (r *Replica) Used(keyID string) { r.uses.note(keyID, r.o.Now().Unix()/60) }

// Ready is an error until the store was read for the first time, which names the store.
func (r *Replica) Ready() error {
	if r.reach.begun() {
		return nil
	}
	if _, _, cause := r.reach.state(); cause != nil {
		return fmt.Errorf("the store could not be read yet: %w", cause)
	}
	return fmt.Errorf("the store is being read: %w", tenant.ErrUnavailable)
}

// Stats is the state of a Replica, for gauges.
type Stats struct {
	Keys, Accounts, Streams int       // known
	Unknown                 int       // remembered not to exist
	Cutoffs, SigningKeys    int       // held
	Uses                    int       // keys whose use is not written yet
	Revision                int64     // of the newest change in force; -1 = nothing was read yet
	ReadAt                  time.Time // when the log was read last; before the first time: when that began
	LostSince               time.Time // since when nothing is heard of the store; zero = it is in reach
}

// Stats tells the present state.
func (r *Replica) Stats() Stats {
	s := Stats{
		Keys: int(r.keys.good.size.Load()), Accounts: int(r.accounts.good.size.Load()),
		Streams: int(r.streams.good.size.Load()),
		Unknown: r.keys.unknown() + r.accounts.unknown() + r.streams.unknown(),
		Uses:    r.uses.waiting(), Revision: r.revision.Load(),
	}
	if w := r.loaded.Load(); w != nil {
		s.Cutoffs, s.SigningKeys = len(w.cutoffs), len(w.signing)
	}
	s.ReadAt, s.LostSince, _ = r.reach.state()
	return s
}

func (r *Replica) askKey(ctx context.Context, d tenant.Digest) (*tenant.Key, error) {
	k, err := r.o.Source.KeyOf(ctx, d)
	if err != nil {
		return nil, err
	}
	return &k, nil
}

func (r *Replica) askAccount(ctx context.Context, id tenant.AccountID) (*account, error) {
	a, err := r.o.Source.Account(ctx, id)
	if err != nil {
		return nil, err
	}
	return &account{own: a}, nil
}

func (r *Replica) askStream(ctx context.Context, id streamID) (*tenant.Stream, error) {
	s, err := r.o.Source.Stream(ctx, id.account, id.name)
	if err != nil {
		return nil, err
	}
	if s.State == store.Deleting {
		return nil, tenant.ErrNotFound
	}
	return &s.Stream, nil
}
