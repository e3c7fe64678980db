package postgrestest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"sluice/internal/realpart"
)

// Stop ends the server as an operator does: connections are cut, and what was
// acknowledged is there after Restart. It is no error where it is stopped already.
func (s *Server) Stop() { s.process.End(syscall.SIGINT) }

// Kill ends all of the server's processes at once (SIGKILL).
func (s *Server) Kill(tb testing.TB) {
	tb.Helper()
	s.all(tb, syscall.SIGKILL)
	s.process.Kill()
}

// Pause freezes all of the server's processes: its connections stand, nothing answers,
// and new connections are taken by the system alone.
func (s *Server) Pause(tb testing.TB) {
	tb.Helper()
	s.all(tb, syscall.SIGSTOP)
}

// Cont thaws what Pause froze.
func (s *Server) Cont(tb testing.TB) {
	tb.Helper()
	s.all(tb, syscall.SIGCONT)
}

// Restart starts a server that was stopped or killed again, on the same port, with its
// data, and returns once it answers.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	s.Stop()
	if err := s.run(); err != nil {
		tb.Fatalf("restart PostgreSQL: %v\n%s", err, realpart.Tail(s.log(), maxLog))
	}
}

func (s *Server) all(tb testing.TB, sig syscall.Signal) {
	tb.Helper()
	if err := s.signal(sig); err != nil {
		tb.Fatalf("PostgreSQL: %v: %v", sig, err)
	}
}

// signal sends one to the server and to each of its children: every connection is one,
// in a session of its own. The server is first, so that none is added meanwhile, but for
// SIGKILL, after which they would be nobody's.
func (s *Server) signal(sig syscall.Signal) error {
	pid := s.process.Pid()
	select {
	case <-s.process.Done():
		return os.ErrProcessDone
	default:
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	children, err := childrenOf(pid)
	if err != nil {
		return errors.Join(err, syscall.Kill(pid, syscall.SIGCONT))
	}
	for _, child := range children {
		if err := syscall.Kill(child, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return syscall.Kill(pid, sig)
}

// Unlimited lifts LimitFiles.
const Unlimited = -1

// LimitFiles has no file of the server grow beyond so many bytes from now on, as if the
// disk were full. Files of the log that is written ahead have 16 MiB, so a limit is more
// than that. It needs the command prlimit of util-linux.
func (s *Server) LimitFiles(tb testing.TB, bytes int64) {
	tb.Helper()
	prlimit, err := exec.LookPath("prlimit")
	if err != nil {
		realpart.Missing(tb, "prlimit", err.Error())
	}
	soft := "unlimited"
	if bytes != Unlimited {
		soft = strconv.FormatInt(bytes, 10)
	}
	limit := func(pid int) error {
		// As the server's own user: not even root may do this to another's process everywhere.
		cmd := s.as(exec.CommandContext(tb.Context(), prlimit, "--pid", strconv.Itoa(pid), "--fsize="+soft+":")) //nolint:gosec // a binary of the rig
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("prlimit: %w: %s", err, out)
		}
		return err
	}
	// The server first: connections that come have its limit.
	pid := s.process.Pid()
	if err := limit(pid); err != nil {
		tb.Fatal(err)
	}
	children, err := childrenOf(pid)
	if err != nil {
		tb.Fatal(err)
	}
	for _, child := range children {
		if err := limit(child); err != nil && syscall.Kill(child, 0) == nil {
			tb.Fatal(err)
		}
	}
}

// childrenOf are the processes that a process with one thread has started.
func childrenOf(pid int) ([]int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil, err
	}
	var children []int
	for _, word := range strings.Fields(string(text)) {
		child, err := strconv.Atoi(word)
		if err != nil {
			return nil, err
		}
		children = append(children, child)
	}
	return children, nil
}
