package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A program whose files may not grow says at its start what is wrong with its store, waits,
// and serves once there is room. It is not ended by the signal that such writes bring.
func TestStartOnAFullDisk(t *testing.T) {
	m := newMortal(t, standIn(t), "sqlite:"+filepath.Join(t.TempDir(), "sluice.db"))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	// 4 KiB at most, of each file; the log is none.
	cmd := exec.Command("/bin/sh", "-c", `ulimit -S -f 8; exec "$0" serve --config "$1"`, os.Args[0], m.path) //nolint:gosec,noctx // this program, with a life of its own
	cmd.Env = append(os.Environ(), asProgram+"=1")
	cmd.Stderr = w
	if err := m.Run(cmd); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	lines := make(chan string)
	go func() {
		defer close(lines)
		buf := make([]byte, 64<<10)
		for {
			n, err := r.Read(buf)
			if n > 0 {
				lines <- string(buf[:n])
			}
			if err != nil {
				return
			}
		}
	}()
	log := ""
	for text := range lines {
		if log += text; strings.Contains(log, "waiting for it") {
			break
		}
	}
	go func() {
		for range lines { // so that the program never waits for its log's reader
			continue
		}
	}()
	if !strings.Contains(log, "the store cannot be reached: waiting for it") {
		t.Fatalf("the program says:\n%s", log)
	}
	if err := unix.Prlimit(m.Pid(), unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}, nil); err != nil {
		t.Fatal(err)
	}
	if err := m.ready(t.Context()); err != nil {
		t.Errorf("with room: %v", err)
	}
	m.Stop()
}
