package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// page is what a page tells its reader to run, and what it says that is printed.
type page []block

// block is one ```sh block and the ```text block below it.
type block struct {
	script string
	prints string // "" = nothing
}

// readPage takes the blocks out of a page. A ```text block without an ```sh block
// before it is an error: it would not be held to anything.
func readPage(text string) (page, error) {
	var p page
	kind, held := "", false
	for i, line := range strings.Split(text, "\n") {
		switch {
		case kind == "" && line == "```sh":
			p, kind, held = append(p, block{}), "sh", true
		case kind == "" && line == "```text":
			if !held {
				return nil, fmt.Errorf("line %d: an output of no command", i+1)
			}
			kind, held = "text", false
		case kind == "" && strings.HasPrefix(line, "```"):
			return nil, fmt.Errorf("line %d: a block of another kind: %s", i+1, line)
		case kind != "" && line == "```":
			kind = ""
		case kind == "sh":
			p[len(p)-1].script += line + "\n"
		case kind == "text":
			p[len(p)-1].prints += line + "\n"
		}
	}
	if kind != "" {
		return nil, fmt.Errorf("the last %s block does not end", kind)
	}
	return p, nil
}

// pattern is what a block may print: "…" stands for anything, and alone in a line for
// any lines.
func (b block) pattern() *regexp.Regexp {
	text := regexp.QuoteMeta(b.prints)
	text = strings.ReplaceAll(text, "\n…\n", "\n(?s:.*)")
	return regexp.MustCompile(`\A` + strings.ReplaceAll(text, "…", ".*") + `\z`)
}

// asPasted runs a page's blocks in one bash, one after the other, as somebody pastes
// them who sits at a terminal, in a directory of their own. answers are what is typed
// where a program asks: the text of its question, and the answer. env is what the
// shell has beside PATH; replace is applied to the page, old and new by turns, for what
// a machine cannot promise, such as a free port. `sluice` is this test binary.
func asPasted(t *testing.T, text string, env []string, answers map[string]string, replace ...string) {
	t.Helper()
	p, err := readPage(strings.NewReplacer(replace...).Replace(text))
	if err != nil || len(p) == 0 {
		t.Fatalf("%d blocks, %v", len(p), err)
	}
	home := t.TempDir()
	var script strings.Builder
	for i, b := range p {
		// Each ends with a line that tells where its output does, and how it went.
		fmt.Fprintf(&script, "%sprintf '\\n<<<%d:%%d>>>\\n' $?\n", b.script, i)
	}
	path := filepath.Join(home, "page.sh")
	writeFile(t, path, script.String())
	got := runAtTerminal(t, path, append(env, "HOME="+home, "PATH="+programPath(t)+":"+os.Getenv("PATH"), asProgram+"=1"), answers)
	for i, b := range p {
		marker := regexp.MustCompile(fmt.Sprintf(`\n<<<%d:(\d+)>>>\n`, i))
		at := marker.FindStringSubmatchIndex(got)
		if at == nil {
			t.Fatalf("block %d did not end:\n%s\nprinted\n%s", i, b.script, got)
		}
		printed, code := got[:at[0]], got[at[2]:at[3]]
		if printed != "" && !strings.HasSuffix(printed, "\n") {
			printed += "\n"
		}
		if code != "0" || !b.pattern().MatchString(printed) {
			t.Errorf("block %d ended with %s:\n%s\nprinted\n%s\nwant\n%s", i, code, b.script, printed, b.prints)
		}
		got = got[at[1]:]
	}
}

// programPath is a directory in which `sluice` is this test binary.
func programPath(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(self, filepath.Join(dir, "sluice")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// runAtTerminal runs a script whose standard input is a terminal, and returns what it
// printed on both outputs.
func runAtTerminal(t *testing.T, script string, env []string, answers map[string]string) string {
	t.Helper()
	needCommand(t, "bash")
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("this machine has no terminals to give: %v", err)
	}
	defer func() { _ = person.Close() }()
	if err := unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = terminal.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out := &asked{answers: answers, person: person}
	shell := exec.CommandContext(ctx, "bash", script)
	shell.Dir, shell.Env = filepath.Dir(script), env
	shell.Stdin, shell.Stdout, shell.Stderr = terminal, out, out
	shell.WaitDelay = time.Second
	if err := shell.Run(); err != nil {
		t.Fatalf("%v\n%s", err, out.text.String())
	}
	if left := len(answers) - int(out.given.Load()); left > 0 {
		t.Errorf("%d of the questions were not asked:\n%s", left, out.text.String())
	}
	return out.text.String()
}

// asked keeps what is printed, and types the answers to what is asked. Its Write is
// called by one goroutine.
type asked struct {
	answers map[string]string
	person  io.Writer
	text    bytes.Buffer
	seen    int // up to where it was looked for questions
	given   atomic.Int64
}

func (a *asked) Write(p []byte) (int, error) {
	n, _ := a.text.Write(p)
	for question, answer := range a.answers {
		if at := strings.Index(a.text.String()[a.seen:], question); at >= 0 {
			a.seen += at + len(question)
			a.given.Add(1)
			if _, err := io.WriteString(a.person, answer); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}
