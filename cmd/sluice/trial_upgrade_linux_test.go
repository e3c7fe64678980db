package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
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
// refused, no request fails, and no tail misses an event or is told one twice. Once in
// clear text; and once with TLS, whose listener for plain HTTP is handed over too, and with
// keys that come and go in SQLite.
func TestUpgradeIsNotNoticed(t *testing.T) {
	t.Run("clear text", func(t *testing.T) {
		theUpgradeTrial().run(t, startRoomy(t, nodeApart(t), "drain_timeout: 2s", "drain_timeout: "+theUpgradeTrial().drain.String()), nil)
	})
	t.Run("over TLS, with SQLite", func(t *testing.T) {
		dir, plain := t.TempDir(), freePort(t)
		p := startRoomy(t, nodeApart(t), "drain_timeout: 2s", "drain_timeout: "+theUpgradeTrial().drain.String(), "watch: false\n", fmt.Sprintf(
			"watch: false\nstore: {url: \"sqlite:%s/sluice.db\"}\ntls: {mode: internal, storage: %q, http_listen: %q}\n", dir, dir, plain))
		theUpgradeTrial().run(t, p, func(l *clientLoad) {
			l.each("redirect", 5, func() error { return p.redirected(plain) })
			n := 0
			l.each("key", 2, func() error {
				n++
				return p.keyLives(fmt.Sprintf("key %d", n))
			})
		})
	})
}

// run upgrades the program under the load, and what more adds to it.
func (tr upgradeTrial) run(t *testing.T, p *replica, more func(l *clientLoad)) {
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	writer := &counter{e: p.edge, client: http1()}
	must(t, writer.add(ctx))
	crowd := p.newCrowd(ctx, t, tr.tails, p.Key, true)
	for _, tl := range crowd.all { // they have begun behind the first
		tl.mu.Lock()
		tl.last = 1
		tl.mu.Unlock()
	}
	load := p.startLoad(ctx, float64(tr.perSecond), writer)
	if more != nil {
		more(load)
	}
	pid := p.cmd.Process.Pid
	for i := range tr.upgrades {
		load.awaitMore(t, int64(tr.perSecond)/4)
		next := p.upgrade(t, pid, i)
		if i == 0 {
			if err := <-p.exited; err != nil {
				t.Errorf("it ended with %v", err)
			}
		}
		pid = next
		load.awaitMore(t, int64(tr.perSecond)/4)
		<-time.NewTimer(tr.between).C
	}
	total, perSecond := load.stop(t)
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
	t.Logf("%d upgrades under %d requests, %.0f a second, and %d tails, which moved %d times and were told of %d events each", tr.upgrades, total, perSecond, tr.tails, moved, writer.n)
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

// startLoad makes so many requests a second: reads on kept connections of both protocols
// and on new ones, which are few where each needs a handshake; and a few events, of which
// each tail is told.
func (r *replica) startLoad(ctx context.Context, perSecond float64, writer *counter) *clientLoad {
	const events = 4
	l := newLoad(ctx)
	l.each("event", events, func() error { return writer.add(context.WithoutCancel(ctx)) }) // what is sent is counted
	secure := strings.HasPrefix(r.URL, "https:")
	anew := perSecond / 5
	if secure {
		anew = perSecond / 50
	}
	kept := (perSecond - anew - events) / 2
	one := reader{dial: rawDialer{address: hostOf(r.URL), secure: secure}, target: r.edge.path("json") + "?offset=now", key: r.Key}
	two := one
	two.dial.h2 = true
	l.readers(8, kept, one)
	l.readers(8, kept, two)
	one.eachAnew, two.eachAnew = true, true
	l.readers(2, anew/2, one)
	l.readers(2, anew/2, two)
	return l
}

// redirected asks the listener of plain HTTP, on a connection of its own.
func (r *replica) redirected(address string) error {
	c := http1()
	oneEach(c)
	res, err := c.Get("http://" + address + "/any") //nolint:noctx // it ends with the listener
	if err != nil {
		return err
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusPermanentRedirect {
		return fmt.Errorf("status %d", res.StatusCode)
	}
	return nil
}

// keyLives makes a key, reads with it, revokes it, and is refused soon, as at replicas: the
// two processes hear of each other's changes within a second. Each request has a connection
// of its own.
func (r *replica) keyLives(name string) error {
	c := http1()
	oneEach(c)
	ask := func(method, path, key, body string, status int) (text []byte, err error) {
		req, err := http.NewRequest(method, r.URL+path, strings.NewReader(body)) //nolint:noctx // c has a time of its own
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", "Bearer "+key)
		req.Header.Set("Content-Type", "application/json")
		res, err := c.Do(req)
		if err != nil {
			return nil, err
		}
		defer func() { _ = res.Body.Close() }()
		if text, err = io.ReadAll(res.Body); err == nil && res.StatusCode != status {
			err = fmt.Errorf("%s %s: %d %s, want %d", method, path, res.StatusCode, text, status)
		}
		return text, err
	}
	c.Timeout = rawPatience
	text, err := ask(http.MethodPost, "/v1/api-keys", r.Key, fmt.Sprintf(`{"name":%q}`, name), http.StatusCreated)
	if err != nil {
		return err
	}
	var made struct{ ID, Key string }
	if err := json.Unmarshal(text, &made); err != nil {
		return err
	}
	_, good := ask(http.MethodGet, r.edge.path("json"), made.Key, "", http.StatusOK)
	_, revoked := ask(http.MethodDelete, "/v1/api-keys/"+made.ID, r.Key, "", http.StatusNoContent)
	var refused error
	patiently(func() bool {
		_, refused = ask(http.MethodGet, r.edge.path("json")+"?offset=now", made.Key, "", http.StatusUnauthorized)
		return refused == nil
	})
	return errors.Join(good, revoked, refused)
}

var tookOver = regexp.MustCompile(`"message":"another process has taken over","pid":(\d+)`)

// upgrade has the process hand over, waits until it has ended, and returns the id of the
// next one. It is the i-th that this program's log tells of.
func (r *replica) upgrade(t *testing.T, pid, i int) int {
	t.Helper()
	must(t, syscall.Kill(pid, syscall.SIGUSR2))
	if !patiently(func() bool { return !runs(pid) }) {
		t.Fatal("the process before does not end")
	}
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
