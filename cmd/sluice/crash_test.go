package main

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"sluice/internal/postgrestest"
	"sluice/internal/ursulatest/realursula"
)

// EnvSeed of a crash trial makes it choose what it chose when it printed that seed.
const envCrashSeed = "SLUICE_CRASH_SEED"

// settledWithin is how long the reconciler may take once every replica is up: the lease of
// the one that was killed and the time for which its last request may still arrive (15 s,
// at the same time), two looks at what may have been made (10 s apart), and the pauses
// between tries.
const settledWithin = 50 * time.Second

// Replicas that died at random moments left streams in one system only, or names that
// nobody could use again, or keys that somebody was shown and nobody knew. They share a
// store, they are started again at once, and their clients repeat as they are told.
func TestKilledAtRandom(t *testing.T) {
	kills := 20
	if soak() {
		kills = 200
	}
	server := sync.OnceValue(func() *postgrestest.Server { return postgrestest.Start(t) })
	postgres := func(t *testing.T) string { t.Helper(); return server().Database(t, "") }
	t.Run("ursula", func(t *testing.T) {
		t.Parallel()
		node := realursula.Start(t).URL
		runCrashTrials(t, newCrashTrial(t, node, postgres(t), 2, kills))
	})
	t.Run("stand-in", func(t *testing.T) {
		t.Parallel()
		runCrashTrials(t,
			newCrashTrial(t, standIn(t), "sqlite:"+filepath.Join(t.TempDir(), "sluice.db"), 1, kills/4),
			newCrashTrial(t, standIn(t), postgres(t), 2, 20))
	})
}

// crashTrial is a store with its replicas, a node, and people.
type crashTrial struct {
	kills    int
	seed     uint64
	node     string
	rows     *sql.DB
	replicas []*mortal
	people   []*person
}

// newCrashTrial starts the replicas, and has people with accounts at them: two for each.
func newCrashTrial(t *testing.T, node, storeURL string, replicas, kills int) *crashTrial {
	t.Helper()
	tr := &crashTrial{kills: kills, seed: rand.Uint64(), node: node} //nolint:gosec // to be repeated, not to be guessed
	if text, ok := os.LookupEnv(envCrashSeed); ok {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		tr.seed = seed
	}
	t.Logf("%s=%d makes the same choices again", envCrashSeed, tr.seed)
	for range replicas {
		m := newMortal(t, node, storeURL)
		tr.replicas = append(tr.replicas, m)
		if err := m.start(); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range tr.replicas {
		if err := m.ready(t.Context()); err != nil {
			t.Fatalf("%s: %v", m.URL, err)
		}
	}
	tr.rows = openRows(t, storeURL)
	const accounts = 3
	for i := range 2 * accounts {
		p := &person{
			caller: &caller{t: t, client: loadClient(t), replicas: tr.replicas, random: tr.random(i), asked: map[string]changeTry{}},
			label:  fmt.Sprintf("p%d", i), names: map[string]*named{}, story: map[string][]string{},
		}
		if i%2 == 1 {
			p.account, p.key = tr.people[i-1].account, tr.people[i-1].key
		} else {
			p.account = fmt.Sprintf("people-%d", i/2)
			p.key = p.createAccount(t.Context(), p.account)
		}
		tr.people = append(tr.people, p)
	}
	return tr
}

// random is the source of choices of one of those who choose.
func (tr *crashTrial) random(of int) *rand.Rand {
	return rand.New(rand.NewPCG(tr.seed, uint64(of))) //nolint:gosec // to be repeated, not to be guessed
}

// runCrashTrials runs trials side by side: what takes time is to wait.
func runCrashTrials(t *testing.T, trials ...*crashTrial) {
	t.Helper()
	var all sync.WaitGroup
	for _, tr := range trials {
		all.Go(func() { tr.run(t) })
	}
	all.Wait()
	for _, tr := range trials {
		if t.Failed() {
			return
		}
		tr.settle(t)
		tr.check(t)
		for _, m := range tr.replicas {
			m.checkLog(t)
		}
	}
}

// run lets the replicas die, so many times in all, while the people live on.
func (tr *crashTrial) run(t *testing.T) {
	t.Helper()
	began := time.Now()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var people, deaths sync.WaitGroup
	for _, p := range tr.people {
		people.Go(func() { p.live(ctx) })
	}
	for i, m := range tr.replicas {
		m.Kill()
		deaths.Go(func() {
			if err := m.reign(t.Context(), tr.kills/len(tr.replicas), tr.random(100+i)); err != nil {
				t.Errorf("the replica at %s: %v", m.URL, err)
			}
		})
	}
	deaths.Wait()
	stop()
	people.Wait()
	told, lost, keys, gone := 0, 0, 0, 0
	for _, p := range tr.people {
		told, lost, keys, gone = told+p.told, lost+p.lost, keys+len(p.keys), gone+len(p.gone)
	}
	t.Logf("%d kills in %v: %d answers, %d calls of unknown outcome, %d keys shown, %d accounts come and gone",
		tr.kills, time.Since(began).Round(time.Millisecond), told, lost, keys, gone)
	if told < tr.kills || lost == 0 || keys == 0 {
		t.Error("that is no load")
	}
}

// settle waits until no stream is on its way in the store.
func (tr *crashTrial) settle(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settledWithin)
	defer cancel()
	began := time.Now()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		all, err := storedRows(t.Context(), tr.rows)
		if err != nil {
			t.Fatal(err)
		}
		underway := slices.DeleteFunc(all, func(r storedRow) bool { return r.state == "active" })
		if len(underway) == 0 {
			t.Logf("settled after %v", time.Since(began).Round(time.Millisecond))
			return
		}
		select {
		case <-ctx.Done():
			t.Errorf("not settled after %v: %v", settledWithin, underway)
			return
		case <-tick.C:
		}
	}
}

