package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// systemd plays systemd for a program: it opens its sockets, and hears what it says.
type systemd struct {
	notices *net.UnixConn
	plain   string // where its socket for plain HTTP listens

	mu    sync.Mutex
	heard []string
	taken int // of heard, by hears and quiet
}

// listen hears all that is said, up until the socket is closed: it has room for few.
func (s *systemd) listen() {
	var notice [4096]byte
	for {
		n, err := s.notices.Read(notice[:])
		if err != nil {
			return
		}
		s.mu.Lock()
		s.heard = append(s.heard, string(notice[:n]))
		s.mu.Unlock()
	}
}

// startActivated starts the program as systemd does, with sockets that it has opened.
func startActivated(t *testing.T, e *edge, file string, names ...string) (*systemd, *replica) {
	t.Helper()
	dir, err := os.MkdirTemp("", "sluice-notify-") // a socket's path has few letters
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &systemd{}
	s.notices, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	must(t, err)
	t.Cleanup(func() { _ = s.notices.Close() })
	r := &replica{log: filepath.Join(dir, "log"), path: filepath.Join(t.TempDir(), "sluice.yaml")}
	writeFile(t, r.path, file)
	log, err := os.Create(r.log)
	must(t, err)
	// Only the process itself knows its id before it begins.
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, os.Args[0], "serve", "--config", r.path)
	for _, name := range names {
		l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		must(t, err)
		switch name {
		case "admin":
			e.Admin = "http://" + l.Addr().String()
		case "http":
			s.plain = l.Addr().String()
		default:
			e.URL = schemeOf(file) + l.Addr().String()
		}
		f, err := l.File()
		must(t, err)
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
		must(t, l.Close())
	}
	cmd.Env = append(os.Environ(), asProgram+"=1", "NOTIFY_SOCKET="+filepath.Join(dir, "notify"), "WATCHDOG_USEC=200000",
		fmt.Sprintf("LISTEN_FDS=%d", len(names)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
	cmd.Stderr = log
	must(t, cmd.Start(), log.Close())
	for _, f := range cmd.ExtraFiles {
		must(t, f.Close())
	}
	r.process = &process{edge: e, cmd: cmd, exited: make(chan error, 1)}
	go func() { r.exited <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() {
		if t.Failed() {
			s.mu.Lock()
			defer s.mu.Unlock()
			t.Logf("heard %q, log: %s", s.heard, r.logged(t))
		}
	})
	return s, r
}

// hears waits for a notice with a text, and returns it.
func (s *systemd) hears(t *testing.T, text string) (found string) {
	t.Helper()
	eventually(t, fmt.Sprintf("it says %q", text), func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for found == "" && s.taken < len(s.heard) {
			if strings.Contains(s.heard[s.taken], text) {
				found = s.heard[s.taken]
			}
			s.taken++
		}
		return found != ""
	})
	return found
}

// quiet are the notices that have come and that nobody has waited for.
func (s *systemd) quiet() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	said := strings.Join(s.heard[s.taken:], "\n")
	s.taken = len(s.heard)
	return said
}

// With sockets of systemd, which serve for the listeners by their names: it is told of the
// start, reloads, life, an upgrade and the stop; an upgrade hands its sockets on.
func TestUnderSystemd(t *testing.T) {
	t.Parallel()
	e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	// What the file says of the listeners does not matter: these could not be opened.
	file := strings.Replace(edgeFile(e, []string{standIn(t)}, ""), "listen: 127.0.0.1:0", "listen: 192.0.2.1:1", 1)
	s, r := startActivated(t, e, file, "sluice.socket", "admin")
	go s.listen()
	s.hears(t, "READY=1")
	r.awaitReady(t)
	want(t, e.do(t, http.MethodGet, e.path("json"), nil), http.StatusOK)
	s.hears(t, "WATCHDOG=1")
	must(t, r.cmd.Process.Signal(syscall.SIGHUP))
	if got := s.hears(t, "RELOADING=1"); !strings.Contains(got, "MONOTONIC_USEC=") {
		t.Errorf("%q lacks the time that Type=notify-reload wants", got)
	}
	s.hears(t, "READY=1")
	for i := range 2 {
		pid := r.cmd.Process.Pid
		if i > 0 {
			found := tookOver.FindAllStringSubmatch(r.logged(t), -1)
			_, err := fmt.Sscan(found[i-1][1], &pid)
			must(t, err)
		}
		next := r.upgrade(t, pid, i)
		s.hears(t, fmt.Sprintf("MAINPID=%d\n", next))
		if said := s.quiet(); strings.Contains(said, "STOPPING") {
			t.Errorf("the process before says of the service %q", said)
		}
		s.hears(t, "WATCHDOG=1")
		want(t, e.do(t, http.MethodGet, e.path("json"), nil), http.StatusOK)
		r.awaitReady(t)
		if i == 1 {
			must(t, syscall.Kill(next, syscall.SIGTERM))
			s.hears(t, "STOPPING=1")
			eventually(t, "it has ended", func() bool { return !runs(next) })
		}
	}
}

