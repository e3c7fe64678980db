// Package syncbuf is what tests have written into from several goroutines. It owns
// that one buffer, and refuses to know what is written.
package syncbuf

import (
	"bytes"
	"sync"
)

// Buffer is a [bytes.Buffer] for several goroutines. The zero value is empty.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String is what was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
