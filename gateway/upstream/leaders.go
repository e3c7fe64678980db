package upstream

import (
	"strconv"
	"sync"
)

// maxLeaders bounds the leader cache; at the bound it is emptied (facts §4.2).
const maxLeaders = 16384

// leaders remembers which node last answered for a key after a redirect.
type leaders struct {
	mu    sync.RWMutex
	byKey map[string]*node
}

func (l *leaders) get(key string) *node {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.byKey[key]
}

func (l *leaders) learn(key string, n *node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byKey == nil || len(l.byKey) >= maxLeaders {
		l.byKey = make(map[string]*node)
	}
	l.byKey[key] = n
}

// drop forgets key if it still leads to n.
func (l *leaders) drop(key string, n *node) {
	if l.get(key) != n {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byKey[key] == n {
		delete(l.byKey, key)
	}
}

// keep forgets every route to a node that is not among nodes.
func (l *leaders) keep(nodes []*node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, n := range l.byKey {
		if !contains(nodes, n) {
			delete(l.byKey, key)
		}
	}
}

// groupKeys maps streams to their Raft groups' keys, so that one redirect
// teaches the leader of all streams of a group (facts §2, L25).
type groupKeys []string

func newGroupKeys(count int) groupKeys {
	keys := make(groupKeys, max(count, 0))
	for i := range keys {
		keys[i] = strconv.Itoa(i)
	}
	return keys
}

// of is the key of a stream's path, "/bucket/stream": its group's where the
// number of groups is known, else its own.
func (g groupKeys) of(path string) string {
	if len(g) == 0 || path == "" {
		return path
	}
	// FNV-1a-64 over bucket, '/' and stream, as the nodes hash.
	hash := uint64(0xcbf29ce484222325)
	for i := 1; i < len(path); i++ {
		hash = (hash ^ uint64(path[i])) * 0x100000001b3
	}
	return g[hash%uint64(len(g))]
}
