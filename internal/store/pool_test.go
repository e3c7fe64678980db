package store

import (
	"sync"
	"testing"
	"time"

	"sluice/internal/tenant"
)

// While the row that changes go by was held in another session, calls of the Management
// API that waited for it had every connection, and the request path could read nothing.
func TestChangesThatWaitLeaveRoomForReads(t *testing.T) {
	t.Parallel()
	r := newRig(t, postgres.Database(t))
	r.account(t, "acme")
	key := r.aKey("acme", "known")
	must(t, r.CreateKey(t.Context(), someone(), key))
	other := open(t, Options{URL: r.url, SealingKey: testSealingKey})
	tx, err := other.write.BeginTx(t.Context(), nil)
	must(t, err)
	_, err = tx.ExecContext(t.Context(), `UPDATE meta SET revision = revision WHERE id = 1`)
	must(t, err)
	var waiting sync.WaitGroup
	for i := range 2 * (postgresReaders + postgresWriters) {
		k := r.aKey("acme", string(rune('a'+i)))
		waiting.Go(func() { wantsNil(t, r.CreateKey(t.Context(), someone(), k)) })
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for r.write.Stats().InUse < postgresWriters {
		<-tick.C
	}
	for range 3 {
		if _, err := r.KeyOf(t.Context(), tenant.DigestOf("known")); err != nil {
			t.Errorf("a look-up beside changes that wait: %v", err)
		}
	}
	must(t, tx.Rollback())
	waiting.Wait()
}

func wantsNil(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}
