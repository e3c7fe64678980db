package auth

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Times of the keys of another issuer.
const (
	// refreshEvery is how soon a key that its issuer took back dies here.
	refreshEvery = 5 * time.Minute
	// retryEvery is how soon a fetch that failed is tried again.
	retryEvery = 15 * time.Second
	// minInterval lies between two fetches at least, whatever tokens come.
	minInterval = 10 * time.Second
	// fetchTimeout bounds one fetch, discovery included.
	fetchTimeout = 10 * time.Second
	// maxKeyWait is how long a request waits for a fetch at most.
	maxKeyWait = 5 * time.Second
	// publishLag is how much older than a fetch a token has to be for its key to
	// have been in what was fetched, surely: caches on the way, and clocks.
	publishLag = time.Minute

	// maxKeyWaiters is how many requests wait for one issuer at one time.
	maxKeyWaiters = 64
)

// remoteKeys holds the last good key set of another issuer and keeps it fresh,
// in one goroutine that alone fetches, so that there is one fetch at a time.
//
// A key that is not in the set is asked for. A flood of invented ids must
// neither trouble the issuer nor keep a true new key out, so:
//
//   - A token that was made well before the set was fetched is refused: its key
//     would be in it. Nobody is asked.
//   - Else its request has a fetch made, and waits for it, unless one was begun
//     less than minInterval ago. In that case, or where the fetch fails, the
//     answer is ErrUnavailable, "try again", and the next fetch is made as soon
//     as the interval is over, though nobody may ask then.
//   - Refused for good is only what a fetch did not bring that began after the
//     token came.
//
// So there is at most one fetch each interval, and after one interval at most a
// new key is known.
type remoteKeys struct {
	name   string
	o      *IssuersOptions
	source *keySource
	wake   chan struct{} // holds one: look at the times again
	end    context.CancelFunc
	done   chan struct{}

	current atomic.Pointer[keySet]

	mu      sync.Mutex
	flight  *flight   // demanded, or under way
	begun   time.Time // of the last fetch
	next    time.Time // of the next fetch
	waiting int
	failing bool
}

// flight is one fetch.
type flight struct {
	begun time.Time
	done  chan struct{} // closed at its end
}

// keySet is one good answer of an issuer; it is never changed.
type keySet struct {
	keys  []*verifyKey
	asked time.Time // when it was asked for
}

func newRemoteKeys(ctx context.Context, o *IssuersOptions, i IssuerOptions) *remoteKeys {
	ctx, end := context.WithCancel(ctx)
	r := &remoteKeys{
		name: i.Issuer, o: o, source: newKeySource(o, i),
		wake: make(chan struct{}, 1), end: end, done: make(chan struct{}),
	}
	go r.run(ctx)
	return r
}

// close ends the goroutine and waits for it.
func (r *remoteKeys) close() {
	r.end()
	<-r.done
}

// find looks for a key in the present set.
func (r *remoteKeys) find(kid string, m jwt.SigningMethod) *verifyKey {
	if set := r.current.Load(); set != nil {
		for _, k := range set.keys {
			if k.id == kid && k.takes(m) {
				return k
			}
		}
	}
	return nil
}

// has reports whether a key that find gave is still in the set.
func (r *remoteKeys) has(key any) bool {
	if set := r.current.Load(); set != nil {
		for _, k := range set.keys {
			if key == any(k) {
				return true
			}
		}
	}
	return false
}

// hasID is nil where a key of that id is in the set, else ErrTokenKey, or
// ErrUnavailable as long as there is no set.
func (r *remoteKeys) hasID(kid string) error {
	set := r.current.Load()
	if set == nil {
		return r.noKeys()
	}
	for _, k := range set.keys {
		if k.id == kid {
			return nil
		}
	}
	return ErrTokenKey
}

func (r *remoteKeys) noKeys() error {
	return fmt.Errorf("%w: no keys of issuer %s", ErrUnavailable, r.name)
}

func (r *remoteKeys) unsure() error {
	return fmt.Errorf("%w: a key of issuer %s may be new, and cannot be asked for now", ErrUnavailable, r.name)
}

