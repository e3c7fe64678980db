package tracing

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"
)

// Settings say whether traces are sent, where to and which. They may be replaced
// while the program runs.
type Settings struct {
	// Endpoint is the URL of an OTLP/HTTP endpoint; "" turns traces off. Without a
	// path it has /v1/traces.
	Endpoint string
	// Header goes with each call of it. It may hold secrets, and is never printed.
	Header http.Header
	// Sample is the share of traces that begin here which is recorded, 0 to 1.
	Sample float64
	// ParentsPerSecond is how many requests a second are recorded since their client
	// says so, over all clients, and twice as many at once.
	ParentsPerSecond int
}

// Options are what a Tracer is given once.
type Options struct {
	// Service, Version and Region describe this process; the last may be empty.
	Service, Version, Region string
	// Random gives numbers in [0, 1); it is called by many goroutines.
	Random func() float64
	// Now is the clock of the budget; nil = the system's.
	Now func() time.Time
	// Changed is told when spans cannot be sent any more, and with nil when they can
	// again; nil = nobody is. It must not block.
	Changed func(error)
}

// Stats count since the start of the process.
type Stats struct {
	Sent    int64 // taken by the endpoint
	Dropped int64 // lost: the queue was full, or the endpoint took them not
	Failing bool  // the last try to send failed
}

// Tracer makes spans. A nil one makes none. It is safe for concurrent use; Close ends
// its goroutine.
type Tracer struct {
	options Options
	active  atomic.Pointer[active]
	counts  counts

	mu      sync.Mutex // guards Set and Close
	set     Settings
	leaving sync.WaitGroup // of what Set has replaced
}

// active is a way to an endpoint, with what is sampled.
type active struct {
	sample  float64
	parents *rate.Limiter
	start   func(parent trace.SpanContext, name string, kind trace.SpanKind) trace.Span
	queue   *queue
}

// New makes a tracer that is off.
func New(o Options) *Tracer {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Changed == nil {
		o.Changed = func(error) {}
	}
	return &Tracer{options: o}
}

// Check says what of settings cannot be put in force.
func (s Settings) Check() error {
	if s.Endpoint == "" {
		return nil
	}
	_, err := endpointURL(s.Endpoint)
	return err
}

// Set puts settings in force for requests that begin from now on. What waits for an
// endpoint before is still sent to it, for closeTime at the most. Its error is
// Check's, and changes nothing.
func (t *Tracer) Set(s Settings) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.Endpoint == "" {
		t.replace(nil)
		t.set = s
		return nil
	}
	next := &active{sample: s.Sample, parents: rate.NewLimiter(rate.Limit(s.ParentsPerSecond), 2*s.ParentsPerSecond)}
	if was := t.active.Load(); was != nil && s.Endpoint == t.set.Endpoint && sameHeader(s.Header, t.set.Header) {
		next.start, next.queue = was.start, was.queue
		if s.ParentsPerSecond == t.set.ParentsPerSecond {
			next.parents = was.parents // a reload fills no budget
		}
		t.active.Store(next)
		t.set = s
		return nil
	}
	up, err := newUploader(s.Endpoint, s.Header)
	if err != nil {
		return err
	}
	exporter, err := otlptrace.New(context.Background(), up)
	if err != nil {
		return fmt.Errorf("traces: %w", err)
	}
	next.queue = newQueue(exporter, &t.counts, t.options.Changed)
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithSpanProcessor(next.queue),
		// What is not to be recorded never comes to it.
		sdktrace.WithSampler(sdktrace.AlwaysSample()),
		sdktrace.WithResource(t.resource()),
		sdktrace.WithRawSpanLimits(sdktrace.SpanLimits{
			AttributeValueLengthLimit: maxValue, AttributeCountLimit: 64, EventCountLimit: 16, LinkCountLimit: 4,
			AttributePerEventCountLimit: 16, AttributePerLinkCountLimit: 4,
		}),
	)
	next.start = starter(provider.Tracer("sluice", trace.WithInstrumentationVersion(t.options.Version)))
	t.replace(next)
	t.set = s
	return nil
}

// maxValue bounds the text of an attribute, in bytes.
const maxValue = 256

func sameHeader(a, b http.Header) bool {
	if len(a) != len(b) {
		return false
	}
	for name := range a {
		if a.Get(name) != b.Get(name) {
			return false
		}
	}
	return true
}

// replace puts another way in force and ends the one before; t.mu is held.
func (t *Tracer) replace(next *active) {
	was := t.active.Swap(next)
	if was != nil {
		t.leaving.Go(func() { was.queue.close() })
	}
}

// resource describes the process: ours, and what OTEL_RESOURCE_ATTRIBUTES and
// OTEL_SERVICE_NAME add.
func (t *Tracer) resource() *resource.Resource {
	attrs := []attribute.KeyValue{
		attribute.String("service.name", t.options.Service),
		attribute.String("service.version", t.options.Version),
	}
	if t.options.Region != "" {
		attrs = append(attrs, attribute.String("cloud.region", t.options.Region))
	}
	return resource.NewSchemaless(attrs...)
}

// Stats are the counts now.
func (t *Tracer) Stats() Stats {
	return Stats{Sent: t.counts.sent.Load(), Dropped: t.counts.dropped.Load(), Failing: t.counts.failing.Load()}
}

// Close sends what waits, for closeTime at the most, and ends. Spans that end
// afterwards are dropped.
func (t *Tracer) Close() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.replace(nil)
	t.leaving.Wait()
}

// On reports whether any request may be recorded.
func (t *Tracer) On() bool { return t != nil && t.active.Load() != nil }

// Server begins the span of a request that has come in, with what its traceparent
// says; nil where it is not recorded.
func (t *Tracer) Server(traceparent []string) *Span {
	if t == nil {
		return nil
	}
	a := t.active.Load()
	if a == nil {
		return nil
	}
	parent, ok := parse(traceparent)
	if !t.records(a, parent, ok) {
		return nil
	}
	return a.begin(parent, "request", trace.SpanKindServer)
}

func (t *Tracer) records(a *active, parent trace.SpanContext, known bool) bool {
	if known && !parent.IsSampled() {
		return false
	}
	if known && a.parents.AllowN(t.options.Now(), 1) {
		return true
	}
	switch a.sample {
	case 0:
		return false
	case 1:
		return true
	}
	return t.options.Random() < a.sample
}

func (a *active) begin(parent trace.SpanContext, name string, kind trace.SpanKind) *Span {
	return &Span{span: a.start(parent, name, kind), from: a}
}

// starter begins spans whose parent is handed over: nothing here travels in a request's
// context, which ends before some of its spans do.
func starter(tracer trace.Tracer) func(trace.SpanContext, string, trace.SpanKind) trace.Span {
	base := context.Background()
	return func(parent trace.SpanContext, name string, kind trace.SpanKind) trace.Span {
		ctx := base
		if parent.IsValid() {
			ctx = trace.ContextWithSpanContext(base, parent)
		}
		_, span := tracer.Start(ctx, name, trace.WithSpanKind(kind))
		return span
	}
}
