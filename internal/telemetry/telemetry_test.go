package telemetry

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

func TestLoggerWritesOneObjectALine(t *testing.T) {
	var out bytes.Buffer
	level := zap.NewAtomicLevelAt(zap.InfoLevel)
	log := NewLogger(&out, level)
	log.Debug("hidden")
	log.Info("two\nlines", zap.String("key", "a\"b"))
	level.SetLevel(zap.DebugLevel)
	log.Debug("shown")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 {
		t.Fatalf("got %d lines: %s", len(lines), out.String())
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(lines[0]), &got); err != nil {
		t.Fatal(err)
	}
	if got["message"] != "two\nlines" || got["key"] != "a\"b" || got["level"] != "info" || got["time"] == nil {
		t.Errorf("line %s", lines[0])
	}
}

func TestParseLevel(t *testing.T) {
	for _, good := range []string{"debug", "info", "warn", "error"} {
		if l, err := ParseLevel(good); err != nil || l.String() != good {
			t.Errorf("ParseLevel(%q) = %v, %v", good, l, err)
		}
	}
	for _, bad := range []string{"", "panic", "fatal", "loud"} {
		if _, err := ParseLevel(bad); err == nil {
			t.Errorf("ParseLevel(%q) passed", bad)
		}
	}
}

// M02 (path): a key pasted into a URL stood in the access log.
func TestForeign(t *testing.T) {
	key := "tbo_" + strings.Repeat("k", 40)
	for name, tc := range map[string]struct{ in, want string }{
		"plain":            {"/acme/x", "/acme/x"},
		"key":              {"/acme/" + key + "/x", "/acme/<redacted>/x"},
		"two keys":         {key + "," + key, "<redacted>,<redacted>"},
		"token":            {"/eyJhbGciOiJub25lIn0.eyJ9.sig/x", "/<redacted>/x"},
		"encoded key":      {"/acme/%74bo_" + key, "/acme/%…"},
		"long":             {strings.Repeat("a", 500), strings.Repeat("a", 128) + "…"},
		"key over the cut": {strings.Repeat("a", 120) + key, strings.Repeat("a", 120) + "<redacted>…"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Foreign(tc.in); got != tc.want {
				t.Errorf("Foreign(%q) = %q, want %q", tc.in, got, tc.want)
			}
		})
	}
}

func TestMetricsAreThoseDescribed(t *testing.T) {
	r := prometheus.NewRegistry()
	m, err := NewMetrics(r)
	if err != nil {
		t.Fatal(err)
	}
	m.Request("append", 204, time.Millisecond, false)
	m.Request("read", 200, time.Hour, true)
	m.Refused("FORBIDDEN")
	m.Ended("whole")
	m.Drained("read")
	m.Exchanged("127.0.0.1:1", "2xx", time.Millisecond)
	m.Exchanged("127.0.0.1:1", "2xx", -1)
	m.Went(1, 1)
	m.Unlogged()
	m.Node("127.0.0.1:1", "silent")
	m.Nodes(map[string]bool{"127.0.0.1:2": true})
	m.Bytes(3, 4)
	m.Header("late")
	m.Panicked()
	m.Reloaded(true, time.Unix(5, 0))
	m.Reloaded(false, time.Time{})
	functions := []string{
		"sluice_tails_largest_share", "sluice_open_connections", "sluice_trace_failing", "sluice_open_tails", "sluice_rate_subjects", "sluice_body_budget_bytes", "sluice_ready",
		"sluice_token_cache_entries", "sluice_token_cache_capacity", "sluice_issuers_failing", "sluice_issuers_without_keys", "sluice_failure_subjects", "sluice_open_uploads", "sluice_redis_degraded", "sluice_replicas", "sluice_client_addresses",
		"sluice_store_lost", "sluice_store_read_timestamp_seconds", "sluice_store_revision", "sluice_store_keys", "sluice_store_accounts", "sluice_store_streams", "sluice_store_unknown", "sluice_streams_retried",
		"sluice_usage_store_pending", "sluice_usage_store_written_timestamp_seconds", "sluice_usage_export_pending", "sluice_usage_export_written_timestamp_seconds",
		"sluice_connections_bound", "sluice_upstream_connections", "sluice_upstream_connections_bound",
	}
	for _, name := range functions {
		if err := GaugeFunc(r, name, func() float64 { return 1 }); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{
		"sluice_trace_spans_sent_total", "sluice_trace_spans_dropped_total",
		"sluice_log_lines_dropped_total", "sluice_tokens_seen_total", "sluice_tokens_new_total", "sluice_connections_refused_total",
		"sluice_usage_store_failures_total", "sluice_usage_export_failures_total", "sluice_usage_merged_total",
		"sluice_connections_turned_away_total", "sluice_admin_connections_turned_away_total", "sluice_accept_failures_total",
		"sluice_upstream_connections_short_total",
	} {
		if err := CounterFunc(r, name, func() float64 { return 1 }); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"sluice_certificate_expires_timestamp_seconds", "sluice_certificate_failing", "sluice_upstream_groups_led", "sluice_open_tails_by_kind", "sluice_ready_part"} {
		if err := GaugesFunc(r, name, func() map[string]float64 { return map[string]float64{"streams.example.com": 1} }); err != nil {
			t.Fatal(err)
		}
	}
	if err := BuildInfo(r, "v1"); err != nil {
		t.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got, want := make([]string, 0, len(families)), make([]string, 0, len(families))
	for _, f := range families {
		got = append(got, f.GetName())
		if f.GetName() == "sluice_request_duration_seconds" && f.GetMetric()[0].GetHistogram().GetSampleCount() != 1 {
			t.Error("a tail's duration was observed")
		}
		if f.GetName() == "sluice_upstream_head_seconds" && f.GetMetric()[0].GetHistogram().GetSampleCount() != 1 {
			t.Error("the time of an exchange that asked to wait was observed")
		}
		if f.GetName() == "sluice_config_last_reload_ok" && f.GetMetric()[0].GetGauge().GetValue() != 0 {
			t.Error("a refused reload reads as ok")
		}
	}
	for _, d := range Descriptions() {
		want = append(want, d.Name)
		if d.Help == "" || d.Type == "" {
			t.Errorf("%s lacks its help or type", d.Name)
		}
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("registered %v\nwant %v", got, want)
	}
	if _, err := NewMetrics(r); err == nil {
		t.Error("registering twice passed")
	}
}
