package memory

import (
	"sync"

	"sluice/internal/tenant"
)

// maxTold is how many changes are announced one by one; more become Everything.
const maxTold = 256

// watchers are those who want to hear of changes. The zero value is ready.
type watchers struct {
	mu   sync.Mutex
	last int
	list map[int]func(tenant.Change)
}

func (w *watchers) add(changed func(tenant.Change)) (stop func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last++
	id := w.last
	if w.list == nil {
		w.list = make(map[int]func(tenant.Change))
	}
	w.list[id] = changed
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.list, id)
	}
}

// announce tells everyone, in no order among them.
func (w *watchers) announce(changes []tenant.Change) {
	if len(changes) > maxTold {
		changes = []tenant.Change{{Kind: tenant.Everything}}
	}
	w.mu.Lock()
	list := make([]func(tenant.Change), 0, len(w.list))
	for _, changed := range w.list {
		list = append(list, changed)
	}
	w.mu.Unlock()
	for _, changed := range list {
		for _, c := range changes {
			changed(c)
		}
	}
}
