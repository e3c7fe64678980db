package store

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/internal/postgrestest"
	"sluice/internal/tenant"
)

// again calls until it succeeds.
func again(t *testing.T, what string, do func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := do(ctx)
		if err == nil {
			return
		}
		wants(t, what, err, ErrUnavailable)
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// calls are one of each kind.
func calls(r *rig) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"look-up": func(ctx context.Context) error {
			_, err := r.KeyOf(ctx, tenant.DigestOf("k"))
			return err
		},
		"change":   func(ctx context.Context) error { return r.CreateKey(ctx, someone(), r.aKey("acme", "never")) },
		"lease":    func(ctx context.Context) error { _, err := r.Hold(ctx, "l", "me", time.Minute); return err },
		"revision": func(ctx context.Context) error { _, err := r.Revision(ctx); return err },
		"open": func(ctx context.Context) error {
			s, err := Open(ctx, Options{URL: r.url, SealingKey: testSealingKey})
			if err == nil {
				err = s.Close()
			}
			return err
		},
		"notifications": func(ctx context.Context) error { return r.Notified(ctx, func() {}) },
	}
}

// A store that is gone says nothing of what is stored, and says so in time; it is used
// again as soon as it is back, without a restart.
func TestPostgresIsGone(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	r := newRig(t, server.Database(t, ""))
	r.alive = 100 * time.Millisecond
	r.account(t, "acme")
	must(t, r.CreateKey(t.Context(), someone(), r.aKey("acme", "k")))
	for _, tc := range []struct {
		name      string
		end, back func(testing.TB)
	}{
		{"frozen", server.Pause, server.Cont},
		{"stopped", func(testing.TB) { server.Stop() }, server.Restart},
		{"killed", server.Kill, server.Restart},
	} {
		ended := make(chan error, 1)
		woken := make(chan struct{}, 100)
		go func() { ended <- r.Notified(t.Context(), func() { woken <- struct{}{} }) }()
		receive(t, tc.name+": listening", woken)
		tc.end(t)
		for name, call := range calls(r) {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			began := time.Now()
			wants(t, tc.name+": "+name, call(ctx), ErrUnavailable)
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("%s: %s took %v", tc.name, name, took)
			}
			cancel()
		}
		wants(t, tc.name+": notifications", receive(t, "their end", ended), ErrUnavailable)
		tc.back(t)
		again(t, tc.name+": look-up", func(ctx context.Context) error {
			_, err := r.KeyOf(ctx, tenant.DigestOf("k"))
			return err
		})
		again(t, tc.name+": change", func(ctx context.Context) error {
			return r.CreateKey(ctx, someone(), r.aKey("acme", "after "+tc.name))
		})
	}
	// Of the change that failed in time, nothing came later: a connection that is given up
	// takes its transaction along.
	if _, err := r.Key(t.Context(), "acme", "never"); err != nil {
		wants(t, "what failed", err, ErrNotFound)
	}
}

// Connections that a restart has cut are not found out by calls, each of which would be a
// refusal that nobody had to see.
func TestRestartFailsNoCall(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	r := newRig(t, server.Database(t, ""))
	r.account(t, "acme")
	for round := range 3 {
		var looking sync.WaitGroup
		for range postgresReaders { // so many connections are kept
			looking.Go(func() {
				if _, err := r.Account(t.Context(), "acme"); err != nil {
					t.Error(err)
				}
			})
		}
		looking.Wait()
		server.Restart(t)
		if _, err := r.Account(t.Context(), "acme"); err != nil {
			t.Error(err)
		}
		must(t, r.CreateKey(t.Context(), someone(), r.aKey("acme", fmt.Sprint("k", round))))
	}
}

