package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// readers is how many connections read a SQLite file at one time.
const readers = 4

// openSQLite opens a file for this process, and for the one that it takes over from, for
// as long as that goes on: what the other one changes in it is heard of here by the poll
// alone, within a second.
func (s *Store) openSQLite(ctx context.Context, o Options) error {
	path, err := sqlitePath(o.URL)
	if err != nil {
		return err
	}
	if err := lookAt(ctx, path); err != nil {
		return err
	}
	if s.claim, err = claim(path+".lock", o.Claim); err != nil {
		return err
	}
	if err := makeFile(path); err != nil {
		return fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	if s.write, err = sqlitePool(path, 1, url.Values{"_txlock": {"immediate"}}); err != nil {
		return err
	}
	if err := ours(ctx, s.write); err != nil {
		return sqliteUnusable(path, err)
	}
	if err := restrict(path); err != nil {
		return fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	if err = mark(ctx, s.write); err == nil {
		err = migrate(ctx, s.write, false)
	}
	if err != nil {
		return sqliteUnusable(path, err)
	}
	if s.read, err = sqlitePool(path, readers, url.Values{"_query_only": {"1"}}); err != nil {
		return err
	}
	s.clock = func(context.Context, querier) (time.Time, error) { return s.now(), nil }
	s.notify = func(context.Context, querier) error { return nil }
	key, err := s.sealingKey(ctx, o, path+".key")
	if err != nil {
		return err
	}
	return s.useSealingKey(ctx, key)
}

var errNoDirectory = fmt.Errorf("%w: the directory of store.url is not there: make it, for the user that sluice runs as", ErrUnusable)

// sqlitePath is the file's absolute path.
func sqlitePath(text string) (string, error) {
	path := strings.TrimPrefix(strings.TrimPrefix(text, "sqlite:"), "//")
	if path == "" || strings.HasSuffix(path, "/") || strings.ContainsRune(path, 0) {
		return "", fmt.Errorf(`%w: store.url names no file; it is like "sqlite:/var/lib/sluice/sluice.db"`, ErrUnusable)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	return path, nil
}

// claim locks a file of its own, since SQLite loses its locks on the database where the
// same process closes it once. The lock ends with the process, however that ends: it is
// the open file's, so that a copy of that, which another process has been handed, holds it
// too.
func claim(path string, handed *os.File) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // the operator's path
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNoDirectory
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	if handed != nil && sameFile(f, handed) {
		if err := f.Close(); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnusable, err)
		}
		if f, err = duplicate(handed); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnusable, err)
		}
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		err = fmt.Errorf("%w: another process has it open (%s: %w): end that one, or use Postgres for several replicas", ErrUnusable, path, err)
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func sameFile(a, b *os.File) bool {
	one, err := a.Stat()
	other, otherErr := b.Stat()
	return err == nil && otherErr == nil && os.SameFile(one, other)
}

// duplicate is the same open file once more.
func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// makeFile makes the file where there is none.
func makeFile(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // the operator's path
	if err != nil {
		return err
	}
	// SQLite forces what is in the file to the disk, but not that there is one.
	return errors.Join(f.Close(), syncDirectory(path))
}

// restrict has only its owner read the file and what is beside it: sealed keys, digests,
// and what the keys are sealed under. What SQLite makes gets the mode of the file.
func restrict(path string) error {
	for _, end := range []string{"", "-wal", "-shm", ".key"} {
		info, err := os.Stat(path + end)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 == 0 {
			continue
		}
		if err := os.Chmod(path+end, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// sqlitePool opens connections. With WAL, readers and the writer do not wait for each
// other; with synchronous=FULL a change is on the disk before it is acknowledged.
func sqlitePool(path string, most int, more url.Values) (*sql.DB, error) {
	more.Set("_busy_timeout", "5000") // of a backup that copies the file
	more.Set("_journal_mode", "WAL")
	more.Set("_synchronous", "FULL")
	more.Set("_foreign_keys", "1")
	return sqliteOpen(path, most, more)
}

func sqliteOpen(path string, most int, more url.Values) (*sql.DB, error) {
	connector, err := sqlite.NewConnector("file:" + (&url.URL{Path: path}).EscapedPath() + "?" + more.Encode())
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(most)
	db.SetMaxIdleConns(most)
	return db, nil
}

// sqliteUnusable says what to do about a file that is none of SQLite's, or broken.
func sqliteUnusable(path string, err error) error {
	if errors.Is(err, errNewer) {
		return fmt.Errorf("%w: %s: %w", ErrUnusable, path, err)
	}
	if lite, ok := errors.AsType[*sqlite.Error](err); ok {
		switch lite.Code() & 0xff { // without what tells the kinds of one code apart
		case sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT:
			return fmt.Errorf("%w: %s is no database, or a broken one: restore a copy: %w", ErrUnusable, path, err)
		}
	}
	return err
}
