package store

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
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
