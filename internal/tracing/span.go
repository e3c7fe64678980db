package tracing

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Span is a piece of work that is recorded. A nil one records nothing. What is said of
// it is said by one goroutine; children may be begun by any. Texts are cut at 256 bytes.
type Span struct {
	span trace.Span
	from *active
	// What is said of it, until it ends: each call of the library would copy some.
	said []attribute.KeyValue
}

func (s *Span) say(a attribute.KeyValue) {
	if s.said == nil {
		s.said = make([]attribute.KeyValue, 0, usualAttributes)
	}
	s.said = append(s.said, a)
}

// usualAttributes is about how many a span has.
const usualAttributes = 20

// Child begins a span of work within s.
func (s *Span) Child(name string) *Span { return s.child(name, trace.SpanKindInternal) }

// Client begins a span of a call to somebody else.
func (s *Span) Client(name string) *Span { return s.child(name, trace.SpanKindClient) }

func (s *Span) child(name string, kind trace.SpanKind) *Span {
	if s == nil {
		return nil
	}
	return s.from.begin(s.span.SpanContext(), name, kind)
}

// Name renames the span: of few different names, never one that a client chooses.
func (s *Span) Name(name string) {
	if s != nil {
		s.span.SetName(name)
	}
}

// Text notes a text; an empty one is left out.
func (s *Span) Text(key, value string) {
	if s != nil && value != "" {
		s.say(attribute.String(key, value))
	}
}

// Number notes a whole number.
func (s *Span) Number(key string, value int64) {
	if s != nil {
		s.say(attribute.Int64(key, value))
	}
}

// Seconds notes a duration in seconds.
func (s *Span) Seconds(key string, value time.Duration) {
	if s != nil {
		s.say(attribute.Float64(key, value.Seconds()))
	}
}

// Flag notes that something is so.
func (s *Span) Flag(key string) {
	if s != nil {
		s.say(attribute.Bool(key, true))
	}
}

// Event notes that something has happened now.
func (s *Span) Event(name string) {
	if s != nil {
		s.span.AddEvent(name)
	}
}

// Fail says that the work failed; kind is one of few words (error.type).
func (s *Span) Fail(kind string) {
	if s != nil {
		s.span.SetStatus(codes.Error, "")
		s.say(attribute.String("error.type", kind))
	}
}

// End ends the span. What is said of it afterwards is lost.
func (s *Span) End() {
	if s == nil {
		return
	}
	if len(s.said) > 0 {
		s.span.SetAttributes(s.said...)
		s.said = nil
	}
	s.span.End()
}

// TraceID is the trace's id in hex; "" of a nil span.
func (s *Span) TraceID() string {
	if s == nil {
		return ""
	}
	return s.span.SpanContext().TraceID().String()
}

// Parent is the traceparent that makes what it is sent to a child of s; "" of a nil
// span.
func (s *Span) Parent() string {
	if s == nil {
		return ""
	}
	return text(s.span.SpanContext())
}

type spanKey struct{}

// In puts the span into a context, for work that is handed nothing else.
func (s *Span) In(ctx context.Context) context.Context {
	if s == nil {
		return ctx
	}
	return context.WithValue(ctx, spanKey{}, s)
}

// From is the span that In has put into ctx; nil where none is.
func From(ctx context.Context) *Span {
	s, _ := ctx.Value(spanKey{}).(*Span)
	return s
}
