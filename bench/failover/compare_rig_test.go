package failover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice/internal/ursulatest/realursula"
)

const (
	account     = "failover"
	groups      = 4 // of realursula.StartCluster
	servesIn    = 20 * time.Second
	stopsWithin = 5 * time.Second
)

// side is one of the gateways that are compared: two processes of it.
type side struct {
	name    string
	origins []string
	key     string
	streams [][][]string // by round, by group
}

// startSluice builds the gateway and runs two of it, which declare all streams,
// the peer's too, since that one cannot.
func startSluice(t *testing.T, nodes []*realursula.Server, streams []string) *side {
	t.Helper()
	dir := t.TempDir()
	bin := filepath.Join(dir, "sluice")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", bin, "sluice/cmd/sluice")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), bin, "api-key", "generate", "--json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var key struct{ Key, Digest string }
	if err := json.Unmarshal(out, &key); err != nil {
		t.Fatal(err)
	}
	s := &side{name: "Sluice", key: key.Key}
	for i := range 2 {
		ports := freePorts(t, 2)
		var file strings.Builder
		fmt.Fprintf(&file, "listen: %s\norigin: https://streams.example.com\nadmin: {listen: %q}\nlog: {level: warn}\ndrain_delay: 0s\ndrain_timeout: 1s\n", ports[0], ports[1])
		fmt.Fprintf(&file, "ursula:\n  group_count: %d\n  nodes:\n", groups)
		for _, n := range nodes {
			fmt.Fprintf(&file, "    - %s\n", n.URL)
		}
		fmt.Fprintf(&file, "accounts:\n  - id: %s\n    limits: {requests_per_second: 100000, burst: 100000}\n    keys: [{name: all, digest: %q}]\n    streams:\n", account, key.Digest)
		for _, path := range streams {
			_, name, _ := strings.Cut(path, "/s.")
			fmt.Fprintf(&file, "      - {name: %s, content_type: text/plain}\n", name)
		}
		config := filepath.Join(dir, fmt.Sprintf("sluice%d.yaml", i))
		if err := os.WriteFile(config, []byte(file.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		run(t, "http://"+ports[1]+"/readyz", bin, "serve", "--config", config)
		s.origins = append(s.origins, "http://"+ports[0])
	}
	return s
}

// startPeer runs two of Ursula's own gateway, without access control.
func startPeer(t *testing.T, nodes []*realursula.Server) *side {
	t.Helper()
	s := &side{name: "Ursula's"}
	for range 2 {
		listen := freePorts(t, 1)[0]
		args := make([]string, 0, 7+2*len(nodes))
		args = append(args, "gateway", "--listen", listen, "--raft-group-count", fmt.Sprint(groups), "--graceful-shutdown-timeout", "1")
		for _, n := range nodes {
			args = append(args, "--upstream", n.URL)
		}
		run(t, "http://"+listen+"/__ursula/gateway/metrics", realursula.Binary(t), args...)
		s.origins = append(s.origins, "http://"+listen)
	}
	return s
}

// run starts a process and ends it, by its pid, with the test. It returns once
// ready answers 200.
func run(t *testing.T, ready, bin string, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	// Not tied to a context: the cleanup ends it.
	cmd := exec.CommandContext(context.Background(), bin, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // how it ended is in its log
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		patience := time.NewTimer(stopsWithin)
		defer patience.Stop()
		select {
		case <-ended:
		case <-patience.C:
			_ = cmd.Process.Kill()
			<-ended
		}
		if t.Failed() {
			_, _ = log.Seek(0, io.SeekStart)
			text, _ := io.ReadAll(io.LimitReader(log, 32<<10))
			t.Logf("log of %s %s:\n%s", filepath.Base(bin), args[0], text)
		}
		_ = log.Close()
	})
	ctx, cancel := context.WithTimeout(t.Context(), servesIn)
	defer cancel()
	for status(ctx, ready) != http.StatusOK {
		select {
		case <-ended:
			t.Fatalf("%s %s ended at its start", bin, args[0])
		default:
		}
		if !wait(ctx, 20*time.Millisecond) {
			t.Fatalf("%s %s did not serve within %v", bin, args[0], servesIn)
		}
	}
}

func status(ctx context.Context, url string) int {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	_ = res.Body.Close()
	return res.StatusCode
}

func freePorts(t *testing.T, n int) []string {
	t.Helper()
	ports := make([]string, n)
	for i := range n {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }() // held until all are found, so that they differ
		ports[i] = l.Addr().String()
	}
	return ports
}

// leaderOf is the node that leads a group.
func leaderOf(t *testing.T, nodes []*realursula.Server, group int) *realursula.Server {
	t.Helper()
	urls := make([]string, 0, len(nodes))
	for _, n := range nodes {
		urls = append(urls, n.URL)
	}
	ctx, cancel := context.WithTimeout(t.Context(), servesIn)
	defer cancel()
	for {
		leaders, err := Leaders(ctx, urls, groups)
		if err == nil {
			return nodes[leaders[group]-1]
		}
		if !errors.Is(err, ErrNoLeader) || !wait(ctx, 50*time.Millisecond) {
			t.Fatal(err)
		}
	}
}

// begin starts a side's load of one round.
func (s *side) begin(ctx context.Context, round, producers int, every time.Duration) *Load {
	o := Options{Gateways: s.origins, Key: s.key, Every: every}
	streams := s.streams[round]
	for i := range producers {
		group := streams[i%groups]
		p := Producer{ID: fmt.Sprintf("p%d", i), Path: group[i/groups%len(group)]}
		if i%3 == 2 {
			p.Kind = Proving
		}
		o.Producers = append(o.Producers, p)
	}
	return Start(ctx, o)
}

// flat lists all paths of all rounds.
func flat(rounds [][][]string) []string { return slices.Concat(slices.Concat(rounds...)...) }
