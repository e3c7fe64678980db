package store

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/sync/errgroup"

	"sluice/internal/tenant"
)

// refused opens a store that cannot be, and returns why not.
func refused(t *testing.T, o Options, want error) string {
	t.Helper()
	s, err := Open(t.Context(), o)
	if err == nil {
		_ = s.Close()
		t.Fatalf("%s is opened", o.URL)
	}
	if !errors.Is(err, want) || errors.Is(err, ErrUnusable) == errors.Is(err, ErrUnavailable) {
		t.Errorf("%s: got %v, want %v", o.URL, err, want)
	}
	return err.Error()
}

func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q does not say %q", text, part)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	must(t, os.WriteFile(text, []byte(strings.Repeat("no database\n", 1000)), 0o600))
	for _, tc := range []struct {
		url  string
		says string
	}{
		{"", `begins with "sqlite:" or "postgres:"`},
		{"mysql://localhost/x", `begins with "sqlite:" or "postgres:"`},
		{"sqlite:", "names no file"},
		{"sqlite:/var/lib/", "names no file"},
		{"sqlite:" + dir + "/none/sluice.db", "make it"},
		{"sqlite:" + text, "restore a copy"},
		{"sqlite:" + dir, "is a directory"},
	} {
		contains(t, refused(t, Options{URL: tc.url}, ErrUnusable), tc.says)
	}
	contains(t, refused(t, Options{URL: "sqlite:" + dir + "/a.db", SealingKey: []byte("short")}, ErrUnusable), "5 bytes", "32")
	contains(t, refused(t, Options{URL: "postgres://127.0.0.1/x"}, ErrUnusable), "auth.sealing_key")
}

// The password of store.url was in the log, in the words of whoever could not connect.
func TestPasswordIsInNoError(t *testing.T) {
	t.Parallel()
	const password = "swordfish"
	for _, url := range []string{
		"postgres://sluice:" + password + "@127.0.0.1:1/x?sslmode=disable",
		"postgres://sluice:" + password + "%zz@127.0.0.1:1/x",
		"postgres://sluice:" + password + "@127.0.0.1:port/x",
		"postgres://sluice:" + password + "@127.0.0.1:1/x?sslmode=" + password,
		"postgres://sluice:" + password + "@[::1/x",
		"postgres://sluice:sword\x7ffish" + password + "@127.0.0.1:1/x",
	} {
		o := Options{URL: url, SealingKey: testSealingKey}
		_, err := Open(t.Context(), o)
		encoded, _ := json.Marshal(o)
		for _, text := range []string{string(encoded), fmt.Sprint(err), fmt.Sprintf("%+v %#v", err, err), fmt.Sprintf("%v %+v %#v", o, o, o)} {
			if err == nil || strings.Contains(text, password) {
				t.Errorf("it says %s", text)
			}
		}
	}
}

func TestFilesAreTheirOwnersAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "sluice ?#%.db")
	s := open(t, Options{URL: "sqlite:" + path})
	must(t, s.CreateAccount(t.Context(), someone(), Account{ID: "acme"}, nil))
	check := func(want ...string) {
		t.Helper()
		entries, err := os.ReadDir(dir)
		must(t, err)
		names := make([]string, 0, len(entries))
		for _, e := range entries {
			info, err := e.Info()
			must(t, err)
			if info.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %v", e.Name(), info.Mode())
			}
			names = append(names, strings.TrimPrefix(e.Name(), "sluice ?#%.db"))
		}
		equal(t, "files", names, want)
	}
	check("", "-shm", "-wal", ".key", ".lock")
	must(t, s.Close())
	check("", ".key", ".lock")
	// One that was made by hand, or copied.
	must(t, os.Chmod(path, 0o644)) //nolint:gosec // the fault that is tried
	s = open(t, Options{URL: "sqlite:" + path})
	if _, err := s.Account(t.Context(), "acme"); err != nil {
		t.Error(err)
	}
	check("", "-shm", "-wal", ".key", ".lock")
}

// A second process would not hear of what the first revokes.
func TestSecondProcessIsRefused(t *testing.T) {
	t.Parallel()
	o := Options{URL: "sqlite:" + filepath.Join(t.TempDir(), "sluice.db"), SealingKey: testSealingKey}
	s := open(t, o)
	contains(t, refused(t, o, ErrUnusable), "another process", "Postgres")
	cmd := childOf(t, "open "+o.URL)
	text, err := cmd.CombinedOutput()
	if err == nil {
		t.Error("another process opens it")
	}
	contains(t, string(text), "another process")
	must(t, s.Close())
	if text, err := childOf(t, "open "+o.URL).CombinedOutput(); err != nil {
		t.Errorf("after the first: %v: %s", err, text)
	}
}

