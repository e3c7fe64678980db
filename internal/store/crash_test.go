package store

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sluice/internal/tenant"
)

// childEnv makes the test binary a process of its own that uses a store: a role and a URL.
const childEnv = "SLUICE_STORE_CHILD"

func childOf(t *testing.T, role string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+role)
	return cmd
}

func child(told string) int {
	role, url, _ := strings.Cut(told, " ")
	ctx := context.Background()
	o := Options{URL: url, SealingKey: testSealingKey}
	if role == "take" {
		o.Claim = os.NewFile(3, "claim")
	}
	s, err := Open(ctx, o)
	if err == nil {
		switch role {
		case "take":
			err = takeOver(ctx, s)
		case "write":
			err = writeForEver(ctx, s)
		case "full":
			err = fillUp(ctx, s)
		}
	}
	if err == nil {
		err = s.Close()
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// accountAndKey makes the n-th account with a key of its own.
func accountAndKey(ctx context.Context, s *Store, n int64) error {
	id := fmt.Sprintf("acc%d", n)
	return s.CreateAccount(ctx, someone(), Account{ID: tenant.AccountID(id), State: tenant.Active}, &Key{Key: tenant.Key{
		ID: id, Account: tenant.AccountID(id), Name: "first", Digest: tenant.DigestOf(id), Access: tenant.WriteAccess, ActsAs: tenant.User,
	}})
}

// writeForEver says "ready", and then the number of each account once it is there.
func writeForEver(ctx context.Context, s *Store) error {
	revision, err := s.Revision(ctx)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for n := revision; ; n++ {
		if err := accountAndKey(ctx, s, n); err != nil {
			return err
		}
		fmt.Println(n)
	}
}

// Whoever was told that a key is made has it, whatever ends the process, and nothing is
// there by half.
func TestKilledWhileWriting(t *testing.T) {
	t.Parallel()
	rounds := 5
	if os.Getenv("SLUICE_SOAK") == "1" {
		rounds = 50
	}
	for name, url := range map[string]func(*testing.T) string{
		"sqlite":   func(t *testing.T) string { t.Helper(); return "sqlite:" + filepath.Join(t.TempDir(), "sluice.db") },
		"postgres": func(t *testing.T) string { t.Helper(); return postgres.Database(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, seed := url(t), rand.Uint64()       //nolint:gosec // when to kill is no secret
			random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // when to kill is no secret
			acknowledged := make([]int64, 0, rounds*120)
			for range rounds {
				acknowledged = append(acknowledged, killWriter(t, url, 1+random.IntN(120))...)
				checkWritten(t, url, acknowledged)
			}
			if t.Failed() {
				t.Logf("seed %d", seed)
			}
		})
	}
}

// killWriter has a process write, ends it after so many writes, and returns those that it
// was told of.
func killWriter(t *testing.T, url string, writes int) (acknowledged []int64) {
	t.Helper()
	cmd := childOf(t, "write "+url)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var n int64
		if lines.Text() != "ready" {
			if _, err := fmt.Sscan(lines.Text(), &n); err != nil {
				t.Fatalf("the writer says %q", lines.Text())
			}
			acknowledged = append(acknowledged, n)
		}
		if writes--; writes == 0 {
			must(t, cmd.Process.Kill()) // what it said before is in the pipe
		}
		if writes < -10_000 {
			t.Fatal("it lives on")
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Error("it ended by itself")
	}
	return acknowledged
}

// checkWritten holds what is stored against what was acknowledged and against itself.
func checkWritten(t *testing.T, url string, acknowledged []int64) {
	t.Helper()
	ctx := t.Context()
	s, err := Open(ctx, Options{URL: url, SealingKey: testSealingKey})
	must(t, err)
	defer func() { must(t, s.Close()) }()
	for _, n := range acknowledged {
		id := fmt.Sprintf("acc%d", n)
		if k, err := s.KeyOf(ctx, tenant.DigestOf(id)); err != nil || k.ID != id {
			t.Errorf("key %s: %v, %v", id, k, err)
		}
		if _, err := s.Account(ctx, tenant.AccountID(id)); err != nil {
			t.Errorf("account %s: %v", id, err)
		}
		if records, _, err := s.Audit(ctx, AuditQuery{Account: tenant.AccountID(id), Limit: 2}); err != nil || len(records) != 1 || records[0].Action != AccountCreate {
			t.Errorf("records of account %s: %v, %v", id, records, err)
		}
	}
	count := func(query string) (n int64) {
		t.Helper()
		must(t, s.read.QueryRowContext(ctx, query).Scan(&n))
		return n
	}
	if n := count(`SELECT count(*) FROM accounts a WHERE NOT EXISTS (SELECT 1 FROM key_secrets s JOIN api_keys k ON k.id = s.key_id WHERE k.account = a.id)`); n != 0 {
		t.Errorf("%d accounts are there by half", n)
	}
	revision, err := s.Revision(ctx)
	must(t, err)
	if log, accounts := count(`SELECT count(*) FROM changes`), count(`SELECT count(*) FROM accounts`); log != revision || log != 2*accounts {
		t.Errorf("revision %d, %d changes of %d accounts", revision, log, accounts)
	}
	if records, accounts := count(`SELECT count(*) FROM audit`), count(`SELECT count(*) FROM accounts`); records != accounts {
		t.Errorf("%d records of %d accounts", records, accounts)
	}
	if !s.Shared() {
		var whole string
		must(t, s.read.QueryRowContext(ctx, `PRAGMA integrity_check`).Scan(&whole))
		equal(t, "integrity", whole, "ok")
	}
}
