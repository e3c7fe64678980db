package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"sluice/internal/ursulatest"
)

// wantSamples waits for samples of /metrics, as they are written there.
func (e *edge) wantSamples(t *testing.T, samples ...string) {
	t.Helper()
	for _, s := range samples {
		eventually(t, s, func() bool { return strings.Contains(e.admin(t, http.MethodGet, "/metrics").Text, "\n"+s+"\n") })
	}
}

// What an alert asks for at night: tails by kind and how near an account is to its limit of
// them, connections, which part is ready, how many groups each node leads, how long each
// node takes, and what runs.
func TestMetricsOfThisMoment(t *testing.T) {
	cluster := ursulatest.New(ursulatest.Options{Nodes: 3})
	if err := cluster.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cluster.Close() })
	e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	e.start(t, strings.Replace(edgeFile(e, cluster.URLs(), ""), "open_tails: 100", "open_tails: 8", 1), nil)
	e.append(t, "json", `1`)
	e.wantSamples(t, "sluice_tails_largest_share 0", `sluice_open_tails_by_kind{kind="sse"} 0`, `sluice_open_tails_by_kind{kind="long-poll"} 0`,
		`sluice_ready_part{part="server"} 1`, `sluice_ready_part{part="nodes"} 1`, `sluice_ready_part{part="declared_streams"} 1`)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	for range 2 {
		res := e.open(ctx, t, http1(), e.Key, http.MethodGet, e.path("json")+"?offset=-1&live=sse", nil)
		defer func() { _ = res.Body.Close() }()
		if _, err := io.ReadFull(res.Body, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
	}
	e.wantSamples(t, "sluice_open_tails 2", "sluice_tails_largest_share 0.25", `sluice_open_tails_by_kind{kind="sse"} 2`)
	leave()
	e.wantSamples(t, "sluice_tails_largest_share 0", `sluice_open_tails_by_kind{kind="sse"} 0`)
	eventually(t, "connections are closed", func() bool {
		return strings.Contains(e.admin(t, http.MethodGet, "/metrics").Text, "\nsluice_open_connections 0\n")
	})
	m := e.admin(t, http.MethodGet, "/metrics").Text
	for _, series := range []string{`sluice_build_info{goversion="go1.`, `sluice_upstream_head_seconds_bucket{node="`, `sluice_upstream_groups_led{node="`} {
		if !strings.Contains(m, "\n"+series) {
			t.Errorf("metrics lack %s", series)
		}
	}
	if n := strings.Count(m, "sluice_upstream_groups_led{"); n != 3 {
		t.Errorf("%d nodes are said to lead groups, or not to", n)
	}
}

// Profiles, traces and the log's sample are turned on and off by a reload: at night nobody
// wants to restart what is to be looked at.
func TestReloadTakesUpWhatIsLookedAtWith(t *testing.T) {
	e, path, file := reloadable(t)
	r, section := receiver(t)
	read := func() {
		want(t, e.do(t, http.MethodGet, e.path("json")+"?offset=-1", nil, parentName, parentOf(traceOne)), http.StatusOK)
	}
	read()
	want(t, e.admin(t, http.MethodGet, "/debug/pprof/heap"), http.StatusNotFound)
	writeFile(t, path, strings.Replace(file(section+"log: {sample: 0}\n"), `"127.0.0.1:0"}`, `"127.0.0.1:0", pprof: true}`, 1))
	if res := e.admin(t, http.MethodPost, "/reload"); res.StatusCode != http.StatusOK || !strings.Contains(res.Text, `"restart_needed":[]`) {
		t.Fatalf("%d %s", res.StatusCode, res.Text)
	}
	want(t, e.admin(t, http.MethodGet, "/debug/pprof/heap"), http.StatusOK)
	if res := e.admin(t, http.MethodGet, "/readyz?verbose"); !strings.Contains(res.Text, "[+]traces: ok\n") {
		t.Errorf("/readyz: %s", res.Text)
	}
	read()
	e.wantSamples(t, "sluice_log_lines_sampled_out_total 1")
	writeFile(t, path, file(""))
	want(t, e.admin(t, http.MethodPost, "/reload"), http.StatusOK)
	want(t, e.admin(t, http.MethodGet, "/debug/pprof/heap"), http.StatusNotFound)
	read()
	e.wantSamples(t, "sluice_trace_spans_sent_total 4", "sluice_log_lines_sampled_out_total 1")
	if spans, faults := r.Spans(); len(spans) != 4 || faults != nil {
		t.Errorf("%d spans; %v", len(spans), faults)
	}
}
