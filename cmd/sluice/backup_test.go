package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"sluice/internal/postgrestest"
	"sluice/internal/ursulatest/realursula"
)

// acknowledged is what people were told is there.
type acknowledged struct {
	mu      sync.Mutex
	keys    []payer
	streams []string
}

func (a *acknowledged) seen() (keys []payer, streams []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append(keys, a.keys...), append(streams, a.streams...)
}

// change makes keys and streams of an account, four at a time, until stop is closed.
func (r *replica) change(t *testing.T, owner payer, stop <-chan struct{}) (all *acknowledged, done func()) {
	t.Helper()
	all = &acknowledged{}
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				name := fmt.Sprintf("s%d-%d", worker, n)
				made := r.manage(t, owner.key, http.MethodPost, "/v1/streams", fields{"name": name, "content_type": "application/json"})
				key := r.manage(t, owner.key, http.MethodPost, "/v1/api-keys", fields{"name": name})
				all.mu.Lock()
				if made.StatusCode == http.StatusCreated {
					all.streams = append(all.streams, name)
				}
				if key.StatusCode == http.StatusCreated {
					all.keys = append(all.keys, payer{id: owner.id, key: key.member(t, "key")})
				}
				all.mu.Unlock()
			}
		})
	}
	return all, wg.Wait
}

// A copy of the store that is made while people make keys and streams has each of them that
// was acknowledged before, and a gateway on it serves them: as docs/operations.md says it
// is done.
func TestRestoreOfABackupUnderLoad(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) {
		dir := t.TempDir()
		live, copied := filepath.Join(dir, "live.db"), filepath.Join(dir, "copy.db")
		node := realursula.Start(t).URL
		file := func(path string) string { return managedFile([]string{node}, "sqlite:"+path, "15m", "") }
		restore(t, file(live), func(t *testing.T) string {
			t.Helper()
			config := filepath.Join(dir, "sluice.yaml")
			if err := os.WriteFile(config, []byte(file(live)), 0o600); err != nil {
				t.Fatal(err)
			}
			if code, out, errOut := command(t, nil, "store", "backup", "--config", config, copied); code != exitDone || out != "copied to "+copied+"\n" || errOut != "" {
				t.Fatalf("%d %s %s", code, out, errOut)
			}
			if code, _, errOut := command(t, nil, "store", "backup", "--config", config, copied); code != exitFailed || !strings.Contains(errOut, "is there already") {
				t.Errorf("once more to the same file: %d %s", code, errOut)
			}
			for _, made := range []string{copied, copied + ".key"} {
				if info, err := os.Stat(made); err != nil || info.Mode() != 0o600 {
					t.Errorf("%s: %v %v", made, info, err)
				}
			}
			return file(copied)
		})
	})
	t.Run("Postgres", func(t *testing.T) {
		postgres := postgrestest.Start(t)
		node := realursula.Start(t).URL
		live, copied := postgres.Database(t, ""), postgres.Database(t, "")
		file := func(url string) string { return managedFile([]string{node}, url, "15m", sealedAuth) }
		restore(t, file(live), func(t *testing.T) string {
			t.Helper()
			dump := filepath.Join(t.TempDir(), "dump")
			for _, cmd := range [][]string{
				{"pg_dump", "--format=custom", "--file=" + dump, live},
				{"pg_restore", "--exit-on-error", "--no-owner", "--dbname=" + copied, dump},
			} {
				if out, err := postgres.Tool(t, cmd[0], cmd[1:]...).CombinedOutput(); err != nil {
					t.Fatalf("%s: %v\n%s", cmd[0], err, out)
				}
			}
			return file(copied)
		})
	})
}

func restore(t *testing.T, file string, backup func(*testing.T) (restored string)) {
	t.Helper()
	r := startReplica(t, file)
	r.awaitReady(t)
	owner := payer{id: testAccount(t)}
	made := r.manage(t, "", http.MethodPost, "/v1/accounts", fields{"id": owner.id, "api_key": fields{"name": "first"}})
	want(t, made, http.StatusCreated)
	owner.key = made.member(t, "api_key", "key")

	stop := make(chan struct{})
	all, done := r.change(t, owner, stop)
	eventually(t, "some is there", func() bool { keys, streams := all.seen(); return len(keys) >= 20 && len(streams) >= 20 })
	keys, streams := all.seen()
	restored := backup(t)
	eventually(t, "some more has come", func() bool { more, _ := all.seen(); return len(more) >= len(keys)+4 })
	close(stop)
	done()
	_ = r.ends(t, syscall.SIGKILL)

	r = startReplica(t, restored)
	r.awaitReady(t)
	for _, name := range streams {
		path := "/" + owner.id + "/s." + name
		eventually(t, "the stream "+name+" is there", func() bool {
			got := r.managed(t, owner.key, http.MethodGet, "/v1/streams/"+name, nil)
			return got.StatusCode == http.StatusOK && got.member(t, "state") == "active"
		})
		want(t, ask(t, http.MethodPost, r.URL+path, strings.NewReader(`{"n":1}`), "Authorization", "Bearer "+owner.key, "Content-Type", "application/json"), http.StatusNoContent)
	}
	for _, k := range keys {
		want(t, r.settled(t, k.key, "/"+owner.id+"/s."+streams[0]), http.StatusOK)
	}
	more, _ := all.seen()
	t.Logf("%d keys and %d streams were acknowledged before, %d keys in all: each of the former is served", len(keys), len(streams), len(more))
}
