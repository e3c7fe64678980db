package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/realpart"
)

// What the operator is given to look at, at a real Prometheus that scrapes a real gateway:
// the dashboard has data in each of its panels, each alert fires at its fault and ends
// behind it, and the runbook's commands show what is wrong.
func TestWatched(t *testing.T) {
	if _, err := exec.LookPath("jq"); err != nil {
		realpart.Missing(t, "jq", "Debian: apt-get install jq")
	}
	w := startWatched(t)
	c := loadClient(t)
	c.Transport = http1().Transport
	w.traffic(t, c)
	w.headers(t, 2, "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n")
	leave := w.tails(t, c, 2, "?offset=now&live=sse")
	w.traffic(t, c)
	t.Run("dashboard", w.dashboard)
	leave()
	firing := w.prometheus.firing(t)
	delete(firing, "SluiceSlow") // a machine with much else to do is
	if len(firing) != 0 {
		t.Errorf("nothing is wrong, and there fires %v", firing)
	}
	for _, f := range w.allTroubles(c) {
		if !t.Run(f.alerts[0], func(t *testing.T) { w.suffers(t, f) }) {
			return
		}
	}
	w.wantAll(t)
}

// dashboard asks Prometheus what each panel asks it.
func (w *watchedGateway) dashboard(t *testing.T) {
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	must(t, json.Unmarshal([]byte(readFile(t, "../../deploy/grafana/sluice.json")), &d))
	as := strings.NewReplacer("$job", "sluice", "$instance", ".*", "$__rate_interval", "30s", "$__range", "1h")
	asked := 0
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			asked++
			eventually(t, "the panel "+p.Title+" has data: "+q.Expr, func() bool { return w.prometheus.series(t, as.Replace(q.Expr)) > 0 })
		}
	}
	t.Logf("%d panels and rows, %d expressions", len(d.Panels), asked)
}

// trouble is something that goes wrong, and the alerts that have to tell.
type trouble struct {
	alerts []string
	shows  []string // what the runbook's commands of the first alert show, each a pattern
	strike func(t *testing.T)
	heal   func(t *testing.T) // nil: there is none, or it goes by itself
	stays  bool               // the alert looks back over minutes
}

func (w *watchedGateway) suffers(t *testing.T, f trouble) {
	f.strike(t)
	for _, name := range f.alerts {
		w.prometheus.fires(t, name)
	}
	for i, name := range f.alerts {
		got := w.consults(t, name)
		for _, text := range f.shows {
			if i == 0 && !regexp.MustCompile(text).MatchString(got) {
				t.Errorf("%s: the runbook's commands do not show %q:\n%s", name, text, got)
			}
		}
	}
	if f.heal == nil {
		return
	}
	f.heal(t)
	if f.stays {
		return
	}
	for _, name := range f.alerts {
		w.prometheus.awaits(t, name, false)
	}
}

// wantAll wants no alert that no fault has been tried for, but the one for faults of the
// program, of which none is known.
func (w *watchedGateway) wantAll(t *testing.T) {
	t.Helper()
	tried := map[string]bool{"SluicePanics": true}
	for _, f := range w.allTroubles(nil) {
		for _, name := range f.alerts {
			tried[name] = true
		}
	}
	for _, m := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(alertsAtOnce(t), -1) {
		if !tried[m[1]] {
			t.Errorf("no fault brings %s about", m[1])
		}
	}
}

// allTroubles are all of them, the last of which nothing survives.
func (w *watchedGateway) allTroubles(c *http.Client) []trouble {
	all := w.outerFaults(c)
	all = append(all, w.nodeFaults(c)...) // before many requests that are fast
	all = append(all, w.innerFaults(c)...)
	return append(all, trouble{
		alerts: []string{"SluiceDown"}, shows: []string{`(?m)^000`},
		strike: func(t *testing.T) { must(t, w.cmd.Process.Kill()) },
	})
}

