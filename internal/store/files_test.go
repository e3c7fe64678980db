package store

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestTLSFiles(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		_, err := r.TLSFile(ctx, "a/b")
		if !errors.Is(err, ErrNotFound) || errors.Is(err, ErrUnavailable) {
			t.Errorf("nothing: %v", err)
		}
		const private = "-----BEGIN PRIVATE KEY-----"
		for _, name := range []string{"a", "a/b", "a/b/c", "a/b.crt", "a-b", "a0", "A/b", "b"} {
			must(t, r.PutTLSFile(ctx, name, []byte(private+name)))
		}
		r.clock.pass(time.Hour)
		must(t, r.PutTLSFile(ctx, "a/b", []byte("again")))
		got, err := r.TLSFile(ctx, "a/b")
		must(t, err)
		equal(t, "a file", string(got), "again")
		names := func(name string) (all []string) {
			files, err := r.TLSFiles(ctx, name)
			must(t, err)
			for _, f := range files {
				all = append(all, f.Name)
				if want := int64(len(private + f.Name)); f.Name != "a/b" && f.Size != want {
					t.Errorf("%s: %d bytes, want %d", f.Name, f.Size, want)
				}
				if f.Name == "a/b" && !f.ModifiedAt.Equal(r.clock.read()) {
					t.Errorf("%s: of %v", f.Name, f.ModifiedAt)
				}
			}
			return all
		}
		equal(t, "all", names(""), []string{"A/b", "a", "a-b", "a/b", "a/b.crt", "a/b/c", "a0", "b"})
		equal(t, "below a", names("a"), []string{"a", "a/b", "a/b.crt", "a/b/c"})
		equal(t, "below a/b", names("a/b"), []string{"a/b", "a/b/c"})
		if names("none") != nil {
			t.Error("something is below nothing")
		}
		must(t, r.DeleteTLSFiles(ctx, "a/b"))
		must(t, r.DeleteTLSFiles(ctx, "a/b"))
		equal(t, "after a delete", names("a"), []string{"a", "a/b.crt"})
		if err := r.DeleteTLSFiles(ctx, ""); err == nil {
			t.Error("all can be deleted")
		}
		if err := r.PutTLSFile(ctx, "large", make([]byte, MaxTLSFile+1)); err == nil {
			t.Error("a large file was kept")
		}
	})
}

// M02: private keys lay readable in whatever copied the database. What is kept is sealed,
// and to its name: a file that is put in the place of another is not opened.
func TestTLSFilesAreSealed(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		const private = "the private key"
		must(t, r.PutTLSFile(ctx, "one", []byte(private)))
		must(t, r.PutTLSFile(ctx, "two", []byte("another")))
		var sealed []byte
		must(t, r.read.QueryRowContext(ctx, `SELECT sealed FROM tls_files WHERE name = 'one'`).Scan(&sealed))
		if bytes.Contains(sealed, []byte(private)) {
			t.Error("it is stored in clear")
		}
		must(t, run(ctx, r.write, `UPDATE tls_files SET sealed = $1 WHERE name = 'two'`, sealed))
		if got, err := r.TLSFile(ctx, "two"); err == nil || !strings.Contains(err.Error(), errSealed.Error()) {
			t.Errorf("opened %q, %v", got, err)
		}
	})
}
