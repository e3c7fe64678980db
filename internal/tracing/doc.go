// Package tracing owns traces: which requests are recorded, what becomes of the
// trace context of a client, the spans, and their way to an OTLP endpoint. It is the
// only package that speaks OpenTelemetry, and uses none of its globals.
//
// It refuses to know what a request is: its callers name spans and hand it plain
// values. Nobody may hand it a key, a token, a digest, a header or a query.
//
// Off, or for a request that is not recorded, there is no span: a *Span that is nil,
// on which every method may be called and does nothing, without an allocation.
//
// # Whose trace
//
// A client's traceparent (W3C Trace Context) is joined: the request's span is a child
// of the client's, under the client's trace id, so that a customer can name the id to
// support. Its sampled flag is a stranger's wish to spend the operator's money, and is
// followed within a budget for the whole process; over it, the request is sampled by
// chance like any other, and by a chance that has nothing to do with the id, which a
// stranger chooses too. A client that says it does not record is not recorded. Its
// tracestate and baggage end here: they may hold anything.
//
// # The way out
//
// Spans that have ended wait in a queue of fixed size for one goroutine, which sends
// them in batches. What finds the queue full is dropped and counted: an endpoint that
// is down, or slow, holds up no request and no stop.
package tracing
