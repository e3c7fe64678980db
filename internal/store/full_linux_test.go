package store

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"sluice/internal/postgrestest"
)

// A disk that is full, in this case a small one in memory.
func TestDiskIsFull(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=2m"); err != nil {
		t.Skipf("no disk to fill: only root may mount one (%v); TestFileMayNotGrow stands for it", err)
	}
	t.Cleanup(func() { must(t, syscall.Unmount(dir, 0)) })
	s := open(t, Options{URL: "sqlite:" + filepath.Join(dir, "sluice.db"), SealingKey: testSealingKey})
	ballast := filepath.Join(dir, "ballast")
	must(t, os.WriteFile(ballast, make([]byte, 1<<20), 0o600))
	must(t, writeUntilFull(t.Context(), s, func() error { return nil }, func() error { return os.Remove(ballast) }))
}

// Postgres whose files may not grow. Its first table is made larger than the least limit
// that its own log can live with.
func TestPostgresIsFull(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	r := newRig(t, server.Database(t, ""))
	must(t, run(t.Context(), r.write, `INSERT INTO accounts (id, state, declared, created_at, deleted_at)
		SELECT repeat('x', 60) || i, 'active', FALSE, 1, 1 FROM generate_series(1, 200000) i`))
	limit := func(bytes int64) func() error {
		return func() error {
			server.LimitFiles(t, bytes)
			return nil
		}
	}
	must(t, writeUntilFull(t.Context(), r.Store, limit(17<<20), limit(postgrestest.Unlimited)))
}
