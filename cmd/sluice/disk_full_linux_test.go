package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/postgrestest"
)

// fullDisk is a store whose disk is filled and emptied.
type fullDisk struct {
	url          string
	noRoom, room func(t *testing.T, replica *mortal)
	stays        bool // full when the replica is started again
}

// aLittle is how much more has room, in bytes.
const aLittle = 200 << 10

// fileLimit is SQLite in a process whose files may not grow beyond what they are, as by
// ulimit or systemd's LimitFSIZE.
func fileLimit(t *testing.T) fullDisk {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sluice.db")
	limit := func(t *testing.T, replica *mortal, bytes uint64) {
		t.Helper()
		var old unix.Rlimit
		if err := unix.Prlimit(replica.Pid(), unix.RLIMIT_FSIZE, nil, &old); err != nil {
			t.Fatal(err)
		}
		old.Cur = min(bytes, old.Max)
		if err := unix.Prlimit(replica.Pid(), unix.RLIMIT_FSIZE, &old, nil); err != nil {
			t.Fatal(err)
		}
	}
	return fullDisk{
		url: "sqlite:" + path,
		noRoom: func(t *testing.T, replica *mortal) {
			t.Helper()
			most := int64(0)
			for _, end := range []string{"", "-wal", "-shm"} {
				info, err := os.Stat(path + end)
				if err != nil {
					t.Fatal(err)
				}
				most = max(most, info.Size())
			}
			limit(t, replica, uint64(most)+aLittle)
		},
		room: func(t *testing.T, replica *mortal) {
			t.Helper()
			limit(t, replica, unix.RLIM_INFINITY)
		},
	}
}

// smallDisk is SQLite on a disk of its own, with ballast on it.
func smallDisk(t *testing.T) fullDisk {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Skipf("no disk to fill: only root may mount one (%v); the limit on files stands for it", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	ballast := filepath.Join(dir, "ballast")
	return fullDisk{
		url: "sqlite:" + filepath.Join(dir, "sluice.db"), stays: true,
		noRoom: func(t *testing.T, _ *mortal) {
			t.Helper()
			f, err := os.Create(ballast)
			if err != nil {
				t.Fatal(err)
			}
			n, err := f.Write(make([]byte, 8<<20))
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("%d bytes, and the disk is not full: %v", n, err)
			}
			if err := errors.Join(f.Truncate(int64(n)-aLittle), f.Close()); err != nil {
				t.Fatal(err)
			}
		},
		room: func(t *testing.T, _ *mortal) {
			t.Helper()
			if err := os.Remove(ballast); err != nil {
				t.Fatal(err)
			}
		},
	}
}

// fullPostgres is a server whose tables may not grow. That of accounts is made larger
// than the least limit that the server's own log can live with.
func fullPostgres(t *testing.T) fullDisk {
	t.Helper()
	server := postgrestest.Start(t)
	d := fullDisk{
		url: server.Database(t, ""), stays: true,
		room: func(t *testing.T, _ *mortal) { t.Helper(); server.LimitFiles(t, postgrestest.Unlimited) },
	}
	d.noRoom = func(t *testing.T, _ *mortal) {
		t.Helper()
		for _, statement := range []string{
			// They were accounts once.
			`INSERT INTO accounts (id, state, declared, created_at, deleted_at)
				SELECT repeat('x', 60) || i, 'active', FALSE, 1, 1 FROM generate_series(1, 200000) i`,
			// So that no look-up has to write what these left, to make place for what it reads.
			`CHECKPOINT`,
		} {
			if _, err := openRows(t, d.url).ExecContext(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		server.LimitFiles(t, 17<<20)
	}
	return d
}

// A disk that is full, under the whole program: what was acknowledged stays and goes on to
// work, what is refused is refused clearly and not there by half, also where the program is
// killed and started again meanwhile, and all goes on once there is room.
func TestDiskIsFull(t *testing.T) {
	for name, disk := range map[string]func(*testing.T) fullDisk{
		"files of sqlite": fileLimit, "disk of sqlite": smallDisk, "postgres": fullPostgres,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newFullTrial(t, disk(t)).run(t)
		})
	}
}

