package postgrestest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice/internal/realpart"
)

// EnvBinaries names the directory that holds initdb and postgres, before Debian's and
// PATH are looked at.
const EnvBinaries = "SLUICE_POSTGRES_BIN"

// Password is that of each URL.
const Password = "swordfish"

const (
	// readyWithin bounds how long a server may take to start.
	readyWithin = 60 * time.Second
	// pollEvery is how often it is asked.
	pollEvery = 20 * time.Millisecond
	// maxLog bounds the log of a server that a failed test shows, in bytes.
	maxLog = 16 << 10
)

// binaries returns the directory of initdb and postgres. When there is none it skips the
// test and says how to get one, or fails it where SLUICE_REQUIRE_PARTS=1.
func binaries(tb testing.TB) string {
	tb.Helper()
	dirs := []string{os.Getenv(EnvBinaries)}
	if dirs[0] == "" {
		found, err := filepath.Glob("/usr/lib/postgresql/*/bin")
		if err != nil {
			tb.Fatal(err)
		}
		slices.SortFunc(found, func(a, b string) int { return version(b) - version(a) })
		dirs = found
		if path, err := exec.LookPath("postgres"); err == nil {
			dirs = append(dirs, filepath.Dir(path))
		}
	}
	for _, dir := range dirs {
		if _, err := exec.LookPath(filepath.Join(dir, "initdb")); err == nil {
			return dir
		}
	}
	realpart.Missing(tb, "PostgreSQL", "no initdb in "+strings.Join(dirs, ", ")+"; the package postgresql of Debian has it, or name its directory in "+EnvBinaries)
	return ""
}

// version is the 15 of Debian's /usr/lib/postgresql/15/bin.
func version(dir string) int {
	n, err := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
	if err != nil {
		return 0
	}
	return n
}

// Server is one running PostgreSQL. Its methods are safe for concurrent use.
type Server struct {
	process   realpart.Process
	dir       string
	port      int
	command   []string
	user      *syscall.Credential // nil = the one that runs the test
	mode      string              // sslmode of URLs
	databases atomic.Int64
}

// Start runs a server and ends it with the test. options are further ones of postgres,
// e.g. "-c", "fsync=on": by itself nothing is forced to the disk, so that what is
// acknowledged outlives the process but not the machine. It returns once the server
// answers.
func Start(tb testing.TB, options ...string) *Server {
	tb.Helper()
	s := start(tb, options...)
	s.endWith(tb)
	return s
}

// endWith ends the server with the test.
func (s *Server) endWith(tb testing.TB) {
	tb.Helper()
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("log of PostgreSQL on port %d:\n%s", s.port, realpart.Tail(s.log(), maxLog))
		}
		if err := s.end(); err != nil {
			tb.Errorf("end PostgreSQL: %v", err)
		}
	})
}

// start runs a server, which the caller ends.
func start(tb testing.TB, options ...string) *Server {
	tb.Helper()
	bin := binaries(tb)
	// Not in the test's own directory, which no other user may enter.
	dir, err := os.MkdirTemp("", "sluice-postgres-")
	if err != nil {
		tb.Fatal(err)
	}
	s := &Server{dir: dir, port: freePort(tb), mode: "disable"}
	if os.Geteuid() == 0 {
		// PostgreSQL refuses to be run by root.
		if s.user, err = other(); err == nil {
			err = os.Chown(dir, int(s.user.Uid), int(s.user.Gid))
		}
		if err != nil {
			tb.Fatal(errors.Join(err, s.end()))
		}
	}
	if err := s.give("password", Password+"\n"); err != nil {
		tb.Fatal(errors.Join(err, s.end()))
	}
	data := filepath.Join(dir, "data")
	initdb := s.as(exec.CommandContext(tb.Context(), filepath.Join(bin, "initdb"), //nolint:gosec // a binary of the rig
		"--pgdata", data, "--auth=scram-sha-256", "--username=sluice", "--pwfile=password", "--no-sync", "--no-instructions", "--encoding=UTF8", "--locale=C.UTF-8",
		// Words are in the order of a language, as most servers have it, and not in that of bytes.
		"--locale-provider=icu", "--icu-locale=en-US"))
	if out, err := initdb.CombinedOutput(); err != nil {
		tb.Fatal(errors.Join(fmt.Errorf("initdb: %w\n%s", err, out), s.end()))
	}
	s.command = append([]string{
		filepath.Join(bin, "postgres"), "-D", data, "-p", strconv.Itoa(s.port), "-c", "listen_addresses=127.0.0.1",
		"-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "shared_buffers=32MB", "-c", "log_min_messages=warning",
	}, options...)
	if err := s.run(); err != nil {
		tb.Fatal(errors.Join(err, fmt.Errorf("%w: %s", os.ErrNotExist, realpart.Tail(s.log(), maxLog)), s.end()))
	}
	return s
}

