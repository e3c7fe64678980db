package store

import (
	"database/sql"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// listing is what a directory holds: names, modes and what is in the files.
func listing(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	all := map[string]string{}
	for _, e := range entries {
		info, err := e.Info()
		must(t, err)
		all[e.Name()] = info.Mode().String()
		if info.Mode().IsRegular() {
			content, err := os.ReadFile(filepath.Join(dir, e.Name()))
			must(t, err)
			all[e.Name()] += string(content)
		}
	}
	return all
}

// sqliteWith makes a database by hand.
func sqliteWith(t *testing.T, path string, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath())
	must(t, err)
	defer func() { must(t, db.Close()) }()
	for _, s := range statements {
		must(t, run(t.Context(), db, s))
	}
}

// A store.url that named somebody else's file gave it mode 0600 and left a lock beside it
// before it was found to be no database; another program's database was given our tables.
// Nothing is touched, and what is wrong is said at once: by `check` too.
func TestForeignFileIsLeftAlone(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		make func(t *testing.T, path string)
		says string
	}{
		"a text": {func(t *testing.T, path string) { must(t, os.WriteFile(path, []byte("root:x:0:0\n"), 0o600)) }, "is no database"},
		"a long text": {func(t *testing.T, path string) {
			must(t, os.WriteFile(path, fmt.Appendf(nil, "%0200d", 0), 0o600))
		}, "is no database"},
		"a directory": {func(t *testing.T, path string) { must(t, os.Mkdir(path, 0o700)) }, "is a directory"},
		"a pipe":      {func(t *testing.T, path string) { must(t, syscall.Mkfifo(path, 0o600)) }, "is no file"},
		"a socket": {func(t *testing.T, path string) {
			l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
			must(t, err)
			t.Cleanup(func() { _ = l.Close() })
		}, "is no file"},
		"another program's database": {func(t *testing.T, path string) {
			sqliteWith(t, path, `CREATE TABLE photos (id INTEGER)`)
		}, "of another program"},
		"one with a log": {func(t *testing.T, path string) {
			sqliteWith(t, path, `PRAGMA journal_mode = WAL`, `CREATE TABLE photos (id INTEGER)`)
		}, "of another program"},
		"one that is marked": {func(t *testing.T, path string) { sqliteWith(t, path, `PRAGMA application_id = 7`) }, "of another program"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, err := os.MkdirTemp("", "s") // a socket's path is short
			must(t, err)
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			path := filepath.Join(dir, "f")
			tc.make(t, path)
			must(t, os.Chmod(path, 0o755)) //nolint:gosec // so that a change is seen
			before := listing(t, dir)
			contains(t, refused(t, Options{URL: "sqlite:" + path}, ErrUnusable), tc.says)
			err = Ping(t.Context(), "sqlite:"+path)
			wants(t, "Ping", err, ErrUnusable)
			equal(t, "the directory", listing(t, dir), before)
		})
	}
}

// What another program has yet to fold into its file is found as soon as it is open, before
// there is a table of ours in it.
func TestForeignLogIsLeftAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "open.db")+"?_journal_mode=WAL")
	must(t, err)
	defer func() { must(t, db.Close()) }()
	must(t, run(t.Context(), db, `CREATE TABLE photos (id INTEGER)`))
	copied := copyOf(t, dir, "open.db")
	contains(t, refused(t, Options{URL: "sqlite:" + copied}, ErrUnusable), "of another program")
	info, err := os.Stat(copied)
	if err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("its mode is %v, %v", info.Mode(), err)
	}
}

// copyOf copies a database and its log, as they are after a crash, into a new directory.
func copyOf(t *testing.T, dir, name string) string {
	t.Helper()
	to := t.TempDir()
	for _, end := range []string{"", "-wal", ".key"} {
		content, err := os.ReadFile(filepath.Join(dir, name+end))
		if os.IsNotExist(err) {
			continue
		}
		must(t, err)
		must(t, os.WriteFile(filepath.Join(to, name+end), content, fs.FileMode(0o644)))
	}
	return filepath.Join(to, name)
}

// A store says whose it is; one from before that did not is still opened, and so is one of
// which a crash left everything in the log.
func TestOwnFileIsKnown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "sluice.db")
	s, err := Open(t.Context(), Options{URL: "sqlite:" + path})
	must(t, err)
	must(t, s.CreateAccount(t.Context(), someone(), Account{ID: "acme"}, nil))
	crashed := open(t, Options{URL: "sqlite:" + copyOf(t, dir, "sluice.db")})
	if _, err := crashed.Account(t.Context(), "acme"); err != nil {
		t.Errorf("after a crash: %v", err)
	}
	must(t, Ping(t.Context(), "sqlite:"+path)) // while it is in use
	must(t, s.Close())
	marked := func() bool {
		header, err := readHeader(path)
		must(t, err)
		return string(header[applicationAt:applicationAt+4]) == "SLUC"
	}
	if !marked() {
		t.Error("it does not say whose it is")
	}
	sqliteWith(t, path, `PRAGMA application_id = 0`)
	if s, err = Open(t.Context(), Options{URL: "sqlite:" + path}); err == nil {
		err = s.Close()
	}
	if err != nil || !marked() {
		t.Errorf("one from before: %v, marked %t", err, marked())
	}
}
