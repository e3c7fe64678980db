package limits

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sluice/internal/ursulatest"
)

// gatewayFile is the operator's file: one account whose limits nothing meets, the
// access log on.
const gatewayFile = `listen: 127.0.0.1:0
origin: https://streams.example.com
admin: {listen: "127.0.0.1:0"}
ursula: {nodes: [%q]}
redis: {url: "redis://%s"}
drain_delay: 0s
drain_timeout: 1s
accounts:
  - id: acme
    limits: {requests_per_second: 1000000, burst: 1000000, open_tails: 10000}
    streams: [{name: bench, content_type: application/json}]
    keys: [{name: bench, digest: %q}]
`

const target = "/acme/s.bench"

// program is the built gateway, as an operator runs it.
type program struct{ url, admin, key string }

// startProgram builds and runs it, before a node that is here, and ends it with the
// benchmark.
func startProgram(b *testing.B, redis string) program {
	b.Helper()
	node := ursulatest.New(ursulatest.Options{})
	if err := node.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = node.Close() })
	dir := b.TempDir()
	bin, file := filepath.Join(dir, "sluice"), filepath.Join(dir, "sluice.yaml")
	if out, err := exec.CommandContext(b.Context(), "go", "build", "-buildvcs=false", "-o", bin, "sluice/cmd/sluice").CombinedOutput(); err != nil {
		b.Fatalf("go build: %v\n%s", err, out)
	}
	out, err := exec.CommandContext(b.Context(), bin, "api-key", "generate", "--json").Output()
	if err != nil {
		b.Fatal(err)
	}
	var made struct{ Key, Digest string }
	if err := json.Unmarshal(out, &made); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(file, fmt.Appendf(nil, gatewayFile, node.URLs()[0], redis, made.Digest), 0o600); err != nil {
		b.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(bin, "serve", "--config", file) //nolint:noctx // it is drained
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			b.Errorf("sluice: %v", err)
		}
		_ = log.Close()
	})
	p := program{key: made.Key}
	await(b, "the gateway serves", func() bool { return p.listens(log.Name()) })
	await(b, "the gateway is ready", func() bool {
		status, _ := p.get(b.Context(), http.DefaultClient, p.admin+"/readyz")
		return status == http.StatusOK
	})
	return p
}

// listens reads from the log where the program listens.
func (p *program) listens(log string) bool {
	text, _ := os.ReadFile(log)
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
func await(b *testing.B, what string, ok func() bool) {
	b.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			b.Fatalf("not in time: %s", what)
		}
	}
}

// get asks for a page; 0 is no answer.
func (p *program) get(ctx context.Context, c *http.Client, url string) (status int, text string) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, ""
	}
	req.Header.Set("Authorization", "Bearer "+p.key)
	res, err := c.Do(req)
	if err != nil {
		return 0, ""
	}
	defer func() { _ = res.Body.Close() }()
	if strings.Contains(url, "live=sse") {
		// Its head is what Redis was asked for.
		return res.StatusCode, ""
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, ""
	}
	return res.StatusCode, string(body)
}

// degraded reports whether the program says that it counts alone.
func (p *program) degraded(b *testing.B) bool {
	_, text := p.get(b.Context(), http.DefaultClient, p.admin+"/metrics")
	return !strings.Contains(text, "\nsluice_redis_degraded 0\n")
}

// shot is one request of a load.
type shot struct {
	begun  time.Time // when it was due
	took   time.Duration
	status int
}

// load makes perSecond requests a second, of which every twentieth opens a tail, until
// ctx ends, and returns them in the order of their times. Each begins when it is due,
// whether or not the earlier ones have been answered.
func (p *program) load(ctx context.Context, perSecond int) []shot {
	c := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 512, DisableCompression: true}}
	defer c.CloseIdleConnections()
	var mu sync.Mutex
	var running sync.WaitGroup
	began := time.Now()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	var shots []shot
	for n := 0; ctx.Err() == nil; <-tick.C {
		for ; time.Since(began) >= due(n, perSecond); n++ {
			url := p.url + target + "?offset=-1"
			if n%20 == 0 {
				url = p.url + target + "?offset=now&live=sse"
			}
			s := shot{begun: began.Add(due(n, perSecond))}
			running.Go(func() {
				s.status, _ = p.get(context.Background(), c, url)
				s.took = time.Since(s.begun)
				mu.Lock()
				defer mu.Unlock()
				shots = append(shots, s)
			})
		}
	}
	running.Wait()
	return shots
}

func due(n, perSecond int) time.Duration {
	return time.Duration(n) * time.Second / time.Duration(perSecond)
}
