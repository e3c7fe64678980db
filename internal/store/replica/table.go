package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"sluice/internal/tenant"
)

const (
	// askTime is the deadline of a look-up in the store. It is the look-up's own: it
	// serves all who wait for it, whenever they came.
	askTime = 250 * time.Millisecond
	// askedAtOnce bounds the look-ups of one kind in the store at one time.
	askedAtOnce = 64
	// noneKept is how long it is remembered that something does not exist: a new key
	// is never hidden for longer (A13).
	noneKept = time.Second
	// nonesKept bounds what is known not to exist, of one kind. It is apart from what
	// does, so that a flood of made-up keys drives out none of the good ones.
	nonesKept = 8192
	// waitingMost bounds the look-ups that wait for their turn, of one kind. What is known
	// to have existed waits; what nobody knows does not.
	waitingMost = 4096
	// touchesKept is how many changes a look-up under way is told of one by one.
	touchesKept = 64
)

// Why something cannot be told. Each wraps tenant.ErrUnavailable, and is made before,
// since a flood is answered with it.
var (
	errGone   = fmt.Errorf("%w: the store is out of reach", tenant.ErrUnavailable)
	errStale  = fmt.Errorf("%w: the store is out of reach", tenant.ErrStale)
	errBusy   = fmt.Errorf("%w: too many look-ups in the store at one time", tenant.ErrUnavailable)
	errSlow   = fmt.Errorf("%w: the store did not answer in %v", tenant.ErrUnavailable, askTime)
	errClosed = fmt.Errorf("%w: the replica is closed", tenant.ErrUnavailable)
)

// table is all that is known of things of one kind, and how more is found out.
type table[K comparable, V any] struct {
	life  context.Context // of every question
	reach *reach
	// ask asks the store. An error that wraps tenant.ErrNotFound says that there is none.
	ask func(ctx context.Context, k K) (V, error)
	// failed is called when the store did not answer.
	failed func()

	mu sync.Mutex
	// good is read without mu.
	good cache[K, V]
	// none says until when something is known not to exist, by the clock of reach.
	none *simplelru.LRU[K, time.Duration]
	// former is what was known until a change, at most as much as may be known. After one
	// that drops everything, all that is in use is asked for at one moment: it waits for
	// its turn, where made-up keys are turned away, and goes before them.
	former  map[K]struct{}
	flights map[K]*flight[V]        // those that one may join
	running map[*flight[V]]struct{} // these, and those that were left by a change
	closed  bool
	over    sync.WaitGroup // of running

	turns chan struct{} // holds one for each question that the store is being asked
}

// flight is a question under way. value and err are there when done is closed.
type flight[V any] struct {
	limit context.Context // ends at the deadline
	begun time.Duration
	done  chan struct{}
	value V
	err   error

	// What changed since the question was asked, so that an answer that may be older is
	// not kept; guarded by table.mu.
	anything bool
	groups   []string
}

func newTable[K comparable, V any](life context.Context, r *reach, most int, group func(V) string, ask func(context.Context, K) (V, error)) *table[K, V] {
	none, err := simplelru.NewLRU[K, time.Duration](nonesKept, nil)
	if err != nil {
		panic(err) // only of a size below 1
	}
	return &table[K, V]{
		life: life, reach: r, ask: ask, failed: func() {}, none: none,
		good:   cache[K, V]{max: most, group: group},
		former: make(map[K]struct{}), turns: make(chan struct{}, askedAtOnce),
		flights: make(map[K]*flight[V]), running: make(map[*flight[V]]struct{}),
	}
}

// get answers from memory, else it asks the store.
func (t *table[K, V]) get(ctx context.Context, k K) (V, error) {
	if t.reach.holds() {
		if v, ok := t.good.get(k); ok {
			return v, nil
		}
	}
	return t.miss(ctx, k)
}

func (t *table[K, V]) miss(ctx context.Context, k K) (value V, err error) {
	f, value, err := t.join(k)
	if f == nil {
		return value, err
	}
	select {
	case <-f.done:
		return f.value, f.err
	case <-f.limit.Done():
	case <-ctx.Done():
		err = fmt.Errorf("%w: %w", tenant.ErrUnavailable, ctx.Err())
	}
	select {
	case <-f.done: // limit ends after it, too
		return f.value, f.err
	default:
	}
	if err == nil {
		err = errSlow
	}
	return value, err
}

