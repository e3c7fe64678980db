// Package memory is the directory of accounts, streams and keys that the
// operator's file declares, held in memory.
//
// It owns the look-ups of the request path, their whole replacement at a reload,
// and what a change means for credentials that live: cutoffs and announcements.
// It refuses to know where the declarations come from.
package memory

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"sluice/internal/store/watch"
	"sluice/internal/tenant"
)

// ErrDuplicate says that two declarations claim the same id, name or digest.
var ErrDuplicate = errors.New("declared twice")

// ErrForeign says that a key or stream names an account that is not declared.
var ErrForeign = errors.New("account is not declared")

// Content is everything that a directory knows. It is copied, not kept.
type Content struct {
	Accounts []tenant.Account
	Streams  []tenant.Stream
	Keys     []tenant.Key
	// SigningKeys sign our own tokens. None: the directory makes one and rotates
	// it, and tokens end with the process.
	SigningKeys []tenant.SigningKey
}

// Options are what a Directory needs.
type Options struct {
	Content Content
	Now     func() time.Time // nil = time.Now
	Random  io.Reader        // for signing keys; nil = crypto/rand.Reader
}

type streamID struct {
	account tenant.AccountID
	name    tenant.StreamName
}

// snapshot is one whole state; it never changes once it is published.
type snapshot struct {
	accounts map[tenant.AccountID]*tenant.Account
	streams  map[streamID]*tenant.Stream
	keys     map[tenant.Digest]*tenant.Key
	good     map[string]bool // ids of keys that are not revoked
	cutoffs  map[string]cutoff
	signing  []tenant.SigningKey // those declared, then made
	made     []tenant.SigningKey // the directory's own
}

// Directory implements tenant.Directory over a snapshot that each change swaps
// whole, so that a request never sees half of one. Its look-ups take no lock, do
// not allocate and never fail but with tenant.ErrNotFound. Changes cost a copy
// of what they touch.
type Directory struct {
	now      func() time.Time
	random   io.Reader
	current  atomic.Pointer[snapshot]
	changing sync.Mutex // held over a change, not over its announcement
	watchers watch.List
}

var _ tenant.Directory = (*Directory)(nil)

// New makes a directory of c with the system's clock and randomness. The error
// wraps ErrDuplicate or ErrForeign.
func New(c Content) (*Directory, error) { return Open(Options{Content: c}) }

// Open makes a directory. The error wraps ErrDuplicate or ErrForeign, or is that
// of the randomness.
func Open(o Options) (*Directory, error) {
	d := &Directory{now: o.Now, random: o.Random}
	if d.now == nil {
		d.now = time.Now
	}
	if d.random == nil {
		d.random = rand.Reader
	}
	d.current.Store(&snapshot{})
	if err := d.Replace(o.Content); err != nil {
		return nil, err
	}
	return d, nil
}

// read makes a snapshot of c, without what outlives a replacement.
func read(c Content) (*snapshot, error) {
	s := &snapshot{
		accounts: make(map[tenant.AccountID]*tenant.Account, len(c.Accounts)),
		streams:  make(map[streamID]*tenant.Stream, len(c.Streams)),
		keys:     make(map[tenant.Digest]*tenant.Key, len(c.Keys)),
	}
	for _, a := range c.Accounts {
		if s.accounts[a.ID] != nil {
			return nil, fmt.Errorf("account %s: %w", a.ID, ErrDuplicate)
		}
		s.accounts[a.ID] = &a
	}
	for _, st := range c.Streams {
		id := streamID{st.Account, st.Name}
		if s.accounts[st.Account] == nil {
			return nil, fmt.Errorf("stream %s of %s: %w", st.Name, st.Account, ErrForeign)
		}
		if s.streams[id] != nil {
			return nil, fmt.Errorf("stream %s of %s: %w", st.Name, st.Account, ErrDuplicate)
		}
		s.streams[id] = &st
	}
	owners := make(map[string]tenant.AccountID, len(c.Keys))
	for _, k := range c.Keys {
		if s.accounts[k.Account] == nil {
			return nil, fmt.Errorf("key %s: %w", k.ID, ErrForeign)
		}
		if s.keys[k.Digest] != nil {
			return nil, fmt.Errorf("key %s: its digest: %w", k.ID, ErrDuplicate)
		}
		// One key may have two digests, as while its secret is replaced.
		if owner, ok := owners[k.ID]; ok && owner != k.Account {
			return nil, fmt.Errorf("key %s: its id: %w", k.ID, ErrDuplicate)
		}
		owners[k.ID] = k.Account
		s.keys[k.Digest] = &k
	}
	s.good = goodIDs(s.keys)
	return s, nil
}

// Key implements tenant.Directory.
func (d *Directory) Key(_ context.Context, digest tenant.Digest) (*tenant.Key, error) {
	if k := d.current.Load().keys[digest]; k != nil {
		return k, nil
	}
	return nil, tenant.ErrNotFound
}

// Account implements tenant.Directory.
func (d *Directory) Account(_ context.Context, id tenant.AccountID) (*tenant.Account, error) {
	if a := d.current.Load().accounts[id]; a != nil {
		return a, nil
	}
	return nil, tenant.ErrNotFound
}

// Stream implements tenant.Directory.
func (d *Directory) Stream(_ context.Context, account tenant.AccountID, name tenant.StreamName) (*tenant.Stream, error) {
	if s := d.current.Load().streams[streamID{account, name}]; s != nil {
		return s, nil
	}
	return nil, tenant.ErrNotFound
}

// Cutoff implements tenant.Directory.
func (d *Directory) Cutoff(keyID string) time.Time {
	return d.current.Load().cutoff(keyID)
}

// SigningKeys implements tenant.Directory.
func (d *Directory) SigningKeys(context.Context) ([]tenant.SigningKey, error) {
	return d.current.Load().signing, nil
}

// Watch implements tenant.Directory. changed may change the directory itself.
func (d *Directory) Watch(changed func(tenant.Change)) (stop func()) {
	return d.watchers.Add(changed)
}

// Streams lists all declared streams, in no order.
func (d *Directory) Streams() []tenant.Stream {
	s := d.current.Load()
	list := make([]tenant.Stream, 0, len(s.streams))
	for _, st := range s.streams {
		list = append(list, *st)
	}
	return list
}
