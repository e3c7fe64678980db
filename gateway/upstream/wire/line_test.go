package wire

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
)

// flow is one direction of a line.
type flow struct {
	mu       sync.Mutex
	more     *sync.Cond
	segments [][]byte // a Read returns bytes of one at a time
	size     int
	room     int  // bytes that are taken before a Write waits
	lives    int  // bytes that are taken before the connection is reset; negative = no end
	ended    bool // by the writer
	left     bool // by the reader
	broken   bool // reset
	readBy   time.Time
	writeBy  time.Time
	timers   [2]*time.Timer
}

func newFlow(room int) *flow {
	f := &flow{room: room, lives: -1}
	f.more = sync.NewCond(&f.mu)
	return f
}

// line is one end of a connection in memory that behaves as Linux has TCP behave:
// what is written is taken whether it is read or not; what came before a reset can
// still be read; the first bytes for a reader that has left are taken, and then the
// connection is reset; an operation whose time is over fails before it looks.
type line struct {
	in, out *flow
	before  func() // called once before the next Write; nil = nothing
	mu      sync.Mutex
	shut    bool
}

// lineRoom is what a direction holds, as the buffers of a kernel do.
const lineRoom = 64 << 10

// tooLarge is a body that a line does not hold.
const tooLarge = 5 * lineRoom

func newLine() (near, far *line) {
	a, b := newFlow(lineRoom), newFlow(lineRoom)
	return &line{in: a, out: b}, &line{in: b, out: a}
}

func late(by time.Time) bool { return !by.IsZero() && !time.Now().Before(by) }

func (f *flow) mark(how func(*flow)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	how(f)
	f.more.Broadcast()
}

// Read implements net.Conn.
func (l *line) Read(p []byte) (int, error) {
	f := l.in
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		switch {
		case f.left:
			return 0, net.ErrClosed
		case late(f.readBy):
			return 0, os.ErrDeadlineExceeded
		case len(f.segments) > 0:
			n := copy(p, f.segments[0])
			if f.segments[0] = f.segments[0][n:]; len(f.segments[0]) == 0 {
				f.segments = f.segments[1:]
			}
			f.size -= n
			f.more.Broadcast()
			return n, nil
		case f.broken:
			return 0, syscall.ECONNRESET
		case f.ended:
			return 0, io.EOF
		}
		f.more.Wait()
	}
}

// Write implements net.Conn.
func (l *line) Write(p []byte) (n int, err error) {
	l.mu.Lock()
	before := l.before
	l.before = nil
	l.mu.Unlock()
	if before != nil {
		before()
	}
	f := l.out
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(p) > 0 {
		switch {
		case f.ended:
			return n, net.ErrClosed
		case late(f.writeBy):
			return n, os.ErrDeadlineExceeded
		case f.broken:
			return n, syscall.EPIPE
		case f.left:
			f.broken = true
			l.in.mark(func(f *flow) { f.broken = true })
			return n + len(p), nil
		case f.size >= f.room:
			f.more.Wait()
			continue
		}
		k := min(len(p), f.room-f.size)
		if f.lives >= 0 {
			k = min(k, f.lives)
			f.lives -= k
		}
		if k > 0 {
			f.segments = append(f.segments, append([]byte(nil), p[:k]...))
		}
		f.size, n, p = f.size+k, n+k, p[k:]
		if f.lives == 0 {
			f.broken = true
			l.in.mark(func(f *flow) { f.broken = true })
		}
		f.more.Broadcast()
	}
	return n, nil
}

// Close implements net.Conn. What was written is still read by the other end.
func (l *line) Close() error {
	l.mu.Lock()
	l.shut = true
	l.mu.Unlock()
	l.out.mark(func(f *flow) { f.ended = true; f.stop(1) })
	l.in.mark(func(f *flow) { f.left = true; f.stop(0) })
	return nil
}

// endWriting is what shutdown does with one half of a connection.
func (l *line) endWriting() { l.out.mark(func(f *flow) { f.ended = true }) }

// reset breaks both directions.
func (l *line) reset() {
	l.in.mark(func(f *flow) { f.broken = true })
	l.out.mark(func(f *flow) { f.broken = true })
}

// isClosed reports whether this end was closed.
func (l *line) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shut
}

// deadlines are what reading and writing are bound by now; zero = nothing.
func (l *line) deadlines() (read, write time.Time) {
	l.in.mark(func(f *flow) { read = f.readBy })
	l.out.mark(func(f *flow) { write = f.writeBy })
	return read, write
}

func (f *flow) stop(which int) {
	if f.timers[which] != nil {
		f.timers[which].Stop()
		f.timers[which] = nil
	}
}

// setBy sets a deadline and wakes who waits when it passes.
func (f *flow) setBy(which int, by time.Time) error {
	err := error(nil)
	f.mark(func(f *flow) {
		if which == 0 && f.left || which == 1 && f.ended {
			err = net.ErrClosed
			return
		}
		*[...]*time.Time{&f.readBy, &f.writeBy}[which] = by
		f.stop(which)
		if left := time.Until(by); !by.IsZero() && left > 0 {
			f.timers[which] = time.AfterFunc(left, func() { f.mark(func(*flow) {}) })
		}
	})
	return err
}

func (l *line) LocalAddr() net.Addr  { return &net.TCPAddr{} }
func (l *line) RemoteAddr() net.Addr { return &net.TCPAddr{} }

// SetDeadline implements net.Conn.
func (l *line) SetDeadline(by time.Time) error {
	if err := l.in.setBy(0, by); err != nil {
		return err
	}
	return l.out.setBy(1, by)
}

// SetReadDeadline implements net.Conn.
func (l *line) SetReadDeadline(by time.Time) error { return l.in.setBy(0, by) }

// SetWriteDeadline implements net.Conn.
func (l *line) SetWriteDeadline(by time.Time) error { return l.out.setBy(1, by) }

// socket is a line that the kernel can be asked about. It is shown a descriptor
// that is in the line's state: one with a byte to read, or one without.
type socket struct {
	*line
	quiet, loud syscall.RawConn
}

// SyscallConn implements syscall.Conn.
func (s *socket) SyscallConn() (syscall.RawConn, error) { return rawSocket{s}, nil }

// rawSocket is a socket as the kernel has it.
type rawSocket struct{ s *socket }

// Control implements syscall.RawConn.
func (r rawSocket) Control(f func(fd uintptr)) error {
	if r.s.isClosed() {
		return net.ErrClosed
	}
	shown := r.s.quiet
	r.s.in.mark(func(f *flow) {
		if len(f.segments) > 0 || f.ended || f.broken {
			shown = r.s.loud
		}
	})
	return shown.Control(f)
}

// Read implements syscall.RawConn.
func (rawSocket) Read(func(uintptr) bool) error { return errors.ErrUnsupported }

// Write implements syscall.RawConn.
func (rawSocket) Write(func(uintptr) bool) error { return errors.ErrUnsupported }

// states makes two descriptors, one with nothing to read and one with a byte.
func states(t testing.TB) (quiet, loud syscall.RawConn) {
	t.Helper()
	pair := func() (write *os.File, raw syscall.RawConn) {
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = read.Close(), write.Close() })
		if raw, err = read.SyscallConn(); err != nil {
			t.Fatal(err)
		}
		return write, raw
	}
	_, quiet = pair()
	noise, loud := pair()
	if _, err := noise.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	return quiet, loud
}

var (
	_ net.Conn        = (*line)(nil)
	_ syscall.Conn    = (*socket)(nil)
	_ syscall.RawConn = rawSocket{}
)
