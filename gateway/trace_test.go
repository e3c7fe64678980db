package gateway

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sluice/internal/otlptest"
	"sluice/internal/telemetry"
	"sluice/internal/tracing"
)

// newTraces is a receiver of traces, and a tracer that sends to it. A test closes the
// tracer to have all spans.
func newTraces(t testing.TB, sample float64) (*otlptest.Receiver, *tracing.Tracer) {
	t.Helper()
	r := otlptest.New()
	t.Cleanup(r.Close)
	tr := tracing.New(tracing.Options{Service: "sluice", Random: func() float64 { return 1 }})
	t.Cleanup(tr.Close)
	if err := tr.Set(tracing.Settings{Endpoint: r.URL, Sample: sample, ParentsPerSecond: 100}); err != nil {
		t.Fatal(err)
	}
	return r, tr
}

const (
	traceOne  = "0af7651916cd43dd8448eb211c80319c"
	parentOne = "00-" + traceOne + "-b7ad6b7169203331-01"
)

// rootOf is the first span of a trace that has come.
func rootOf(t testing.TB, r *otlptest.Receiver, trace string) otlptest.Span {
	t.Helper()
	spans, _ := r.Spans()
	for _, s := range spans {
		if s.TraceID() == trace {
			return s
		}
	}
	t.Fatalf("no span of %s among %d", trace, len(spans))
	return otlptest.Span{}
}

// has reports what of the pairs a span has not.
func has(t testing.TB, s otlptest.Span, pairs ...string) {
	t.Helper()
	for i := 0; i+1 < len(pairs); i += 2 {
		if got := s.Attributes[pairs[i]]; got != pairs[i+1] {
			t.Errorf("%s: %s is %q, want %q", s.GetName(), pairs[i], got, pairs[i+1])
		}
	}
}

// A request is a span, with one for each step that may wait and each attempt at a node,
// and the node is told which one it is part of. A redirect is two attempts.
func TestTraceOfARequest(t *testing.T) {
	r, tracer := newTraces(t, 0)
	rg := newRig(t, rigOptions{cluster: 3, change: func(o *Options) { o.Tracer = tracer }})
	rg.Cluster.ResetRequests()
	// One node of three leads, and a rig that knows nothing begins with any: of three
	// writes one at least is sent on.
	for range 3 {
		if res := rg.Do(t, http.MethodPost, "/acme/s.priv", key, `{}`, "Content-Type", rigType, "Traceparent", parentOne, "Tracestate", "a=b", "Baggage", "c=d"); res.StatusCode != http.StatusNoContent {
			t.Fatalf("append: %d %s", res.StatusCode, res.Text)
		}
		rg.Cluster.SetLeader((1 + rg.Cluster.Requests()[len(rg.Cluster.Requests())-1].Node) % 3)
	}
	lines := rg.awaitLines(t, 3)
	tracer.Close()
	const name = "POST /{account}/s.{stream}"
	tree := r.Tree(traceOne)
	if !strings.Contains(tree, name+"\n  "+name+"\n  "+name+"\n  authenticate\n  authorize\n") {
		t.Fatalf("no redirect in the trace:\n%s", tree)
	}
	root := rootOf(t, r, traceOne)
	has(t, root, "http.request.method", "POST", "http.route", "/{account}/s.{stream}", "http.response.status_code", "204", "url.scheme", "http",
		"url.path", "/acme/s.priv", "client.address", "127.0.0.1", "network.protocol.version", "1.1", "sluice.account", "acme", "sluice.stream", "priv",
		"sluice.key_id", "acme/full", "sluice.end", "whole", "sluice.operation", "append", "http.request.body.size", "2", "error.type", "")
	if root.Parent() != "b7ad6b7169203331" || root.GetKind() != 2 || root.GetTraceState() != "" {
		t.Errorf("the root is a child of %s, of kind %v, in %q", root.Parent(), root.GetKind(), root.GetTraceState())
	}
	calls := map[string]otlptest.Span{}
	spans, _ := r.Spans()
	for _, s := range spans {
		if s.GetKind() == 3 {
			calls["00-"+s.TraceID()+"-"+s.ID()+"-01"] = s
		}
	}
	for _, q := range rg.Cluster.Requests() {
		call, ok := calls[q.Header.Get("Traceparent")]
		if !ok || q.Header.Get("Tracestate")+q.Header.Get("Baggage") != "" {
			t.Errorf("a node was told %v", q.Header)
			continue
		}
		if got := "http://" + call.Attributes["server.address"] + ":" + call.Attributes["server.port"]; got != rg.Cluster.URLs()[q.Node] {
			t.Errorf("the span names %s, asked was %s", got, rg.Cluster.URLs()[q.Node])
		}
	}
	redirected := 0
	for _, l := range lines {
		seconds, _ := l["node_seconds"].(float64)
		attempts, _ := l["attempts"].(float64)
		if l["trace_id"] != traceOne || l["node"] == "" || seconds <= 0 {
			t.Errorf("line %v", l)
		}
		if attempts > 1 {
			redirected++
		}
	}
	if redirected == 0 || !strings.Contains(rg.exposition(t), "sluice_upstream_redirects_total ") || rg.counts(t, "sluice_upstream_redirects_total 0") {
		t.Errorf("%d lines have a redirect, and the metric none", redirected)
	}
}

