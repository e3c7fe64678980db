// Package otlptest has the receiver of traces that tests send to: it speaks OTLP over
// HTTP and decodes what comes by OpenTelemetry's own protobuf. It refuses to know who
// sends.
package otlptest

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sort"
	"strings"
	"sync"
	"sync/atomic"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// maxBody bounds a call, unpacked, in bytes.
const maxBody = 16 << 20

// Span is a span as it came.
type Span struct {
	*tracepb.Span

	// Resource and Attributes are what it says of its process and of itself, as text.
	Resource, Attributes map[string]string
}

// TraceID is the trace's id in hex.
func (s Span) TraceID() string { return fmt.Sprintf("%x", s.GetTraceId()) }

// ID is the span's id in hex.
func (s Span) ID() string { return fmt.Sprintf("%x", s.GetSpanId()) }

// Parent is the parent's id in hex; "" for none.
func (s Span) Parent() string { return fmt.Sprintf("%x", s.GetParentSpanId()) }

// Receiver takes spans. It is safe for concurrent use; Close ends it.
type Receiver struct {
	// URL is what a sender is given.
	URL string
	// Answer, where it is not 0, is the status of each answer, and nothing is taken.
	Answer atomic.Int64
	// Hold, where it is set, is waited for before anything is answered.
	Hold atomic.Pointer[chan struct{}]
	// Calls counts what was asked.
	Calls atomic.Int64

	server *httptest.Server

	mu     sync.Mutex
	spans  []Span
	raw    []byte // of all calls, unpacked
	header http.Header
	faults []string
}

// New begins to listen on loopback.
func New() *Receiver {
	r := &Receiver{}
	r.server = httptest.NewServer(r)
	r.URL = r.server.URL
	return r
}

// Close ends it.
func (r *Receiver) Close() {
	if hold := r.Hold.Swap(nil); hold != nil {
		close(*hold)
	}
	r.server.Close()
}

// ServeHTTP implements http.Handler.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.Calls.Add(1)
	if hold := r.Hold.Load(); hold != nil {
		select {
		case <-*hold:
		case <-q.Context().Done():
			return
		}
	}
	if status := r.Answer.Load(); status != 0 {
		w.WriteHeader(int(status))
		return
	}
	if err := r.take(q); err != nil {
		r.mu.Lock()
		r.faults = append(r.faults, err.Error())
		r.mu.Unlock()
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	w.WriteHeader(http.StatusOK)
}

func (r *Receiver) take(q *http.Request) error {
	if q.Method != http.MethodPost || q.URL.Path != "/v1/traces" || q.Header.Get("Content-Type") != "application/x-protobuf" {
		return fmt.Errorf("%s %s of %s is no OTLP/HTTP", q.Method, q.URL.Path, q.Header.Get("Content-Type"))
	}
	body := io.Reader(q.Body)
	if q.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(q.Body)
		if err != nil {
			return err
		}
		body = z
	}
	raw, err := io.ReadAll(io.LimitReader(body, maxBody))
	if err != nil {
		return err
	}
	var got tracepb.TracesData // has the wire format of a call
	if err := proto.Unmarshal(raw, &got); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.header = q.Header.Clone()
	r.raw = append(r.raw, raw...)
	for _, process := range got.GetResourceSpans() {
		about := texts(process.GetResource().GetAttributes())
		for _, scope := range process.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				r.spans = append(r.spans, Span{s, about, texts(s.GetAttributes())})
			}
		}
	}
	return nil
}

func texts(list []*commonpb.KeyValue) map[string]string {
	m := make(map[string]string, len(list))
	for _, a := range list {
		switch v := a.GetValue().GetValue().(type) {
		case *commonpb.AnyValue_StringValue:
			m[a.GetKey()] = v.StringValue
		case *commonpb.AnyValue_IntValue:
			m[a.GetKey()] = fmt.Sprint(v.IntValue)
		case *commonpb.AnyValue_DoubleValue:
			m[a.GetKey()] = fmt.Sprint(v.DoubleValue)
		case *commonpb.AnyValue_BoolValue:
			m[a.GetKey()] = fmt.Sprint(v.BoolValue)
		default:
			m[a.GetKey()] = a.GetValue().String()
		}
	}
	return m
}

// Spans are those that came so far, in the order of their beginning, and what was wrong
// with what came.
func (r *Receiver) Spans() (spans []Span, faults []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	spans = append(spans, r.spans...)
	sort.SliceStable(spans, func(i, j int) bool { return spans[i].GetStartTimeUnixNano() < spans[j].GetStartTimeUnixNano() })
	return spans, append(faults, r.faults...)
}

// Raw is all that came, as bytes: whoever looks for a secret finds it here.
func (r *Receiver) Raw() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return string(r.raw)
}

// Header is that of the last call.
func (r *Receiver) Header() http.Header {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.header
}

// Tree draws the spans of one trace, a line each: its name, and indented below it its
// children, in the order of their names. Parents that did not come are left out.
func (r *Receiver) Tree(trace string) string {
	spans, _ := r.Spans()
	known, children := map[string]bool{}, map[string][]Span{}
	for _, s := range spans {
		if s.TraceID() == trace {
			known[s.ID()] = true
		}
	}
	for _, s := range spans {
		if s.TraceID() != trace {
			continue
		}
		parent := s.Parent()
		if !known[parent] {
			parent = ""
		}
		children[parent] = append(children[parent], s)
	}
	var b strings.Builder
	var draw func(parent, indent string)
	draw = func(parent, indent string) {
		list := children[parent]
		sort.SliceStable(list, func(i, j int) bool { return list[i].GetName() < list[j].GetName() })
		for _, s := range list {
			fmt.Fprintf(&b, "%s%s\n", indent, s.GetName())
			draw(s.ID(), indent+"  ")
		}
	}
	draw("", "")
	return b.String()
}