// With TLS systemd may open the listener of plain HTTP too; or it is the file's, and handed
// over beside what systemd has opened.
func TestUnderSystemdWithTLS(t *testing.T) {
	t.Parallel()
	for name, sockets := range map[string][]string{"opened": {"sluice.socket", "http", "admin"}, "of the file": {"sluice.socket", "admin"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
			plain := "192.0.2.1:1" // it could not be opened
			if len(sockets) < 3 {
				plain = freePort(t)
			}
			s, r := startActivated(t, e, edgeFile(e, []string{standIn(t)}, fmt.Sprintf("tls: {mode: internal, http_listen: %q}\n", plain)), sockets...)
			if s.plain != "" {
				plain = s.plain
			}
			go s.listen()
			s.hears(t, "READY=1")
			r.awaitReady(t)
			pid := r.cmd.Process.Pid
			for i := range 2 {
				want(t, e.do(t, http.MethodGet, e.path("json"), nil), http.StatusOK)
				must(t, r.redirected(plain))
				pid = r.upgrade(t, pid, i)
				s.hears(t, fmt.Sprintf("MAINPID=%d\n", pid))
			}
			want(t, e.do(t, http.MethodGet, e.path("json"), nil), http.StatusOK)
			must(t, r.redirected(plain), syscall.Kill(pid, syscall.SIGTERM))
			eventually(t, "it has ended", func() bool { return !runs(pid) })
		})
	}
}

// A systemd that does not read what it is told held an upgrade up for ever: its socket has
// room for a few words. It is waited for, but not longer than notifyPatience.
func TestSystemdThatDoesNotRead(t *testing.T) {
	t.Parallel()
	e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	_, r := startActivated(t, e, edgeFile(e, []string{standIn(t)}, ""), "sluice.socket", "admin")
	r.awaitReady(t)
	eventually(t, "no more can be told", func() bool { return r.lines(t, "systemd could not be told") > 0 })
	next := r.upgrade(t, r.cmd.Process.Pid, 0)
	r.awaitReady(t)
	want(t, e.do(t, http.MethodGet, e.path("json"), nil), http.StatusOK)
	must(t, syscall.Kill(next, syscall.SIGTERM))
	eventually(t, "it has ended", func() bool { return !runs(next) })
}

// With SQLite the file is handed over too: keys and streams made before and after an upgrade
// are good, and one that is revoked is so at once.
func TestUpgradeWithSQLite(t *testing.T) {
	t.Parallel()
	node := standIn(t)
	r := startReplica(t, managedFile([]string{node}, "sqlite:"+filepath.Join(t.TempDir(), "sluice.db"), "15m", "watch: false\n"))
	r.awaitReady(t)
	env := map[string]string{"SLUICE_URL": r.URL, "SLUICE_ADMIN_URL": r.Admin}
	run := func(args string) string {
		t.Helper()
		code, out, errOut := command(t, env, strings.Fields(args)...)
		if code != exitDone {
			t.Fatalf("%s: %d %s%s", args, code, out, errOut)
		}
		return out
	}
	keyOf := func(out string) string {
		_, key, _ := strings.Cut(out, "TONBO_API_KEY=")
		return strings.Fields(key)[0]
	}
	first := keyOf(run("account create beta"))
	env["TONBO_API_KEY"] = first
	run("stream create x --content-type text/plain")
	reads := func(key string, status int) {
		t.Helper()
		eventually(t, fmt.Sprintf("a read is answered %d", status), func() bool {
			return r.doAs(t, http1(), key, http.MethodGet, "/beta/s.x", nil).StatusCode == status
		})
	}
	reads(first, http.StatusOK)
	pid := r.cmd.Process.Pid
	for i := range 2 {
		pid = r.upgrade(t, pid, i)
		reads(first, http.StatusOK)
		second := keyOf(run(fmt.Sprintf("api-key create key%d --read-only", i)))
		reads(second, http.StatusOK)
		run(fmt.Sprintf("api-key revoke key%d", i))
		reads(second, http.StatusUnauthorized)
	}
	must(t, syscall.Kill(pid, syscall.SIGTERM))
	eventually(t, "it has ended", func() bool { return !runs(pid) })
}
