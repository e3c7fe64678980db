package main

import (
	"context"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"sluice/internal/realpart"
	"sluice/internal/syncbuf"
	"sluice/internal/ursulatest/realursula"
)

// The block that `sluice dev` prints is the first thing a newcomer runs: it is
// run here as it is printed, by the shell it is pasted into.
func TestDevQuickstartBlock(t *testing.T) {
	needCommand(t, "bash", "curl")
	for name, args := range map[string]func(t *testing.T) []string{
		"stand-in": func(*testing.T) []string { return nil },
		"over TLS": func(*testing.T) []string { return []string{"--tls"} },
		"ursula":   func(t *testing.T) []string { return []string{"--ursula", realursula.Start(t).URL} },
	} {
		t.Run(name, func(t *testing.T) {
			out := startDev(t, args(t)...)
			_, block, ok := strings.Cut(out, "Paste this into another terminal:\n\n")
			if !ok {
				t.Fatalf("no block in %q", out)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
			defer cancel()
			shell := exec.CommandContext(ctx, "bash", "-c", block)
			text, err := shell.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			checkBlock(t, string(text))
		})
	}
}

// With --protocol the line that makes a stream by PUT is printed, and does.
func TestDevProtocol(t *testing.T) {
	needCommand(t, "bash", "curl")
	out := startDev(t, "--protocol")
	line := regexp.MustCompile(`curl -i -X PUT .*`).FindString(out)
	export := regexp.MustCompile(`export TONBO_API_KEY=.*`).FindString(out)
	if line == "" || strings.Contains(startDev(t), line) {
		t.Fatalf("%q in %q", line, out)
	}
	text, err := exec.CommandContext(t.Context(), "bash", "-c", export+"\n"+line).CombinedOutput()
	if err != nil || !strings.Contains(string(text), "201 Created") || !strings.Contains(string(text), "/s.mine") {
		t.Errorf("%v: %s", err, text)
	}
}

// needCommand fails or skips like a missing real part.
func needCommand(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			realpart.Missing(t, name, "install it with the system's package manager")
		}
	}
}

// startDev runs the command until the test ends and returns what it printed.
func startDev(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var out, errOut syncbuf.Buffer
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, append([]string{"dev", "--listen", "127.0.0.1:0"}, args...), environment{out: &out, err: &errOut})
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-done; code != exitDone {
			t.Errorf("dev ended with %d: %s", code, errOut.String())
		}
	})
	started := time.Now()
	watch, stop := context.WithCancel(ctx)
	stall := make(chan time.Duration, 1)
	go func() { stall <- longestStall(watch) }()
	eventually(t, "the block is printed", func() bool { return strings.Contains(out.String(), "== done") })
	stop()
	// A machine that has something else to do as well is given more.
	if took, busy := time.Since(started), <-stall; took > 2*time.Second+50*busy {
		t.Errorf("ready after %v, want within 2 s; the machine was busy for %v at a time", took, busy)
	}
	return out.String()
}

// step is what stands between one "== " line and the next.
type step struct{ title, text string }

func steps(out string) []step {
	var list []step
	for part := range strings.SplitSeq("\n"+out, "\n== ") {
		title, text, _ := strings.Cut(part, "\n")
		if strings.TrimSpace(title) != "" {
			list = append(list, step{title, strings.ReplaceAll(text, "\r", "")})
		}
	}
	return list
}

func (s step) header(name string) string {
	for line := range strings.Lines(s.text) {
		if n, v, ok := strings.Cut(line, ": "); ok && strings.EqualFold(n, name) {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func checkBlock(t *testing.T, out string) {
	t.Helper()
	got := steps(out)
	wanted := []struct {
		title, status string
		holds         []string
	}{
		{"append: 200", "200", []string{"Stream-Offset:", "Stream-Next-Offset:"}},
		{"append another: 200", "200", []string{"Stream-Offset:", "Stream-Next-Offset:"}},
		{"the same again", "204", []string{"Stream-Offset:", "Stream-Next-Offset:"}},
		{"read from the start", "200", []string{"Stream-Up-To-Date: true", "\n{\"n\":1}\n{\"n\":2}\n"}},
		{"tail: the event", "200", []string{"event: control", "event: data\ndata:{\"n\":3}\n"}},
		{"close: 204", "204", []string{"Stream-Closed: true"}},
		{"append to the closed", "409", []string{"Stream-Closed: true", "STREAM_CLOSED"}},
		{"long-poll at its end", "204", []string{"Stream-Closed: true"}},
		{"tail at its end", "200", []string{`"streamClosed":true`}},
		{"the public stream", "200", []string{"Cache-Control: no-store"}},
		{"done", "", nil},
	}
	if len(got) != len(wanted) {
		t.Fatalf("%d steps, want %d:\n%s", len(got), len(wanted), out)
	}
	for i, w := range wanted {
		s := got[i]
		if !strings.HasPrefix(s.title, w.title) || (w.status != "" && !strings.HasPrefix(s.text, "HTTP/1.1 "+w.status+" ") && !strings.HasPrefix(s.text, "HTTP/2 "+w.status+" ")) {
			t.Errorf("step %q: %.60q, want %s", s.title, s.text, w.status)
		}
		for _, h := range w.holds {
			if !strings.Contains(strings.ToLower(s.text), strings.ToLower(h)) { // HTTP/2 has lower case
				t.Errorf("step %q lacks %q:\n%s", s.title, h, s.text)
			}
		}
	}
	for _, name := range []string{"Stream-Offset", "Stream-Next-Offset"} {
		if a, b := got[1].header(name), got[2].header(name); a != b || a == "" {
			t.Errorf("%s: %q, repeated %q", name, a, b)
		}
	}
}

func TestDevRefusesATakenAddress(t *testing.T) {
	e := newEdge(t, standIn(t))
	code, _, errOut := command(t, nil, "dev", "--listen", strings.TrimPrefix(e.URL, "http://"))
	if code != exitFailed || !strings.Contains(errOut, "--listen") {
		t.Errorf("exit %d, %q", code, errOut)
	}
}

func TestDevSaysThatUrsulaDoesNotAnswer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var out, errOut syncbuf.Buffer
	code := run(ctx, []string{"dev", "--listen", "127.0.0.1:0", "--ursula", "http://" + freePort(t)}, environment{out: &out, err: &errOut})
	if code != exitFailed || !strings.Contains(errOut.String(), "does not answer") {
		t.Errorf("exit %d, %q", code, errOut.String())
	}
}
