package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sluice/internal/realpart"
)

// promServer is the real one, by the files of deploy/prometheus, with a faster clock.
type promServer struct {
	realpart.Process
	URL string
}

// alertsAtOnce are the project's alerts without the time that they wait.
func alertsAtOnce(t *testing.T) string {
	t.Helper()
	return regexp.MustCompile(`(?m)^ +for: .*\n`).ReplaceAllString(readFile(t, "../../deploy/prometheus/alerts.yaml"), "")
}

// startPrometheus scrapes an admin listener with its token, and evaluates the alerts.
func startPrometheus(t *testing.T, target, token string) *promServer {
	t.Helper()
	binary, err := exec.LookPath("prometheus")
	if err != nil {
		realpart.Missing(t, "Prometheus", "Debian: apt-get install prometheus")
	}
	dir := t.TempDir()
	file := readFile(t, "../../deploy/prometheus/prometheus.yaml")
	file = strings.ReplaceAll(file, "interval: 15s", "interval: 500ms")
	file = strings.Replace(file, `["10.0.0.5:9090", "10.0.0.6:9090"]`, fmt.Sprintf("[%q]", target), 1)
	writeFile(t, filepath.Join(dir, "prometheus.yaml"), file)
	writeFile(t, filepath.Join(dir, "alerts.yaml"), alertsAtOnce(t))
	writeFile(t, filepath.Join(dir, "admin-token"), token)
	address := freePort(t)
	log, err := os.Create(filepath.Join(dir, "log"))
	must(t, err)
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), binary,
		"--config.file="+filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	cmd.Dir, cmd.Stderr = dir, log
	p := &promServer{URL: "http://" + address}
	must(t, p.Run(cmd), log.Close())
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("log of Prometheus:\n%s", realpart.Tail(log.Name(), 4<<10))
		}
	})
	eventually(t, "Prometheus is ready", func() bool { return answersWith(t, p.URL+"/-/ready", http.StatusOK, 5*time.Second) })
	return p
}

// get decodes the data of an answer of Prometheus' API.
func (p *promServer) get(t *testing.T, path string, into any) {
	t.Helper()
	got := ask(t, http.MethodGet, p.URL+path, http.NoBody)
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.Unmarshal([]byte(got.Text), &answer); err != nil || answer.Status != "success" {
		t.Fatalf("%s: %v %s", path, err, got.Text)
	}
	must(t, json.Unmarshal(answer.Data, into))
}

// series is how many an expression has now.
func (p *promServer) series(t *testing.T, expr string) int {
	t.Helper()
	var data struct{ Result []json.RawMessage }
	p.get(t, "/api/v1/query?query="+url.QueryEscape(expr), &data)
	return len(data.Result)
}

// fires waits until an alert does, as Prometheus says.
func (p *promServer) fires(t *testing.T, name string) {
	t.Helper()
	p.awaits(t, name, true)
}

func (p *promServer) awaits(t *testing.T, name string, fires bool) {
	t.Helper()
	deadline := time.Now().Add(90 * time.Second)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for p.firing(t)[name] != fires {
		if time.Now().After(deadline) {
			t.Fatalf("%s: firing is not %v within 90 s; there are %v", name, fires, p.firing(t))
		}
		<-tick.C
	}
}

// firing are the names of the alerts that fire now.
func (p *promServer) firing(t *testing.T) map[string]bool {
	t.Helper()
	var data struct {
		Alerts []struct {
			State  string
			Labels map[string]string
		}
	}
	p.get(t, "/api/v1/alerts", &data)
	names := map[string]bool{}
	for _, a := range data.Alerts {
		if a.State == "firing" {
			names[a.Labels["alertname"]] = true
		}
	}
	return names
}