// await asks for a key that find did not find, for a token issued then. The
// error is ErrTokenKey where there is no such key, surely, else ErrUnavailable.
func (r *remoteKeys) await(ctx context.Context, kid string, m jwt.SigningMethod, issuedAt time.Time) (*verifyKey, error) {
	arrived := r.o.Now()
	f, err := r.join(arrived, issuedAt)
	if err != nil {
		return nil, err
	}
	err = r.wait(ctx, f)
	if key := r.find(kid, m); key != nil {
		return key, nil
	}
	if err != nil {
		return nil, err
	}
	switch set := r.current.Load(); {
	case set == nil:
		return nil, r.noKeys()
	case !set.asked.Before(arrived):
		return nil, ErrTokenKey
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.schedule(r.begun.Add(minInterval))
	return nil, r.unsure()
}

// join is the fetch to wait for: the one under way, or a new one.
func (r *remoteKeys) join(arrived, issuedAt time.Time) (*flight, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if set := r.current.Load(); set != nil && !issuedAt.Add(publishLag).After(set.asked) {
		return nil, ErrTokenKey
	}
	if r.waiting >= maxKeyWaiters {
		return nil, r.unsure()
	}
	if r.flight == nil {
		if earliest := r.begun.Add(minInterval); !r.begun.IsZero() && arrived.Before(earliest) {
			r.schedule(earliest)
			return nil, r.unsure()
		}
		r.flight = &flight{begun: arrived, done: make(chan struct{})}
		r.schedule(arrived)
	}
	r.waiting++
	return r.flight, nil
}

func (r *remoteKeys) wait(ctx context.Context, f *flight) error {
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.waiting--
	}()
	timer := time.NewTimer(maxKeyWait)
	defer timer.Stop()
	select {
	case <-f.done:
		return nil
	case <-timer.C:
		return r.unsure()
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
	case <-r.done: // the program ends
		return r.unsure()
	}
}

// schedule has the next fetch made by then at the latest. r.mu is held.
func (r *remoteKeys) schedule(at time.Time) {
	if at.Before(r.next) {
		r.next = at
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *remoteKeys) run(ctx context.Context) {
	defer close(r.done)
	for ctx.Err() == nil {
		f := r.begin()
		r.fetch(ctx, f)
		for !r.due() {
			if !r.rest(ctx) {
				return
			}
		}
	}
}

// begin is the start of a fetch, demanded or not.
func (r *remoteKeys) begin() *flight {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun = r.o.Now()
	if r.flight == nil {
		r.flight = &flight{begun: r.begun, done: make(chan struct{})}
	}
	return r.flight
}

func (r *remoteKeys) fetch(ctx context.Context, f *flight) {
	timed, cancel := context.WithTimeout(ctx, fetchTimeout)
	keys, err := r.source.fetch(timed)
	cancel()
	lost := false
	r.mu.Lock()
	was := r.failing
	if err == nil {
		lost = r.replace(keys, f.begun)
		r.next = r.begun.Add(refreshEvery)
	} else {
		r.next = r.begun.Add(retryEvery)
	}
	r.failing = err != nil
	r.flight = nil
	close(f.done)
	r.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	if lost {
		r.o.changed(r.name)
	}
	if err != nil || was {
		r.o.failed(r.name, err)
	}
}

// replace puts a good set in force and reports whether a key is gone. Keys that
// are the same as before stay the same values. r.mu is held.
func (r *remoteKeys) replace(keys []*verifyKey, asked time.Time) (lost bool) {
	old := r.current.Load()
	if old == nil {
		old = &keySet{}
	}
	for i, k := range keys {
		for _, was := range old.keys {
			if k.same(was) {
				keys[i] = was
				break
			}
		}
	}
	r.current.Store(&keySet{keys: keys, asked: asked})
	return slices.ContainsFunc(old.keys, func(was *verifyKey) bool { return !slices.Contains(keys, was) })
}

// due reports whether the time of the next fetch has come.
func (r *remoteKeys) due() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.o.Now().Before(r.next)
}

// rest waits for the time of the next fetch, or for a word that it changed. It
// reports false at the end of ctx.
func (r *remoteKeys) rest(ctx context.Context) bool {
	r.mu.Lock()
	pause := r.next.Sub(r.o.Now())
	r.mu.Unlock()
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.wake:
	case <-ctx.Done():
		return false
	}
	return true
}

func (r *remoteKeys) stats() IssuerStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := IssuerStats{Failing: r.failing}
	if set := r.current.Load(); set != nil {
		s.Keys, s.AskedAt = len(set.keys), set.asked
	}
	return s
}