// fullTrial is a replica with a store on such a disk.
type fullTrial struct {
	*crashTrial
	disk    fullDisk
	replica *mortal
	p       *person
	made    map[string]string // accounts → first keys, acknowledged
	refused []string          // accounts
}

func newFullTrial(t *testing.T, disk fullDisk) *fullTrial {
	t.Helper()
	node := standIn(t)
	f := &fullTrial{crashTrial: &crashTrial{node: node}, disk: disk, replica: newMortal(t, node, disk.url), made: map[string]string{}}
	f.p = &person{
		caller:  &caller{t: t, client: loadClient(t), replicas: []*mortal{f.replica}, random: f.random(0)},
		account: "acme", label: "p", names: map[string]*named{}, story: map[string][]string{},
	}
	f.people = []*person{f.p}
	f.startAgain(t)
	f.p.key = f.p.createAccount(t.Context(), f.p.account)
	// A stream of JSON, which takes what the callers send.
	f.p.names["known"] = &named{contentType: "application/json"}
	f.p.names["known"].exists = f.p.createStream(t.Context(), f.p.key, "known", "application/json", 0)
	f.p.names["going"] = &named{contentType: "text/plain"}
	f.p.names["going"].exists = f.p.createStream(t.Context(), f.p.key, "going", "text/plain", 0)
	f.p.makeKey(t.Context())
	f.rows = openRows(t, disk.url)
	return f
}

