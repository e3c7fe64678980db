package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// maxLinks is how many symbolic links are followed to a file, as by Linux.
const maxLinks = 40

// output is a file that becomes whole at once, or not at all: what is written goes into a
// part beside it, which takes its place at the end. What is no regular file, as a pipe or
// a device, is written as it is.
type output struct {
	f    *os.File
	to   string // where it is; links are followed
	part string // "" = it is written in place
}

// openOutput opens what a path names. A link is followed to its end, of which there may
// be no file yet. A pipe is waited for until somebody reads it, or ctx ends.
func openOutput(ctx context.Context, path string) (*output, error) {
	to, err := resolve(path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(to)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return openPart(to, 0o666, false) // as any file that a shell makes; the umask narrows it
	case err != nil:
		return nil, err
	case info.Mode().IsRegular():
		// Who may not write the file shall not replace it either.
		f, err := os.OpenFile(to, os.O_WRONLY, 0) //nolint:gosec // the user's own file
		if err != nil {
			return nil, err
		}
		_ = f.Close()
		return openPart(to, info.Mode().Perm(), true)
	default:
		return openInPlace(ctx, to)
	}
}

// openPart makes a part that nothing has the name of. exact sets its mode whatever the
// umask is.
func openPart(to string, mode os.FileMode, exact bool) (*output, error) {
	first := mode
	if exact {
		first = 0o600 // until the mode is set: an older file's text may be less secret than this
	}
	for {
		part := fmt.Sprintf("%s.%s.part", to, rand.Text()[:8])
		f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, first) //nolint:gosec // beside the user's own file
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if exact {
			if err := f.Chmod(mode); err != nil {
				return nil, errors.Join(err, f.Close(), os.Remove(part))
			}
		}
		return &output{f: f, to: to, part: part}, nil
	}
}

// openInPlace opens what is there. The open of a pipe cannot be ended: the one that is
// left at Ctrl-C ends with the process, which is at once.
func openInPlace(ctx context.Context, to string) (*output, error) {
	type result struct {
		f   *os.File
		err error
	}
	opened := make(chan result, 1)
	go func() {
		f, err := os.OpenFile(to, os.O_WRONLY, 0) //nolint:gosec // the user's own
		opened <- result{f, err}
	}()
	select {
	case got := <-opened:
		if got.err != nil {
			return nil, got.err
		}
		return &output{f: got.f, to: to}, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// resolve follows a path to where it leads, also where nothing is there. Folders are
// resolved first: ".." of a link is that of where the link leads.
func resolve(path string) (string, error) {
	for range maxLinks {
		dir, name := filepath.Split(path)
		if name == "" {
			return "", &os.PathError{Op: "open", Path: path, Err: errors.New("is the name of a folder")}
		}
		if dir == "" {
			dir = "."
		}
		dir, err := filepath.EvalSymlinks(dir)
		if err != nil {
			return "", err
		}
		path = filepath.Join(dir, name)
		info, err := os.Lstat(path)
		if err != nil || info.Mode()&os.ModeSymlink == 0 {
			return path, ignoreMissing(err)
		}
		link, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		if isMagic(link) {
			return path, nil
		}
		if !filepath.IsAbs(link) {
			link = dir + string(filepath.Separator) + link
		}
		path = link
	}
	return "", &os.PathError{Op: "open", Path: path, Err: errors.New("too many symbolic links")}
}

// isMagic tells a link of /proc to what has no path, as "pipe:[17]" of /dev/stdout.
func isMagic(link string) bool { return !filepath.IsAbs(link) && strings.Contains(link, ":[") }

// done makes the part the file, when it is on the disk.
func (o *output) done() error {
	if o.part == "" {
		return o.f.Close() // a pipe and a device have no disk
	}
	if err := errors.Join(o.f.Sync(), o.f.Close()); err != nil {
		return err
	}
	return os.Rename(o.part, o.to)
}

// leave closes it as it is. A part that has nothing is taken away.
func (o *output) leave(empty bool) error {
	_ = o.f.Close()
	if o.part == "" || !empty {
		return nil
	}
	return ignoreMissing(os.Remove(o.part))
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
