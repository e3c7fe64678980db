package store

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice/internal/postgrestest"
	"sluice/internal/ursulatest"
)

// gatewayFile is the operator's file: the limits nobody meets, the access log on.
const gatewayFile = `listen: 127.0.0.1:0
origin: https://streams.example.com
admin: {listen: "127.0.0.1:0"}
ursula: {nodes: [%q]}
store: {url: %q, known_keys: %d}
auth: {sealing_key: "c2x1aWNlIHNsdWljZSBzbHVpY2Ugc2x1aWNlIGtleS4="}
limits: {default: {requests_per_second: 1000000, burst: 1000000}}
server: {failed_credentials_per_minute: 0}
drain_delay: 0s
drain_timeout: 1s
`

// rig is the built gateway before a node that has every stream, and its store.
type rig struct {
	size
	bin, database, node string
}

// newRig builds the program, has it migrate an empty database and fills that.
func newRig(tb testing.TB, s size) *rig {
	tb.Helper()
	node := ursulatest.New(ursulatest.Options{})
	if err := node.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = node.Close() })
	node.Node(0).SetFault(ursulatest.Match(func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/s.stream-") },
		ursulatest.Status(http.StatusOK, http.Header{"Content-Type": {"application/json"}, "Stream-Next-Offset": {"1"}}, []byte(`[]`))))
	server := postgrestest.Start(tb, "-c", "shared_buffers=256MB", "-c", "max_wal_size=4GB")
	r := &rig{size: s, bin: filepath.Join(tb.TempDir(), "sluice"), database: server.Database(tb, ""), node: node.URLs()[0]}
	if out, err := exec.CommandContext(tb.Context(), "go", "build", "-buildvcs=false", "-o", r.bin, "sluice/cmd/sluice").CombinedOutput(); err != nil {
		tb.Fatalf("go build: %v\n%s", err, out)
	}
	p, _ := r.start(tb, 1000)
	p.end(tb)
	began := time.Now()
	s.fill(tb, r.database)
	tb.Logf("filled in %v", time.Since(began).Round(time.Second))
	return r
}

// program is a running gateway.
type program struct {
	url, admin string
	cmd        *exec.Cmd
	client     *http.Client
	exited     chan error
	log        string
}

// start runs the program and returns it once it is ready, and how long that took.
func (r *rig) start(tb testing.TB, knownKeys int) (*program, time.Duration) {
	tb.Helper()
	dir := tb.TempDir()
	file := filepath.Join(dir, "sluice.yaml")
	p := &program{log: filepath.Join(dir, "log"), exited: make(chan error, 1), client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	if err := os.WriteFile(file, fmt.Appendf(nil, gatewayFile, r.node, r.database, knownKeys), 0o600); err != nil {
		tb.Fatal(err)
	}
	log, err := os.Create(p.log)
	if err != nil {
		tb.Fatal(err)
	}
	p.cmd = exec.Command(r.bin, "serve", "--config", file) //nolint:noctx // it is drained
	p.cmd.Stderr = log
	began := time.Now()
	if err := p.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	_ = log.Close()
	go func() { p.exited <- p.cmd.Wait() }()
	tb.Cleanup(func() { p.end(tb) })
	await(tb, "the gateway listens", p.listens)
	await(tb, "the gateway is ready", func() bool {
		status, _ := p.get(tb, p.admin+"/readyz", "")
		return status == http.StatusOK
	})
	return p, time.Since(began)
}

// end ends the program, if it runs.
func (p *program) end(tb testing.TB) {
	tb.Helper()
	if p.exited == nil {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	if err := <-p.exited; err != nil {
		text, _ := os.ReadFile(p.log)
		tb.Errorf("sluice: %v\n%s", err, text[max(0, len(text)-4096):])
	}
	p.exited = nil
	p.client.CloseIdleConnections()
}

// listens reads from the log where the program listens.
func (p *program) listens() bool {
	text, _ := os.ReadFile(p.log)
	for line := range strings.Lines(string(text)) {
		var entry struct {
			Admin  string
			Listen []string
		}
		if json.Unmarshal([]byte(line), &entry) == nil && len(entry.Listen) == 1 {
			p.url, p.admin = "http://"+entry.Listen[0], "http://"+entry.Admin
			return true
		}
	}
	return false
}

// await polls what another process does.
func await(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			tb.Fatalf("not in time: %s", what)
		}
	}
}

// get asks for a page; 0 is no answer.
func (p *program) get(tb testing.TB, url, key string) (status int, text string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, ""
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	res, err := p.client.Do(req)
	if err != nil {
		return 0, ""
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, ""
	}
	return res.StatusCode, string(body)
}

// gauge is a sample of the program's metrics.
func (p *program) gauge(tb testing.TB, name string) float64 {
	tb.Helper()
	_, text := p.get(tb, p.admin+"/metrics", "")
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				tb.Fatal(err)
			}
			return n
		}
	}
	tb.Fatalf("no metric %s", name)
	return 0
}
