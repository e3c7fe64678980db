package gateway

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"time"

	"sluice/auth"
	"sluice/gateway/upstream"
	"sluice/internal/telemetry"
	"sluice/internal/tracing"
)

// Names of spans and attributes are OpenTelemetry's (semantic conventions for HTTP)
// where it has one; the others begin with "sluice.". No header, no query, and no path
// or name that was not cleaned (telemetry.Foreign) is ever among them.

// beginSpan begins the span of a request, where it is recorded.
func (c *chain) beginSpan(s *Scope, r *http.Request) {
	s.span = c.Tracer.Server(r.Header[tracing.ParentHeader])
	if s.span == nil {
		return
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	s.span.Name(nameOf(knownMethod(r.Method)))
	s.span.Text("http.request.method", knownMethod(r.Method))
	s.span.Text("url.scheme", scheme)
	s.span.Text("url.path", telemetry.Foreign(pathOf(r.RequestURI)))
	s.span.Text("network.protocol.version", strconv.Itoa(r.ProtoMajor)+"."+strconv.Itoa(r.ProtoMinor))
	s.span.Text("client.address", s.Client.String())
	s.span.Text("sluice.request_id", telemetry.Foreign(s.ID))
}

// headSpan ends the span of a stream of events when its head is on its way: its rest
// may last for days, and a span is seen when it has ended. The tail's end is a span of
// its own, in the same trace.
func (c *chain) headSpan(s *Scope, status int) {
	if s.span == nil || s.Route.Tail != SSE || status != http.StatusOK {
		return
	}
	s.nameSpan(http.MethodGet)
	s.span.Number("http.response.status_code", int64(status))
	s.span.Event("tail open")
	s.span.End()
	s.begun = true
}

// nameSpan says what was asked for, once that is known.
func (s *Scope) nameSpan(method string) {
	route := s.Route.Operation.template()
	if route == "" {
		return
	}
	s.span.Name(nameOf(method) + " " + route)
	s.span.Text("http.route", route)
	s.span.Text("sluice.operation", s.Route.Operation.String())
	s.span.Text("sluice.account", telemetry.Foreign(string(s.Route.Account)))
	s.span.Text("sluice.stream", telemetry.Foreign(string(s.Route.Stream)))
	if s.Route.Tail != NoTail {
		s.span.Text("sluice.tail", s.Route.Tail.String())
	}
	if s.Principal != nil {
		s.span.Text("sluice.key_id", s.Principal.KeyID)
	}
}

// endSpan ends the span of a request.
func (s *Scope) endSpan(r *http.Request, status int, took time.Duration) {
	if s.span == nil {
		return
	}
	span := s.span
	if s.begun {
		span = s.span.Child("tail end")
		span.Seconds("sluice.tail.seconds", took)
		span.Text("sluice.account", telemetry.Foreign(string(s.Route.Account)))
		span.Text("sluice.stream", telemetry.Foreign(string(s.Route.Stream)))
	} else {
		s.nameSpan(knownMethod(r.Method))
		span.Number("http.response.status_code", int64(status))
	}
	span.Number("http.request.body.size", s.bytesIn)
	span.Number("http.response.body.size", s.answer.use.Bytes())
	span.Text("sluice.end", string(s.end))
	span.Text("sluice.code", string(s.refused))
	switch {
	case s.end == endPanic, s.end == endCut:
		span.Fail(string(s.end))
	case s.refused != "" && status >= http.StatusInternalServerError:
		span.Fail(string(s.refused))
	case status >= http.StatusInternalServerError:
		span.Fail(strconv.Itoa(status))
	}
	span.End()
}

// traced records calls of the operator's part of the Management API.
func (o operator) traced(next http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		span := o.Tracer.Server(r.Header[tracing.ParentHeader])
		if span == nil {
			next.ServeHTTP(w, r)
			return
		}
		method := knownMethod(r.Method)
		span.Name(nameOf(method) + " " + Manage.template())
		span.Text("http.request.method", method)
		span.Text("http.route", Manage.template())
		span.Text("url.path", telemetry.Foreign(r.URL.EscapedPath()))
		span.Text("sluice.operation", "operator")
		answer := &recorder{ResponseWriter: w}
		defer func() {
			span.Number("http.response.status_code", int64(answer.status))
			if answer.status >= http.StatusInternalServerError {
				span.Fail(strconv.Itoa(answer.status))
			}
			span.End()
		}()
		next.ServeHTTP(answer, r.WithContext(span.In(r.Context())))
	}
}

