package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/ursulatest"
)

// A new program that does not start leaves the old one as it was: one that refuses the
// file, and one that is not ready.
func TestFailedUpgradeChangesNothing(t *testing.T) {
	t.Parallel()
	p := startRoomy(t, standIn(t))
	text := readFile(t, p.path)
	for i, bad := range []string{"origin: [", text + "streems: {}\n"} {
		writeFile(t, p.path, bad)
		must(t, p.cmd.Process.Signal(syscall.SIGUSR2))
		eventually(t, "it is told", func() bool { return p.lines(t, `"upgrade failed; this process goes on"`) == i+1 })
		if !p.reads(t) {
			t.Fatal("the old one does not answer")
		}
	}
	writeFile(t, p.path, text)
	next := p.upgrade(t, p.cmd.Process.Pid, 0)
	if err := <-p.exited; err != nil {
		t.Errorf("it ended with %v", err)
	}
	if !p.reads(t) || !answersWith(t, p.Admin+"/readyz", http.StatusOK, 5*time.Second) {
		t.Error("the new one does not answer")
	}
	must(t, syscall.Kill(next, syscall.SIGTERM))
	eventually(t, "it has ended", func() bool { return !runs(next) })
}

// A stop while a new program starts ends both.
func TestStopWhileUpgrading(t *testing.T) {
	t.Parallel()
	node := standIn(t)
	p := startRoomy(t, node)
	// The new one never becomes ready: nobody answers at its nodes.
	writeFile(t, p.path, strings.Replace(readFile(t, p.path), node, "http://"+freePort(t), 1))
	must(t, p.cmd.Process.Signal(syscall.SIGUSR2))
	eventually(t, "another process starts", func() bool { return p.lines(t, `"message":"serving"`) == 2 })
	found := regexp.MustCompile(`"message":"serving".*"pid":(\d+)`).FindAllStringSubmatch(p.logged(t), -1)
	next, err := strconv.Atoi(found[1][1])
	must(t, err)
	t.Cleanup(func() { _ = syscall.Kill(next, syscall.SIGKILL) })
	if !p.reads(t) {
		t.Error("the old one does not answer meanwhile")
	}
	must(t, p.ends(t, syscall.SIGTERM))
	if runs(next) {
		t.Error("the new one goes on with nobody to tell it")
	}
}

// replaceable is a program at a path where another one can be put.
type replaceable struct {
	*replica

	link, self string
}

// startReplaceable starts the program by a link to it.
func startReplaceable(t *testing.T, nodes ...string) *replaceable {
	t.Helper()
	e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	cmd, path := newProgram(t, e, roomy(edgeFile(e, nodes, "")))
	self, err := os.Executable()
	must(t, err)
	dir := t.TempDir()
	p := &replaceable{&replica{path: path, log: filepath.Join(dir, "log")}, filepath.Join(dir, "sluice"), self}
	p.put(t, self)
	cmd.Path, cmd.Args[0] = p.link, p.link
	log, err := os.Create(p.log)
	must(t, err)
	cmd.Stderr = log
	startAndClose(t, cmd, log)
	p.process = await(t, e, cmd)
	eventually(t, "the process answers", func() bool { return p.reads(t) })
	return p
}

// put has the program's path lead to another one, in one step.
func (p *replaceable) put(t *testing.T, program string) {
	t.Helper()
	must(t, os.Symlink(program, p.link+".new"), os.Rename(p.link+".new", p.link))
}

// children are the processes that a process has started and that have not ended.
func children(t *testing.T, pid int) (all []int) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	must(t, err)
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		for id := range strings.FieldsSeq(string(text)) {
			child, err := strconv.Atoi(id)
			must(t, err)
			if runs(child) {
				all = append(all, child)
			}
		}
	}
	return all
}

