package replica

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"sluice/internal/bubble"
	"sluice/internal/store"
	"sluice/internal/tenant"
)

var errDown = errors.New("connection refused")

// script is a store that does what a test says.
type script struct {
	mu       sync.Mutex
	keys     map[tenant.Digest]tenant.Key
	accounts map[tenant.AccountID]store.Account
	streams  map[streamID]store.Stream
	cutoffs  map[string]store.Cutoff
	signing  []tenant.SigningKey

	log       []store.Change
	revision  int64
	forgotten int64 // revisions up to it are in the log no more
	torn      bool  // the log says that it is not whole, whatever it has
	listeners map[int]func()
	last      int

	asked   map[string]int
	down    bool                             // everything fails at once
	hanging map[string]bool                  // these methods do not answer
	failing map[string]error                 // these answer so
	quiet   bool                             // notifications are lost
	pause   func() time.Duration             // before what is answered is read, and after
	held    map[string]func()                // called between an answer's reading and its being given
	used    map[string]time.Time             // as written
	rotate  func(*script) (changed bool)     // what RotateSigningKeys does
	wrote   func(batch map[string]time.Time) // called by UseKeys
}

var _ Source = (*script)(nil)

func newScript() *script {
	return &script{
		keys: map[tenant.Digest]tenant.Key{}, accounts: map[tenant.AccountID]store.Account{},
		streams: map[streamID]store.Stream{}, cutoffs: map[string]store.Cutoff{},
		listeners: map[int]func(){}, asked: map[string]int{}, hanging: map[string]bool{},
		failing: map[string]error{}, held: map[string]func(){}, used: map[string]time.Time{},
	}
}

// set changes how the store behaves, without a change in the log.
func (s *script) set(edit func(*script)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	edit(s)
}

// change makes a change with its entries in the log, and notifies.
func (s *script) change(edit func(*script), entries ...tenant.Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	edit(s)
	for _, c := range entries {
		s.revision++
		s.log = append(s.log, store.Change{Revision: s.revision, Change: c})
	}
	if !s.quiet && !s.down {
		for _, wake := range s.listeners {
			wake()
		}
	}
}

// count is how often a method was asked since the last count of it.
func (s *script) count(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer delete(s.asked, method)
	return s.asked[method]
}

// answer asks the script: read is called with its lock held.
func answer[T any](ctx context.Context, s *script, method string, read func() (T, error)) (answer T, err error) {
	var zero T
	s.mu.Lock()
	s.asked[method]++
	down, hangs, fails, held := s.down, s.hanging[method], s.failing[method], s.held[method]
	var before, after time.Duration
	if s.pause != nil {
		before, after = s.pause(), s.pause()
	}
	s.mu.Unlock()
	switch {
	case down:
		return zero, errDown
	case hangs:
		<-ctx.Done()
		return zero, ctx.Err()
	case fails != nil:
		return zero, fails
	}
	if !pause(ctx, before) {
		return zero, ctx.Err()
	}
	s.mu.Lock()
	answer, err = read()
	s.mu.Unlock()
	if held != nil {
		held()
	}
	if !pause(ctx, after) {
		return zero, ctx.Err()
	}
	return answer, err
}

func find[K comparable, V any](in map[K]V, k K) (V, error) {
	v, ok := in[k]
	if !ok {
		return v, fmt.Errorf("no such row: %w", tenant.ErrNotFound)
	}
	return v, nil
}

func (s *script) KeyOf(ctx context.Context, d tenant.Digest) (tenant.Key, error) {
	return answer(ctx, s, "KeyOf", func() (tenant.Key, error) { return find(s.keys, d) })
}

func (s *script) Account(ctx context.Context, id tenant.AccountID) (store.Account, error) {
	return answer(ctx, s, "Account", func() (store.Account, error) { return find(s.accounts, id) })
}

func (s *script) Stream(ctx context.Context, account tenant.AccountID, name tenant.StreamName) (store.Stream, error) {
	return answer(ctx, s, "Stream", func() (store.Stream, error) { return find(s.streams, streamID{account, name}) })
}

// SigningKeys reads the keys from their text each time, as a store does.
func (s *script) SigningKeys(ctx context.Context) ([]tenant.SigningKey, error) {
	return answer(ctx, s, "SigningKeys", func() ([]tenant.SigningKey, error) {
		list := slices.Clone(s.signing)
		for i := range list {
			private := *list[i].Private
			list[i].Private = &private
		}
		return list, nil
	})
}

func (s *script) RotateSigningKeys(ctx context.Context, _ tenant.Rotation) (bool, error) {
	return answer(ctx, s, "RotateSigningKeys", func() (bool, error) {
		return s.rotate != nil && s.rotate(s), nil
	})
}

func (s *script) Cutoffs(ctx context.Context) ([]store.Cutoff, error) {
	return answer(ctx, s, "Cutoffs", func() ([]store.Cutoff, error) {
		return slices.Collect(maps.Values(s.cutoffs)), nil
	})
}

func (s *script) Revision(ctx context.Context) (int64, error) {
	return answer(ctx, s, "Revision", func() (int64, error) { return s.revision, nil })
}

