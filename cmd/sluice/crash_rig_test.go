package main

import (
	"context"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice/internal/realpart"
)

// Replicas of a store that are killed (SIGKILL) and started again, as a supervisor does.

// sealing is what their store's signing keys are sealed under.
const sealing = "0123456789abcdef0123456789abcdef"

// mortal is a replica that dies, and lives again at the same addresses.
type mortal struct {
	realpart.Process
	URL, Admin string
	path, log  string
}

// storedFile is the operator's file of a replica with a store.
func storedFile(address, admin, node, storeURL string) string {
	return fmt.Sprintf(`listen: %s
origin: https://streams.example.com
admin: {listen: %q}
ursula: {nodes: [%q]}
store: {url: %q}
streams: {lifecycle: protocol}
auth: {sealing_key: %q}
server: {failed_credentials_per_minute: 0}
limits: {default: {requests_per_second: 100000, burst: 100000}}
drain_delay: 0s
drain_timeout: 500ms
`, address, admin, node, storeURL, base64.StdEncoding.EncodeToString([]byte(sealing)))
}

// newMortal writes the file of a replica; start runs it.
func newMortal(t *testing.T, node, storeURL string) *mortal {
	t.Helper()
	dir, address, admin := t.TempDir(), quietPort(t), quietPort(t)
	m := &mortal{URL: "http://" + address, Admin: "http://" + admin, path: filepath.Join(dir, "sluice.yaml"), log: filepath.Join(dir, "log")}
	writeFile(t, m.path, storedFile(address, admin, node, storeURL))
	t.Cleanup(func() {
		m.Kill()
		if t.Failed() {
			t.Logf("log of the replica at %s:\n%s", m.URL, realpart.Tail(m.log, 16<<10))
		}
	})
	return m
}

// quietPort is a free port outside of those that the system gives to connections, which
// could take it while the replica is dead.
func quietPort(t *testing.T) string {
	t.Helper()
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000)) //nolint:gosec // any port
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
		if err == nil {
			_ = l.Close()
			return address
		}
	}
	t.Fatal("no free port")
	return ""
}

// start runs the program. It does not wait for it.
func (m *mortal) start() error {
	log, err := os.OpenFile(m.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	// It is ended by a signal, not by a context.
	cmd := exec.Command(os.Args[0], "serve", "--config", m.path) //nolint:noctx // this program, with a life of its own
	cmd.Env = append(os.Environ(), asProgram+"=1")
	cmd.Stderr = log
	return errors.Join(m.Run(cmd), log.Close())
}

var errDiedByItself = errors.New("the replica ended by itself")

// ready waits until the replica serves. It is an error where it ends before.
func (m *mortal) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if m.answers(ctx, "/readyz") == http.StatusOK {
			return nil
		}
		select {
		case <-m.Done():
			return errDiedByItself
		case <-ctx.Done():
			return fmt.Errorf("the replica is not ready: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

// answers is the status of a GET at the admin listener; 0 = there was no answer.
func (m *mortal) answers(ctx context.Context, path string) int {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.Admin+path, nil)
	if err != nil {
		return 0
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	_ = res.Body.Close()
	return res.StatusCode
}

// reign starts the replica and kills it, so many times, and leaves it running. Three
// times in four it is let to get ready first; else it may die while it starts. Where a
// start takes its time so does the rest, and it lives the longer.
func (m *mortal) reign(ctx context.Context, kills int, random *rand.Rand) error {
	took := time.Duration(0)
	for range kills {
		began := time.Now()
		if err := m.start(); err != nil {
			return err
		}
		if random.IntN(4) != 0 {
			if err := m.ready(ctx); err != nil {
				return err
			}
			took = time.Since(began)
		}
		moment := time.NewTimer(time.Duration(random.Float64() * float64(time.Second+3*took)))
		select {
		case <-m.Done():
			moment.Stop()
			return errDiedByItself
		case <-moment.C:
		}
		m.Kill()
	}
	if err := m.start(); err != nil {
		return err
	}
	return m.ready(ctx)
}

// checkLog wants nothing in the log that only a fault of the program writes there.
func (m *mortal) checkLog(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(m.log)
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range []string{"DATA RACE", "panic", "fatal error", `"level":"error"`} {
		if strings.Contains(string(text), fault) {
			t.Errorf("the log of %s has %q", m.URL, fault)
		}
	}
}

// storedRow is a stream as the store has it.
type storedRow struct{ account, name, state, incarnation, contentType string }

// storedRows reads the streams of all accounts, past the program.
func storedRows(ctx context.Context, db *sql.DB) ([]storedRow, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	rows, err := db.QueryContext(ctx, `SELECT account, name, CASE WHEN unanswered > 0 THEN 'unanswered' ELSE state END, incarnation, content_type FROM streams ORDER BY account, name`)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var all []storedRow
	for rows.Next() {
		var r storedRow
		if err := rows.Scan(&r.account, &r.name, &r.state, &r.incarnation, &r.contentType); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, rows.Err()
}

// openRows opens the database of a store URL, to be read.
func openRows(t *testing.T, url string) *sql.DB {
	t.Helper()
	driver := "pgx"
	if path, ok := strings.CutPrefix(url, "sqlite:"); ok {
		driver, url = "sqlite", "file:"+path+"?mode=ro&_pragma=busy_timeout(5000)"
	}
	db, err := sql.Open(driver, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}
