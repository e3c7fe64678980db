package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"
)

// ErrNoBackup says why a store has not been copied.
var ErrNoBackup = errors.New("no backup was made")

// Backup copies the store in a SQLite file, as of one moment, while a gateway serves from
// it: what was acknowledged before is in the copy. It makes the file to, which must not be
// there, and to.key, the sealing key, where the store's lies beside it; both have mode 0600
// and are on the disk when it returns. With an error it leaves neither. Postgres has tools of its own. The error
// is ErrNoBackup.
func Backup(ctx context.Context, storeURL, to string) (err error) {
	// The URL of another database may have a password, and is in no message.
	if !strings.HasPrefix(storeURL, "sqlite:") {
		return fmt.Errorf("%w: store.url names no SQLite file; a store in Postgres is copied by pg_dump (docs/operations.md, Back up and restore)", ErrNoBackup)
	}
	path, err := sqlitePath(storeURL)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoBackup, err)
	}
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("%w: %w", ErrNoBackup, err)
	}
	if err := lookAt(ctx, path); err != nil {
		return fmt.Errorf("%w: %w", ErrNoBackup, err)
	}
	key, err := readSmall(path + ".key")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrNoBackup, err)
	}
	next := to + ".new"
	for _, taken := range []string{to, to + ".key", next} {
		if _, err := os.Lstat(taken); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: %s is there already: name a new file", ErrNoBackup, taken)
		}
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w: %w", ErrNoBackup, err)
			for _, made := range []string{next, to + ".key"} {
				_ = os.Remove(made)
			}
		}
	}()
	if err := copyInto(ctx, path, next); err != nil {
		return err
	}
	if key != nil {
		if err := writeDurably(to+".key", key); err != nil {
			return err
		}
	}
	// A file that had come meanwhile is not written over.
	if err := os.Link(next, to); err != nil {
		return err
	}
	return errors.Join(os.Remove(next), syncDirectory(to))
}

// copyInto has SQLite write what the file at path holds now to a new one.
func copyInto(ctx context.Context, path, to string) error {
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600) //nolint:gosec // the operator's path
	if err != nil {
		return err
	}
	db, err := sqliteOpen(path, 1, url.Values{"_busy_timeout": {"5000"}, "mode": {"rw"}})
	if err != nil {
		return errors.Join(err, f.Close())
	}
	_, err = db.ExecContext(ctx, `VACUUM INTO $1`, to)
	return errors.Join(err, db.Close(), f.Sync(), f.Close())
}
