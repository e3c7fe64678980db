package store

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What cannot be copied is said, nothing is written over, and nothing is left by half.
func TestBackupRefused(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	o := Options{URL: "sqlite:" + path("store.db"), Random: bytes.NewReader(make([]byte, 1000))}
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	for name, text := range map[string]string{"text": "no database", "taken": "", "keyed.key": "", "half.new": ""} {
		if err := os.WriteFile(path(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct{ what, url, to string }{
		// It was taken for a file, and its password printed.
		{"Postgres", "postgres://a:swordfish@b/c", path("copy")},
		{"no store", "sqlite:" + path("none"), path("copy")},
		{"no database", "sqlite:" + path("text"), path("copy")},
		{"taken", o.URL, path("taken")},
		{"a key is there", o.URL, path("keyed")},
		{"one that was left", o.URL, path("half")},
		{"no folder", o.URL, path("none/copy")},
		{"the store itself", o.URL, path("store.db")},
	} {
		before := names(t, dir)
		if err := Backup(t.Context(), tc.url, tc.to); !errors.Is(err, ErrNoBackup) || strings.Contains(err.Error(), "swordfish") {
			t.Errorf("%s: %v", tc.what, err)
		}
		if after := names(t, dir); after != before {
			t.Errorf("%s: there is %s, and was %s", tc.what, after, before)
		}
	}
	if err := Backup(t.Context(), o.URL, path("copy")); err != nil {
		t.Fatal(err)
	}
	o.URL = "sqlite:" + path("copy")
	again, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
}

func names(t *testing.T, dir string) (all string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all += e.Name() + " "
	}
	return all
}