// Nothing of a trace that is not recorded is sent, and a stranger's wish to be recorded
// goes on to no node.
func TestTraceNotRecorded(t *testing.T) {
	r, tracer := newTraces(t, 0)
	rg := newRig(t, rigOptions{change: func(o *Options) { o.Tracer = tracer }})
	ask := func(parent string) string {
		rg.Cluster.ResetRequests()
		rg.Do(t, http.MethodGet, "/acme/s.pub?offset=-1", "", "", "Traceparent", parent, "Tracestate", "a=b")
		h := rg.Cluster.Requests()[0].Header
		if h.Get("Tracestate") != "" {
			t.Error("the tracestate went on")
		}
		return h.Get("Traceparent")
	}
	off := strings.TrimSuffix(parentOne, "1") + "0"
	if got := ask(off); got != off {
		t.Errorf("the node was told %q, want %q", got, off)
	}
	if got := ask("nonsense"); got != "" {
		t.Errorf("the node was told %q", got)
	}
	o := rg.Options
	o.Tracer = nil
	rg.Gateway.Swap(o)
	if got := ask(parentOne); got != "" {
		t.Errorf("with traces off the node was told %q", got)
	}
	lines := rg.awaitLines(t, 3)
	tracer.Close()
	if spans, _ := r.Spans(); len(spans) != 0 {
		t.Errorf("%d spans came", len(spans))
	}
	for _, l := range lines {
		if _, ok := l["trace_id"]; ok {
			t.Errorf("a line of what was not recorded has %v", l["trace_id"])
		}
	}
}

// A stream of events has a span that ends with its head, so that it is seen while the
// tail is open, and one more at its end.
func TestTraceOfATail(t *testing.T) {
	r, tracer := newTraces(t, 0)
	rg, _ := newUpRig(t, func(c *upConn, _ *upRequest) {
		c.say(sseHead + chunk("event: control\ndata: {}\n\n"))
		c.hold()
	}, rigOptions{change: func(o *Options) { o.Tracer = tracer }})
	for _, c := range protocols(t) {
		opened, cancel := rg.open(t, c, sseTail, key, "Traceparent", parentOne)
		readN(t, opened.Body, 10)
		cancel()
	}
	rg.awaitLines(t, 2)
	tracer.Close()
	const name = "GET /{account}/s.{stream}"
	one := name + "\n  " + name + "\n  authenticate\n  authorize\n  tail end\n  take tail slot\n"
	if got := r.Tree(traceOne); got != one+one {
		t.Fatalf("got:\n%swant:\n%s", got, one+one)
	}
	root := rootOf(t, r, traceOne)
	has(t, root, "http.response.status_code", "200", "sluice.tail", "sse", "sluice.end", "")
	if e := root.GetEvents(); len(e) != 1 || e[0].GetName() != "tail open" {
		t.Errorf("events %v", e)
	}
	spans, _ := r.Spans()
	for _, s := range spans {
		if s.GetName() == "tail end" {
			has(t, s, "sluice.end", "client_closed", "sluice.account", "acme", "sluice.stream", "priv")
			if s.Attributes["sluice.tail.seconds"] == "" || s.Attributes["http.response.body.size"] == "0" {
				t.Errorf("tail end %v", s.Attributes)
			}
		}
	}
}

