package usage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// fileMode lets the owner write and the group, who bills perhaps, read.
const fileMode = 0o640

// Errors of the export file.
var (
	ErrNoFile   = errors.New("is no regular file")
	ErrFileHeld = errors.New("another process writes it: each replica needs a file of its own")
)

// File is a Sink: a file of JSON lines, one a batch, each on the disk before it counts as
// delivered. A line that was not written whole is taken off again before the next one. The
// file may be renamed or removed at any time: the next batch begins a new one. It is
// safe for concurrent use.
type File struct {
	path string

	mu sync.Mutex
	f  *os.File // nil after a failed reopening
}

// OpenFile opens the file, or makes it, and takes off what a killed process has left of a
// line. The error wraps ErrNoFile or ErrFileHeld, or is the system's.
func OpenFile(path string) (*File, error) {
	w := &File{path: path}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.open(); err != nil {
		return nil, err
	}
	if err := w.repair(); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// TakeOverFile is OpenFile for a file that another process may hold, which is about to end:
// until then writing fails with ErrFileHeld, and what was not written waits.
func TakeOverFile(path string) (*File, error) {
	w, err := OpenFile(path)
	if errors.Is(err, ErrFileHeld) {
		return &File{path: path}, nil
	}
	return w, err
}

// CheckFile says why OpenFile would not open the file, as far as that is seen without
// making it. The error wraps ErrNoFile, or is the system's.
func CheckFile(path string) error {
	folder, err := os.Stat(filepath.Dir(path))
	if err == nil && !folder.IsDir() {
		err = fmt.Errorf("%s is no folder", filepath.Dir(path))
	}
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil && !info.Mode().IsRegular():
		return fmt.Errorf("%s %w", path, ErrNoFile)
	default:
		return err
	}
}

// Write implements Sink. A batch whose line was written and not acknowledged by the disk
// is written again, and stands there twice then, the same.
func (w *File) Write(_ context.Context, b *Batch) error {
	line, err := b.Line()
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.follow(); err != nil {
		return err
	}
	if err := w.repair(); err != nil {
		return err
	}
	if _, err := w.f.Write(line); err != nil {
		// What is there of it is in the way of the next line, and of those who read.
		return errors.Join(err, w.repair())
	}
	return w.f.Sync()
}

// Close closes the file.
func (w *File) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.close()
}

func (w *File) close() error {
	if w.f == nil {
		return nil
	}
	err := w.f.Close()
	w.f = nil
	return err
}

// follow opens what the path names now, where that is another file than the open one or
// none: it was rotated.
func (w *File) follow() error {
	if w.f != nil {
		named, err := os.Stat(w.path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		held, heldErr := w.f.Stat()
		if err == nil && heldErr == nil && os.SameFile(named, held) {
			return nil
		}
		_ = w.close() // all that is in it is on the disk
	}
	return w.open()
}

func (w *File) open() error {
	// Not to wait for who reads a pipe; it is refused below.
	f, err := os.OpenFile(w.path, os.O_RDWR|os.O_CREATE|os.O_APPEND|syscall.O_NONBLOCK, fileMode)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s %w", w.path, ErrNoFile)
	}
	if err == nil {
		if lock := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); lock != nil {
			err = fmt.Errorf("%s: %w (%w)", w.path, ErrFileHeld, lock)
		}
	}
	if err == nil {
		err = syncFolder(filepath.Dir(w.path))
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	w.f = f
	return nil
}

// syncFolder has a file that was made be there after a crash of the machine.
func syncFolder(path string) error {
	d, err := os.Open(path) //nolint:gosec // the operator's path
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// ourLine is how each line begins.
const ourLine = `{"replica":"`

// repair makes the file end with a whole line. What it ends with is cut off where it is
// ours, else it is left, and ended.
func (w *File) repair() error {
	end, err := w.f.Seek(0, io.SeekEnd)
	if err != nil || end == 0 {
		return err
	}
	from, err := lastLine(w.f, end)
	if err != nil || from == end {
		return err
	}
	head := make([]byte, min(end-from, int64(len(ourLine))))
	if _, err := w.f.ReadAt(head, from); err != nil {
		return err
	}
	if bytes.HasPrefix([]byte(ourLine), head) {
		return w.f.Truncate(from)
	}
	_, err = w.f.WriteString("\n")
	return err
}

// lastLine is where the line begins that has no end; end where there is none.
func lastLine(r io.ReaderAt, end int64) (int64, error) {
	const step = 32 << 10
	buffer := make([]byte, step)
	for at := end; at > 0; {
		n := min(at, step)
		at -= n
		if _, err := r.ReadAt(buffer[:n], at); err != nil {
			return 0, err
		}
		if i := bytes.LastIndexByte(buffer[:n], '\n'); i >= 0 {
			return at + int64(i) + 1, nil
		}
	}
	return 0, nil
}
