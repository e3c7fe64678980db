// Package realpart is what tests need to run somebody else's program as it is: what
// happens when it is not there, and a process that is killed, frozen and started
// again. It refuses to know which program that is.
package realpart

import (
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
)

// EnvRequire set to 1 makes a missing part fail the test instead of skipping it.
const EnvRequire = "SLUICE_REQUIRE_PARTS"

// Missing ends a test that cannot run without a real part: it skips it loudly,
// or fails it where SLUICE_REQUIRE_PARTS=1.
func Missing(tb testing.TB, part, how string) {
	tb.Helper()
	text := "PART MISSING: " + part + " is not here (" + how + "). This test did not run."
	if os.Getenv(EnvRequire) == "1" {
		tb.Fatal(text)
	}
	tb.Skip(text)
}

// Process is a program that may be run several times, once at a time. Its methods
// are safe for concurrent use.
type Process struct {
	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when the process ended and was reaped
}

// Run starts cmd and sees to it that it is reaped. The one before has to have ended.
func (p *Process) Run(cmd *exec.Cmd) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	p.cmd, p.done = cmd, done
	go func() {
		defer close(done)
		_ = cmd.Wait() // how it ended is in its log
	}()
	return nil
}

// Done is closed when the process has ended; nil, which never is, before the first
// Run.
func (p *Process) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}

// Kill ends the process at once (SIGKILL) and waits for it. Further calls do
// nothing.
func (p *Process) Kill() { p.End(syscall.SIGKILL) }

// Stop asks the process to end (SIGTERM) and waits for it.
func (p *Process) Stop() { p.End(syscall.SIGTERM) }

// Pause freezes the process (SIGSTOP): its connections stand, nothing answers.
func (p *Process) Pause() error { return p.signal(syscall.SIGSTOP) }

// Cont thaws a frozen process (SIGCONT).
func (p *Process) Cont() error { return p.signal(syscall.SIGCONT) }

// Pid is that of the process that runs, or ran last; 0 = none did.
func (p *Process) Pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// End sends the process a signal that ends it, and waits for it.
func (p *Process) End(sig syscall.Signal) {
	_ = p.signal(sig)
	if done := p.Done(); done != nil {
		<-done
	}
}

func (p *Process) signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done == nil {
		return os.ErrProcessDone
	}
	select {
	case <-p.done:
		return os.ErrProcessDone // the pid may be another's by now
	default:
		return p.cmd.Process.Signal(sig)
	}
}

// Tail is the end of a log, of most bytes at the most, or why there is none.
func Tail(path string, most int) string {
	raw, err := os.ReadFile(path) //nolint:gosec // a test's own file
	if err != nil {
		return err.Error()
	}
	return string(raw[max(0, len(raw)-most):])
}
