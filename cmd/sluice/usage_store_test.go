package main

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/tenant"
	"sluice/internal/usage"
)

// The store takes no change for a while: requests go on, what they use is kept, and is
// there once when the store takes changes again.
func TestUsageWaitsForTheStore(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "sluice.db")
	e := &edge{Account: testAccount(t), Key: newTestKey(t)}
	m := newMortal(t, standIn(t), "sqlite:"+path)
	e.URL = m.URL
	appendFile(t, m.path, fmt.Sprintf("usage: {flush: 1s}\naccounts:\n  - id: %s\n    streams:\n      - {name: json, content_type: application/json}\n    keys:\n      - {name: all, digest: %q}\n", e.Account, tenant.DigestOf(e.Key)))
	if err := m.start(); err != nil {
		t.Fatal(err)
	}
	if err := m.ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"TONBO_API_KEY": e.Key, "SLUICE_URL": m.URL}
	e.append(t, "json", "[1]")
	eventually(t, "it is in the store", func() bool { return hoursOf(t, env, e.Account)[e.Account+" append"].Requests == 1 })
	free := lockSQLite(t, path)
	for range 5 {
		e.append(t, "json", "[1]")
	}
	eventually(t, "a write failed", func() bool { return gaugeAt(t, m.Admin, "sluice_usage_store_failures_total") > 0 })
	if n := gaugeAt(t, m.Admin, "sluice_usage_store_pending"); n < 1 {
		t.Errorf("%v batches wait", n)
	}
	if got := hoursOf(t, env, e.Account)[e.Account+" append"].Requests; got != 1 {
		t.Errorf("%d appends in a store that takes no change", got)
	}
	free()
	want := usage.Counts{Requests: 6, RequestBytes: 18, Chunks: 6}
	eventually(t, "all of it is in the store", func() bool { return cmp.Equal(hoursOf(t, env, e.Account)[e.Account+" append"], want) })
	m.Stop()
}