// give writes a file of the server's directory that the server alone may read.
func (s *Server) give(name, content string) error {
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil || s.user == nil {
		return err
	}
	return os.Chown(path, int(s.user.Uid), int(s.user.Gid))
}

// other is a user that is not root.
func other() (*syscall.Credential, error) {
	var errs []error
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.Join(errs...)
}

// as has a command be run by the server's user, in its directory.
func (s *Server) as(cmd *exec.Cmd) *exec.Cmd {
	cmd.Dir, cmd.Env = s.dir, append(os.Environ(), "HOME="+s.dir, "LC_ALL=C.UTF-8")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.user}
	endWithUs(cmd.SysProcAttr)
	return cmd
}

func (s *Server) log() string { return filepath.Join(s.dir, "postgres.log") }

// run starts the process and waits until it answers. One that finds what the process
// before left of itself is started again.
func (s *Server) run() error {
	ctx, cancel := context.WithTimeout(context.Background(), readyWithin)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if err := s.spawn(); err != nil {
			return err
		}
		for running := true; running; {
			err := s.do(ctx, "postgres", `SELECT 1`)
			if err == nil {
				return nil
			}
			select {
			case <-s.process.Done():
				running = false
				<-tick.C
			case <-ctx.Done():
				return fmt.Errorf("PostgreSQL: not within %v: %w", readyWithin, err)
			case <-tick.C:
			}
		}
	}
}

func (s *Server) spawn() error {
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	// The process is ended by a signal, not by a context.
	cmd := s.as(exec.Command(s.command[0], s.command[1:]...)) //nolint:gosec,noctx // a binary of the rig, with a life of its own
	cmd.Stdout, cmd.Stderr = log, log
	return errors.Join(s.process.Run(cmd), log.Close())
}

// end ends the process and throws its data away.
func (s *Server) end() error {
	if s.process.Pid() != 0 {
		_ = s.signal(syscall.SIGCONT) // a frozen one hears nothing; one that has ended is no error
		s.process.End(syscall.SIGQUIT)
	}
	return os.RemoveAll(s.dir)
}

// do runs one statement.
func (s *Server) do(ctx context.Context, database, statement string) error {
	conn, err := pgx.Connect(ctx, s.url(database))
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, statement)
	return errors.Join(err, conn.Close(ctx))
}

func (s *Server) url(database string) string {
	return fmt.Sprintf("postgres://sluice:%s@127.0.0.1:%d/%s?sslmode=%s", Password, s.port, database, s.mode)
}

// Addr is host:port.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Database makes a database and returns its URL, which has a password in it. template
// names the one that it is a copy of, to which nobody may be connected; empty = an empty
// one.
func (s *Server) Database(tb testing.TB, template string) string {
	tb.Helper()
	name := fmt.Sprintf("t%d", s.databases.Add(1))
	s.make(tb, name, template)
	return s.url(name)
}

func (s *Server) make(tb testing.TB, name, template string) {
	tb.Helper()
	if template == "" {
		template = "template1"
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyWithin)
	defer cancel()
	if err := s.do(ctx, "postgres", `CREATE DATABASE `+name+` TEMPLATE `+template); err != nil {
		tb.Fatalf("make a database: %v", err)
	}
}

// freePort finds a free port of 127.0.0.1. A server cannot be told to take port 0 and
// report it, so there is a short time in which another process may take it.
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
