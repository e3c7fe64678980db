package upstream

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// wireBuffer is what one direction of a wire holds, as the buffers of a kernel do.
const wireBuffer = 24 << 10

// flow is one direction of a wire.
type flow struct {
	mu     sync.Mutex
	more   *sync.Cond
	data   []byte
	ended  bool // by the writer
	left   bool // by the reader
	broken bool // reset: what was not read is lost
	fooled bool // the writer has written once to a reader that had left
	// when the reader's and the writer's time is over; zero = never.
	readBy, writeBy time.Time
	timers          [2]*time.Timer
}

// late reports whether a deadline has passed; f.mu is held.
func late(by time.Time) bool { return !by.IsZero() && !time.Now().Before(by) }

// setBy sets one of the deadlines and wakes who waits when it passes.
func (f *flow) setBy(which int, by time.Time) {
	f.mark(func(f *flow) {
		*[...]*time.Time{&f.readBy, &f.writeBy}[which] = by
		if f.timers[which] != nil {
			f.timers[which].Stop()
		}
		if left := time.Until(by); !by.IsZero() && left > 0 {
			f.timers[which] = time.AfterFunc(left, func() { f.mark(func(*flow) {}) })
		}
	})
}

func newFlow() *flow {
	f := &flow{}
	f.more = sync.NewCond(&f.mu)
	return f
}

// wireEnd is one end of a connection in memory that behaves as TCP does: what is
// written is gone whether it is read or not, and the first bytes for a reader
// that has left are taken without an error.
type wireEnd struct {
	in, out *flow
}

func newWire() (near, far net.Conn) {
	a, b := newFlow(), newFlow()
	return &wireEnd{in: a, out: b}, &wireEnd{in: b, out: a}
}

// Read implements net.Conn.
func (w *wireEnd) Read(p []byte) (int, error) {
	f := w.in
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		switch {
		case f.left:
			return 0, net.ErrClosed
		case late(f.readBy):
			return 0, os.ErrDeadlineExceeded
		case f.broken:
			return 0, syscall.ECONNRESET
		case len(f.data) > 0:
			n := copy(p, f.data)
			f.data = f.data[n:]
			f.more.Broadcast()
			return n, nil
		case f.ended:
			return 0, io.EOF
		}
		f.more.Wait()
	}
}

// Write implements net.Conn.
func (w *wireEnd) Write(p []byte) (n int, err error) {
	f := w.out
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(p) > 0 {
		switch room := wireBuffer - len(f.data); {
		case f.ended:
			return n, net.ErrClosed
		case late(f.writeBy):
			return n, os.ErrDeadlineExceeded
		case f.broken || f.left && f.fooled:
			return n, syscall.EPIPE
		case f.left:
			f.fooled = true
			return n + len(p), nil
		case room > 0:
			k := min(room, len(p))
			f.data = append(f.data, p[:k]...)
			n, p = n+k, p[k:]
			f.more.Broadcast()
		default:
			f.more.Wait()
		}
	}
	return n, nil
}

// Close implements net.Conn. What was written is still read by the other end.
func (w *wireEnd) Close() error {
	w.out.mark(func(f *flow) { f.ended = true })
	w.in.mark(func(f *flow) { f.left = true })
	return nil
}

// reset breaks both directions; what is under way is lost.
func (w *wireEnd) reset() {
	w.in.mark(func(f *flow) { f.broken = true })
	w.out.mark(func(f *flow) { f.broken = true })
}

func (f *flow) mark(how func(*flow)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	how(f)
	f.more.Broadcast()
}

func (w *wireEnd) LocalAddr() net.Addr  { return &net.TCPAddr{} }
func (w *wireEnd) RemoteAddr() net.Addr { return &net.TCPAddr{} }

// SetDeadline implements net.Conn.
func (w *wireEnd) SetDeadline(by time.Time) error {
	w.in.setBy(0, by)
	w.out.setBy(1, by)
	return nil
}

// SetReadDeadline implements net.Conn.
func (w *wireEnd) SetReadDeadline(by time.Time) error {
	w.in.setBy(0, by)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (w *wireEnd) SetWriteDeadline(by time.Time) error {
	w.out.setBy(1, by)
	return nil
}

var _ net.Conn = (*wireEnd)(nil)
