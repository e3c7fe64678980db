package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Environment variables of this package.
const (
	// EnvBinary names the binary to run, before PATH is looked at.
	EnvBinary = "SLUICE_REDIS_BIN"
	// EnvRequire set to 1 makes a missing binary fail the test instead of skipping it.
	EnvRequire = "SLUICE_REQUIRE_PARTS"
)

const (
	// readyWithin bounds how long a server, a failover or a Cluster may take.
	readyWithin = 30 * time.Second
	// pollEvery is how often it is asked.
	pollEvery = 20 * time.Millisecond
	// maxLog bounds the log of a server that a failed test shows, in bytes.
	maxLog = 16 << 10
)

// Binary returns the path of a redis-server. When there is none it skips the test
// and says how to get one, or fails it where SLUICE_REQUIRE_PARTS=1.
func Binary(tb testing.TB) string {
	tb.Helper()
	name := os.Getenv(EnvBinary)
	if name == "" {
		name = "redis-server"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		Missing(tb, "redis-server", err.Error()+"; the package redis-server of Debian has it, or name a binary in "+EnvBinary)
	}
	return path
}

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

// Server is one running redis-server. Its methods are safe for concurrent use.
type Server struct {
	Addr string // host:port

	bin, dir string
	args     []string

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when the process ended and was reaped
}

// Start runs a single server that keeps everything in memory, and ends it with the
// test. options are further ones of redis-server, e.g. "--appendonly", "yes", with
// which the data outlives a Restart. It returns once the server answers.
func Start(tb testing.TB, options ...string) *Server {
	tb.Helper()
	s := newServer(tb, freePort(tb), options...)
	s.start(tb)
	return s
}

func newServer(tb testing.TB, port int, options ...string) *Server {
	tb.Helper()
	// The library tells standard error of each connection that fails, also of those
	// that fail until the server is there.
	redis.SetLogger(silent{})
	s := &Server{Addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), bin: Binary(tb), dir: tb.TempDir()}
	s.args = append([]string{
		"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", s.dir, "--save", "",
		"--logfile", "redis.log", "--daemonize", "no", "--protected-mode", "no",
	}, options...)
	return s
}

// silent is a logger of the client's library.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// start runs the server and sees to its end.
func (s *Server) start(tb testing.TB) {
	tb.Helper()
	if err := s.spawn(); err != nil {
		tb.Fatalf("start redis-server: %v", err)
	}
	tb.Cleanup(func() {
		s.Kill()
		if tb.Failed() {
			tb.Logf("log of redis-server at %s:\n%s", s.Addr, s.tailOfLog())
		}
	})
	s.AwaitReady(tb)
}

func (s *Server) spawn() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	// The process is ended by Kill, not by a context.
	cmd := exec.Command(s.bin, s.args...) //nolint:gosec,noctx // a binary of the rig, with a life of its own
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	s.cmd, s.done = cmd, done
	go func() {
		defer close(done)
		_ = cmd.Wait() // how it ended is in its log
	}()
	return nil
}

func (s *Server) tailOfLog() string {
	raw, err := os.ReadFile(filepath.Join(s.dir, "redis.log"))
	if err != nil {
		return err.Error()
	}
	return string(raw[max(0, len(raw)-maxLog):])
}

// Kill ends the process at once (SIGKILL) and waits for it. Further calls do
// nothing.
func (s *Server) Kill() {
	_ = s.signal(syscall.SIGKILL)
	s.mu.Lock()
	done := s.done
	s.mu.Unlock()
	if done != nil {
		<-done
	}
}

// Pause freezes the process (SIGSTOP): its connections stand, nothing answers.
func (s *Server) Pause() error { return s.signal(syscall.SIGSTOP) }

// Cont thaws a frozen process (SIGCONT).
func (s *Server) Cont() error { return s.signal(syscall.SIGCONT) }

// Restart ends the server, if it runs, and runs it again on the same port, with
// what it had written down.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	s.Kill()
	if err := s.spawn(); err != nil {
		tb.Fatalf("restart redis-server: %v", err)
	}
	s.AwaitReady(tb)
}

func (s *Server) signal(sig syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done == nil {
		return os.ErrProcessDone
	}
	select {
	case <-s.done:
		return os.ErrProcessDone // the pid may be another's by now
	default:
		return s.cmd.Process.Signal(sig)
	}
}

// AwaitReady returns once the server answers.
func (s *Server) AwaitReady(tb testing.TB) {
	tb.Helper()
	client := s.Client(tb)
	poll(tb, "redis-server answers", func(ctx context.Context) error { return client.Ping(ctx).Err() })
}

// Client is a new client of this one server, closed with the test.
func (s *Server) Client(tb testing.TB) *redis.Client {
	tb.Helper()
	client := redis.NewClient(&redis.Options{Addr: s.Addr, DisableIdentity: true, Protocol: 2, DialerRetries: 1})
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

// poll tries until nil; it fails the test after readyWithin.
func poll(tb testing.TB, what string, try func(context.Context) error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), readyWithin)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			tb.Fatalf("%s: not within %v: %v", what, readyWithin, err)
		}
	}
}

// freePort finds a free port of 127.0.0.1. A server cannot be told to take port 0
// and report it, so there is a short time in which another process may take it.
func freePort(tb testing.TB) int {
	tb.Helper()
	ln, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	addr, ok := ln.Addr().(*net.TCPAddr)
	if !ok {
		tb.Fatal(fmt.Errorf("%w: %T", errors.ErrUnsupported, ln.Addr()))
	}
	return addr.Port
}

// Refusing is an address of 127.0.0.1 that refuses connections.
func Refusing(tb testing.TB) string {
	tb.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(freePort(tb)))
}

// StartAt runs a single server at an address that Refusing gave before.
func StartAt(tb testing.TB, addr string, options ...string) *Server {
	tb.Helper()
	_, text, err := net.SplitHostPort(addr)
	if err != nil {
		tb.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		tb.Fatal(err)
	}
	s := newServer(tb, port, options...)
	s.start(tb)
	return s
}
