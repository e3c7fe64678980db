package realursula

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice/internal/realpart"
)

// readyWithin bounds how long a node may take until it serves.
const readyWithin = 30 * time.Second

// maxLog bounds the log of a node that a failed test shows, in bytes.
const maxLog = 64 << 10

// Server is one running node. Its methods are safe for concurrent use. Stop takes up
// to 20 s, while the node hands over, drains and refuses connections (facts §12).
type Server struct {
	realpart.Process
	URL       string // client port, without a trailing slash
	AdminURL  string // admin port
	ClusterID string
	NodeID    int // 1 for the first

	bin, dir string
	args     []string
	log      string
}

// Start runs a single node that keeps everything in memory, without Raft and
// without a cold store, and stops it when the test ends. It returns once the
// node serves. The log is shown when the test failed.
func Start(tb testing.TB) *Server {
	tb.Helper()
	bin := Binary(tb)
	ports := freePorts(tb, 2)
	s := &Server{NodeID: 1, ClusterID: "ursulatest", bin: bin, dir: tb.TempDir()}
	s.address(ports[0], ports[1])
	s.args = []string{"server", "--preset", "default", "--config", "node.toml"}
	s.configure(tb, fmt.Sprintf("[server]\nlisten = %q\nadmin_listen = %q\ncluster_id = %q\n",
		ports[0], ports[1], s.ClusterID))
	s.run(tb)
	s.awaitReady(tb)
	return s
}

// StartCluster runs n nodes with Raft, four groups and an in-memory cold store,
// and stops them when the test ends. It returns once every node serves and the
// groups have leaders.
func StartCluster(tb testing.TB, n int) []*Server {
	tb.Helper()
	return StartClusterBehind(tb, n, nil)
}

// StartClusterBehind is StartCluster for nodes that clients reach through
// something of the test's own, a proxy with faults. front is asked for each node
// before any starts, with its id and the host:port on which it will listen, and
// returns the URL that redirects to the node name; "", or no front, is the node's
// own. Among themselves the nodes go on to talk directly, and Server.URL is the
// node's own, past the front. With a front there is no cold store: in memory it is
// each node's own, and a long trial would read at one what another has put away.
func StartClusterBehind(tb testing.TB, n int, front func(nodeID int, address string) string) []*Server {
	tb.Helper()
	bin := Binary(tb)
	ports := freePorts(tb, 2*n)
	var peers strings.Builder
	for i := range n {
		fmt.Fprintf(&peers, "[[raft.peers]]\nnode_id = %d\nurl = \"http://%s\"\n", i+1, ports[i])
		if front == nil {
			continue
		}
		if url := front(i+1, ports[i]); url != "" {
			fmt.Fprintf(&peers, "client_url = %q\n", url)
		}
	}
	cold := "[storage.cold]\nbackend = \"memory\"\n"
	if front != nil {
		cold = ""
	}
	servers := make([]*Server, n)
	for i := range n {
		s := &Server{NodeID: i + 1, ClusterID: "ursulatest", bin: bin, dir: tb.TempDir()}
		s.address(ports[i], ports[n+i])
		s.args = []string{"server", "--config", "node.toml"}
		s.configure(tb, fmt.Sprintf("[server]\nlisten = %q\nadmin_listen = %q\ncluster_id = %q\n"+
			"[runtime]\ncore_count = 1\n[raft]\nnode_id = %d\ngroup_count = 4\n"+
			"[raft.wal]\npath = \"wal\"\nfsync = \"never\"\nmin_available_size = 0\n%s%s",
			ports[i], ports[n+i], s.ClusterID, i+1, &peers, cold))
		s.run(tb)
		servers[i] = s
	}
	for _, s := range servers {
		s.awaitReady(tb)
	}
	awaitLeaders(tb, servers)
	return servers
}

func (s *Server) address(client, admin string) {
	s.URL, s.AdminURL = "http://"+client, "http://"+admin
}

func (s *Server) configure(tb testing.TB, toml string) {
	tb.Helper()
	s.log = filepath.Join(s.dir, "log")
	if err := os.WriteFile(filepath.Join(s.dir, "node.toml"), []byte(toml), 0o600); err != nil {
		tb.Fatal(err)
	}
}

// run starts the process and ties its end to the test's.
func (s *Server) run(tb testing.TB) {
	tb.Helper()
	if err := s.spawn(); err != nil {
		tb.Fatalf("start ursula: %v", err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("log of node %d at %s:\n%s", s.NodeID, s.URL, realpart.Tail(s.log, maxLog))
		}
		s.Kill()
	})
}

func (s *Server) spawn() error {
	out, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	// Not tied to a context: Kill and the test's cleanup end it by its pid.
	cmd := exec.CommandContext(context.Background(), s.bin, s.args...) //nolint:gosec // the developer names the binary
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, out, out
	cmd.Env = append(os.Environ(), "NO_COLOR=1")
	return s.Run(cmd)
}

// Restart runs the node again, on the same ports and data, after Kill or Stop.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	s.Kill()
	if err := s.spawn(); err != nil {
		tb.Fatalf("restart ursula: %v", err)
	}
	s.awaitReady(tb)
}

func (s *Server) awaitReady(tb testing.TB) {
	tb.Helper()
	done := s.Done()
	err := poll(tb.Context(), readyWithin, func(ctx context.Context) error {
		select {
		case <-done:
			return fmt.Errorf("%w:\n%s", errEnded, realpart.Tail(s.log, maxLog))
		default:
		}
		return expect(ctx, http.MethodGet, s.URL+"/__ursula/ready", http.StatusOK)
	})
	if err != nil {
		tb.Fatalf("node %d is not ready: %v", s.NodeID, err)
	}
}

// awaitLeaders waits until every group answers a HEAD, which needs its leader.
func awaitLeaders(tb testing.TB, servers []*Server) {
	tb.Helper()
	for i := range 16 { // enough names to meet every group
		target := fmt.Sprintf("%s/warm/s%d", servers[0].URL, i)
		err := poll(tb.Context(), readyWithin, func(ctx context.Context) error {
			return expect(ctx, http.MethodHead, target, http.StatusNotFound)
		})
		if err != nil {
			tb.Fatalf("a group has no leader: %v", err)
		}
	}
}

var errEnded = errors.New("the process ended")

// poll tries until nil, the end of the process or the time.
func poll(ctx context.Context, within time.Duration, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try(ctx)
		if err == nil || errors.Is(err, errEnded) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

func expect(ctx context.Context, method, url string, status int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	_ = res.Body.Close()
	if res.StatusCode != status {
		return fmt.Errorf("%s %s: status %d", method, url, res.StatusCode)
	}
	return nil
}

// freePorts finds n free addresses of 127.0.0.1. The node cannot be told to
// take port 0 and report it, so there is a short time in which another process
// may take one.
func freePorts(tb testing.TB, n int) []string {
	tb.Helper()
	addrs := make([]string, n)
	for i := range n {
		ln, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		// Held until all are found, so that they differ.
		defer func() { _ = ln.Close() }()
		addrs[i] = ln.Addr().String()
	}
	return addrs
}
