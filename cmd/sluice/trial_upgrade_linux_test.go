package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// upgradeTrial is the load under which the program is upgraded.
type upgradeTrial struct {
	tails, perSecond, upgrades int
	drain                      time.Duration
	between                    time.Duration // from one upgrade's end to the next
}

func theUpgradeTrial() upgradeTrial {
	if soak() {
		return upgradeTrial{tails: 500, perSecond: 500, upgrades: 5, drain: 20 * time.Second, between: 5 * time.Second}
	}
	return upgradeTrial{tails: 100, perSecond: 100, upgrades: 2, drain: 2 * time.Second, between: 200 * time.Millisecond}
}

// A new version could only come by a restart, for whose time connections were refused.
// Under requests and tails the program is upgraded, several times: no connection is
// refused, no request fails, and no tail misses an event or is told one twice.
func TestUpgradeIsNotNoticed(t *testing.T) {
	tr := theUpgradeTrial()
	p := startRoomy(t, standIn(t), "drain_timeout: 2s", "drain_timeout: "+tr.drain.String())
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	writer := &counter{e: p.edge, client: http1()}
	must(t, writer.add(ctx))
	crowd := p.newCrowd(ctx, t, tr.tails, p.Key, true)
	for _, tl := range crowd.all { // they have begun behind the first
		tl.mu.Lock()
		tl.last = 1
		tl.mu.Unlock()
	}
	load := p.startLoad(ctx, tr.perSecond, writer)
	pid := p.cmd.Process.Pid
	for i := range tr.upgrades {
		before := load.done.Load()
		eventually(t, "requests are served", func() bool { return load.done.Load() > before+int64(tr.perSecond)/4 })
		next := p.upgrade(t, pid, i)
		if i == 0 {
			if err := <-p.exited; err != nil {
				t.Errorf("it ended with %v", err)
			}
		}
		pid = next
		before = load.done.Load()
		eventually(t, "requests are served by the next", func() bool { return load.done.Load() > before+int64(tr.perSecond)/4 })
		<-time.NewTimer(tr.between).C
	}
	total := load.stop(t)
	crowd.told(t, writer.n)
	moved := 0
	for i, tl := range crowd.all {
		tl.mu.Lock()
		for _, end := range tl.ends {
			if moved++; end.err != nil || end.status != http.StatusOK || !hinted.MatchString(end.last) {
				t.Errorf("tail %d: %+v", i, end)
			}
		}
		tl.mu.Unlock()
	}
	t.Logf("%d upgrades under %d requests and %d tails, which moved %d times", tr.upgrades, total, tr.tails, moved)
	if moved < tr.tails*tr.upgrades/2 {
		t.Errorf("%d tails have moved in %d upgrades of %d", moved, tr.upgrades, tr.tails)
	}
	cancel()
	crowd.wait.Wait()
	must(t, syscall.Kill(pid, syscall.SIGTERM))
	eventually(t, "the last has ended", func() bool { return !runs(pid) })
	if n := p.lines(t, `"message":"stopped"`); n != tr.upgrades+1 {
		t.Errorf("%d processes have stopped in order, want %d", n, tr.upgrades+1)
	}
}

var tookOver = regexp.MustCompile(`"message":"another process has taken over","pid":(\d+)`)

// upgrade has the process hand over, waits until it has ended, and returns the id of the
// next one. It is the i-th that this program's log tells of.
func (r *replica) upgrade(t *testing.T, pid, i int) int {
	t.Helper()
	must(t, syscall.Kill(pid, syscall.SIGUSR2))
	eventually(t, "the process before has ended", func() bool { return !runs(pid) })
	found := tookOver.FindAllStringSubmatch(r.logged(t), -1)
	if len(found) != i+1 {
		t.Fatalf("%d processes have taken over, want %d", len(found), i+1)
	}
	next, err := strconv.Atoi(found[i][1])
	must(t, err)
	t.Cleanup(func() { _ = syscall.Kill(next, syscall.SIGKILL) })
	return next
}

// runs reports whether a process is there, and has not ended.
func runs(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}

// clientLoad is requests at a rate: reads and appends on kept connections, and reads on
// new ones.
type clientLoad struct {
	done   atomic.Int64
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu     sync.Mutex
	faults []string
}

func (r *replica) startLoad(ctx context.Context, perSecond int, writer *counter) *clientLoad {
	const workers = 10
	ctx, cancel := context.WithCancel(ctx)
	l := &clientLoad{cancel: cancel}
	every := time.Second * workers / time.Duration(perSecond)
	for i := range workers {
		c := http1()
		if i%3 == 1 {
			c = http2()
		}
		if i%3 == 2 {
			oneEach(c)
		}
		l.wait.Go(func() {
			defer c.CloseIdleConnections()
			tick := time.NewTicker(every)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				var err error
				if i == 0 {
					err = writer.add(context.WithoutCancel(ctx)) // what is sent is counted
				} else {
					err = r.readSmall(ctx, c)
				}
				if ctx.Err() != nil && i != 0 {
					return
				}
				l.done.Add(1)
				if err != nil && ctx.Err() == nil {
					l.mu.Lock()
					l.faults = append(l.faults, fmt.Sprintf("worker %d: %v", i, err))
					l.mu.Unlock()
				}
			}
		})
	}
	return l
}

// readSmall reads a little. net/http sends a GET once more whose kept connection was
// closed before a byte of its answer came.
func (r *replica) readSmall(ctx context.Context, c *http.Client) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL+r.edge.path("json")+"?offset=now", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+r.Key)
	res, err := c.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		return fmt.Errorf("%d %s %w", res.StatusCode, text, err)
	}
	return nil
}

// stop ends the load and fails on every request that has failed.
func (l *clientLoad) stop(t *testing.T) int64 {
	t.Helper()
	l.cancel()
	l.wait.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.faults[:min(10, len(l.faults))] {
		t.Error(f)
	}
	if n := len(l.faults); n > 0 {
		t.Errorf("%d of %d requests failed", n, l.done.Load())
	}
	return l.done.Load()
}

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
