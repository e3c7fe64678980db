package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/internal/usage"
)

const noLimit = unix.RLIM_INFINITY

// limitFiles bounds the files that a process may write, in bytes.
func limitFiles(t *testing.T, pid int, bytes uint64) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, nil, &old); err != nil {
		t.Fatal(err)
	}
	old.Cur = min(bytes, old.Max)
	if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, &old, nil); err != nil {
		t.Fatal(err)
	}
}

// The disk of the export fills up: the requests go on, each line in the file is whole, and
// once there is room all that was used is in it, once.
func TestExportOnAFullDisk(t *testing.T) {
	export := filepath.Join(t.TempDir(), "usage.jsonl")
	e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	go func() { _, _ = io.Copy(io.Discard, r) }() // the log is no file that the limit meets
	p, _ := runProcess(t, e, edgeFile(e, []string{standIn(t)}, fmt.Sprintf("usage: {export: %q, flush: 1s}\n", export)), w)
	eventually(t, "the process answers", func() bool { return p.reads(t) })
	appends := 0
	use := func(n int) {
		t.Helper()
		for range n {
			e.append(t, "json", "[1]")
			appends++
		}
	}
	gauge := func(name string) float64 { return gaugeAt(t, p.Admin, name) }
	use(3)
	eventually(t, "it is exported", func() bool {
		batches, _ := exported(t, export)
		return sumsOf(batches)[e.Account+" append"].Requests == 3
	})
	info, err := os.Stat(export)
	if err != nil {
		t.Fatal(err)
	}
	limitFiles(t, p.cmd.Process.Pid, uint64(info.Size())+40) //nolint:gosec // a size is not negative
	for gauge("sluice_usage_export_failures_total") < 2 {
		use(1)
	}
	use(5)
	eventually(t, "batches wait", func() bool { return gauge("sluice_usage_export_pending") > 0 })
	raw, err := os.ReadFile(export)
	if err != nil || raw[len(raw)-1] != '\n' || int64(len(raw)) != info.Size() {
		t.Errorf("on a full disk the file is %d bytes, of %d whole ones: %v", len(raw), info.Size(), err)
	}
	limitFiles(t, p.cmd.Process.Pid, noLimit)
	use(2)
	if err := p.ends(t, syscall.SIGTERM); err != nil {
		t.Errorf("exit: %v", err)
	}
	batches, text := exported(t, export)
	b := newBiller(t)
	b.read(t, text)
	n := int64(appends)
	if got, want := b.bills(t)[e.Account+" append"], (usage.Counts{Requests: n, RequestBytes: 3 * n, Chunks: n}); got != want {
		t.Errorf("in %d batches %+v, want %+v", len(batches), got, want)
	}
}
