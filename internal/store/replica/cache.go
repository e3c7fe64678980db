package replica

import (
	"slices"
	"sync"
	"sync/atomic"
)

// cache keeps at most max things; those not used for long go first. Reading takes no
// lock and allocates nothing, which is why this is no LRU list: every read of a list
// writes to it. Instead a read marks what it reads, and whatever a hand that goes round
// finds unmarked has to go (the second chance, or clock, algorithm).
//
// get may be called at any time; the other methods only by whoever holds the lock of the
// cache's owner.
type cache[K comparable, V any] struct {
	max     int
	entries sync.Map // K → *entry[K, V]
	size    atomic.Int64

	ring []*entry[K, V] // nil where a slot is free
	hand int
	free []int // slots of the ring

	// group names what several keys have in common, so that they can be dropped by it;
	// nil = nothing.
	group  func(V) string
	groups map[string][]K
}

type entry[K comparable, V any] struct {
	key   K
	value V
	slot  int
	used  atomic.Bool // since the hand passed
}

func (c *cache[K, V]) get(k K) (value V, ok bool) {
	found, ok := c.entries.Load(k)
	if !ok {
		return value, false
	}
	e, ok := found.(*entry[K, V])
	if !ok {
		return value, false
	}
	// Written only where it changes something: the hot entries of all processors would
	// be one another's otherwise.
	if !e.used.Load() {
		e.used.Store(true)
	}
	return e.value, true
}

func (c *cache[K, V]) put(k K, v V) {
	c.remove(k)
	e := &entry[K, V]{key: k, value: v, slot: c.slot()}
	c.ring[e.slot] = e
	c.entries.Store(k, e)
	c.size.Add(1)
	if c.group != nil {
		if c.groups == nil {
			c.groups = make(map[string][]K)
		}
		g := c.group(v)
		c.groups[g] = append(c.groups[g], k)
	}
}

// slot is a free one, where something has to go for it if need be.
func (c *cache[K, V]) slot() int {
	if len(c.free) == 0 && len(c.ring) < c.max {
		c.ring = append(c.ring, nil)
		return len(c.ring) - 1
	}
	// It ends within two rounds: the first takes every mark.
	for len(c.free) == 0 {
		e := c.ring[c.hand]
		c.hand = (c.hand + 1) % len(c.ring)
		if !e.used.Swap(false) {
			c.remove(e.key)
		}
	}
	last := len(c.free) - 1
	slot := c.free[last]
	c.free = c.free[:last]
	return slot
}

// remove reports whether it was there.
func (c *cache[K, V]) remove(k K) bool {
	found, ok := c.entries.LoadAndDelete(k)
	if !ok {
		return false
	}
	e, ok := found.(*entry[K, V])
	if !ok {
		return false
	}
	c.ring[e.slot] = nil
	c.free = append(c.free, e.slot)
	c.size.Add(-1)
	if c.group == nil {
		return true
	}
	g := c.group(e.value)
	if left := without(c.groups[g], k); len(left) > 0 {
		c.groups[g] = left
	} else {
		delete(c.groups, g)
	}
	return true
}

// grouped are the keys of a group.
func (c *cache[K, V]) grouped(g string) []K { return slices.Clone(c.groups[g]) }

func (c *cache[K, V]) clear() {
	c.entries.Clear()
	c.size.Store(0)
	c.ring, c.free, c.hand = nil, nil, 0
	clear(c.groups)
}

// without is list less k. A group has one key or two, but for moments.
func without[K comparable](list []K, k K) []K {
	for i, have := range list {
		if have == k {
			return append(list[:i], list[i+1:]...)
		}
	}
	return list
}