func (s *script) Changes(ctx context.Context, after int64, limit int) (list []store.Change, whole bool, err error) {
	list, err = answer(ctx, s, "Changes", func() ([]store.Change, error) {
		whole = after >= s.forgotten && !s.torn
		var list []store.Change
		for _, c := range s.log {
			if c.Revision > after && c.Revision > s.forgotten && len(list) < limit {
				list = append(list, c)
			}
		}
		return list, nil
	})
	return list, whole, err
}

func (s *script) Notified(ctx context.Context, wake func()) error {
	s.mu.Lock()
	if s.down {
		s.mu.Unlock()
		return errDown
	}
	s.last++
	id := s.last
	s.listeners[id] = wake
	s.mu.Unlock()
	<-ctx.Done()
	s.set(func(s *script) { delete(s.listeners, id) })
	return ctx.Err()
}

func (s *script) UseKeys(ctx context.Context, lastUsed map[string]time.Time) error {
	_, err := answer(ctx, s, "UseKeys", func() (struct{}, error) {
		if s.wrote != nil {
			s.wrote(lastUsed)
		}
		maps.Copy(s.used, lastUsed)
		return struct{}{}, nil
	})
	return err
}

// rig is a replica over a script, in a bubble.
type rig struct {
	*Replica
	store *script
	t     *testing.T

	mu    sync.Mutex
	heard []tenant.Change
	lost  []error
	back  []time.Duration
}

// inBubble runs a test on a replica of a store with an account "acme", its stream "s"
// and its key "acme/a", whose secret is "a". edit is called before the replica begins.
func inBubble(t *testing.T, edit func(*script, *Options), test func(*testing.T, *rig)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		r := &rig{store: newScript(), t: t}
		r.store.accounts["acme"] = store.Account{ID: "acme", State: tenant.Active}
		r.store.keys[tenant.DigestOf("a")] = key("acme/a", "a")
		r.store.streams[streamID{"acme", "s"}] = stream("s")
		o := Options{Source: r.store, StaleFor: DefaultStaleFor, Defaults: tenant.DefaultLimits()}
		o.Events.Lost = func(cause error) { r.locked(func() { r.lost = append(r.lost, cause) }) }
		o.Events.Back = func(after time.Duration) { r.locked(func() { r.back = append(r.back, after) }) }
		if edit != nil {
			edit(r.store, &o)
		}
		r.Replica = New(t.Context(), o)
		defer func() { _ = r.Close() }()
		defer r.Watch(func(c tenant.Change) { r.locked(func() { r.heard = append(r.heard, c) }) })()
		r.pass(pollEvery / 2) // between two readings of the log
		test(t, r)
	})
}

func (r *rig) locked(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	do()
}

// told is what was told since the last call.
func (r *rig) told() []tenant.Change {
	r.mu.Lock()
	defer r.mu.Unlock()
	heard := r.heard
	r.heard = nil
	return heard
}

// pass lets time go by.
func (r *rig) pass(d time.Duration) {
	time.Sleep(d)
	bubble.Wait()
}

// settled lets what was notified come into force.
func (r *rig) settled() { r.pass(gather) }

// wantKey wants a secret's key to be found, or that error.
func (r *rig) wantKey(secret string, want error) *tenant.Key {
	r.t.Helper()
	k, err := r.Key(r.t.Context(), tenant.DigestOf(secret))
	if !errors.Is(err, want) || want == nil && err != nil {
		r.t.Errorf("key of %q: %v, %v, want %v", secret, k, err, want)
	}
	if errors.Is(err, tenant.ErrNotFound) && errors.Is(err, tenant.ErrUnavailable) {
		r.t.Errorf("key of %q: an error says both: %v", secret, err)
	}
	return k
}

// atOnce wants that do takes no time.
func (r *rig) atOnce(do func()) {
	r.t.Helper()
	begun := time.Now()
	do()
	if took := time.Since(begun); took != 0 {
		r.t.Errorf("it took %v", took)
	}
}

func key(id, secret string) tenant.Key {
	return tenant.Key{
		ID: id, Account: "acme", Digest: tenant.DigestOf(secret), Access: tenant.WriteAccess,
		Streams: tenant.AllStreams(), ActsAs: tenant.User,
	}
}

func stream(name tenant.StreamName) store.Stream {
	return store.Stream{Stream: tenant.Stream{Account: "acme", Name: name, Public: true}, State: store.Live}
}

func keyChanged(id string) tenant.Change {
	return tenant.Change{Kind: tenant.KeyChanged, KeyID: id, Account: "acme"}
}

func streamChanged(name tenant.StreamName) tenant.Change {
	return tenant.Change{Kind: tenant.StreamChanged, Account: "acme", Stream: name}
}

func accountChanged() tenant.Change {
	return tenant.Change{Kind: tenant.AccountChanged, Account: "acme"}
}

// addKey puts a key with its entry in the log.
func (s *script) addKey(id, secret string) {
	s.change(func(s *script) { s.keys[tenant.DigestOf(secret)] = key(id, secret) }, keyChanged(id))
}

// revoke marks all secrets of a key, and sets its cutoff.
func (s *script) revoke(id string) {
	s.change(func(s *script) {
		for d, k := range s.keys {
			if k.ID == id {
				k.RevokedAt = time.Now()
				s.keys[d] = k
			}
		}
		s.cutoffs[id] = store.Cutoff{KeyID: id, At: never(), Set: time.Now()}
	}, keyChanged(id))
}

func signingKey(t *testing.T) tenant.SigningKey {
	t.Helper()
	k, err := tenant.GenerateSigningKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}