// check holds the store, the node and the people against one another.
func (tr *crashTrial) check(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*callerPatience)
	defer cancel()
	tr.checkBothSides(ctx, t)
	var people sync.WaitGroup
	for i, p := range tr.people {
		people.Go(func() {
			p.checkStreams(ctx)
			p.checkKeys(ctx)
			p.checkNames(ctx, i%2 == 0)
		})
	}
	people.Wait()
	tr.settle(t)
	tr.checkBothSides(ctx, t)
	tr.checkRecords(ctx, t)
}

// checkBothSides looks at the node for every name ever used: it has what the store has.
func (tr *crashTrial) checkBothSides(ctx context.Context, t *testing.T) {
	t.Helper()
	all, err := storedRows(ctx, tr.rows)
	if err != nil {
		t.Fatal(err)
	}
	rows := make(map[string]storedRow, len(all))
	for _, r := range all {
		rows[r.account+"/"+r.name] = r
	}
	used := map[string]bool{}
	for _, p := range tr.people {
		for name := range p.names {
			used[p.account+"/"+name] = true
		}
		for _, name := range contested() { // of which there may be none
			used[p.account+"/"+name] = true
		}
		for _, a := range p.gone {
			used[a.id+"/short"] = true
		}
	}
	for path := range rows {
		if !used[path] {
			t.Errorf("the store has %s, which nobody made", path)
		}
	}
	for path := range used {
		incarnation, contentType := tr.atNode(ctx, t, path)
		r := rows[path]
		if incarnation != r.incarnation || contentType != r.contentType {
			t.Errorf("%s: the store has %+v, the node incarnation %q of %q", path, r, incarnation, contentType)
		}
	}
}

// atNode is what the node has of a stream, past the gateway; empty = nothing.
func (tr *crashTrial) atNode(ctx context.Context, t *testing.T, path string) (incarnation, contentType string) {
	t.Helper()
	account, name := filepath.Split(path)
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, tr.node+"/"+account+"s."+name, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode == http.StatusNotFound {
		return "", ""
	}
	if res.StatusCode != http.StatusOK {
		t.Errorf("HEAD of %s at the node: %d", path, res.StatusCode)
	}
	return res.Header.Get("Stream-Incarnation"), res.Header.Get("Content-Type")
}