// An older version on a newer schema could write what the newer one takes for something
// else.
func TestNewerSchemaIsRefused(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		must(t, run(t.Context(), r.write, `INSERT INTO sluice_migrations (version_id, is_applied) VALUES (99, TRUE)`))
		must(t, r.Close())
		contains(t, refused(t, Options{URL: r.url, SealingKey: testSealingKey}, ErrUnusable), "newer version", "99", "this version's ")
	})
}

func TestSealingKeys(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		o := Options{URL: r.url, SealingKey: randomSealingKey(t)}
		must(t, r.Close())
		contains(t, refused(t, o, ErrUnusable), "another auth.sealing_key", "delete all rows of signing_keys", "sealing_check in meta to NULL")
		lost := o
		o.SealingKey = testSealingKey
		s := open(t, o)
		_, err := s.RotateSigningKeys(t.Context(), tenant.DefaultRotation())
		must(t, err)
		// What the refusal says to do where the key is lost.
		must(t, run(t.Context(), s.write, `DELETE FROM signing_keys`))
		must(t, run(t.Context(), s.write, `UPDATE meta SET sealing_check = NULL`))
		must(t, s.Close())
		s = open(t, lost)
		if keys, err := s.SigningKeys(t.Context()); err != nil || len(keys) != 0 {
			t.Errorf("started again: %v, %v", keys, err)
		}
	})
}

func TestSealingKeyBesideTheFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "sluice.db")
	o := Options{URL: "sqlite:" + path}
	keys := func() []tenant.SigningKey {
		t.Helper()
		s := open(t, o)
		defer func() { must(t, s.Close()) }()
		_, err := s.RotateSigningKeys(t.Context(), tenant.DefaultRotation())
		must(t, err)
		keys, err := s.SigningKeys(t.Context())
		must(t, err)
		return keys
	}
	first := keys()
	if again := keys(); len(again) != 1 || again[0].ID != first[0].ID {
		t.Errorf("opened again: %v, before %v", again, first)
	}
	// One that is lost is not made again: nothing could be opened with it.
	kept, err := os.ReadFile(path + ".key")
	must(t, err)
	must(t, os.Remove(path+".key"))
	contains(t, refused(t, o, ErrUnusable), ".key", "restore it")
	must(t, os.WriteFile(path+".key", []byte("no key\n"), 0o600))
	contains(t, refused(t, o, ErrUnusable), ".key", "restore a copy")
	must(t, os.WriteFile(path+".key", []byte(base64Of(randomSealingKey(t))), 0o600))
	contains(t, refused(t, o, ErrUnusable), "another auth.sealing_key")
	must(t, os.WriteFile(path+".key", kept, 0o600))
	if again := keys(); again[0].ID != first[0].ID {
		t.Errorf("with the copy: %v, before %v", again, first)
	}
}

// Replicas of a new version start at one time, on a database that has nothing yet.
func TestReplicasMigrateTogether(t *testing.T) {
	t.Parallel()
	url := postgres.Empty(t)
	var g errgroup.Group
	for range 4 {
		g.Go(func() error {
			s, err := Open(t.Context(), Options{URL: url, SealingKey: testSealingKey})
			if err != nil {
				return err
			}
			return s.Close()
		})
	}
	must(t, g.Wait())
	var n int
	db, err := sql.Open("pgx", url)
	must(t, err)
	must(t, errors.Join(db.QueryRowContext(t.Context(), `SELECT count(*) FROM sluice_migrations`).Scan(&n), db.Close()))
	if n != 1+len(migrationFiles(t)) { // goose has a row for "nothing yet"
		t.Errorf("%d migrations are noted", n)
	}
}

func migrationFiles(tb testing.TB) []string {
	tb.Helper()
	files, err := fs.Glob(migrations, "migrations/*.sql")
	must(tb, err)
	return files
}

// The words that SQLite does not know are gone, and nothing else.
func TestMigrationsWithoutWords(t *testing.T) {
	t.Parallel()
	files := fstest.MapFS{"1.sql": {Data: []byte("a TEXT" + bytewise + ", b")}, "x.txt": {Data: []byte("a" + bytewise)}}
	for name, want := range map[string]string{"1.sql": "a TEXT, b", "x.txt": "a" + bytewise} {
		got, err := fs.ReadFile(without{files, bytewise}, name)
		must(t, err)
		equal(t, name, string(got), want)
	}
}
