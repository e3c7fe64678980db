package main

import (
	"database/sql"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Issue 7, design §5: without the store a revocation elsewhere goes unheard, so what is
// known is used for store.stale_for and not longer: then nobody is let in, for lack of
// knowledge and not of rights, and open tails end. With 0s that is as soon as the loss is
// known. What is known holds again once the store is back.
func TestStoreGoneForLong(t *testing.T) {
	for _, staleFor := range []time.Duration{0, 3 * time.Second} {
		t.Run(staleFor.String(), func(t *testing.T) {
			t.Parallel()
			goneForLong(t, staleFor)
		})
	}
}

func goneForLong(t *testing.T, staleFor time.Duration) {
	t.Helper()
	f := newFleet(t, 1, staleFor.String(), "info")
	r, a := f.replicas[0], f.owner(t)
	token := r.accessToken(t, a.key)
	credentials := map[string]string{"first": a.key, "token": token, "stranger": ""}
	tails := f.followers(t, a.path("open-json"), credentials)
	f.awaitTails(t, len(tails))
	start := time.Now()
	f.lines[0].cut()
	eventually(t, "the store is lost", func() bool { return r.gauge(t, "sluice_store_lost") == 1 })
	if staleFor > 0 {
		for who, credential := range credentials {
			if got := r.read(t, credential, a.path("open-json")); got.StatusCode != http.StatusOK {
				t.Errorf("%s, %v after the loss: %d %s", who, time.Since(start), got.StatusCode, got.Text)
			}
		}
	}
	// What was read last may be a second old at the loss, and is tried for a second more.
	for _, l := range tails {
		got := <-l.end
		if after := got.at.Sub(start); after > staleFor+storeLostWithin || after < staleFor-pollOfStore {
			t.Errorf("%s, %s, ended %v after the loss", l.who, l.at, after)
		}
		if l.sse && (got.status != http.StatusOK || got.err != nil || !strings.Contains(got.text, "credential-expired")) {
			t.Errorf("%s, %s: %d %q %v", l.who, l.at, got.status, got.text, got.err)
		}
		if code := (reply{Text: got.text}).code(); !l.sse && (got.status != http.StatusServiceUnavailable || code != unavailable(l.who)) {
			t.Errorf("%s, %s: %d %q %v", l.who, l.at, got.status, got.text, got.err)
		}
	}
	f.awaitTails(t, 0)
	for who, credential := range credentials {
		comeAgain(t, r.read(t, credential, a.path("open-json")), unavailable(who))
	}
	want(t, r.token(t, a.key), http.StatusServiceUnavailable, "Retry-After", "*")
	comeAgain(t, r.manage(t, a.key, http.MethodGet, "/v1/streams", nil), "AUTHENTICATION_UNAVAILABLE")
	// Nobody was told that they may not.
	for line := range strings.Lines(r.logged(t)) {
		if strings.Contains(line, `"message":"request"`) && (strings.Contains(line, `"status":401`) || strings.Contains(line, `"status":403`)) {
			t.Errorf("refused for the store's sake: %s", line)
		}
	}
	f.lines[0].mend()
	returned := time.Now()
	for who, credential := range credentials {
		eventually(t, who+" is let in again", func() bool { return r.read(t, credential, a.path("open-json")).StatusCode == http.StatusOK })
	}
	if took := time.Since(returned); took > storeBackWithin {
		t.Errorf("let in again after %v", took)
	}
	if lost, back := r.lines(t, saysStoreLost), r.lines(t, saysStoreBack); lost != 1 || back != 1 {
		t.Errorf("the log tells of %d losses and %d returns", lost, back)
	}
}

// pollOfStore is how old what is known of the store may be while it is there.
const pollOfStore = time.Second

// unavailable is the refusal of those of whom nothing can be told.
func unavailable(who string) string {
	if who == "stranger" {
		return "AUTHORIZATION_UNAVAILABLE"
	}
	return "AUTHENTICATION_UNAVAILABLE"
}

// A store in a file, whose disk takes no changes any more (here: another program has it
// locked): who is known, and who is not, is told from what can be read; changes are
// refused so that they can be tried again, and made once it is free.
func TestSQLiteLocked(t *testing.T) {
	t.Parallel()
	node := standIn(t)
	path := fmt.Sprintf("%s/sluice.db", t.TempDir())
	r := startReplica(t, managedFile([]string{node}, "sqlite:"+path, "15m", ""))
	r.awaitReady(t)
	f := &fleet{replicas: []*replica{r}}
	a := f.owner(t)
	want(t, r.settled(t, a.key, a.path("json")), http.StatusOK)
	free := lockSQLite(t, path)
	begun := time.Now()
	comeAgain(t, r.manage(t, a.key, http.MethodPost, "/v1/api-keys", fields{"name": "meanwhile"}), "STORE_UNAVAILABLE")
	t.Logf("a change was refused after %v", time.Since(begun))
	want(t, r.read(t, a.key, a.path("json")), http.StatusOK)
	want(t, r.settled(t, newTestKey(t), a.path("json")), http.StatusUnauthorized)
	want(t, r.manage(t, a.key, http.MethodGet, "/v1/api-keys", nil), http.StatusOK)
	free()
	_, k := f.apiKey(t, a, "meanwhile")
	want(t, r.settled(t, k.key, a.path("json")), http.StatusOK)
}

// lockSQLite holds the lock of those who change the file, as a process of its own would,
// until free.
func lockSQLite(t *testing.T, path string) (free func()) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path) // the driver is the program's own
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	run := func(statement string) {
		t.Helper()
		if _, err := conn.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	run("PRAGMA busy_timeout = 5000")
	run("BEGIN IMMEDIATE")
	return func() { run("ROLLBACK") }
}
