package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"sluice/internal/otlptest"
)

const (
	traceOne   = "0af7651916cd43dd8448eb211c80319c"
	parentName = "Traceparent"
)

// parentOf is a traceparent that asks to be recorded.
func parentOf(trace string) string { return "00-" + trace + "-b7ad6b7169203331-01" }

// receiver takes traces, and is the section of the file that sends them there.
func receiver(t *testing.T) (*otlptest.Receiver, string) {
	t.Helper()
	r := otlptest.New()
	t.Cleanup(r.Close)
	return r, fmt.Sprintf("trace: {endpoint: %q, sample: 0, headers: [\"X-Team: seven\"]}\n", r.URL)
}

// newTracedEdge is newEdge that sends traces.
func newTracedEdge(t *testing.T, node, extra string) (*edge, *otlptest.Receiver) {
	t.Helper()
	r, section := receiver(t)
	if strings.Contains(t.Name(), "/"+strings.ReplaceAll(overTLS, " ", "_")) {
		extra += "tls: {mode: internal}\n"
	}
	e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	return e.start(t, edgeFile(e, []string{node}, section+extra), nil), r
}

// A receiver of OTLP sees an append, a read, a tail and an exchange, each as a tree: the
// request, what it waited for, and the exchange with the node.
func TestTraces(t *testing.T) {
	forEachUpstream(t, func(t *testing.T, node string) {
		e, r := newTracedEdge(t, node, "")
		ids := make([]string, 5)
		for i := range ids {
			ids[i] = fmt.Sprintf("%031d%d", 7, i+1)
		}
		want(t, e.do(t, http.MethodPost, e.path("json"), []byte(`{"n":1}`), "Content-Type", "application/json", parentName, parentOf(ids[0])), http.StatusNoContent)
		want(t, e.do(t, http.MethodGet, e.path("json")+"?offset=-1", nil, parentName, parentOf(ids[1])), http.StatusOK)
		want(t, e.do(t, http.MethodGet, e.path("json")+"?offset=-1", nil, "Authorization", "Bearer x", parentName, parentOf(ids[2])), http.StatusUnauthorized)
		form := "grant_type=urn:ietf:params:oauth:grant-type:token-exchange&subject_token_type=urn:ietf:params:oauth:token-type:access_token&subject_token=" + e.Key
		want(t, e.doAs(t, http1(), "", http.MethodPost, "/v1/token", []byte(form), "Content-Type", "application/x-www-form-urlencoded", parentName, parentOf(ids[3])), http.StatusOK)
		tail, leave := context.WithCancel(t.Context())
		defer leave()
		c := http2()
		res := e.open(tail, t, c, e.Key, http.MethodGet, e.path("json")+"?offset=-1&live=sse", nil, parentName, parentOf(ids[4]))
		if _, err := io.ReadFull(res.Body, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		leave()
		_ = res.Body.Close()
		eventually(t, "the tail's line", func() bool { return strings.Contains(e.Log.String(), `"end":"client_closed"`) })
		eventually(t, "all lines", func() bool { return strings.Count(e.Log.String(), `"trace_id":"`) == len(ids) })
		e.app.tracer.Close()
		const stream = " /{account}/s.{stream}\n"
		for i, tree := range []string{
			"POST" + stream + "  POST" + stream + "  authenticate\n  authorize\n",
			"GET" + stream + "  GET" + stream + "  authenticate\n  authorize\n",
			"GET" + stream + "  authenticate\n",
			"POST /v1/token\n  authenticate\n  issue token\n",
			"GET" + stream + "  GET" + stream + "  authenticate\n  authorize\n  tail end\n  take tail slot\n",
		} {
			if got := r.Tree(ids[i]); got != tree {
				t.Errorf("got:\n%swant:\n%s", got, tree)
			}
		}
		spans, faults := r.Spans()
		if faults != nil || len(spans) != 19 {
			t.Errorf("%d spans; %v", len(spans), faults)
		}
		for _, s := range spans {
			if s.Resource["service.name"] != "sluice" || s.GetEndTimeUnixNano() < s.GetStartTimeUnixNano() {
				t.Errorf("span %v of %v", s, s.Resource)
			}
		}
		if r.Header().Get("X-Team") != "seven" {
			t.Error("trace.headers did not go with the call")
		}
		m := e.admin(t, http.MethodGet, "/metrics").Text
		for _, sample := range []string{fmt.Sprintf("sluice_trace_spans_sent_total %d", len(spans)), "sluice_trace_spans_dropped_total 0", "sluice_trace_failing 0"} {
			if !strings.Contains(m, "\n"+sample+"\n") {
				t.Errorf("metrics lack %s", sample)
			}
		}
	})
}

// What the Management API does at the nodes is a part of its call's trace.
func TestTraceOfManagement(t *testing.T) {
	e, r := newTracedEdge(t, standIn(t), fmt.Sprintf("store: {url: %q}\n", "sqlite:"+filepath.Join(t.TempDir(), "sluice.db")))
	body := []byte(`{"name":"made","content_type":"text/plain"}`)
	want(t, e.do(t, http.MethodPost, "/v1/streams", body, "Content-Type", "application/json", parentName, parentOf(traceOne)), http.StatusCreated)
	second := strings.Repeat("7", 32)
	want(t, ask(t, http.MethodGet, e.Admin+"/v1/accounts", nil, parentName, parentOf(second)), http.StatusOK)
	e.app.tracer.Close()
	if got := r.Tree(traceOne); !strings.HasPrefix(got, "POST /v1/{call}\n  PUT /{account}/s.{stream}\n") {
		t.Errorf("got:\n%s", got)
	}
	if got := r.Tree(second); got != "GET /v1/{call}\n" {
		t.Errorf("got:\n%s", got)
	}
}

// An endpoint that is away, or takes nothing, holds up no request and no stop; it is
// said once, in the log, a gauge and /readyz, which stays 200.
func TestTracesCannotBeSent(t *testing.T) {
	e, r := newTracedEdge(t, standIn(t), "")
	r.Answer.Store(http.StatusForbidden)
	want(t, e.do(t, http.MethodGet, e.path("json")+"?offset=-1", nil, parentName, parentOf(traceOne)), http.StatusOK)
	eventually(t, "the failure is told", func() bool {
		return strings.Contains(e.admin(t, http.MethodGet, "/metrics").Text, "\nsluice_trace_failing 1\n")
	})
	ready := e.admin(t, http.MethodGet, "/readyz?verbose")
	if ready.StatusCode != http.StatusOK || !strings.Contains(ready.Text, "[+]traces: cannot be sent\n") {
		t.Errorf("/readyz: %d %s", ready.StatusCode, ready.Text)
	}
	if n := strings.Count(e.Log.String(), "traces cannot be sent"); n != 1 {
		t.Errorf("%d lines say so", n)
	}
	// One that holds the call is left at the stop.
	hold := make(chan struct{})
	r.Hold.Store(&hold)
	want(t, e.do(t, http.MethodGet, e.path("json")+"?offset=-1", nil, parentName, parentOf(traceOne)), http.StatusOK)
	e.app.tracer.Close()
	if s := e.app.tracer.Stats(); s.Sent != 0 || s.Dropped != 8 {
		t.Errorf("stats %+v", s)
	}
}
