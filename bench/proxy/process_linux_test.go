package proxy

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// process is one that is measured, or that is needed for it.
type process struct {
	address string // host:port it serves at
	pid     int
}

// cpu is the CPU time that the process has used so far, in all its threads, by
// its own clock (clock_getcpuclockid(3)).
func (p process) cpu(tb testing.TB) time.Duration {
	tb.Helper()
	const perProcess = 2 // CPUCLOCK_SCHED
	var at unix.Timespec
	if err := unix.ClockGettime(int32(^p.pid<<3|perProcess), &at); err != nil { //nolint:gosec // a pid fits
		tb.Fatalf("CPU clock of process %d: %v", p.pid, err)
	}
	return time.Duration(at.Nano())
}

// startRole starts this binary in a role and ends it with the benchmark.
func startRole(tb testing.TB, role, node string) process {
	tb.Helper()
	cmd := exec.Command(os.Args[0]) //nolint:noctx // it is this binary, and ends with its standard input
	cmd.Env = append(os.Environ(), envRole+"="+role, envNode+"="+node)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			tb.Errorf("%s: %v", role, err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		tb.Fatalf("%s tells no address: %v", role, err)
	}
	return process{address: strings.TrimSpace(line), pid: cmd.Process.Pid}
}

// gatewayFile is the operator's file: one account, limits that nothing meets,
// the access log on.
const gatewayFile = `listen: 127.0.0.1:0
origin: https://streams.example.com
admin: {listen: "127.0.0.1:0"}
ursula: {nodes: ["http://%s"]}
drain_delay: 0s
drain_timeout: 1s
accounts:
  - id: acme
    limits: {requests_per_second: 1000000, burst: 1000000}
    streams:
      - {name: bench, content_type: application/json}
    keys:
      - {name: bench, digest: %q}
`

// startGateway builds the program, serves with it, its log in a file, and
// returns it with a key.
func startGateway(tb testing.TB, node string) (p process, key string) {
	tb.Helper()
	dir := tb.TempDir()
	program, file := filepath.Join(dir, "sluice"), filepath.Join(dir, "sluice.yml")
	if out, err := exec.CommandContext(tb.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", program, "sluice/cmd/sluice").CombinedOutput(); err != nil {
		tb.Fatalf("go build: %v\n%s", err, out)
	}
	out, err := exec.CommandContext(tb.Context(), program, "api-key", "generate", "--json").Output()
	if err != nil {
		tb.Fatal(err)
	}
	var made struct{ Key, Digest string }
	if err := json.Unmarshal(out, &made); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(file, fmt.Appendf(nil, gatewayFile, node, made.Digest), 0o600); err != nil {
		tb.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(program, "serve", "--config", file) //nolint:noctx // it is drained
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		if err := cmd.Wait(); err != nil {
			tb.Errorf("sluice: %v", err)
		}
		_ = log.Close()
	})
	return process{address: awaitReady(tb, log.Name()), pid: cmd.Process.Pid}, made.Key
}

// awaitReady reads from the log where the gateway listens, and waits until it is
// ready.
func awaitReady(tb testing.TB, log string) (address string) {
	tb.Helper()
	var admin string
	await(tb, "the gateway serves", func() bool {
		text, _ := os.ReadFile(log)
		for line := range strings.Lines(string(text)) {
			var entry struct {
				Msg, Admin string
				Listen     []string
			}
			if json.Unmarshal([]byte(line), &entry) == nil && len(entry.Listen) == 1 {
				address, admin = entry.Listen[0], entry.Admin
			}
		}
		return admin != ""
	})
	await(tb, "the gateway is ready", func() bool {
		req, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, "http://"+admin+"/readyz", nil)
		if err != nil {
			tb.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	return address
}

// await polls what another process does.
func await(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			tb.Fatalf("not in time: %s", what)
		}
	}
}
