package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/syncbuf"
)

// openTerminal is a terminal and the other end of it, where somebody types and reads.
func openTerminal(t *testing.T) (terminal, person *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("this machine has no terminals to give: %v", err)
	}
	t.Cleanup(func() { _ = person.Close() })
	if err := unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = terminal.Close() })
	return terminal, person
}

// atTerminal runs the program at a terminal of its own. typed is given once "to go on: "
// is asked; "\x03" is Ctrl-C. It returns what the terminal showed.
func atTerminal(t *testing.T, env map[string]string, typed string, args ...string) (code int, shown string) {
	t.Helper()
	terminal, person := openTerminal(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	for k, v := range env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = terminal.Close()
	var out syncbuf.Buffer
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(&out, person) // ends with an error when the program does
	}()
	if typed != "" {
		eventually(t, "the name is asked for", func() bool { return strings.Contains(out.String(), "to go on: ") })
		if _, err := io.WriteString(person, typed); err != nil {
			t.Fatal(err)
		}
	}
	err := cmd.Wait()
	<-read
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), strings.ReplaceAll(out.String(), "\r\n", "\n")
}

// What is deleted for good is asked for by its name, at a real terminal; anything else
// that is typed deletes nothing.
func TestDeleteAsksForTheName(t *testing.T) {
	key := newTestKey(t)
	for name, tc := range map[string]struct {
		typed string
		code  int
		shows string
		asked int
	}{
		"the name":         {"orders\n", exitDone, "Deleted: orders\n", 2},
		"another name":     {"order\n", exitFailed, "sluice: that is not its name: nothing was deleted\n", 0},
		"yes is no name":   {"yes\n", exitFailed, "nothing was deleted", 0},
		"nothing":          {"\n", exitFailed, "nothing was deleted", 0},
		"the end of input": {"\x04", exitFailed, "nothing was deleted", 0},
		"Ctrl-C":           {"\x03", exitFailed, "sluice: stopped\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t, answer{202, strings.Replace(orders, "active", "deleting", 1), nil}, answer{404, notThere, nil})
			code, shown := atTerminal(t, a.env(key), tc.typed, "stream", "delete", "orders")
			if code != tc.code || !strings.Contains(shown, "This deletes the stream orders and its data, for good.\nType orders to go on: ") || !strings.Contains(shown, tc.shows) {
				t.Errorf("exit %d, shown %q", code, shown)
			}
			if len(a.asked) != tc.asked {
				t.Errorf("asked %q", a.asked)
			}
		})
	}
}

// Progress is for a terminal, and leaves nothing behind.
func TestProgressAtATerminal(t *testing.T) {
	n := newNode(t)
	n.create(t, "bytes", "application/octet-stream")
	file := t.TempDir() + "/in"
	write(t, file, strings.Repeat("x", 64<<10))
	// So many requests that progress is due at least once.
	code, shown := atTerminal(t, n.env, "", "stream", "append", "acme/bytes", file, "--piece-size", "32")
	if code != exitDone || !strings.Contains(shown, "\r\x1b[Kappended ") || !strings.Contains(shown, " of 64 KiB, ") || !strings.HasSuffix(shown, "\r\x1b[KAppended: 64 KiB\nNext offset: 00000000000000065536\n") {
		t.Errorf("exit %d, shown %q", code, shown)
	}
}
