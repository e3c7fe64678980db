package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A program that found no room in its store at its start waited for it where it could not
// make the tables, but ended where it could not write what its file declares. It says what
// is wrong, and serves once there is room.
func TestStartOnAFullDisk(t *testing.T) {
	t.Run("a new store", func(t *testing.T) {
		t.Parallel()
		m := newMortal(t, standIn(t), "sqlite:"+filepath.Join(t.TempDir(), "sluice.db"))
		startWithoutRoom(t, m, 4<<10)
	})
	t.Run("another file", func(t *testing.T) {
		t.Parallel()
		m := newMortal(t, standIn(t), "sqlite:"+filepath.Join(t.TempDir(), "sluice.db"))
		if err := m.start(); err != nil {
			t.Fatal(err)
		}
		if err := m.ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		m.Stop()
		f, err := os.OpenFile(m.path, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprint(f, "accounts:\n  - id: acme\n    streams:\n")
		for i := range 1000 {
			_, _ = fmt.Fprintf(f, "      - {name: stream-%d, content_type: text/plain}\n", i)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		startWithoutRoom(t, m, 64<<10)
	})
}

// startWithoutRoom starts a replica whose files may not grow beyond so many bytes, and
// lifts that once it has said that it waits.
func startWithoutRoom(t *testing.T, m *mortal, most int) {
	t.Helper()
	log, err := os.Create(m.log)
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	// The log is no file, but a pipe.
	cmd := exec.Command("/bin/sh", "-c", fmt.Sprintf(`ulimit -S -f %d; exec "$0" serve --config "$1"`, most/512), os.Args[0], m.path) //nolint:noctx // this program, with a life of its own
	cmd.Env = append(os.Environ(), asProgram+"=1")
	cmd.Stderr = w
	if err := m.Run(cmd); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	copied := make(chan error, 1)
	go func() {
		_, err := log.ReadFrom(r)
		copied <- err
	}()
	eventually(t, "the program says that it waits", func() bool {
		text, err := os.ReadFile(m.log)
		return err == nil && strings.Contains(string(text), "the store cannot be reached: waiting for it")
	})
	if err := unix.Prlimit(m.Pid(), unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}, nil); err != nil {
		t.Fatal(err)
	}
	if err := m.ready(t.Context()); err != nil {
		t.Errorf("with room: %v", err)
	}
	m.Stop()
	if err := <-copied; err != nil {
		t.Error(err)
	}
}
