// Package memory is the directory of accounts, streams and keys that the
// operator's file declares, held in memory.
//
// It owns the look-ups of the request path and their whole replacement at a
// reload. It refuses to know where the declarations come from.
package memory

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

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
}

// Directory implements tenant.Directory over a snapshot that Replace swaps
// whole, so that a request never sees half of a change. Its look-ups take no
// lock, do not allocate and never fail but with tenant.ErrNotFound.
type Directory struct{ current atomic.Pointer[snapshot] }

var _ tenant.Directory = (*Directory)(nil)

// New makes a directory of c. The error wraps ErrDuplicate or ErrForeign.
func New(c Content) (*Directory, error) {
	d := &Directory{}
	if err := d.Replace(c); err != nil {
		return nil, err
	}
	return d, nil
}

// Replace puts c in the place of everything known. On an error, which wraps
// ErrDuplicate or ErrForeign, the old content stays.
func (d *Directory) Replace(c Content) error {
	s := &snapshot{
		accounts: make(map[tenant.AccountID]*tenant.Account, len(c.Accounts)),
		streams:  make(map[streamID]*tenant.Stream, len(c.Streams)),
		keys:     make(map[tenant.Digest]*tenant.Key, len(c.Keys)),
	}
	for _, a := range c.Accounts {
		if s.accounts[a.ID] != nil {
			return fmt.Errorf("account %s: %w", a.ID, ErrDuplicate)
		}
		s.accounts[a.ID] = &a
	}
	for _, st := range c.Streams {
		id := streamID{st.Account, st.Name}
		if s.accounts[st.Account] == nil {
			return fmt.Errorf("stream %s of %s: %w", st.Name, st.Account, ErrForeign)
		}
		if s.streams[id] != nil {
			return fmt.Errorf("stream %s of %s: %w", st.Name, st.Account, ErrDuplicate)
		}
		s.streams[id] = &st
	}
	for _, k := range c.Keys {
		if s.accounts[k.Account] == nil {
			return fmt.Errorf("key %s: %w", k.ID, ErrForeign)
		}
		if s.keys[k.Digest] != nil {
			return fmt.Errorf("key %s: its digest: %w", k.ID, ErrDuplicate)
		}
		s.keys[k.Digest] = &k
	}
	d.current.Store(s)
	return nil
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

// Streams lists all declared streams, in no order.
func (d *Directory) Streams() []tenant.Stream {
	s := d.current.Load()
	list := make([]tenant.Stream, 0, len(s.streams))
	for _, st := range s.streams {
		list = append(list, *st)
	}
	return list
}