// The server is killed while a replica writes. What it acknowledged is there.
func TestPostgresIsKilledWhileWriting(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t, "-c", "fsync=on")
	r := newRig(t, server.Database(t, ""))
	for round := range 3 {
		var acknowledged []int64
		var writing sync.WaitGroup
		some := make(chan struct{}, 1000)
		writing.Go(func() {
			for n := int64(round) * 1000; n < int64(round+1)*1000; n++ {
				if err := accountAndKey(t.Context(), r.Store, n); err != nil {
					wants(t, "a write that failed", err, ErrUnavailable)
					return
				}
				acknowledged = append(acknowledged, n)
				some <- struct{}{}
			}
		})
		for range 20 {
			receive(t, "a write", some)
		}
		server.Kill(t)
		writing.Wait()
		server.Restart(t)
		checkWritten(t, r.url, acknowledged)
		again(t, "a look-up", func(ctx context.Context) error { _, err := r.Revision(ctx); return err })
	}
}

// A replica that is frozen, or whose machine is gone, in the middle of a change holds the
// row for which all changes queue. The others' go on within their time.
func TestFrozenReplicaHoldsUpNobody(t *testing.T) {
	t.Parallel()
	r := newRig(t, postgres.Database(t))
	frozen := replica(t, r.url, r.clock)
	tx, err := frozen.write.BeginTx(t.Context(), nil)
	must(t, err)
	must(t, run(t.Context(), tx, `UPDATE meta SET revision = revision WHERE id = 1`))
	must(t, run(t.Context(), tx, `INSERT INTO accounts (id, state, declared, created_at) VALUES ('half', 'active', FALSE, 0)`))
	r.account(t, "acme")
	if err := tx.Commit(); err == nil {
		t.Error("it goes on when it is thawed")
	}
	_, err = r.Account(t.Context(), "half")
	wants(t, "what it had begun", err, ErrNotFound)
	// And works again.
	must(t, frozen.CreateAccount(t.Context(), someone(), Account{ID: "half"}, nil))
}

// A change that is given up in the middle is undone, and holds up nobody after it.
func TestChangeIsGivenUp(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithCancel(t.Context())
		err := r.change(ctx, "a trial", callTime, someone(), func(ctx context.Context, c *change) error {
			if err := c.insertAccount(ctx, Account{ID: "half"}); err != nil {
				return err
			}
			cancel()
			return c.insertAccount(ctx, Account{ID: "more"})
		})
		wants(t, "given up", err, ErrUnavailable)
		wants(t, "given up", err, context.Canceled)
		_, err = r.Account(t.Context(), "half")
		wants(t, "what it had begun", err, ErrNotFound)
		for i := range 3 {
			r.account(t, tenant.AccountID(fmt.Sprintf("acc%d", i)))
		}
		if n, err := r.Revision(t.Context()); err != nil || n != 3 {
			t.Errorf("revision %d, %v", n, err)
		}
	})
}

