package auth

import (
	"crypto/sha256"
	"sync/atomic"

	lru "github.com/hashicorp/golang-lru/v2"
)

// DefaultTokenCache is how many verified tokens are remembered.
const DefaultTokenCache = 16384

// TokenStats is the state of the memory of verified tokens, for metrics.
type TokenStats struct {
	Entries, Capacity int
	Hits, Misses      uint64 // since the Authenticator was made
}

// tokenCache remembers verified tokens by their SHA-256, never the tokens, the
// least recently used ones going first. What was refused is not remembered: it
// may be good later, and would let strangers fill the memory (A13).
type tokenCache struct {
	capacity     int
	list         *lru.Cache[[sha256.Size]byte, *Principal]
	hits, misses atomic.Uint64
}

func newTokenCache(capacity int) *tokenCache {
	if capacity <= 0 {
		capacity = DefaultTokenCache
	}
	list, err := lru.New[[sha256.Size]byte, *Principal](capacity)
	if err != nil {
		panic(err) // only of a capacity below 1
	}
	return &tokenCache{capacity: capacity, list: list}
}

func (c *tokenCache) get(sum [sha256.Size]byte) *Principal {
	p, ok := c.list.Get(sum)
	if !ok {
		c.misses.Add(1)
		return nil
	}
	c.hits.Add(1)
	return p
}

func (c *tokenCache) add(sum [sha256.Size]byte, p *Principal) { c.list.Add(sum, p) }

func (c *tokenCache) remove(sum [sha256.Size]byte) { c.list.Remove(sum) }

// TokenStats tells how many tokens are remembered, and how often that helped.
func (a *Authenticator) TokenStats() TokenStats {
	return TokenStats{
		Entries: a.tokens.list.Len(), Capacity: a.tokens.capacity,
		Hits: a.tokens.hits.Load(), Misses: a.tokens.misses.Load(),
	}
}
