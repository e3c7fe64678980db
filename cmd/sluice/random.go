package main

import (
	"bufio"
	"io"
	"sync"
)

// buffered is a source of randomness that is read in pieces: one question to the
// kernel for hundreds of request ids. It is safe for concurrent use. What it
// gives is as good as what it reads, but waits in memory; secrets do not come
// from it.
type buffered struct {
	mu sync.Mutex
	in *bufio.Reader
}

func newBuffered(random io.Reader) *buffered {
	return &buffered{in: bufio.NewReaderSize(random, 4<<10)}
}

// Read implements io.Reader. It fills p, or fails as the source does.
func (b *buffered) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return io.ReadFull(b.in, p)
}