// Each method says of a store that is closed that it could not tell: "there is none" would
// be a 401 for every key.
func TestClosedStoreCannotTell(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		must(t, r.Close())
		p := Page{Limit: 1}
		second := func(_ any, err error) error { return err }
		for name, call := range map[string]func(context.Context) error{
			"CreateAccount": func(ctx context.Context) error { return r.CreateAccount(ctx, someone(), Account{}, nil) },
			"Account":       func(ctx context.Context) error { return second(r.Account(ctx, "acme")) },
			"Accounts":      func(ctx context.Context) error { return second(r.Accounts(ctx, p)) },
			"ChangeAccount": func(ctx context.Context) error {
				return second(r.ChangeAccount(ctx, someone(), "acme", AccountChange{}))
			},
			"DeleteAccount": func(ctx context.Context) error { return r.DeleteAccount(ctx, someone(), "acme") },
			"CreateKey":     func(ctx context.Context) error { return r.CreateKey(ctx, someone(), Key{}) },
			"Key":           func(ctx context.Context) error { return second(r.Key(ctx, "acme", "k")) },
			"KeyOf":         func(ctx context.Context) error { return second(r.KeyOf(ctx, tenant.Digest{})) },
			"Keys":          func(ctx context.Context) error { return second(r.Keys(ctx, "acme", p)) },
			"ChangeKey":     func(ctx context.Context) error { return second(r.ChangeKey(ctx, someone(), "acme", "k", KeyChange{})) },
			"RotateKey": func(ctx context.Context) error {
				return second(r.RotateKey(ctx, someone(), "acme", "k", NewSecret{}))
			},
			"RevokeKey":    func(ctx context.Context) error { return r.RevokeKey(ctx, someone(), "acme", "k") },
			"UseKeys":      func(ctx context.Context) error { return r.UseKeys(ctx, map[string]time.Time{"k": time.Unix(1, 0)}) },
			"CreateStream": func(ctx context.Context) error { return r.CreateStream(ctx, someone(), Stream{}) },
			"Stream":       func(ctx context.Context) error { return second(r.Stream(ctx, "acme", "s")) },
			"Streams":      func(ctx context.Context) error { return second(r.Streams(ctx, "acme", p)) },
			"SetPublic":    func(ctx context.Context) error { return second(r.SetPublic(ctx, someone(), "acme", "s", true)) },
			"MarkCreated":  func(ctx context.Context) error { return r.MarkCreated(ctx, "id", "inc") },
			"DeleteStream": func(ctx context.Context) error { return second(r.DeleteStream(ctx, someone(), "acme", "s")) },
			"Busy":         func(ctx context.Context) error { return r.Busy(ctx, "id", time.Time{}) },
			"Leave":        func(ctx context.Context) error { return r.Leave(ctx, "id", time.Time{}) },
			"RemoveStream": func(ctx context.Context) error { return r.RemoveStream(ctx, "id") },
			"Unsettled":    func(ctx context.Context) error { return second(r.Unsettled(ctx, 1)) },
			"SigningKeys":  func(ctx context.Context) error { return second(r.SigningKeys(ctx)) },
			"RotateSigningKeys": func(ctx context.Context) error {
				return second(r.RotateSigningKeys(ctx, tenant.DefaultRotation()))
			},
			"Cutoffs":  func(ctx context.Context) error { return second(r.Cutoffs(ctx)) },
			"Declare":  func(ctx context.Context) error { return r.Declare(ctx, Declaration{}) },
			"Hold":     func(ctx context.Context) error { return second(r.Hold(ctx, "l", "me", time.Second)) },
			"LetGo":    func(ctx context.Context) error { return r.LetGo(ctx, "l", "me") },
			"Revision": func(ctx context.Context) error { return second(r.Revision(ctx)) },
			"Changes":  func(ctx context.Context) error { _, _, err := r.Changes(ctx, 0, 1); return err },
			"Notified": func(ctx context.Context) error { return r.Notified(ctx, func() {}) },
		} {
			wants(t, name, call(t.Context()), ErrUnavailable)
		}
	})
}

// What is between a replica and Postgres is secret where the URL says so, and a server that
// cannot prove who it is is not talked to.
func TestTLSByURL(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	certificate := server.Encrypt(t)
	plain := server.Database(t, "")
	with := func(mode string) string { return strings.Replace(plain, "sslmode=require", mode, 1) }
	s := open(t, Options{URL: with("sslmode=verify-full&sslrootcert=" + certificate), SealingKey: testSealingKey})
	var encrypted bool
	must(t, s.read.QueryRowContext(t.Context(), `SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()`).Scan(&encrypted))
	if !encrypted {
		t.Error("a connection without TLS")
	}
	ctx, cancel := context.WithCancel(t.Context())
	woken := make(chan struct{}, 9)
	ended := make(chan error, 1)
	go func() { ended <- s.Notified(ctx, func() { woken <- struct{}{} }) }()
	receive(t, "notifications", woken)
	cancel()
	wants(t, "ended by its context", receive(t, "their end", ended), context.Canceled)

	refused(t, Options{URL: with("sslmode=verify-full"), SealingKey: testSealingKey}, ErrUnavailable)
	refused(t, Options{URL: with("sslmode=disable"), SealingKey: testSealingKey}, ErrUnavailable)
	wrong := strings.Replace(plain, postgrestest.Password, "cuttlefish", 1)
	if text := refused(t, Options{URL: wrong, SealingKey: testSealingKey}, ErrUnavailable); strings.Contains(text, "cuttlefish") {
		t.Errorf("it says %s", text)
	}
}
