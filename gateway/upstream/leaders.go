package upstream

import "sync"

// maxLeaders bounds the leader cache; at the bound it is emptied (facts §4.2).
const maxLeaders = 16384

// leaders remembers which node last answered for a stream after a redirect.
type leaders struct {
	mu     sync.Mutex
	byPath map[string]*node
}

func (l *leaders) get(key string) *node {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byPath[key]
}

func (l *leaders) learn(key string, n *node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byPath == nil || len(l.byPath) >= maxLeaders {
		l.byPath = make(map[string]*node)
	}
	l.byPath[key] = n
}

// drop forgets key if it still leads to n.
func (l *leaders) drop(key string, n *node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byPath[key] == n {
		delete(l.byPath, key)
	}
}

// keep forgets every route to a node that is not among nodes.
func (l *leaders) keep(nodes []*node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, n := range l.byPath {
		if !contains(nodes, n) {
			delete(l.byPath, key)
		}
	}
}