// What went wrong is to be found by error.type: a node that breaks off, a panic, a
// refusal that is our fault; and one that is the client's is no error.
func TestTraceOfFaults(t *testing.T) {
	r, tracer := newTraces(t, 1)
	rg, _ := newUpRig(t, func(c *upConn, q *upRequest) {
		switch {
		case strings.Contains(q.Target, "way=cut"):
			c.say("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
			c.reset()
		case strings.Contains(q.Target, "way=reset"):
			c.reset()
		case strings.Contains(q.Target, "way=500"):
			c.say(whole("500 Internal Server Error", "", "x"))
		default:
			c.say(whole("404 Not Found", "", "x"))
		}
	}, rigOptions{change: func(o *Options) { o.Tracer = tracer }})
	for _, request := range []string{
		rawGet("GET", "/acme/s.priv?way=cut", "Authorization: Bearer "+rg.Keys[key]),
		rawGet("HEAD", "/acme/s.priv?way=reset", "Authorization: Bearer "+rg.Keys[key]),
		rawGet("GET", "/acme/s.priv/bootstrap?way=500", "Authorization: Bearer "+rg.Keys[key]),
		rawGet("GET", "/acme/s.pub/snapshot/7"),
		rawGet("GET", "/acme/s.priv/snapshot/7"),
		rawGet("BREW", "/acme/s.priv"),
		rawGet("GET", "/nothing"),
	} {
		rg.raw(t, request)
	}
	o := rg.Options
	o.Upstream = leaking{rg.Pool, "secret"}
	rg.Gateway.Swap(o)
	rg.raw(t, rawGet("GET", "/acme/s.pub/incarnation/1/chunk/7"))
	rg.awaitLines(t, 8)
	tracer.Close()
	got := map[string][]string{}
	spans, _ := r.Spans()
	for _, s := range spans {
		if s.GetKind() == 2 {
			got[s.GetName()] = append(got[s.GetName()], s.Attributes["http.response.status_code"]+" "+s.Attributes["error.type"]+" "+s.Attributes["sluice.code"])
		}
	}
	stream := "/{account}/s.{stream}"
	for name, want := range map[string][]string{
		"GET " + stream:                        {"200 cut "},
		"HEAD " + stream:                       {"502 UPSTREAM_FAILED UPSTREAM_FAILED"},
		"GET " + stream + "/bootstrap":         {"500 500 "},
		"GET " + stream + "/snapshot/{offset}": {"404  ", "401  INVALID_CREDENTIAL"},
		"HTTP":                                 {"405  METHOD_NOT_ALLOWED"},
		"GET":                                  {"404  NOT_FOUND"},
		"GET " + stream + "/incarnation/{token}/chunk/{offset}": {"500 panic INTERNAL"},
	} {
		if !slices.Equal(got[name], want) {
			t.Errorf("%s: %q, want %q", name, got[name], want)
		}
	}
}

// An exchange of a token and a call of the Management API are traced as any request.
func TestTraceOfAnExchange(t *testing.T) {
	r, tracer := newTraces(t, 1)
	rg := newRig(t, rigOptions{change: func(o *Options) { o.Tracer = tracer }})
	if res := rg.exchange(t, exchangeForm(rg.Keys[key]), "Traceparent", parentOne); res.StatusCode != http.StatusOK {
		t.Fatalf("%d %s", res.StatusCode, res.Text)
	}
	rg.awaitLines(t, 1)
	tracer.Close()
	if got, want := r.Tree(traceOne), "POST /v1/token\n  authenticate\n  issue token\n"; got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
}

// The page of the log's fields and the lines have the same names.
func TestAccessFields(t *testing.T) {
	_, tracer := newTraces(t, 1)
	half := 1 - 1e-9
	rg := newRig(t, rigOptions{change: func(o *Options) { o.Tracer, o.LogSample = tracer, &half }})
	rg.Do(t, http.MethodGet, "/acme/s.priv?offset=-1&live=long-poll&timeout_ms=1", key, "")
	rg.Do(t, http.MethodPost, "/acme/s.priv", key, `{}`, "Content-Type", rigType)
	rg.Do(t, http.MethodGet, "/acme/s.priv", "unknown", "")
	rg.Do(t, http.MethodGet, "/nothing", "", "")
	rg.awaitLines(t, 4)
	seen := map[string]bool{}
	for line := range strings.Lines(rg.Log.String()) {
		if !strings.Contains(line, `"message":"request"`) {
			continue
		}
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatal(err)
		}
		for name := range fields {
			seen[name] = true
		}
	}
	want := map[string]bool{"time": true, "level": true, "message": true}
	for _, f := range telemetry.AccessFields() {
		want[f.Name] = true
	}
	if !maps.Equal(seen, want) {
		t.Errorf("the lines have %v,\nthe page %v", slices.Sorted(maps.Keys(seen)), slices.Sorted(maps.Keys(want)))
	}
}

