package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Sentinel is a master and a replica under one sentinel.
type Sentinel struct {
	Addr       string // of the sentinel
	MasterName string
	Servers    [2]*Server // the first began as the master

	sentinel *Server
}

// StartSentinel runs them and ends them with the test. A master that is gone for
// 500 ms is replaced.
func StartSentinel(tb testing.TB) *Sentinel {
	tb.Helper()
	s := &Sentinel{MasterName: "main"}
	s.Servers[0] = Start(tb)
	host, port, err := net.SplitHostPort(s.Servers[0].Addr)
	if err != nil {
		tb.Fatal(err)
	}
	s.Servers[1] = Start(tb, "--replicaof", host+" "+port, "--repl-diskless-sync-delay", "0")
	at := freePort(tb)
	s.sentinel = newServer(tb, at)
	s.Addr = s.sentinel.Addr
	file := filepath.Join(s.sentinel.dir, "sentinel.conf")
	text := fmt.Sprintf(`port %d
bind 127.0.0.1
dir %s
logfile redis.log
sentinel monitor main %s %s 1
sentinel down-after-milliseconds main 500
sentinel failover-timeout main 3000
`, at, s.sentinel.dir, host, port)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	s.sentinel.args = []string{file, "--sentinel"}
	s.sentinel.start(tb)
	client := s.sentinel.Client(tb)
	poll(tb, "the sentinel knows the replica", func(ctx context.Context) error {
		found, err := client.Do(ctx, "SENTINEL", "REPLICAS", s.MasterName).Slice()
		if err == nil && len(found) == 0 {
			err = os.ErrNotExist
		}
		return err
	})
	poll(tb, "the replica is in step", func(ctx context.Context) error {
		link, err := s.Servers[1].Client(tb).Do(ctx, "ROLE").Slice()
		if err == nil && (len(link) < 4 || link[3] != "connected") {
			err = fmt.Errorf("%w: %v", os.ErrNotExist, link)
		}
		return err
	})
	return s
}

// Master is the server that the sentinel names now.
func (s *Sentinel) Master(tb testing.TB) *Server {
	tb.Helper()
	var master *Server
	client := s.sentinel.Client(tb)
	poll(tb, "the sentinel names a master", func(ctx context.Context) (err error) {
		master, err = s.named(ctx, client)
		return err
	})
	return master
}

func (s *Sentinel) named(ctx context.Context, client *redis.Client) (*Server, error) {
	addr, err := client.Do(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", s.MasterName).StringSlice()
	if err != nil || len(addr) != 2 {
		return nil, fmt.Errorf("%v: %w", addr, errors.Join(err, os.ErrNotExist))
	}
	for _, server := range s.Servers {
		if server.Addr == net.JoinHostPort(addr[0], addr[1]) {
			return server, nil
		}
	}
	return nil, fmt.Errorf("%v: %w", addr, os.ErrNotExist)
}

// Failover makes the replica the master while both live, so that the old master
// answers READONLY to whoever stays, and returns once the new one takes writes.
func (s *Sentinel) Failover(tb testing.TB) {
	tb.Helper()
	before := s.Master(tb)
	client := s.sentinel.Client(tb)
	poll(tb, "the sentinel begins a failover", func(ctx context.Context) error {
		return client.Do(ctx, "SENTINEL", "FAILOVER", s.MasterName).Err()
	})
	s.AwaitOther(tb, before)
}

// AwaitOther returns once another server than this one is the master and takes
// writes.
func (s *Sentinel) AwaitOther(tb testing.TB, before *Server) {
	tb.Helper()
	client := s.sentinel.Client(tb)
	poll(tb, "another master", func(ctx context.Context) error {
		master, err := s.named(ctx, client)
		if err != nil {
			return err
		}
		if master == before {
			return os.ErrExist
		}
		role, err := master.Client(tb).Do(ctx, "ROLE").Slice()
		if err == nil && role[0] != "master" {
			err = fmt.Errorf("%v: %w", role, os.ErrNotExist)
		}
		return err
	})
}
