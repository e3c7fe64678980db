package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/tenant"
	"sluice/internal/usage"
)

// killedTrial is M07: a tail, and a process that is killed in its middle.
type killedTrial struct {
	tail, heartbeat, flush time.Duration
}

func theKilledTrial() killedTrial {
	if os.Getenv("SLUICE_SOAK") == "1" {
		return killedTrial{time.Minute, 2 * time.Second, 5 * time.Second}
	}
	return killedTrial{6 * time.Second, 300 * time.Millisecond, time.Second}
}

// M07: a tail is open, and its process is killed (kill -9) half-way; what was used until
// the last flush is in the export and in the store once, however often they are read, and
// what was used after that is all that is lost. Heartbeats are apart, and what was refused
// is not billed. (Facts M4, M5.)
func TestUsageOfAKilledProcess(t *testing.T) {
	forEachUpstream(t, func(t *testing.T, node string) {
		trial := theKilledTrial()
		dir := t.TempDir()
		export := filepath.Join(dir, "usage.jsonl")
		m := newMortal(t, node, "sqlite:"+filepath.Join(dir, "sluice.db"))
		e := &edge{URL: m.URL, Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
		more := fmt.Sprintf("usage: {export: %q, flush: %v, chunk_bytes: 10}\ntails: {heartbeat: %v}\naccounts:\n  - id: %s\n    limits: {request_bytes: 100}\n    streams:\n      - {name: json, content_type: application/json}\n    keys:\n      - {name: all, digest: %q}\n      - {name: reads, digest: %q, access: read}\n",
			export, trial.flush, trial.heartbeat, e.Account, tenant.DigestOf(e.Key), tenant.DigestOf(e.Reads))
		appendFile(t, m.path, more)
		revive := func() {
			t.Helper()
			if err := m.start(); err != nil {
				t.Fatal(err)
			}
			if err := m.ready(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		revive()
		for i := range 3 {
			e.append(t, "json", strings.Repeat("[1]", 1)+strings.Repeat(" ", 10*i))
		}
		refusedOf(t, e)
		first := followTail(t, e)
		<-time.After(trial.tail / 2)
		killed := time.Now()
		m.Kill()
		first.close()
		checkKilled(t, e, export, trial, first, killed)

		revive()
		second := followTail(t, e)
		<-time.After(trial.tail / 2)
		second.close()
		// A tail is counted when its client has left, which the program finds out.
		eventually(t, "no tail is open", func() bool { return gaugeAt(t, m.Admin, "sluice_open_tails") == 0 })
		batches := checkPlaces(t, m, e, export)
		live := sumsOf(batches)[e.Account+" live_read"]
		if open := millis(second.closed.Sub(second.asked)); live.Requests != 2 || live.Tail > millis(killed.Sub(first.asked))+open+slow {
			t.Errorf("both tails, of which the second was open for %v: %+v", second.closed.Sub(second.asked), live)
		}
		if n := replicasOf(batches); n != 2 {
			t.Errorf("%d replicas in the export, want one for each start", n)
		}
		m.checkLog(t)
	})
}

// slow is by how much what a test measures from outside may be more, in milliseconds.
const slow = usage.Millis(5000)

// millis are a duration's.
func millis(d time.Duration) usage.Millis { return usage.Millis(d.Milliseconds()) }

func appendFile(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// refusedOf makes requests that are refused: five of the account's, and one of nobody's.
func refusedOf(t *testing.T, e *edge) {
	t.Helper()
	large := []byte("[" + strings.Repeat("1", 200) + "]")
	for _, r := range []struct {
		key    string
		body   []byte
		status int
	}{
		{e.Key, large, http.StatusRequestEntityTooLarge},
		{e.Key, large, http.StatusRequestEntityTooLarge},
		{e.Reads, []byte("[1]"), http.StatusForbidden},
		{e.Reads, []byte("[1]"), http.StatusForbidden},
		{e.Reads, []byte("[1]"), http.StatusForbidden},
		{newTestKey(t), []byte("[1]"), http.StatusUnauthorized},
	} {
		want(t, e.doAs(t, http1(), r.key, http.MethodPost, e.path("json"), r.body, "Content-Type", "application/json"), r.status)
	}
}

// followedTail is a tail that is read until it is closed, or its server dies.
type followedTail struct {
	asked, opened, closed time.Time
	cancel                context.CancelFunc
	read                  chan string
	text                  string
}

func followTail(t *testing.T, e *edge) *followedTail {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	f := &followedTail{asked: time.Now(), cancel: cancel, read: make(chan string, 1)}
	//nolint:bodyclose // the goroutine below closes it
	res := e.open(ctx, t, http1(), e.Key, http.MethodGet, e.path("json")+"?offset=now&live=sse", nil)
	if res.StatusCode != http.StatusOK {
		t.Fatalf("tail: %d", res.StatusCode)
	}
	f.opened = time.Now()
	go func() {
		text, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		f.read <- string(text)
	}()
	return f
}

func (f *followedTail) close() {
	f.closed = time.Now()
	f.cancel()
	f.text = <-f.read
}

// checkKilled wants in the export what was used until the last flush.
func checkKilled(t *testing.T, e *edge, export string, trial killedTrial, tail *followedTail, killed time.Time) {
	t.Helper()
	batches, text := exported(t, export)
	if len(batches) == 0 {
		t.Fatal("nothing was exported")
	}
	for i, b := range batches {
		if b.Sequence != int64(i+1) || b.Replica != batches[0].Replica {
			t.Errorf("batch %s %d stands at %d", b.Replica, b.Sequence, i)
		}
	}
	flushed := time.UnixMilli(batches[len(batches)-1].WindowEnd)
	if lost := killed.Sub(flushed); millis(lost) > millis(trial.flush)+slow {
		t.Errorf("what was used for %v is lost, of a flush each %v", lost, trial.flush)
	}
	sums := sumsOf(batches)
	// Appends of 3, 13 and 23 bytes.
	if got, want := sums[e.Account+" append"], (usage.Counts{Requests: 3, RequestBytes: 39, Chunks: 6, Refused: 5}); got != want {
		t.Errorf("appends: %+v, want %+v", got, want)
	}
	live := sums[e.Account+" live_read"]
	least, most := millis(flushed.Sub(tail.opened)), millis(flushed.Sub(tail.asked))+1
	if live.Requests != 1 || live.Tail < least || live.Tail > most {
		t.Errorf("the tail, at the last flush: %+v, want %d to %d ms", live, least, most)
	}
	beats := int64(strings.Count(tail.text, ":\n\n")) * int64(len(":\n\n"))
	if data := int64(len(tail.text)) - beats; live.HeartbeatBytes == 0 || live.HeartbeatBytes > beats+3 || live.ResponseBytes > data {
		t.Errorf("the tail: %+v, of %d bytes of heartbeats and %d of data", live, beats, data)
	}
	b := newBiller(t)
	b.read(t, text)
	once := b.bills(t)
	b.read(t, text)
	b.read(t, text+text)
	if diff := cmp.Diff(once, b.bills(t)); diff != "" {
		t.Errorf("the export replayed (-once +again):\n%s", diff)
	}
	if diff := cmp.Diff(sums, once); diff != "" {
		t.Errorf("the bill (-export +bill):\n%s", diff)
	}
}

// checkPlaces stops the program, and wants the same use in the export and, by hours and by
// batches, in the store; it returns the export.
func checkPlaces(t *testing.T, m *mortal, e *edge, export string) []usage.Batch {
	t.Helper()
	// The store tells of itself while the program lives.
	var hours map[string]usage.Counts
	var batches []usage.Batch
	env := map[string]string{"TONBO_API_KEY": e.Key, "SLUICE_URL": m.URL, "SLUICE_ADMIN_URL": m.Admin}
	eventually(t, "the store has what the export has", func() bool {
		batches, _ = exported(t, export)
		hours = hoursOf(t, env, e.Account)
		return cmp.Equal(withoutManagement(hours), withoutManagement(sumsOf(batches))) && gaugeAt(t, m.Admin, "sluice_usage_store_pending") == 0
	})
	code, lines, errOut := command(t, env, "usage", "export")
	if code != exitDone {
		t.Fatalf("usage export: %s", errOut)
	}
	b := newBiller(t)
	b.read(t, lines)
	b.read(t, lines)
	if diff := cmp.Diff(withoutManagement(hours), withoutManagement(b.bills(t))); diff != "" {
		t.Errorf("the store's batches, read twice (-hours +bill):\n%s", diff)
	}
	m.Stop()
	batches, _ = exported(t, export)
	return batches
}

// withoutManagement leaves out what asking for usage uses.
func withoutManagement(sums map[string]usage.Counts) map[string]usage.Counts {
	left := map[string]usage.Counts{}
	for name, c := range sums {
		if !strings.HasSuffix(name, " management") {
			left[name] = c
		}
	}
	return left
}

// hoursOf is what `sluice usage` tells, added up.
func hoursOf(t *testing.T, env map[string]string, account string) map[string]usage.Counts {
	t.Helper()
	code, out, errOut := command(t, env, "usage", "--json")
	if code != exitDone {
		t.Fatalf("usage: %s", errOut)
	}
	var page struct {
		Usage []struct {
			Class usage.Class `json:"class"`
			usage.Counts
		} `json:"usage"`
	}
	if err := json.Unmarshal([]byte(out), &page); err != nil {
		t.Fatal(err)
	}
	all := map[string]usage.Counts{}
	for _, u := range page.Usage {
		sum := all[account+" "+u.Class.String()]
		sum.Add(u.Counts)
		all[account+" "+u.Class.String()] = sum
	}
	return all
}

func replicasOf(batches []usage.Batch) int {
	seen := map[string]bool{}
	for _, b := range batches {
		seen[b.Replica] = true
	}
	return len(seen)
}
