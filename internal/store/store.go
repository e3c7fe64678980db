package store

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Bounds of one call, whatever its context allows.
const (
	callTime    = 10 * time.Second // a look-up or a change
	declareTime = time.Minute      // Declare, with a large file
	openTime    = 5 * time.Minute  // Open, with migrations of a large store
)

// ErrUnusable says that the store cannot be used as it is, now or later; its text says
// what to do.
var ErrUnusable = errors.New("the store cannot be used")

// Options say which store to open.
type Options struct {
	// URL is "sqlite:/path/file.db" or "postgres://…". A password in it reaches no error.
	URL string
	// SealingKey has 32 bytes; signing keys are sealed under it (design §5). nil: with
	// SQLite it is the file beside the database, "….key", which is made with mode 0600
	// where the store is new; with Postgres it is required, and the same for each replica.
	SealingKey []byte
	Now        func() time.Time // nil = the system's clock
	Random     io.Reader        // nil = crypto/rand.Reader
	// Claim is another process' hold on the SQLite file (Store.Claim), which this one
	// shares until that one closes its store; nil = it is for this process alone. It stays
	// the caller's. One on another file counts for nothing.
	Claim *os.File
}

// String leaves out what is secret.
func (o Options) String() string { return "store options" }

// GoString leaves out what is secret.
func (o Options) GoString() string { return o.String() }

// MarshalText leaves out what is secret.
func (o Options) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// Store is what people manage. Its methods are safe for concurrent use. Every call ends
// within 10 s, and Declare within a minute, or with its context.
type Store struct {
	write, read *sql.DB
	shared      bool
	now         func() time.Time
	random      io.Reader
	seal        *sealer
	// clock is the one that all replicas share.
	clock    func(context.Context, querier) (time.Time, error)
	notify   func(context.Context, querier) error
	listen   *pgx.ConnConfig // nil with SQLite
	alive    time.Duration   // aliveEvery
	lookedAt int             // maxLookedAt
	feed     feed
	life     context.Context // ends with Close
	end      context.CancelFunc
	claim    *os.File // on the SQLite file; nil with Postgres
}

// Open opens a store, makes it where there is none, and brings its schema up to date. The
// error wraps ErrUnusable where it is for people to solve, else ErrUnavailable: the same
// call may succeed later.
func Open(ctx context.Context, o Options) (*Store, error) {
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Random == nil {
		o.Random = rand.Reader
	}
	if o.SealingKey != nil && len(o.SealingKey) != sealingKeyBytes {
		return nil, fmt.Errorf("%w: auth.sealing_key has %d bytes; it has to have %d", ErrUnusable, len(o.SealingKey), sealingKeyBytes)
	}
	s := &Store{now: o.Now, random: o.Random, alive: aliveEvery, lookedAt: maxLookedAt}
	s.life, s.end = context.WithCancel(context.WithoutCancel(ctx))
	var err error
	scheme, _, _ := strings.Cut(o.URL, ":")
	switch scheme {
	case "sqlite":
		err = s.openSQLite(ctx, o)
	case "postgres", "postgresql":
		err = s.openPostgres(ctx, o)
	default:
		err = errScheme
	}
	if err != nil {
		if !errors.Is(err, ErrUnusable) {
			err = failed("open the store", err)
		}
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close ends all use of the store. Calls under way fail; so does Notified. Further calls do
// nothing.
func (s *Store) Close() error {
	s.end()
	var errs []error
	// Readers first: the last connection of SQLite, which folds the log into the file, has
	// to be the one that may write.
	for _, db := range []*sql.DB{s.read, s.write} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	if s.claim != nil {
		if err := s.claim.Close(); !errors.Is(err, os.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Claim is a copy of this process' hold on a SQLite file, for another process that is to
// take over: nil with Postgres. Both use the file then, and each hears within a second
// what the other has changed. The caller closes it.
func (s *Store) Claim() (*os.File, error) {
	if s.claim == nil {
		return nil, nil //nolint:nilnil // there is none, and nothing is wrong
	}
	f, err := duplicate(s.claim)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	return f, nil
}

// Shared reports whether several replicas may use the store: Postgres.
func (s *Store) Shared() bool { return s.shared }

// querier is a pool, or a transaction.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// row is one row of an answer.
type row interface{ Scan(dest ...any) error }

// list reads all rows of an answer.
func list[T any](ctx context.Context, q querier, scan func(row) (T, error), query string, args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // what went wrong is in Err
	var all []T
	for rows.Next() {
		one, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, rows.Err()
}

// affects runs a statement and reports whether it changed a row.
func affects(ctx context.Context, q querier, query string, args ...any) (bool, error) {
	result, err := q.ExecContext(ctx, query, args...)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n > 0, err
}

// run runs a statement.
func run(ctx context.Context, q querier, query string, args ...any) error {
	_, err := q.ExecContext(ctx, query, args...)
	return err
}

// text reads one column.
func text(r row) (string, error) {
	var s string
	return s, r.Scan(&s)
}
