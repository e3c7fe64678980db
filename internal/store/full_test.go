package store

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"sluice/internal/tenant"
)

// errFull is what is wrong with a full store.
var errFull = errors.New("a store on a full disk")

// fillUp writes until there is no room, by a limit of the process on the size of files,
// then makes room and writes on. It returns what is wrong.
func fillUp(ctx context.Context, s *Store) error {
	signal.Ignore(syscall.SIGXFSZ)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	before := limit
	limit.Cur = 300_000
	return writeUntilFull(ctx, s, func() error { return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit) },
		func() error { return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before) })
}

// writeUntilFull holds a store against the rules: a clear error, nothing by half, nothing
// lost, reads that go on, and writes that do once there is room.
func writeUntilFull(ctx context.Context, s *Store, noRoom, room func() error) error {
	if err := accountAndKey(ctx, s, 0); err != nil {
		return err
	}
	if err := noRoom(); err != nil {
		return err
	}
	var n int64 = 1
	var failure error
	for ; failure == nil && n < 100_000; n++ {
		failure = accountAndKey(ctx, s, n)
	}
	last := n - 1 // the one that failed
	if !errors.Is(failure, ErrUnavailable) || errors.Is(failure, ErrTaken) {
		return fmt.Errorf("%w: after %d writes: %w", errFull, n, failure)
	}
	fmt.Println("full:", failure)
	check := func(when string) error {
		for n := range last {
			if _, err := s.KeyOf(ctx, tenant.DigestOf(fmt.Sprintf("acc%d", n))); err != nil {
				return fmt.Errorf("%w: %s: the key %d of %d is lost: %w", errFull, when, n, last, err)
			}
		}
		if revision, err := s.Revision(ctx); err != nil || revision != 2*last {
			return fmt.Errorf("%w: %s: revision %d, want %d, %w", errFull, when, revision, 2*last, err)
		}
		return nil
	}
	if err := check("full"); err != nil {
		return err
	}
	if _, err := s.Account(ctx, tenant.AccountID(fmt.Sprintf("acc%d", last))); !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("%w: what failed is there by half: %w", errFull, err)
	}
	if err := room(); err != nil {
		return err
	}
	if err := accountAndKey(ctx, s, last); err != nil {
		return fmt.Errorf("%w: with room: %w", errFull, err)
	}
	last++
	return check("with room")
}

// A file that may not grow, as by RLIMIT_FSIZE or a quota.
func TestFileMayNotGrow(t *testing.T) {
	t.Parallel()
	url := "sqlite:" + filepath.Join(t.TempDir(), "sluice.db")
	out, err := childOf(t, "full "+url).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
	contains(t, string(out), "full: ")
	o := Options{URL: url, SealingKey: testSealingKey}
	if n, err := open(t, o).Revision(t.Context()); err != nil || n == 0 {
		t.Errorf("opened again: revision %d, %v", n, err)
	}
}