// outerFaults are those of Redis, the store, certificates and the file.
func (w *watchedGateway) outerFaults(c *http.Client) []trouble {
	put := func(t *testing.T, lives time.Duration) {
		pairFor(t, w.dir, "streams.example.com", lives)
	}
	var whole string
	change := func(old, with string) func(*testing.T) {
		return func(t *testing.T) {
			whole = readFile(t, w.path)
			if !strings.Contains(whole, old) {
				t.Fatalf("the file lacks %s", old)
			}
			writeFile(t, w.path, strings.Replace(whole, old, with, 1))
		}
	}
	restore := func(t *testing.T) { writeFile(t, w.path, whole) }
	return []trouble{
		{
			alerts: []string{"SluiceRedisLost"}, shows: []string{`sluice_redis_degraded 1`, `Redis is lost`},
			strike: func(*testing.T) { w.redis.Kill() }, heal: func(t *testing.T) { w.redis.Restart(t) },
		},
		{
			alerts: []string{"SluiceStoreLost", "SluiceUsageWaiting"}, shows: []string{`\[\+\]store: out of reach`, `read \d+ s ago`, `the store is lost`},
			strike: func(t *testing.T) {
				w.line.cut()
				eventually(t, "the replica knows", func() bool { return w.lines(t, "the store is lost") > 0 })
				w.traffic(t, c) // which is used, and cannot be written
			},
			heal: func(*testing.T) { w.line.mend() },
			// A failed try is looked back at for 10 minutes, but nothing is pending.
		},
		{
			alerts: []string{"SluiceCertificateExpiring"}, shows: []string{`2\.\d days`, `certificate in use`},
			strike: func(t *testing.T) { put(t, 60*time.Hour) }, heal: func(t *testing.T) { put(t, 60*24*time.Hour) },
		},
		{
			alerts: []string{"SluiceCertificateFailing"}, shows: []string{`sluice_certificate_failing\{domain="[^"]+"\} 1`, `are no pair`},
			strike: func(t *testing.T) {
				whole = readFile(t, filepath.Join(w.dir, "tls.key"))
				writeFile(t, filepath.Join(w.dir, "tls.key"), "half a key")
			},
			heal: func(t *testing.T) { writeFile(t, filepath.Join(w.dir, "tls.key"), whole) },
		},
		{
			alerts: []string{"SluiceReloadRefused"}, shows: []string{`sluice\.yaml:\d+.*trails`, `reload refused`, `in force for \d+ s`},
			strike: change("tails: {", "trails: {"), heal: restore,
		},
		{
			alerts: []string{"SluiceIssuerFailing"}, shows: []string{`sluice_issuers_without_keys 1`, `keys of an issuer cannot be fetched`},
			strike: change("exchange_per_second: 1000", "exchange_per_second: 1000, issuers: [{issuer: https://login.example.com, audience: https://streams.example.com, "+
				"jwks_url: \"http://127.0.0.1:9/keys\", account_claim: account, accounts: [acme]}]"),
			heal: restore,
		},
	}
}

// innerFaults are those of clients, and of what the process has.
func (w *watchedGateway) innerFaults(c *http.Client) []trouble {
	var leave func()
	var conns []net.Conn
	var limit unix.Rlimit
	return []trouble{
		{
			alerts: []string{"SluiceTailsNearLimit"}, shows: []string{`sluice_tails_largest_share 1`, `LIVE_READS|` + regexp.QuoteMeta(w.payer.id)},
			strike: func(t *testing.T) {
				leave = w.tails(t, c, 10, "?offset=now&live=sse")
				want(t, w.doAs(t, http1(), w.payer.key, http.MethodGet, w.payer.path("json")+"?offset=now&live=sse", nil), http.StatusTooManyRequests)
			},
			heal: func(*testing.T) { leave() },
		},
		{
			alerts: []string{"SluiceConnectionsRefused"}, shows: []string{`sluice_connections_refused_total [1-9]`, `127\.0\.0\.1`},
			strike: func(t *testing.T) {
				d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 3)}}
				for range 320 {
					conn, err := d.DialContext(t.Context(), "tcp", strings.TrimPrefix(w.URL, "https://"))
					must(t, err)
					conns = append(conns, conn)
				}
			},
			heal: func(*testing.T) {
				for _, conn := range conns {
					_ = conn.Close()
				}
			},
			stays: true,
		},
		{
			alerts: []string{"SluiceProxyHeadersRefused"}, shows: []string{`outcome="malformed"\} [1-9]`},
			strike: func(t *testing.T) {
				w.headers(t, 1, "PROXY nonsense\r\n")
				// A counter that comes into being has not increased.
				eventually(t, "the outcome is known", func() bool { return w.prometheus.series(t, `sluice_proxy_headers_total{outcome="malformed"}`) > 0 })
				w.headers(t, 60, "PROXY nonsense\r\n")
			},
			heal: func(*testing.T) {}, stays: true,
		},
		{
			alerts: []string{"SluiceFilesNearLimit"}, shows: []string{`process_open_fds \d+`, `process_max_fds \d+`},
			strike: func(t *testing.T) {
				must(t, unix.Prlimit(w.cmd.Process.Pid, unix.RLIMIT_NOFILE, nil, &limit))
				// Connections from before go on closing, and the bound goes down with them.
				eventually(t, "the bound is near", func() bool {
					open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", w.cmd.Process.Pid))
					must(t, err)
					few := unix.Rlimit{Cur: uint64(len(open)) * 11 / 10, Max: limit.Max}
					must(t, unix.Prlimit(w.cmd.Process.Pid, unix.RLIMIT_NOFILE, &few, nil))
					return w.prometheus.firing(t)["SluiceFilesNearLimit"]
				})
			},
			heal: func(t *testing.T) { must(t, unix.Prlimit(w.cmd.Process.Pid, unix.RLIMIT_NOFILE, &limit, nil)) },
		},
		{
			alerts: []string{"SluiceRefusalsRising"}, shows: []string{`INVALID_CREDENTIAL`},
			strike: func(t *testing.T) { w.many(t, c, 500, "tbo_nobody", http.StatusUnauthorized) },
			heal:   func(*testing.T) {}, stays: true,
		},
		{
			alerts: []string{"SluiceLogLinesDropped"}, shows: []string{`sluice_log_lines_dropped_total [1-9]`},
			strike: func(t *testing.T) {
				must(t, w.reading.Close()) // whoever reads the log is gone
				w.many(t, c, 40, w.payer.key, http.StatusOK)
			},
			heal: func(*testing.T) {}, stays: true,
		},
	}
}

