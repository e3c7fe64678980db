package postgrestest

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(within(t, readyWithin), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// The rig itself: what tests of the store take for granted of it.
func TestServer(t *testing.T) {
	t.Parallel()
	s := Start(t)
	url := s.Database(t, "")
	conn := connect(t, url)
	if _, err := conn.Exec(t.Context(), `CREATE TABLE a (n INTEGER); INSERT INTO a VALUES (1)`); err != nil {
		t.Fatal(err)
	}

	// A connection that stands must not answer while it is frozen: SIGSTOP of the server's
	// first process alone leaves it be.
	s.Pause(t)
	if _, err := conn.Exec(within(t, 200*time.Millisecond), `SELECT 1`); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("frozen, it said %v", err)
	}
	s.Cont(t)
	rows := func(url string) (n int) {
		t.Helper()
		if err := connect(t, url).QueryRow(t.Context(), `SELECT count(*) FROM a`).Scan(&n); err != nil {
			t.Error(err)
		}
		return n
	}
	if rows(url) != 1 {
		t.Error("thawed, the row is gone")
	}

	for name, end := range map[string]func(){"stopped": s.Stop, "killed": func() { s.Kill(t) }} {
		end()
		if _, err := pgx.Connect(within(t, readyWithin), url); err == nil {
			t.Errorf("%s, it takes connections", name)
		}
		s.Restart(t)
		if rows(url) != 1 {
			t.Errorf("%s and started again, the row is gone", name)
		}
	}
}

func TestShared(t *testing.T) {
	t.Parallel()
	fills := 0
	s := &Shared{Fill: func(tb testing.TB, url string) {
		tb.Helper()
		fills++
		conn, err := pgx.Connect(tb.Context(), url)
		if err != nil {
			tb.Fatal(err)
		}
		_, err = conn.Exec(tb.Context(), `CREATE TABLE a (n INTEGER)`)
		if err := errors.Join(err, conn.Close(tb.Context())); err != nil {
			tb.Fatal(err)
		}
	}}
	defer s.Close()
	a, b := s.Database(t), s.Database(t)
	if _, err := connect(t, a).Exec(t.Context(), `INSERT INTO a VALUES (1)`); err != nil {
		t.Error(err)
	}
	var n int
	if err := connect(t, b).QueryRow(t.Context(), `SELECT count(*) FROM a`).Scan(&n); err != nil || n != 0 || fills != 1 {
		t.Errorf("the second database has %d rows, %v; filled %d times", n, err, fills)
	}
	dir := s.server.dir
	s.Close()
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the data is there after the end: %v", err)
	}
}
