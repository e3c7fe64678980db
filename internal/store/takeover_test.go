package store

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/internal/tenant"
)

// takeOver writes what the first process is to see, waits until it has closed the store,
// and writes on.
func takeOver(ctx context.Context, s *Store) error {
	if err := accountAndKey(ctx, s, 100); err != nil {
		return err
	}
	fmt.Println("taken")
	if _, err := io.ReadAll(os.Stdin); err != nil {
		return err
	}
	if _, err := s.Account(ctx, "acc2"); err != nil {
		return fmt.Errorf("what the first has written last: %w", err)
	}
	if err := accountAndKey(ctx, s, 101); err != nil {
		return err
	}
	fmt.Println("alone")
	return nil
}

// An upgrade of a program with SQLite was refused the file, for the one before it has it
// still. One that was handed the hold on it uses it beside that one, each sees what the
// other has changed, and it has the file alone once that one has closed it; anybody else
// is kept out all the while.
func TestSQLiteIsTakenOver(t *testing.T) {
	t.Parallel()
	o := Options{URL: "sqlite:" + filepath.Join(t.TempDir(), "sluice.db"), SealingKey: testSealingKey}
	first := open(t, o)
	must(t, accountAndKey(t.Context(), first, 1))
	claim, err := first.Claim()
	must(t, err)
	next := childOf(t, "take "+o.URL)
	next.ExtraFiles, next.Stderr = []*os.File{claim}, os.Stderr
	in, err := next.StdinPipe()
	must(t, err)
	out, err := next.StdoutPipe()
	must(t, err)
	must(t, next.Start())
	must(t, claim.Close())
	said := bufio.NewScanner(out)
	hears := func(word string) {
		t.Helper()
		if !said.Scan() || said.Text() != word {
			t.Fatalf("it says %q, want %q", said.Text(), word)
		}
	}
	hears("taken")
	if _, err := first.KeyOf(t.Context(), tenant.DigestOf("acc100")); err != nil {
		t.Errorf("what the next has written: %v", err)
	}
	if changes, whole, err := first.Changes(t.Context(), 1, 9); err != nil || !whole || len(changes) == 0 {
		t.Errorf("its changes: %v, %t, %v", changes, whole, err)
	}
	must(t, accountAndKey(t.Context(), first, 2))
	contains(t, refused(t, o, ErrUnusable), "another process")
	must(t, first.Close())
	contains(t, refused(t, o, ErrUnusable), "another process")
	must(t, in.Close())
	hears("alone")
	must(t, next.Wait())
	again := open(t, o)
	for _, id := range []tenant.AccountID{"acc1", "acc2", "acc100", "acc101"} {
		if _, err := again.Account(t.Context(), id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	must(t, again.Close())
}

// A hold on another file is none, and Postgres needs none.
func TestClaimOfAnotherFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	one := open(t, Options{URL: "sqlite:" + filepath.Join(dir, "one.db"), SealingKey: testSealingKey})
	two := open(t, Options{URL: "sqlite:" + filepath.Join(dir, "two.db"), SealingKey: testSealingKey})
	claim, err := one.Claim()
	must(t, err)
	defer func() { must(t, claim.Close()) }()
	text := refused(t, Options{URL: "sqlite:" + filepath.Join(dir, "two.db"), SealingKey: testSealingKey, Claim: claim}, ErrUnusable)
	if !strings.Contains(text, "two.db.lock") {
		t.Error(text)
	}
	must(t, one.Close())
	must(t, two.Close())
}
