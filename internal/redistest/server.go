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
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/internal/realpart"
)

// EnvBinary names the binary to run, before PATH is looked at.
const EnvBinary = "SLUICE_REDIS_BIN"

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
		realpart.Missing(tb, "redis-server", err.Error()+"; the package redis-server of Debian has it, or name a binary in "+EnvBinary)
	}
	return path
}

// Server is one running redis-server. Its methods are safe for concurrent use.
type Server struct {
	realpart.Process
	Addr string // host:port

	bin, dir string
	args     []string
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
			tb.Logf("log of redis-server at %s:\n%s", s.Addr, realpart.Tail(filepath.Join(s.dir, "redis.log"), maxLog))
		}
	})
	s.AwaitReady(tb)
}

func (s *Server) spawn() error {
	// The process is ended by Kill, not by a context.
	return s.Run(exec.Command(s.bin, s.args...)) //nolint:gosec,noctx // a binary of the rig, with a life of its own
}

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

// Used is the processor time that Redis has used for its commands, and how many calls
// of scripts there were.
func (s *Server) Used(tb testing.TB) (cpu time.Duration, calls int) {
	tb.Helper()
	info, err := s.Client(tb).InfoMap(context.Background(), "cpu", "commandstats").Result()
	if err != nil {
		tb.Fatal(err)
	}
	for _, name := range []string{"used_cpu_user_main_thread", "used_cpu_sys_main_thread"} {
		seconds, err := strconv.ParseFloat(info["CPU"][name], 64)
		if err != nil {
			tb.Fatal(err)
		}
		cpu += time.Duration(seconds * float64(time.Second))
	}
	text, _, _ := strings.Cut(strings.TrimPrefix(info["Commandstats"]["cmdstat_evalsha"], "calls="), ",")
	if calls, err = strconv.Atoi(text); err != nil {
		tb.Fatal(err)
	}
	return cpu, calls
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