// What went well is sampled; all else has its line, and metrics count everything.
func TestLogSample(t *testing.T) {
	none := 0.0
	rg := newRig(t, rigOptions{change: func(o *Options) { o.LogSample = &none }})
	for range 3 {
		rg.Do(t, http.MethodGet, "/acme/s.pub?offset=-1", "", "")
	}
	rg.Do(t, http.MethodGet, "/acme/s.pub?offset=0&live=long-poll&timeout_ms=1500", "", "")
	rg.awaitCount(t, `sluice_log_lines_sampled_out_total 4`)
	rg.Do(t, http.MethodGet, "/acme/s.missing", key, "")
	rg.Do(t, http.MethodGet, "/acme/s.priv", "", "")
	rg.Do(t, http.MethodOptions, "/acme/s.priv", "", "")
	opened, cancel := rg.open(t, client(), "/acme/s.pub?offset=-1&live=sse", "")
	readN(t, opened.Body, 3)
	cancel()
	lines := rg.awaitLines(t, 4)
	for _, l := range lines {
		if _, ok := l["sampled"]; ok {
			t.Errorf("a line that is always there says that it stands for more: %v", l)
		}
	}
	rg.awaitCount(t, `sluice_requests_total{operation="read",status="200"} 4`)
	half := 0.5
	o := rg.Options
	o.LogSample = &half
	rg.Gateway.Swap(o)
	for range 200 {
		rg.Do(t, http.MethodGet, "/acme/s.pub?offset=-1", "", "")
	}
	rg.awaitCount(t, `sluice_requests_total{operation="read",status="200"} 204`)
	written := 0
	for _, l := range rg.requestLines(t)[4:] {
		if l["sampled"] == 0.5 {
			written++
		}
	}
	rg.awaitCount(t, "sluice_log_lines_sampled_out_total "+strconv.Itoa(204-written))
	// 200 fair coins are outside of this once in 10^9 times.
	if written < 57 || written > 143 {
		t.Errorf("%d of 200 lines were written, at a half", written)
	}
}
