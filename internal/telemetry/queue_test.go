package telemetry

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"time"

	"sluice/internal/bubble"
)

// stuck blocks until it is let go, and fails while it is broken.
type stuck struct {
	mu     sync.Mutex
	b      bytes.Buffer
	gate   chan struct{}
	broken bool
}

func (s *stuck) Write(p []byte) (int, error) {
	<-s.gate
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken {
		return 0, errors.New("no space left on device")
	}
	return s.b.Write(p)
}

func TestQueueWritesInOrder(t *testing.T) {
	w := &stuck{gate: make(chan struct{})}
	close(w.gate)
	q := NewQueue(w)
	line := []byte("a\n")
	for _, c := range []byte("abc") {
		line[0] = c // a caller uses its buffer again
		if n, err := q.Write(line); n != 2 || err != nil {
			t.Fatalf("Write: %d, %v", n, err)
		}
	}
	q.Close()
	q.Close()
	if got := w.b.String(); got != "a\nb\nc\n" || q.Dropped() != 0 {
		t.Errorf("wrote %q, dropped %d", got, q.Dropped())
	}
}

// A log pipe whose reader had stopped reading froze the gateway for ever: every
// request waited for its line under the logger's lock.
func TestQueueNeverBlocks(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := &stuck{gate: make(chan struct{})}
		q := NewQueue(w)
		long := make([]byte, 4<<10)
		for range 3 * queueBytes / len(long) {
			_, _ = q.Write(long)
		}
		for range 3 * queueLines {
			_, _ = q.Write([]byte("x"))
		}
		if q.Dropped() == 0 {
			t.Error("nothing was dropped: what waits has no bound")
		}
		if n := q.waiting.Load(); n > queueBytes {
			t.Errorf("%d bytes wait, the bound is %d", n, queueBytes)
		}
		started := time.Now()
		q.Close()
		if took := time.Since(started); took != flushTime {
			t.Errorf("Close took %v with a writer that blocks, want %v", took, flushTime)
		}
		close(w.gate)
		<-q.done
		// A writer that fails costs its line, and the next one is tried.
		q = NewQueue(w)
		w.broken = true
		_, _ = q.Write([]byte("lost"))
		q.Close()
		if q.Dropped() != 1 {
			t.Errorf("dropped %d, want 1", q.Dropped())
		}
	})
}
