package memory

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"sluice/internal/tenant"
)

// Replace puts c in the place of everything known, in one step. Keys that are
// gone, revoked or grant less than before get a cutoff, and every difference
// that can end an open tail is announced once it is in force. What was
// remembered of earlier changes stays. On an error, which wraps ErrDuplicate or
// ErrForeign or is that of the randomness, the old content stays.
//
// A declared signing key that is left out is void at once, as after a leak; one
// that the directory made itself goes on to verify for tenant.CutoffKept.
func (d *Directory) Replace(c Content) error {
	p, err := Prepare(c)
	if err != nil {
		return err
	}
	return d.Put(p)
}

// Prepared is a content that can be put in force. It is used once.
type Prepared struct {
	next    *snapshot
	signing []tenant.SigningKey
}

// Prepare reads c and changes nothing: the part of Replace that may find a fault in
// it. The error wraps ErrDuplicate or ErrForeign.
func Prepare(c Content) (*Prepared, error) {
	next, err := read(c)
	if err != nil {
		return nil, err
	}
	return &Prepared{next: next, signing: c.SigningKeys}, nil
}

// Put is the rest of Replace. The error is that of the randomness.
func (d *Directory) Put(p *Prepared) error {
	return d.change(func(prev *snapshot, now time.Time) (*snapshot, error) {
		return p.next, d.setSigning(p.next, prev, p.signing, now)
	})
}

// RevokeKey revokes the key of that id, whatever digests it has, now. It is no
// error where it is revoked already. The error is tenant.ErrNotFound.
func (d *Directory) RevokeKey(id string) error {
	return d.change(func(prev *snapshot, now time.Time) (*snapshot, error) {
		next := *prev
		next.keys = maps.Clone(prev.keys)
		found := false
		for digest, k := range prev.keys {
			if k.ID != id {
				continue
			}
			found = true
			if k.RevokedAt.IsZero() {
				revoked := *k
				revoked.RevokedAt = now
				next.keys[digest] = &revoked
			}
		}
		if !found {
			return nil, fmt.Errorf("key: %w", tenant.ErrNotFound)
		}
		next.good = goodIDs(next.keys)
		return &next, nil
	})
}

// SetAccountState changes the state of an account. The error is
// tenant.ErrNotFound.
func (d *Directory) SetAccountState(id tenant.AccountID, state tenant.State) error {
	return d.change(func(prev *snapshot, _ time.Time) (*snapshot, error) {
		old := prev.accounts[id]
		if old == nil {
			return nil, fmt.Errorf("account: %w", tenant.ErrNotFound)
		}
		next, account := *prev, *old
		account.State = state
		next.accounts = maps.Clone(prev.accounts)
		next.accounts[id] = &account
		return &next, nil
	})
}

// SetPublic makes a stream public or private. The error is tenant.ErrNotFound.
func (d *Directory) SetPublic(account tenant.AccountID, name tenant.StreamName, public bool) error {
	return d.change(func(prev *snapshot, _ time.Time) (*snapshot, error) {
		id := streamID{account, name}
		old := prev.streams[id]
		if old == nil {
			return nil, fmt.Errorf("stream: %w", tenant.ErrNotFound)
		}
		next, stream := *prev, *old
		stream.Public = public
		next.streams = maps.Clone(prev.streams)
		next.streams[id] = &stream
		return &next, nil
	})
}

// change puts what follows from the present state in force, one change at a
// time, and announces the differences. follow returns another snapshot than
// prev.
func (d *Directory) change(follow func(prev *snapshot, now time.Time) (*snapshot, error)) error {
	changes, err := d.swap(follow)
	if err != nil {
		return err
	}
	d.watchers.Tell(changes)
	return nil
}

func (d *Directory) swap(follow func(prev *snapshot, now time.Time) (*snapshot, error)) ([]tenant.Change, error) {
	d.changing.Lock()
	defer d.changing.Unlock()
	prev, now := d.current.Load(), d.now()
	next, err := follow(prev, now)
	if err != nil {
		return nil, err
	}
	changes, lost := differences(prev, next)
	// Rights and cutoffs are in one snapshot: nobody can see the lesser rights
	// without the cutoff, or sign a token for the old ones behind it.
	next.setCutoffs(prev, lost, now)
	d.current.Store(next)
	return changes, nil
}

// differences lists what next takes away from prev, and the keys that lost
// rights.
func differences(prev, next *snapshot) ([]tenant.Change, map[string]tenant.AccountID) {
	var changes []tenant.Change
	for id, a := range prev.accounts {
		if b := next.accounts[id]; b == nil || b.State != a.State {
			changes = append(changes, tenant.Change{Kind: tenant.AccountChanged, Account: id})
		}
	}
	lost := make(map[string]tenant.AccountID)
	for digest, k := range prev.keys {
		if lessThan(next.keys[digest], k) {
			lost[k.ID] = k.Account
		}
	}
	for id, account := range lost {
		changes = append(changes, tenant.Change{Kind: tenant.KeyChanged, KeyID: id, Account: account})
	}
	for id, s := range prev.streams {
		if t := next.streams[id]; t == nil || s.Public && !t.Public {
			changes = append(changes, tenant.Change{Kind: tenant.StreamChanged, Account: id.account, Stream: id.name})
		}
	}
	same := func(a, b tenant.SigningKey) bool { return a == b }
	if !slices.EqualFunc(prev.signing, next.signing, same) && prev.signing != nil {
		changes = append(changes, tenant.Change{Kind: tenant.SigningKeysChanged})
	}
	return changes, lost
}

// lessThan reports whether k, which has old's digest or is nil, grants less than
// old did.
func lessThan(k, old *tenant.Key) bool {
	if k == nil {
		return old.RevokedAt.IsZero()
	}
	return k.GrantsLess(*old)
}
