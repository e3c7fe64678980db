package tracing

import (
	"strings"

	"go.opentelemetry.io/otel/trace"
)

// ParentHeader is where a client, or we, name a span to be a child of.
const ParentHeader = "Traceparent"

// parentLength is that of a traceparent of version 00.
const parentLength = len("00-") + 32 + len("-") + 16 + len("-") + 2

// parse reads a traceparent (W3C Trace Context §3.2). One that is not well formed, or
// given twice, is none. Of a later version what is known of 00 is read.
func parse(values []string) (trace.SpanContext, bool) {
	if len(values) != 1 {
		return trace.SpanContext{}, false
	}
	s := values[0]
	later := len(s) > parentLength && s[parentLength] == '-' && s[:2] != "00"
	if len(s) != parentLength && !later || len(s) > maxParent || s[2] != '-' || s[35] != '-' || s[52] != '-' || s[:2] == "ff" || !isHex(s[:2]) || !isHex(s[53:55]) {
		return trace.SpanContext{}, false
	}
	// The library's readers refuse upper case and zeros.
	id, err := trace.TraceIDFromHex(s[3:35])
	if err != nil {
		return trace.SpanContext{}, false
	}
	span, err := trace.SpanIDFromHex(s[36:52])
	if err != nil {
		return trace.SpanContext{}, false
	}
	flags := trace.TraceFlags(0)
	if strings.IndexByte("13579bdf", s[54]) >= 0 {
		flags = trace.FlagsSampled
	}
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: span, TraceFlags: flags, Remote: true}), true
}

// maxParent bounds a traceparent of a later version, in bytes.
const maxParent = 256

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }

// Unsampled is a client's traceparent as it may go on where nothing is recorded: with
// its flags off, so that a stranger has no node record anything either. "" where it is
// none.
func Unsampled(values []string) string {
	parent, ok := parse(values)
	if !ok {
		return ""
	}
	return text(parent.WithTraceFlags(0))
}

func text(c trace.SpanContext) string {
	return "00-" + c.TraceID().String() + "-" + c.SpanID().String() + "-" + c.TraceFlags().String()
}