// many makes n requests, some at once, and wants that answer of each; 0 = any.
func (w *watchedGateway) many(t *testing.T, c *http.Client, n int, key string, status int) {
	t.Helper()
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			for range n / 20 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				res := w.get(ctx, t, c, key)
				cancel()
				if status != 0 && res != status {
					t.Errorf("answered %d, want %d", res, status)
				}
			}
		})
	}
	group.Wait()
}

// get reads the stream and returns the status.
func (w *watchedGateway) get(ctx context.Context, t *testing.T, c *http.Client, key string) int {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.URL+w.payer.path("json")+"?offset=now", nil)
	if err != nil {
		t.Error(err)
		return 0
	}
	req.Header.Set("Authorization", "Bearer "+key)
	res, err := c.Do(req)
	if err != nil {
		t.Error(err)
		return 0
	}
	_ = res.Body.Close()
	return res.StatusCode
}

// nodeFaults are those of the cluster: one node, all of them frozen, all of them gone.
func (w *watchedGateway) nodeFaults(c *http.Client) []trouble {
	each := func(t *testing.T, do func(i int) error) {
		for i := range w.nodes {
			must(t, do(i))
		}
	}
	return []trouble{
		{
			alerts: []string{"SluiceNodeDown"}, shows: []string{`sluice_upstream_node_up\{node="[^"]+"\} 0`, `node ejected`},
			strike: func(*testing.T) { w.nodes[0].Kill() }, heal: func(t *testing.T) { w.nodes[0].Restart(t) },
		},
		{
			alerts: []string{"SluiceSlow", "SluiceServerErrors"}, shows: []string{`"seconds":[1-9]`},
			strike: func(t *testing.T) {
				each(t, func(i int) error { return w.nodes[i].Pause() })
				w.many(t, c, 60, w.payer.key, 0)
			},
			heal:  func(t *testing.T) { each(t, func(i int) error { return w.nodes[i].Cont() }) },
			stays: true,
		},
		{
			alerts: []string{"SluiceNoNodes", "SluiceNotReady", "SluiceStreamsStuck"}, shows: []string{`\[-\]nodes: `, `sluice_upstream_node_up\{node="[^"]+"\} 0`, `UPSTREAM_UNREACHABLE`},
			strike: func(t *testing.T) {
				eventually(t, "it has nodes again", func() bool { return w.get(t.Context(), t, c, w.payer.key) == http.StatusOK })
				for _, n := range w.nodes {
					n.End(syscall.SIGKILL)
				}
				w.many(t, c, 20, w.payer.key, 0)
				made := ask(t, http.MethodPost, w.URL+"/v1/streams", strings.NewReader(`{"name":"stuck","content_type":"text/plain"}`), "Authorization", "Bearer "+w.owner.key, "Content-Type", "application/json")
				t.Logf("a stream is answered %d %s", made.StatusCode, made.Text)
			},
			heal: func(t *testing.T) {
				var starts sync.WaitGroup // a node waits for the others
				for _, n := range w.nodes {
					starts.Go(func() { n.Restart(t) })
				}
				starts.Wait()
			},
		},
	}
}