// A new program that ends at once, or that is none, or that hangs and is killed, or for
// which there are no descriptors: each time the old one goes on, and no request fails. What
// is asked for meanwhile is done next. Then a good one takes over, once, however often that
// is asked for.
func TestUpgradeToWhatDoesNotServe(t *testing.T) {
	t.Parallel()
	programs := map[string]string{}
	for name, text := range map[string]string{"ends": "#!/bin/sh\nexit 3\n", "none": "this is no program", "hangs": "#!/bin/sh\nexec sleep 600\n"} {
		programs[name] = filepath.Join(t.TempDir(), name)
		must(t, os.WriteFile(programs[name], []byte(text), 0o700)) //nolint:gosec // it is to be run
	}
	p := startReplaceable(t, standIn(t))
	pid := p.cmd.Process.Pid
	load := newLoad(t.Context())
	one := reader{dial: rawDialer{address: hostOf(p.URL)}, target: p.edge.path("json") + "?offset=now", key: p.Key}
	two, anew := one, one
	two.dial.h2, anew.eachAnew = true, true
	for _, r := range []reader{one, two, anew} {
		load.readers(1, 20, r)
	}
	failed := 0
	fails := func(why string) {
		t.Helper()
		failed++
		eventually(t, "it is told", func() bool { return p.lines(t, `"upgrade failed; this process goes on"`) == failed })
		if p.lines(t, why) == 0 {
			t.Errorf("the log does not say %q", why)
		}
		load.awaitMore(t, 20)
	}
	ask := func() { must(t, p.cmd.Process.Signal(syscall.SIGUSR2)) }
	p.put(t, programs["ends"])
	ask()
	fails("exit status 3")
	p.put(t, programs["none"])
	ask()
	fails("exec format error")
	must(t, os.Remove(p.link))
	ask()
	fails("no such file or directory")

	p.put(t, programs["hangs"])
	ask()
	for last := 0; failed < 5; { // the second was asked for while the first hung
		eventually(t, "it hangs", func() bool {
			running := children(t, pid)
			if len(running) != 1 || running[0] == last {
				return false
			}
			last = running[0]
			return true
		})
		if failed == 3 {
			ask()
		}
		load.awaitMore(t, 20)
		must(t, syscall.Kill(last, syscall.SIGKILL))
		fails("signal: killed")
	}
	p.put(t, p.self)
	func() {
		var was unix.Rlimit
		must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was))
		none := was
		none.Cur = 3
		load.pause() // its requests need descriptors too
		defer load.goOn()
		must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &none, nil))
		ask()
		failed++
		eventually(t, "it is told", func() bool { return p.lines(t, "too many open files") > 0 })
		must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &was, nil))
	}()
	load.awaitMore(t, 20)

	ask()
	ask()
	next := p.upgrade(t, pid, 0)
	must(t, <-p.exited)
	load.awaitMore(t, 20)
	load.stop(t)
	if n := p.lines(t, `"upgrade failed; this process goes on"`); n != failed {
		t.Errorf("%d upgrades have failed, want %d", n, failed)
	}
	must(t, syscall.Kill(next, syscall.SIGTERM))
	eventually(t, "it has ended", func() bool { return !runs(next) })
}

// A new program that is not ready within a minute is ended. In the long form only.
func TestUpgradeToWhatHangs(t *testing.T) {
	t.Parallel()
	if !soak() {
		return // TestUpgradeToWhatDoesNotServe ends one sooner
	}
	hangs := filepath.Join(t.TempDir(), "hangs")
	must(t, os.WriteFile(hangs, []byte("#!/bin/sh\nexec sleep 600\n"), 0o700)) //nolint:gosec // it is to be run
	p := startReplaceable(t, standIn(t))
	p.put(t, hangs)
	must(t, p.cmd.Process.Signal(syscall.SIGUSR2))
	if !patiently(func() bool { return p.lines(t, "the new process was not ready within 1m0s") == 1 }) {
		t.Error("it is waited for")
	}
	if left := children(t, p.cmd.Process.Pid); len(left) > 0 || !p.reads(t) {
		t.Errorf("it is left: %v, or the old one does not answer", left)
	}
}

// The old process is killed while the new one waits until it is ready: the new one serves
// all the same, and nothing is left that holds it back.
func TestKilledWhileUpgrading(t *testing.T) {
	t.Parallel()
	cluster := ursulatest.New(ursulatest.Options{})
	must(t, cluster.Start())
	t.Cleanup(func() { _ = cluster.Close() })
	p := startRoomy(t, cluster.URLs()[0], "watch: false\n", fmt.Sprintf("watch: false\nstore: {url: \"sqlite:%s/sluice.db\"}\n", t.TempDir()))
	cluster.Node(0).Stop()
	must(t, p.cmd.Process.Signal(syscall.SIGUSR2))
	eventually(t, "another process starts", func() bool { return p.lines(t, `"message":"serving"`) == 2 })
	found := regexp.MustCompile(`"message":"serving".*"pid":(\d+)`).FindAllStringSubmatch(p.logged(t), -1)
	next, err := strconv.Atoi(found[1][1])
	must(t, err)
	t.Cleanup(func() { _ = syscall.Kill(next, syscall.SIGKILL) })
	must(t, p.cmd.Process.Kill())
	if err := <-p.exited; err == nil {
		t.Error("it was not killed, it ended")
	}
	cluster.Node(0).Restart()
	p.awaitReady(t)
	if !p.reads(t) || p.lines(t, `"level":"error"`) > 0 {
		t.Error("the new one does not answer")
	}
	pid := p.upgrade(t, next, 0)
	if !p.reads(t) {
		t.Error("the one after it does not answer")
	}
	must(t, syscall.Kill(pid, syscall.SIGTERM))
	eventually(t, "it has ended", func() bool { return !runs(pid) })
}
