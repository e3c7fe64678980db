package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"sluice/internal/tenant"
)

// The size that issue 7 names for Postgres; SQLite is for one small replica.
const (
	benchAccounts      = 1000
	benchKeysPostgres  = 1_000_000
	benchKeysSQLite    = 100_000
	benchStreamsShare  = 10 // keys for each stream
	benchDeclaredNames = 200
)

// fillBench makes accounts acc1…, keys k1… with the secrets of that name, and streams.
func fillBench(b *testing.B, s *Store, keys int) {
	b.Helper()
	numbers := `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $1) `
	account := fmt.Sprintf(`'acc' || (i %% %d + 1)`, benchAccounts)
	digest := `sha256(CAST('k' || i AS BYTEA))`
	if !s.Shared() {
		digest = `CAST('k' || i AS BLOB)` // SQLite has no SHA-256: found by what it is here
	}
	for _, fill := range []struct {
		insert string
		rows   int
	}{
		{`INSERT INTO accounts (id, state, declared, created_at) ` + numbers + `SELECT 'acc' || i, 'active', FALSE, 1 FROM n`, benchAccounts},
		{`INSERT INTO api_keys (id, account, name, access, acts_as, all_streams, patterns, declared, created_at, expires_at) ` + numbers +
			`SELECT 'k' || i, ` + account + `, 'name ' || i, 'write', 'user', TRUE, '', FALSE, 1, 0 FROM n`, keys},
		{`INSERT INTO key_secrets (digest, key_id, hint) ` + numbers + `SELECT ` + digest + `, 'k' || i, 'hint' FROM n`, keys},
		{`INSERT INTO streams (id, account, name, content_type, public, declared, state, region, incarnation, created_at, expires_at) ` + numbers +
			`SELECT 's' || i, ` + account + `, 'stream' || i, 'text/plain', FALSE, FALSE, 'active', 'eu', 'inc', 1, 0 FROM n`, keys / benchStreamsShare},
	} {
		if _, err := s.write.ExecContext(b.Context(), fill.insert, fill.rows); err != nil {
			b.Fatal(err)
		}
	}
	must(b, run(b.Context(), s.write, `ANALYZE`)) // Postgres does so by itself after a while
}

// BenchmarkStore is each call of the request path, of the feed and of a start, in a store
// of the size that issue 7 names.
func BenchmarkStore(b *testing.B) {
	for _, kind := range []struct {
		name, url string
		keys      int
	}{
		{"sqlite", "sqlite:" + filepath.Join(b.TempDir(), "sluice.db"), benchKeysSQLite},
		{"postgres", "", benchKeysPostgres},
	} {
		b.Run(kind.name, func(b *testing.B) {
			o := Options{URL: kind.url, SealingKey: testSealingKey}
			if o.URL == "" {
				o.URL = postgres.Database(b)
			}
			s, err := Open(b.Context(), o)
			must(b, err)
			fillBench(b, s, kind.keys)
			must(b, s.Close())
			b.Run("open", func(b *testing.B) {
				for b.Loop() {
					s, err := Open(b.Context(), o)
					must(b, err)
					must(b, s.Close())
				}
			})
			benchCalls(b, open(b, o), kind.keys)
		})
	}
}

func benchCalls(b *testing.B, s *Store, keys int) {
	b.Helper()
	digest := func(i int) tenant.Digest { return tenant.DigestOf(fmt.Sprint("k", i)) }
	if !s.Shared() {
		digest = func(i int) (d tenant.Digest) {
			copy(d[:], fmt.Sprint("k", i))
			return d
		}
		must(b, run(b.Context(), s.write, `UPDATE key_secrets SET digest = CAST(digest || zeroblob(32 - length(digest)) AS BLOB)`))
	}
	d := Declaration{Accounts: []Account{{ID: "declared"}}}
	for i := range benchDeclaredNames {
		name := fmt.Sprint("declared", i)
		d.Keys = append(d.Keys, tenant.Key{ID: "declared/" + name, Account: "declared", Name: name, Digest: tenant.DigestOf(name)})
		d.Streams = append(d.Streams, tenant.Stream{Account: "declared", Name: tenant.StreamName(name)})
	}
	must(b, s.Declare(b.Context(), d))
	made := 0
	for name, call := range map[string]func(ctx context.Context) error{
		"key of": func(ctx context.Context) error { _, err := s.KeyOf(ctx, digest(1+rand.IntN(keys))); return err }, //nolint:gosec // which one is no secret
		"no key": func(ctx context.Context) error {
			if _, err := s.KeyOf(ctx, digest(keys+1)); !errors.Is(err, ErrNotFound) {
				return fmt.Errorf("%w: %w", errLost, err)
			}
			return nil
		},
		"account":   func(ctx context.Context) error { _, err := s.Account(ctx, "acc7"); return err },
		"page":      func(ctx context.Context) error { _, err := s.Keys(ctx, "acc7", Page{Limit: 50}); return err },
		"streams":   func(ctx context.Context) error { _, err := s.Streams(ctx, "acc7", Page{Limit: 50}); return err },
		"unsettled": func(ctx context.Context) error { _, err := s.Unsettled(ctx, 100); return err },
		"changes":   func(ctx context.Context) error { _, _, err := s.Changes(ctx, 0, 1000); return err },
		"cutoffs":   func(ctx context.Context) error { _, err := s.Cutoffs(ctx); return err },
		"declare":   func(ctx context.Context) error { return s.Declare(ctx, d) },
		"use 500":   func(ctx context.Context) error { return s.UseKeys(ctx, used(keys)) },
		"create key": func(ctx context.Context) error {
			made++
			name := fmt.Sprint("made", made)
			return s.CreateKey(ctx, someone(), Key{Key: tenant.Key{ID: name, Account: "acc7", Name: name, Digest: tenant.DigestOf(name)}})
		},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				must(b, call(b.Context()))
			}
		})
	}
}

// used are keys that were used just now.
func used(keys int) map[string]time.Time {
	used := make(map[string]time.Time, usedAtOnce)
	for range usedAtOnce {
		used[fmt.Sprint("k", 1+rand.IntN(keys))] = time.Now() //nolint:gosec // which one is no secret
	}
	return used
}