// TraceAttempts has the attempts at the nodes recorded as parts of the span that ctx has, if
// any: of calls that are not a client's own.
func TraceAttempts(ctx context.Context, method string, trail *upstream.Trail) *upstream.Trail {
	span := tracing.From(ctx)
	if span == nil {
		return nil
	}
	traceAttempts(trail, span, method, Create.template())
	return trail
}

// passTrace says to the nodes what they are a part of, where it is not an attempt's
// own span that says so: nothing that makes them record.
func (c *chain) passTrace(s *Scope, traceparent []string, out http.Header) {
	if s.span != nil || !c.Tracer.On() {
		return
	}
	if unsampled := tracing.Unsampled(traceparent); unsampled != "" {
		out[tracing.ParentHeader] = []string{unsampled}
	}
}

// traceAttempts has the attempts at the nodes recorded, as parts of span.
func traceAttempts(trail *upstream.Trail, span *tracing.Span, method, route string) {
	if span == nil {
		return
	}
	trail.Attempt = func(a upstream.Attempt, header http.Header) func(int, string) {
		call := span.Client(method + " " + route)
		host, port, err := net.SplitHostPort(a.Node)
		if err != nil {
			host, port = a.Node, ""
		}
		call.Text("http.request.method", method)
		call.Text("server.address", host)
		if n, err := strconv.Atoi(port); err == nil {
			call.Number("server.port", int64(n))
		}
		if a.Number > 1 {
			call.Number("http.request.resend_count", int64(a.Number-1))
		}
		if a.Redirected {
			call.Flag("sluice.redirected")
		}
		header[tracing.ParentHeader] = []string{call.Parent()}
		return func(status int, outcome string) {
			call.Text("sluice.outcome", outcome)
			switch {
			case status == 0:
				call.Fail(outcome)
			case status >= http.StatusBadRequest:
				call.Fail(strconv.Itoa(status))
			}
			if status != 0 {
				call.Number("http.response.status_code", int64(status))
			}
			call.End()
		}
	}
}

// knownMethod keeps what a client makes up out of names.
func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodConnect, http.MethodOptions, http.MethodTrace:
		return method
	default:
		return "_OTHER"
	}
}

// nameOf is a known method in a span's name.
func nameOf(method string) string {
	if method == "_OTHER" {
		return "HTTP"
	}
	return method
}

// template is an operation's path with names in place of what differs; "" where there
// is no operation.
func (o Operation) template() string {
	const stream = "/{account}/s.{stream}"
	switch o {
	case Append, Read, Head, Create, Delete:
		return stream
	case ReadChunk:
		return stream + "/incarnation/{token}/chunk/{offset}"
	case ReadImmutableSnapshot:
		return stream + "/incarnation/{token}/snapshot/{offset}"
	case ReadSnapshot, PublishSnapshot:
		return stream + "/snapshot/{offset}"
	case StagePart:
		return stream + "/snapshot/{offset}/parts"
	case DiscardParts:
		return stream + "/snapshot/parts"
	case AdvanceRetention:
		return stream + "/retention/{offset}"
	case Bootstrap:
		return stream + "/bootstrap"
	case ExchangeToken:
		return TokenPath
	case ReadKeys:
		return auth.JWKSPath
	case ReadMetadata:
		return auth.MetadataPath
	case Manage:
		return "/v1/{call}"
	case NoOperation:
		return ""
	default:
		return ""
	}
}
