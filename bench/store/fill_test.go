package store

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/jackc/pgx/v5"

	"sluice/auth"
)

// size is how much is in a store. Key i and stream i are of account i modulo accounts, so
// that key i may read stream i modulo streams where accounts divides streams.
type size struct{ accounts, keys, streams int }

// apiKey is the secret of a key: the same for the same number.
func apiKey(tb testing.TB, i int) string {
	tb.Helper()
	var seed [32]byte
	binary.BigEndian.PutUint64(seed[:], uint64(i)) //nolint:gosec // a count
	k, err := auth.GenerateKey(rand.NewChaCha8(seed))
	if err != nil {
		tb.Fatal(err)
	}
	return k.Reveal()
}

func account(i int) string { return fmt.Sprintf("acct-%d", i) }

// target is the path of the stream that a key may read.
func (s size) target(i int) string {
	return fmt.Sprintf("/%s/s.stream-%d", account(i%s.accounts), i%s.streams)
}

// fill puts all of it into a database that the program has migrated, as it would stand
// there if people had made it; the log of changes is that of one which was pruned since.
func (s size) fill(tb testing.TB, url string) {
	tb.Helper()
	ctx := context.WithoutCancel(tb.Context())
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	copyRows := func(table string, columns []string, n int, row func(i int) []any) {
		tb.Helper()
		next := -1
		got, err := conn.CopyFrom(ctx, pgx.Identifier{table}, columns, pgx.CopyFromFunc(func() ([]any, error) {
			if next++; next == n {
				return nil, nil
			}
			return row(next), nil
		}))
		if err != nil || got != int64(n) {
			tb.Fatal(errors.Join(fmt.Errorf("%s: %d rows", table, got), err))
		}
	}
	run := func(statement string) {
		tb.Helper()
		if _, err := conn.Exec(ctx, statement); err != nil {
			tb.Fatalf("%s: %v", statement, err)
		}
	}
	run(`SET session_replication_role = replica`) // rows are not looked up one by one for what they refer to
	copyRows("accounts", []string{"id", "state", "declared", "created_at"}, s.accounts, func(i int) []any {
		return []any{account(i), "active", false, int64(1)}
	})
	copyRows("api_keys", []string{"id", "account", "name", "access", "acts_as", "all_streams", "patterns", "declared", "created_at", "expires_at"}, s.keys, func(i int) []any {
		return []any{fmt.Sprintf("key_%024d", i), account(i % s.accounts), fmt.Sprintf("name %d", i), "write", "user", true, "", false, int64(1), int64(0)}
	})
	copyRows("key_secrets", []string{"digest", "key_id", "hint"}, s.keys, func(i int) []any {
		key := apiKey(tb, i)
		digest := sha256.Sum256([]byte(key))
		return []any{digest[:], fmt.Sprintf("key_%024d", i), key[len(key)-4:]}
	})
	copyRows("streams", []string{"id", "account", "name", "content_type", "public", "declared", "state", "region", "incarnation", "created_at", "expires_at"}, s.streams, func(i int) []any {
		return []any{fmt.Sprintf("stream_%024d", i), account(i % s.accounts), fmt.Sprintf("stream-%d", i), "application/json", false, false, "active", "", "inc", int64(1), int64(0)}
	})
	run(`ANALYZE`) // Postgres does so by itself after a while
}
