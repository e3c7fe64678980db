package store

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// What a SQLite file begins with (sqlite.org/fileformat2.html §1.3).
const (
	sqliteMagic    = "SQLite format 3\x00"
	sqliteHeader   = 100 // bytes
	applicationAt  = 68  // four bytes, the first the highest
	applicationID  = 0x534c5543
	migrationTable = "sluice_migrations"
)

var errForeign = fmt.Errorf("%w: store.url names a database of another program: name a file of its own", ErrUnusable)

// lookAt says whether a file is one of ours, or could become one, before anything of it is
// changed or locked. It writes nothing, and makes nothing beside it. Of a store that was
// not closed well the tables may still lie in its log; ours tells that once it is open.
func lookAt(ctx context.Context, path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if info, err := os.Stat(filepath.Dir(path)); err != nil || !info.IsDir() {
			return errNoDirectory
		}
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", ErrUnusable, err)
	case info.IsDir():
		return fmt.Errorf("%w: %s is a directory: name a file in it", ErrUnusable, path)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%w: %s is no file but a device, a pipe or a socket: name a file", ErrUnusable, path)
	}
	header, err := readHeader(path)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrUnusable, err)
	case len(header) == 0:
		return nil
	case len(header) < sqliteHeader || !bytes.HasPrefix(header, []byte(sqliteMagic)):
		return fmt.Errorf("%w: %s is no database: name another file, or restore a copy", ErrUnusable, path)
	}
	switch binary.BigEndian.Uint32(header[applicationAt:]) {
	case applicationID:
		return nil
	case 0: // nobody's, or a store that is new
		return peek(ctx, path)
	default:
		return errForeign
	}
}

// readHeader reads the beginning of a file. It does not wait for what has become a pipe
// meanwhile.
func readHeader(path string) (header []byte, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) //nolint:gosec // the operator's path
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return io.ReadAll(io.LimitReader(f, sqliteHeader))
}

// peek looks at the tables of a file as it stands, without its log and without locks, so
// that nothing is made beside it. What cannot be read so is left to whoever opens it: it
// may be in use.
func peek(ctx context.Context, path string) error {
	db, err := sqliteOpen(path, 1, url.Values{"mode": {"ro"}, "immutable": {"1"}})
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }() // nothing was written
	err = ours(ctx, db)
	if lite, ok := errors.AsType[*sqlite.Error](err); ok && lite.Code()&0xff != sqlite3.SQLITE_NOTADB {
		return nil
	}
	return sqliteUnusable(path, err)
}

// ours refuses a database that has tables, and none of them ours.
func ours(ctx context.Context, db *sql.DB) error {
	tables, err := list(ctx, db, text, `SELECT name FROM sqlite_master WHERE type = 'table'`)
	if err == nil && len(tables) > 0 && !slices.Contains(tables, migrationTable) {
		return errForeign
	}
	return err
}

// mark has a file say whose it is (application_id). It writes where it does not yet.
func mark(ctx context.Context, db *sql.DB) error {
	var id int64
	if err := db.QueryRowContext(ctx, `PRAGMA application_id`).Scan(&id); err != nil || id == applicationID {
		return err
	}
	return run(ctx, db, fmt.Sprintf(`PRAGMA application_id = %d`, applicationID))
}
