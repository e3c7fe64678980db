package store

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sluice/internal/postgrestest"
	"sluice/internal/tenant"
)

// postgres is shared by all tests of the package.
var postgres = &postgrestest.Shared{Fill: func(tb testing.TB, url string) {
	tb.Helper()
	s, err := Open(context.Background(), Options{URL: url, SealingKey: testSealingKey})
	if err == nil {
		err = s.Close()
	}
	if err != nil {
		tb.Fatal(err)
	}
}}

// testSealingKey seals what nobody needs.
var testSealingKey = make([]byte, sealingKeyBytes)

func TestMain(m *testing.M) {
	if role := os.Getenv(childEnv); role != "" {
		os.Exit(child(role))
	}
	code := m.Run()
	postgres.Close()
	os.Exit(code)
}

// rig is a store with a clock of its own.
type rig struct {
	*Store
	clock *clock
	url   string
}

// clock stands until it is moved. It is that of the replicas and that of the store.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) read() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// each runs one test against an empty store of each kind.
func each(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Helper()
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		test(t, newRig(t, "sqlite:"+filepath.Join(t.TempDir(), "sluice.db")))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(t, newRig(t, postgres.Database(t)))
	})
}

// newRig opens a store at noon.
func newRig(tb testing.TB, url string) *rig {
	tb.Helper()
	return replica(tb, url, &clock{now: time.Date(2026, 6, 1, 12, 0, 0, 300e6, time.UTC)})
}

// replica opens a store with a clock that others have too.
func replica(tb testing.TB, url string, c *clock) *rig {
	tb.Helper()
	s := open(tb, Options{URL: url, SealingKey: testSealingKey, Now: c.read})
	// The time of a test is that of Postgres too.
	s.clock = func(context.Context, querier) (time.Time, error) { return c.read(), nil }
	return &rig{Store: s, clock: c, url: url}
}

func open(tb testing.TB, o Options) *Store {
	tb.Helper()
	s, err := Open(tb.Context(), o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// someone is who makes the changes of the tests.
func someone() Author {
	return ByKey("acme", "key_of_someone", netip.MustParseAddr("192.0.2.7"), "request-7")
}

// must fails the test at once.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// wants notes another error than the one that is wanted.
func wants(tb testing.TB, what string, got, want error) {
	tb.Helper()
	if !errors.Is(got, want) {
		tb.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// equal notes a difference.
func equal[T any](tb testing.TB, what string, got, want T) {
	tb.Helper()
	sets := cmp.Comparer(func(a, b tenant.StreamSet) bool {
		return a.Narrowed() == b.Narrowed() && cmp.Equal(a.Patterns(), b.Patterns())
	})
	if diff := cmp.Diff(want, got, sets, cmpopts.EquateEmpty()); diff != "" {
		tb.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// account adds one without keys.
func (r *rig) account(tb testing.TB, id tenant.AccountID) {
	tb.Helper()
	must(tb, r.CreateAccount(tb.Context(), someone(), Account{ID: id, State: tenant.Active}, nil))
}

// aKey is one that does everything, whose secret is its id.
func (r *rig) aKey(account tenant.AccountID, id string) Key {
	return Key{Key: tenant.Key{
		ID: id, Account: account, Name: "name of " + id, Hint: "hint", Digest: tenant.DigestOf(id), Access: tenant.WriteAccess,
		Streams: tenant.AllStreams(), ActsAs: tenant.User, CreatedAt: r.clock.read(),
	}}
}

// aStream is one whose id is its account and name.
func (r *rig) aStream(account tenant.AccountID, name tenant.StreamName) Stream {
	return Stream{
		Stream: tenant.Stream{Account: account, Name: name, ContentType: "application/json"},
		ID:     string(account) + " " + string(name), State: Creating, Region: "eu", CreatedAt: r.clock.read(),
	}
}

// live adds a stream that Ursula has.
func (r *rig) live(tb testing.TB, account tenant.AccountID, name tenant.StreamName) Stream {
	tb.Helper()
	st := r.aStream(account, name)
	must(tb, r.CreateStream(tb.Context(), someone(), st))
	must(tb, r.MarkCreated(tb.Context(), st.ID, "inc1"))
	st.State, st.Incarnation = Live, "inc1"
	return st
}

// told are the changes since the last call.
func (r *rig) told(tb testing.TB, after *int64) []tenant.Change {
	tb.Helper()
	changes, whole, err := r.Changes(tb.Context(), *after, 1000)
	if err != nil || !whole {
		tb.Fatalf("changes after %d: whole %t, %v", *after, whole, err)
	}
	told := make([]tenant.Change, 0, len(changes))
	for _, c := range changes {
		if c.Revision != *after+1 {
			tb.Errorf("revision %d follows %d", c.Revision, *after)
		}
		*after = c.Revision
		told = append(told, c.Change)
	}
	return told
}

// cutoff is that of one key; zero = none.
func (r *rig) cutoff(tb testing.TB, key string) time.Time {
	tb.Helper()
	all, err := r.Cutoffs(tb.Context())
	must(tb, err)
	for _, c := range all {
		if c.KeyID == key {
			return c.At
		}
	}
	return time.Time{}
}

// skew is the allowance for the clocks of replicas.
func (r *rig) skew() time.Duration {
	if r.Shared() {
		return clockSkew
	}
	return heardWithin
}

func pointer[T any](v T) *T { return &v }

func streamsOf(tb testing.TB, list ...string) tenant.StreamSet {
	tb.Helper()
	set, err := tenant.ParseStreamSet(list)
	must(tb, err)
	return set
}

func randomSealingKey(tb testing.TB) []byte {
	tb.Helper()
	key := make([]byte, sealingKeyBytes)
	_, err := rand.Read(key)
	must(tb, err)
	return key
}

func base64Of(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
