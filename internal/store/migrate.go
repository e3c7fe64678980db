package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations/*.sql
var migrations embed.FS

// bytewise is what the migrations say of columns that are ordered byte by byte.
const bytewise = ` COLLATE "C"`

// errNewer is the refusal of a store that a later version of the program has changed.
var errNewer = errors.New("a newer version of sluice has changed this store: run that version or a later one, or restore a copy of the store from before")

// migrate brings the schema up to date. Of several replicas that start at once, one
// does it and the others wait.
func migrate(ctx context.Context, db *sql.DB, postgres bool) error {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	dialect, options := goose.DialectSQLite3, []goose.ProviderOption{
		goose.WithTableName(migrationTable), goose.WithDisableGlobalRegistry(true),
	}
	if postgres {
		// Asked every second for two minutes: longer than a migration, shorter than a start
		// that is given up.
		locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 120))
		if err != nil {
			return err
		}
		dialect, options = goose.DialectPostgres, append(options, goose.WithSessionLocker(locker))
	} else {
		files = without{files, bytewise}
	}
	p, err := goose.NewProvider(dialect, db, files, options...)
	if err != nil {
		return err
	}
	// A newer schema has nothing that is pending here, so this leaves it alone.
	if _, err := p.Up(ctx); err != nil {
		return err
	}
	have, want, err := p.GetVersions(ctx)
	if err == nil && have > want {
		err = fmt.Errorf("%w (its schema is %d, this version's %d)", errNewer, have, want)
	}
	return err
}

// without is a file system whose files are read as if the words were not there.
type without struct {
	fs.FS
	words string
}

// Open implements fs.FS.
func (w without) Open(name string) (fs.File, error) {
	f, err := w.FS.Open(name)
	if err != nil || !strings.HasSuffix(name, ".sql") {
		return f, err
	}
	raw, err := io.ReadAll(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return read{f, strings.NewReader(strings.ReplaceAll(string(raw), w.words, ""))}, nil
}

// read is a file of another content.
type read struct {
	fs.File
	content *strings.Reader
}

// Read implements fs.File.
func (r read) Read(p []byte) (int, error) { return r.content.Read(p) }