// join gives the flight to wait for, or where it is nil what is known without one.
func (t *table[K, V]) join(k K) (f *flight[V], value V, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, value, errClosed
	}
	if !t.reach.holds() {
		return nil, value, t.reach.gone()
	}
	if v, ok := t.good.get(k); ok { // it came in between
		return nil, v, nil
	}
	now := t.reach.clock()
	if until, ok := t.none.Get(k); ok && now < until {
		return nil, value, tenant.ErrNotFound
	}
	if f := t.flights[k]; f != nil {
		return f, value, nil
	}
	if t.reach.isLost() {
		return nil, value, errGone
	}
	f, err = t.begin(k, now)
	return f, value, err
}

// begin begins a flight; t.mu is held. The error is errBusy.
func (t *table[K, V]) begin(k K, now time.Duration) (*flight[V], error) {
	_, waits := t.former[k]
	if waits && len(t.running) >= waitingMost {
		return nil, errBusy
	}
	if !waits {
		select {
		case t.turns <- struct{}{}:
		default:
			return nil, errBusy
		}
	}
	ctx, cancel := context.WithTimeout(t.life, askTime)
	f := &flight[V]{limit: ctx, begun: now, done: make(chan struct{})}
	t.flights[k], t.running[f] = f, struct{}{}
	t.over.Go(func() {
		defer cancel()
		if !waits {
			t.fly(k, f)
			return
		}
		select {
		case t.turns <- struct{}{}:
			t.fly(k, f)
		case <-ctx.Done():
			t.land(k, f, *new(V), errBusy)
		}
	})
	return f, nil
}

// fly asks. The turn is its own, and ends.
func (t *table[K, V]) fly(k K, f *flight[V]) {
	v, err := t.ask(f.limit, k)
	<-t.turns
	t.land(k, f, v, err)
}

// land ends a flight with an answer, and keeps that unless a change came in between.
func (t *table[K, V]) land(k K, f *flight[V], v V, err error) {
	defer close(f.done)
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.running, f)
	if t.flights[k] == f {
		delete(t.flights, k)
	}
	switch {
	case err == nil:
		f.value = v
		if !f.anything && (t.good.group == nil || !slices.Contains(f.groups, t.good.group(v))) {
			t.good.put(k, v)
		}
		delete(t.former, k)
	case errors.Is(err, tenant.ErrNotFound) && !errors.Is(err, tenant.ErrUnavailable):
		f.err = tenant.ErrNotFound
		delete(t.former, k)
		if !f.anything && len(f.groups) == 0 {
			// From when it was asked: what was made a moment later is not hidden longer.
			t.none.Add(k, f.begun+noneKept)
		}
	default:
		f.err = fmt.Errorf("%w: %w", tenant.ErrUnavailable, err)
		t.failed()
	}
}

// drop forgets one thing. Whoever asks from now on is told nothing older.
func (t *table[K, V]) drop(k K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leave(k)
	t.none.Remove(k)
	if f := t.flights[k]; f != nil {
		f.anything = true
		delete(t.flights, k)
	}
}

// dropGroup forgets what is of a group, and all that is known not to exist, since one of
// these may be of the group now. Nobody joins a question under way any more: it may be
// about the group.
func (t *table[K, V]) dropGroup(g string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.good.grouped(g) {
		t.leave(k)
	}
	t.none.Purge()
	clear(t.flights)
	for f := range t.running {
		if len(f.groups) < touchesKept {
			f.groups = append(f.groups, g)
		} else {
			f.anything = true
		}
	}
}

// leave forgets what is known of one thing, but that it was known; t.mu is held.
func (t *table[K, V]) leave(k K) {
	if t.good.remove(k) && len(t.former) < t.good.max {
		t.former[k] = struct{}{}
	}
}

// clear forgets everything.
func (t *table[K, V]) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.former)+int(t.good.size.Load()) > t.good.max {
		clear(t.former) // what nobody asked for since gives way
	}
	for _, e := range t.good.ring {
		if e != nil {
			t.former[e.key] = struct{}{}
		}
	}
	t.good.clear()
	t.none.Purge()
	clear(t.flights)
	for f := range t.running {
		f.anything = true
	}
}

// close lets no more questions be asked, and waits for those under way.
func (t *table[K, V]) close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.over.Wait()
}

// unknown is how many things are remembered not to exist.
func (t *table[K, V]) unknown() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.none.Len()
}
