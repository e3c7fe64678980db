package main

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// roomy has limits that a crowd does not meet, in the file of an edge.
func roomy(file string) string {
	return strings.Replace(file, "open_tails: 100}", "open_tails: 100000}", 1) + "server: {connections_per_address: 0, failed_credentials_per_minute: 0}\n"
}

// startRoomy starts the program on a file of a crowd's, changed by edits: what is there,
// what is in its place.
func startRoomy(t *testing.T, node string, edits ...string) *replica {
	t.Helper()
	e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	if soak() {
		e.program = built(t)
	}
	r := startReplicaOf(t, e, strings.NewReplacer(edits...).Replace(roomy(edgeFile(e, []string{node}, ""))))
	eventually(t, "the process answers", func() bool { return r.reads(t) })
	return r
}

// built is the program as it is released. The race detector, with which the short forms
// run it, makes it several times slower: two cores would not do for the load of the long
// ones.
func built(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sluice")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

// rename puts a text in a file's place, as editors do.
func rename(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path))
}

// O02: open tails hung a reload, or were cut by it. 1,000 tails, to which events come all
// the while, live through 20 reloads of files that differ, without one event lost or told
// twice; then a key that is taken out of the file ends its tails, within a second. Fewer
// over TLS, in the short form.
func TestTailsLiveThroughReloads(t *testing.T) {
	t.Run("clear text", func(t *testing.T) { tailsLiveThroughReloads(t, 1000, "") })
	t.Run("over TLS", func(t *testing.T) {
		tails := 200
		if soak() {
			tails = 1000
		}
		tailsLiveThroughReloads(t, tails, "tls: {mode: internal}\n")
	})
}

func tailsLiveThroughReloads(t *testing.T, tails int, sections string) {
	t.Helper()
	const reloads = 20
	removed := tails / 10
	p := startRoomy(t, nodeApart(t), "watch: false\n", "watch: true\nlog: {level: warn}\n"+sections)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	kept := p.newCrowd(ctx, t, tails-removed, p.Key, false)
	dropped := p.newCrowd(ctx, t, removed, p.Reads, false)
	path := p.path
	text := readFile(t, path)
	writer := &counter{e: p.edge, client: http1()}
	loads := func() float64 { return p.gauge(t, `sluice_config_reloads_total{result="ok"}`) }
	for i := range reloads {
		before := loads()
		rename(t, path, text+"region: r"+string(rune('a'+i))+"\n")
		if i%10 == 0 { // by itself
			eventually(t, "the change is taken up", func() bool { return loads() > before })
		} else {
			want(t, p.admin(t, http.MethodPost, "/reload"), http.StatusOK)
		}
		must(t, writer.add(ctx))
	}
	kept.told(t, reloads)
	dropped.told(t, reloads)
	rename(t, path, without(text, "reads"))
	want(t, p.admin(t, http.MethodPost, "/reload"), http.StatusOK)
	told := time.Now()
	ended := make(chan struct{})
	go func() {
		dropped.wait.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(90 * time.Second):
		t.Fatalf("%d tails of the removed key go on", dropped.count(func(tl *tailer) bool { return len(tl.ends) == 0 }))
	}
	slowest := time.Duration(0)
	for _, tl := range dropped.all {
		end := tl.ends[0]
		slowest = max(slowest, end.at.Sub(told))
		if end.err != nil || end.last+"\n\n" != lastEvent {
			t.Fatalf("a removed key's tail: %+v", end)
		}
	}
	t.Logf("%d tails ended within %v of the reload's answer", removed, slowest.Round(time.Millisecond))
	if slowest > time.Second {
		t.Errorf("a removed key's tail ended %v after the reload", slowest)
	}
	must(t, writer.add(ctx))
	kept.told(t, reloads+1)
	if n := kept.count(func(tl *tailer) bool { return len(tl.ends) > 0 }); n != 0 {
		t.Errorf("%d tails have ended that should not", n)
	}
	cancel()
	kept.wait.Wait()
	must(t, p.ends(t, syscall.SIGTERM))
}
