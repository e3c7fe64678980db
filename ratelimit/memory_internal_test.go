package ratelimit

import "testing"

// L14: what is kept of a tail must go with it; an entry left for every account
// that ever had one open grows for ever.
func TestMemoryKeepsNothingOfClosedTails(t *testing.T) {
	m := NewMemory(MemoryOptions{})
	for _, account := range []string{"acme", "beta", "gamma"} {
		first, err := m.Acquire(t.Context(), Subject{Account: account}, 2)
		if err != nil {
			t.Fatalf("Acquire: %v", err)
		}
		second, err := m.Acquire(t.Context(), Subject{Account: account}, 2)
		if err != nil {
			t.Fatalf("Acquire: %v", err)
		}
		first.Release()
		if got := keptTails(m); got != 1 {
			t.Errorf("%d entries while one account has a tail open, want 1", got)
		}
		second.Release()
		// A refused tail is none either.
		if _, err := m.Acquire(t.Context(), Subject{Account: account}, 0); err == nil {
			t.Error("a closed account has a tail")
		}
		if got := keptTails(m); got != 0 {
			t.Errorf("%d entries with no tail open, want 0", got)
		}
	}
}

func keptTails(m *Memory) int {
	n := 0
	for i := range m.shards {
		n += len(m.shards[i].tails)
	}
	return n
}