func (f *fullTrial) startAgain(t *testing.T) {
	t.Helper()
	f.replica.Kill()
	if err := f.replica.start(); err != nil {
		t.Fatal(err)
	}
	if err := f.replica.ready(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// operate makes one call, once, as the operator.
func (f *fullTrial) operate(t *testing.T, method, path, body string) answer {
	t.Helper()
	a, err := f.p.try(t.Context(), f.replica.Admin+path, "", method, body)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// makeAccount reports whether an account was made.
func (f *fullTrial) makeAccount(t *testing.T, id string) bool {
	t.Helper()
	a := f.operate(t, http.MethodPost, "/v1/accounts", `{"id":"`+id+`"}`)
	if a.status == http.StatusCreated {
		var made struct {
			First struct{ Key string } `json:"api_key"`
		}
		if err := a.read(&made); err != nil {
			t.Fatal(err)
		}
		f.made[id] = made.First.Key
		return true
	}
	f.wantUnavailable(t, a)
	return false
}

func (f *fullTrial) wantUnavailable(t *testing.T, a answer) {
	t.Helper()
	if a.status != http.StatusServiceUnavailable || a.code != "STORE_UNAVAILABLE" || a.retry < time.Second {
		t.Fatalf("on a full disk: %v, Retry-After %v", a, a.retry)
	}
}

func (f *fullTrial) run(t *testing.T) {
	t.Helper()
	f.makeAccount(t, "before")
	f.disk.noRoom(t, f.replica)
	for n := 0; len(f.refused) == 0; n++ {
		if id := fmt.Sprint("during-", n); !f.makeAccount(t, id) {
			f.refused = append(f.refused, id)
		}
		if n == 5000 {
			t.Fatal("the disk is never full")
		}
	}
	t.Logf("full after %d accounts", len(f.made))
	// Whatever does not fit is refused, and whatever does is done.
	for n := range 20 {
		if id := fmt.Sprint("beyond-", n); !f.makeAccount(t, id) {
			f.refused = append(f.refused, id)
		}
	}
	f.makeOwn(t)
	f.checkFull(t)
	if f.disk.stays {
		f.startAgain(t)
		f.checkFull(t)
	}
	f.disk.room(t, f.replica)
	for _, id := range f.refused {
		if !f.makeAccount(t, id) {
			t.Errorf("%s cannot be made, with room", id)
		}
	}
	f.startAgain(t)
	f.checkMade(t)
	// A stream whose row was kept, and nothing more, is finished by now or soon.
	f.settle(t)
	f.checkBothSides(t.Context(), t)
	for name, n := range f.p.names {
		if !n.exists {
			f.p.toggle(t.Context(), name)
		}
	}
	f.p.makeKey(t.Context())
	f.settle(t)
	f.checkBothSides(t.Context(), t)
	f.p.checkStreams(t.Context())
	f.p.checkKeys(t.Context())
	f.replica.checkLog(t)
}

// makeOwn has the owner make streams and keys, delete one and revoke one. What is answered
// is done, or is refused and nothing of it is there.
func (f *fullTrial) makeOwn(t *testing.T) {
	t.Helper()
	refused := 0
	own := func(method, path, body string, done int) bool {
		a, err := f.p.try(t.Context(), f.replica.URL+path, f.p.key, method, body)
		if err != nil {
			t.Fatal(err)
		}
		if a.status == done {
			return true
		}
		f.wantUnavailable(t, a)
		refused++
		return false
	}
	for i := range 10 {
		name := fmt.Sprint("full-", i)
		n := &named{contentType: "application/json"}
		f.p.names[name] = n
		n.exists = own(http.MethodPost, "/v1/streams", `{"name":"`+name+`","content_type":"application/json"}`, http.StatusCreated)
		if !n.exists {
			if in, _ := f.atNode(t.Context(), t, f.p.account+"/"+name); in != "" {
				t.Errorf("stream %s was refused, and the node has it", name)
			}
			if a := f.p.owner(t.Context(), f.p.key, http.MethodGet, "/v1/streams/"+name, ""); a.status != http.StatusNotFound {
				t.Errorf("stream %s, which was refused: %v", name, a)
			}
		}
		key := fmt.Sprint("full ", i)
		if !own(http.MethodPost, "/v1/api-keys", `{"name":"`+key+`"}`, http.StatusCreated) && f.p.lookFor(t.Context(), key) != nil {
			t.Errorf("key %s was refused, and is there", key)
		}
	}
	n := f.p.names["going"]
	n.exists = !own(http.MethodDelete, "/v1/streams/going", "", http.StatusAccepted)
	k := f.p.keys[0]
	if own(http.MethodDelete, "/v1/api-keys/"+k.id, "", http.StatusNoContent) {
		k.revoked, k.secrets[0].ended = true, true
	}
	t.Logf("%d of the owner's calls were refused", refused)
}

// checkMade wants every account that was acknowledged, with its key.
func (f *fullTrial) checkMade(t *testing.T) {
	t.Helper()
	for id, key := range f.made {
		if a := f.operate(t, http.MethodGet, "/v1/accounts/"+id, ""); a.status != http.StatusOK {
			t.Errorf("account %s: %v", id, a)
		}
		if !f.p.takes(t.Context(), id, key) {
			t.Errorf("the key of %s does not work", id)
		}
	}
}

// checkFull looks around while the disk is full.
func (f *fullTrial) checkFull(t *testing.T) {
	t.Helper()
	f.checkMade(t)
	for _, id := range f.refused {
		if a := f.operate(t, http.MethodGet, "/v1/accounts/"+id, ""); a.status != http.StatusNotFound {
			t.Errorf("account %s, which was refused: %v", id, a)
		}
	}
	path := f.replica.URL + "/acme/s.known"
	for range 5 {
		if a, err := f.p.try(t.Context(), path, f.p.key, http.MethodPost, `[1]`); err != nil || a.status != http.StatusNoContent {
			t.Errorf("append on a full disk: %v, %v", a, err)
		}
		if a, err := f.p.try(t.Context(), path+"?offset=-1", f.p.key, http.MethodGet, ""); err != nil || a.status != http.StatusOK {
			t.Errorf("read on a full disk: %v, %v", a, err)
		}
	}
}
