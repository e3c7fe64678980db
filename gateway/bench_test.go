package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"sluice/auth"
	"sluice/internal/store/memory"
	"sluice/internal/telemetry"
	"sluice/internal/tenant"
	"sluice/ratelimit"
)

// chainBench is a chain whose innermost handler returns at once, and one
// request. What is measured is what the gateway decides, without network.
type chainBench struct {
	chain  *chain
	serve  handler // the steps alone
	writer http.ResponseWriter
	req    *http.Request
}

// discardWriter is an answer that goes nowhere.
type discardWriter struct{ header http.Header }

func (w discardWriter) Header() http.Header         { return w.header }
func (w discardWriter) Write(p []byte) (int, error) { return len(p), nil }
func (w discardWriter) WriteHeader(int)             {}

// steadyRandom is what request ids are made of here: the kernel's is measured
// elsewhere.
type steadyRandom struct{}

func (steadyRandom) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(i)
	}
	return len(p), nil
}

func newChainBench(tb testing.TB, method, target, keyName string) *chainBench {
	tb.Helper()
	content, keys := rigContent(tb, func(l *tenant.Limits) { l.RequestsPerSecond, l.Burst = 1_000_000_000, 1_000_000_000 })
	directory, err := memory.New(content)
	if err != nil {
		tb.Fatal(err)
	}
	metrics, err := telemetry.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		tb.Fatal(err)
	}
	limits := ratelimit.NewMemory(ratelimit.MemoryOptions{Now: time.Now})
	b, open := &chainBench{}, &openTails{now: time.Now}
	open.check = func(ctx context.Context, t *openTail) (*auth.Principal, error) { return b.chain.recheck(ctx, t) }
	b.chain = newChain(Options{
		Directory: directory, Authenticator: auth.New(auth.Options{Directory: directory, Now: time.Now}),
		Limiter: limits, Tails: limits, Uploads: limits, Log: telemetry.NewLogger(io.Discard, zap.NewAtomicLevelAt(zap.InfoLevel)),
		Metrics: metrics, Budget: NewBodyBudget(1 << 20), Now: time.Now, Random: steadyRandom{}, Pace: Pace{}.withDefaults(),
	}, open)
	b.serve = func(*Scope, http.ResponseWriter, *http.Request) error { return nil }
	for _, st := range slices.Backward(b.chain.order()) {
		b.serve = st.run(b.serve)
	}
	b.chain.serve = b.serve
	b.writer = discardWriter{http.Header{}}
	b.req = httptest.NewRequestWithContext(tb.Context(), method, target, nil)
	b.req.RequestURI = target
	if k := keys[keyName]; k != "" {
		b.req.Header.Set("Authorization", "Bearer "+k)
	}
	return b
}

// steps runs the chain's steps with a fresh Scope: route, authenticate,
// authorize, account, lifecycle, size, rate, tail, body.
func (b *chainBench) steps() error {
	s := Scope{bodyDone: true}
	return b.serve(&s, b.writer, b.req)
}

// whole is steps with everything around them: the scope, the answer of a
// refusal, metrics and the access log.
func (b *chainBench) whole() {
	clear(b.writer.Header())
	b.chain.ServeHTTP(b.writer, b.req)
}

type chainCase struct {
	name, method, target, key string
	err                       error
}

func chainCases() []chainCase {
	return []chainCase{
		{"key", http.MethodGet, "/acme/s.priv?offset=00000000000000000042", "full", nil},
		{"narrowed", http.MethodPost, "/acme/s.priv", "covering", nil},
		{"anonymous", http.MethodGet, "/acme/s.pub?offset=-1", "", nil},
		{"tail", http.MethodGet, "/acme/s.priv?offset=now&live=sse", "full", nil},
		{"chunk", http.MethodGet, "/acme/s.pub/incarnation/7/chunk/00000000000000000042", "full", nil},
		{"refused", http.MethodGet, "/acme/s.priv?offset=-1", "unknown", auth.ErrUnknownKey},
	}
}

// BenchmarkChain is what a request costs before a node is asked. Target of the
// issue, for "key": under 3 µs and at most 10 allocations.
func BenchmarkChain(b *testing.B) {
	for _, tc := range chainCases() {
		b.Run(tc.name, func(b *testing.B) {
			c := newChainBench(b, tc.method, tc.target, tc.key)
			b.ReportAllocs()
			for b.Loop() {
				if err := c.steps(); !errors.Is(err, tc.err) {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkServe is BenchmarkChain with scope, refusals, metrics and access log.
func BenchmarkServe(b *testing.B) {
	for _, tc := range chainCases() {
		b.Run(tc.name, func(b *testing.B) {
			c := newChainBench(b, tc.method, tc.target, tc.key)
			b.ReportAllocs()
			for b.Loop() {
				c.whole()
			}
		})
	}
}

// BenchmarkServeTraced is BenchmarkServe with traces on: of a request that is recorded,
// and of one that is not.
func BenchmarkServeTraced(b *testing.B) {
	for name, sample := range map[string]float64{"recorded": 1, "not": 0} {
		b.Run(name, func(b *testing.B) {
			c := newChainBench(b, http.MethodGet, "/acme/s.priv?offset=00000000000000000042", key)
			_, c.chain.Tracer = newTraces(b, sample)
			b.ReportAllocs()
			for b.Loop() {
				c.whole()
			}
		})
	}
}

func BenchmarkParseRoute(b *testing.B) {
	for name, target := range map[string]string{
		"read":    "/acme/s.priv?offset=00000000000000000042",
		"chunk":   "/acme/s.priv/incarnation/7/chunk/00000000000000000042",
		"refused": "/acme/s.pub/../s.priv",
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := parseRoute(http.MethodGet, target); (err != nil) != (name == "refused") {
					b.Fatal(err)
				}
			}
		})
	}
}

// Traces that are off, or on for others, cost a request no allocation.
func TestTracesCostNothing(t *testing.T) {
	c := newChainBench(t, http.MethodGet, "/acme/s.priv?offset=00000000000000000042", key)
	off := testing.AllocsPerRun(200, c.whole)
	_, c.chain.Tracer = newTraces(t, 0.5) // and chance is against it
	if on := testing.AllocsPerRun(200, c.whole); on != off || off > 10 {
		t.Errorf("%v allocations with traces off, %v with those of others", off, on)
	}
}

// The bound on allocations holds in every build, also where nobody looks at
// benchmarks.
func TestChainAllocations(t *testing.T) {
	for _, tc := range chainCases() {
		t.Run(tc.name, func(t *testing.T) {
			c := newChainBench(t, tc.method, tc.target, tc.key)
			if err := c.steps(); !errors.Is(err, tc.err) {
				t.Fatal(err)
			}
			if n := testing.AllocsPerRun(200, func() { _ = c.steps() }); n > 10 {
				t.Errorf("got %v allocations, want at most 10", n)
			}
		})
	}
}
