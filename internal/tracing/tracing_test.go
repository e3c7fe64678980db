package tracing

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"sluice/internal/bubble"
	"sluice/internal/otlptest"
)

const (
	sampled   = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	unsampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
)

func newReceiver(t testing.TB) *otlptest.Receiver {
	t.Helper()
	r := otlptest.New()
	t.Cleanup(r.Close)
	return r
}

func never() float64 { return 1 }

func newTracer(t testing.TB, s Settings, o Options) *Tracer {
	t.Helper()
	if o.Random == nil {
		o.Random = never
	}
	tr := New(o)
	t.Cleanup(tr.Close)
	if err := tr.Set(s); err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestParse(t *testing.T) {
	for name, tc := range map[string]struct {
		values []string
		known  bool
		flag   bool
	}{
		"sampled":           {[]string{sampled}, true, true},
		"not sampled":       {[]string{unsampled}, true, false},
		"other flags":       {[]string{sampled[:53] + "ff"}, true, true},
		"a later version":   {[]string{"cc" + sampled[2:] + "-what-comes"}, true, true},
		"later, as it is":   {[]string{"cc" + sampled[2:]}, true, true},
		"none":              {nil, false, false},
		"two":               {[]string{sampled, sampled}, false, false},
		"empty":             {[]string{""}, false, false},
		"longer":            {[]string{sampled + "-x"}, false, false},
		"later, no dash":    {[]string{"cc" + sampled[2:] + "x"}, false, false},
		"much longer":       {[]string{"cc" + sampled[2:] + "-" + strings.Repeat("x", 300)}, false, false},
		"version ff":        {[]string{"ff" + sampled[2:]}, false, false},
		"version no hex":    {[]string{"0x" + sampled[2:]}, false, false},
		"flags no hex":      {[]string{sampled[:53] + "zz"}, false, false},
		"upper case":        {[]string{strings.ToUpper(sampled)}, false, false},
		"zero trace":        {[]string{"00-00000000000000000000000000000000-b7ad6b7169203331-01"}, false, false},
		"zero span":         {[]string{"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01"}, false, false},
		"a key in its form": {[]string{"00-tbo_651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, false, false},
		"spaces":            {[]string{" " + sampled[1:]}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			c, known := parse(tc.values)
			if known != tc.known || c.IsSampled() != tc.flag {
				t.Errorf("parse = %v, %v; want %v, %v", c.IsSampled(), known, tc.flag, tc.known)
			}
			want := ""
			if tc.known {
				want = unsampled
			}
			if got := Unsampled(tc.values); got != want {
				t.Errorf("Unsampled = %q, want %q", got, want)
			}
		})
	}
}

// What is recorded: a parent that says so within its budget, none that says it does
// not, and the rest by chance, which is never the id's that a stranger chose.
func TestWhatIsRecorded(t *testing.T) {
	now := time.Unix(1000, 0)
	chance := 1.0
	tr := newTracer(t, Settings{Endpoint: newReceiver(t).URL, Sample: 0.5, ParentsPerSecond: 2}, Options{
		Now: func() time.Time { return now }, Random: func() float64 { return chance },
	})
	recorded := func(parent ...string) bool {
		s := tr.Server(parent)
		s.End()
		return s != nil
	}
	if recorded() || recorded(unsampled) {
		t.Error("recorded what chance is against, or what its client does not record")
	}
	chance = 0.4
	if !recorded() || recorded(unsampled) {
		t.Error("not recorded what chance is for, or recorded what its client does not")
	}
	chance = 1
	n := 0
	for range 1000 {
		if recorded(sampled) {
			n++
		}
	}
	if n != 4 {
		t.Errorf("%d of 1000 that a client wants recorded were; the budget is 4 at once", n)
	}
	now = now.Add(time.Second)
	for range 1000 {
		if recorded(sampled) {
			n++
		}
	}
	if n != 6 {
		t.Errorf("%d were after a second, want 6", n)
	}
	chance = 0.4
	if !recorded(sampled) {
		t.Error("over the budget a client's wish is chance's, as anybody's")
	}
}

// A reload neither fills the budget nor sends what waits elsewhere, and takes up what
// is sampled; one without an endpoint turns all off.
func TestSet(t *testing.T) {
	first, second := newReceiver(t), newReceiver(t)
	tr := newTracer(t, Settings{Endpoint: first.URL, ParentsPerSecond: 1}, Options{Now: func() time.Time { return time.Unix(1, 0) }})
	for range 2 {
		tr.Server([]string{sampled}).End()
	}
	set := func(s Settings) {
		t.Helper()
		if err := tr.Set(s); err != nil {
			t.Fatal(err)
		}
	}
	set(Settings{Endpoint: first.URL, ParentsPerSecond: 1, Sample: 0})
	if tr.Server([]string{sampled}) != nil {
		t.Error("a reload filled the budget")
	}
	set(Settings{Endpoint: first.URL, ParentsPerSecond: 1, Sample: 1})
	tr.Server(nil).End()
	set(Settings{Endpoint: second.URL, Sample: 1, Header: http.Header{"X-Team": {"seven"}}})
	tr.Server(nil).End()
	if err := tr.Set(Settings{Endpoint: "gopher://x"}); err == nil || !tr.On() {
		t.Errorf("Set took an endpoint that is none: %v, or turned all off", err)
	}
	set(Settings{})
	if tr.On() || tr.Server([]string{sampled}) != nil {
		t.Error("without an endpoint it records")
	}
	tr.Close()
	for r, want := range map[*otlptest.Receiver]int{first: 3, second: 1} {
		if spans, faults := r.Spans(); len(spans) != want || faults != nil {
			t.Errorf("%d spans came, want %d; %v", len(spans), want, faults)
		}
	}
	if second.Header().Get("X-Team") != "seven" {
		t.Error("the header did not go with the call")
	}
	if s := tr.Stats(); s.Sent != 4 || s.Dropped != 0 || s.Failing {
		t.Errorf("stats %+v", s)
	}
}

func TestSpans(t *testing.T) {
	r := newReceiver(t)
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
	tr := newTracer(t, Settings{Endpoint: r.URL + "/", Sample: 1, ParentsPerSecond: 1}, Options{Service: "sluice", Version: "v1", Region: "eu"})
	s := tr.Server([]string{sampled})
	if s.TraceID() != sampled[3:35] {
		t.Errorf("trace %s", s.TraceID())
	}
	s.Name("GET /x")
	s.Text("text", strings.Repeat("x", 2*maxValue))
	s.Text("nothing", "")
	s.Number("number", 7)
	s.Seconds("seconds", 1500*time.Millisecond)
	s.Flag("flag")
	s.Event("now")
	child := s.Child("inner")
	call := From(child.In(t.Context())).Client("call")
	if !strings.HasPrefix(call.Parent(), sampled[:36]) || !strings.HasSuffix(call.Parent(), "-01") {
		t.Errorf("goes on as %s", call.Parent())
	}
	call.Fail("cut")
	call.End()
	child.End()
	s.End()
	tr.Close()
	if got, want := r.Tree(sampled[3:35]), "GET /x\n  inner\n    call\n"; got != want {
		t.Errorf("tree %q, want %q", got, want)
	}
	spans, _ := r.Spans()
	root := spans[0]
	a := root.Attributes
	if root.Parent() != sampled[36:52] || len(a["text"]) != maxValue || a["number"] != "7" || a["seconds"] != "1.5" || a["flag"] != "true" || len(a) != 4 || len(root.GetEvents()) != 1 {
		t.Errorf("root %v of %s", a, root.Parent())
	}
	if spans[2].Attributes["error.type"] != "cut" || spans[2].GetStatus().GetCode() != 2 {
		t.Errorf("call %v", spans[2])
	}
	for k, want := range map[string]string{"service.name": "sluice", "service.version": "v1", "cloud.region": "eu", "deployment.environment.name": "test"} {
		if root.Resource[k] != want {
			t.Errorf("%s is %q, want %q", k, root.Resource[k], want)
		}
	}
}

func TestOffCostsNothing(t *testing.T) {
	var none *Tracer
	none.Close()
	parent := []string{sampled}
	for name, tr := range map[string]*Tracer{"none": none, "off": New(Options{}), "not recorded": newTracer(t, Settings{Endpoint: newReceiver(t).URL, Sample: 0.5}, Options{})} {
		if n := testing.AllocsPerRun(100, func() {
			s := tr.Server(nil)
			if name != "not recorded" {
				s = tr.Server(parent)
			}
			s.Name("x")
			s.Text("k", "v")
			c := s.Child("c")
			c.Fail("x")
			c.End()
			s.End()
			_ = s.Parent() + s.TraceID()
			_ = From(s.In(context.Background()))
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// exporter is scripted: it takes spans or waits.
type exporter struct {
	mu    sync.Mutex
	got   int
	err   error
	block bool
}

func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	e.mu.Lock()
	block, err := e.block, e.err
	e.mu.Unlock()
	if block {
		<-ctx.Done()
		return ctx.Err()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		e.got += len(spans)
	}
	return err
}

func (e *exporter) Shutdown(context.Context) error { return nil }

// An endpoint that did not answer held up requests of others' gateways, or their stop:
// what is too much is dropped and counted, and a stop waits for two seconds.
func TestQueueNeverWaits(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var c counts
		var changes []error
		e := &exporter{block: true}
		q := newQueue(e, &c, func(err error) { changes = append(changes, err) })
		const many = 3 * queueSpans
		for range many {
			q.OnEnd(nil)
		}
		if c.dropped.Load() < many-queueSpans-batchSpans {
			t.Errorf("dropped %d of %d: the queue has no bound", c.dropped.Load(), many)
		}
		began := time.Now()
		q.close()
		if took := time.Since(began); took != closeTime {
			t.Errorf("the stop took %v, want %v", took, closeTime)
		}
		if c.sent.Load() != 0 || c.dropped.Load() != many {
			t.Errorf("sent %d, dropped %d of %d", c.sent.Load(), c.dropped.Load(), many)
		}
		if len(changes) != 1 || changes[0] == nil {
			t.Errorf("told %v, want one failure", changes)
		}
		q.OnEnd(nil)
		if c.dropped.Load() != many+1 {
			t.Error("what ends after the stop is not counted")
		}
	})
}

func TestQueueSends(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var c counts
		var changes []error
		e := &exporter{err: errors.New("down")}
		q := newQueue(e, &c, func(err error) { changes = append(changes, err) })
		step := func(n int) {
			for range n {
				q.OnEnd(nil)
			}
			time.Sleep(2 * batchTime)
			bubble.Wait()
		}
		step(3)
		step(3)
		e.mu.Lock()
		e.err = nil
		e.mu.Unlock()
		step(4)
		step(batchSpans + 1)
		if c.sent.Load() != batchSpans+5 || c.dropped.Load() != 6 || c.failing.Load() {
			t.Errorf("sent %d, dropped %d", c.sent.Load(), c.dropped.Load())
		}
		if len(changes) != 2 || changes[0] == nil || changes[1] != nil {
			t.Errorf("told %v, want a failure and its end", changes)
		}
		for range 3 {
			q.OnEnd(nil)
		}
		q.close()
		q.close()
		if c.sent.Load() != batchSpans+8 {
			t.Errorf("what waited at the stop was not sent: %d", c.sent.Load())
		}
	})
}

// What an endpoint may take later is sent again, what it will never take is not.
func TestUploadTriesAgain(t *testing.T) {
	r := newReceiver(t)
	up, err := newUploader(r.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r.Answer.Store(http.StatusBadRequest)
	if err := up.UploadTraces(ctx, nil); err == nil || r.Calls.Load() != 1 {
		t.Errorf("400: %v after %d calls", err, r.Calls.Load())
	}
	r.Answer.Store(http.StatusServiceUnavailable)
	done := make(chan error, 1)
	go func() { done <- up.UploadTraces(ctx, nil) }()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for r.Calls.Load() < 2 {
		<-tick.C
	}
	r.Answer.Store(0)
	if err := <-done; err != nil || r.Calls.Load() != 3 {
		t.Errorf("503, then 200: %v after %d calls", err, r.Calls.Load())
	}
	// At a stop nothing is tried again.
	closing := make(chan struct{})
	close(closing)
	r.Answer.Store(http.StatusServiceUnavailable)
	if err := up.UploadTraces(context.WithValue(ctx, closingKey{}, (<-chan struct{})(closing)), nil); err == nil || r.Calls.Load() != 4 {
		t.Errorf("at a stop: %v after %d calls", err, r.Calls.Load())
	}
}

func BenchmarkSpan(b *testing.B) {
	tr := newTracer(b, Settings{Endpoint: newReceiver(b).URL, Sample: 1}, Options{})
	b.ReportAllocs()
	for b.Loop() {
		s := tr.Server(nil)
		s.Text("http.request.method", "GET")
		s.End()
	}
}
