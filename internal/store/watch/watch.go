// Package watch tells those who want to hear of changes in a directory, for every
// implementation of tenant.Directory alike.
//
// It owns who is told and in what form; it refuses to know what changed, and when that
// is in force.
package watch

import (
	"sync"

	"sluice/internal/tenant"
)

// MaxTold is how many changes are told one by one; more become tenant.Everything.
const MaxTold = 256

// List is who wants to hear of changes. The zero value is ready; its methods are safe
// for concurrent use.
type List struct {
	mu   sync.Mutex
	last int
	all  map[int]func(tenant.Change)
}

// Add is tenant.Directory's Watch.
func (l *List) Add(changed func(tenant.Change)) (stop func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	id := l.last
	if l.all == nil {
		l.all = make(map[int]func(tenant.Change))
	}
	l.all[id] = changed
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.all, id)
	}
}

// Tell tells everyone, in no order among them. The changes are in force already. A
// callback may add, stop, and tell more itself.
func (l *List) Tell(changes []tenant.Change) {
	if len(changes) > MaxTold {
		changes = []tenant.Change{{Kind: tenant.Everything}}
	}
	l.mu.Lock()
	all := make([]func(tenant.Change), 0, len(l.all))
	for _, changed := range l.all {
		all = append(all, changed)
	}
	l.mu.Unlock()
	for _, changed := range all {
		for _, c := range changes {
			changed(c)
		}
	}
}
