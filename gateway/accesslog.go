package gateway

import (
	"net/http"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"sluice/internal/telemetry"
)

// logRequest writes the request's one line and counts it. No header and no
// query is ever logged; a target that was not understood is cut and cleaned.
func (c *chain) logRequest(s *Scope, r *http.Request) {
	now := c.Now()
	took := now.Sub(s.Start)
	status := s.answer.status
	if status == 0 && s.end == endClientClosed {
		status = statusClientClosed
	}
	c.Metrics.Request(s.Route.Operation.String(), status, took, s.Route.Tail != NoTail)
	c.Metrics.Ended(string(s.end))
	c.Metrics.Bytes(s.bytesIn, s.answer.use.Bytes())
	c.countUse(s, now)
	if s.refused != "" {
		c.Metrics.Refused(string(s.refused))
	}
	c.Metrics.Went(s.trail.Redirects, s.trail.Retries)
	s.endSpan(r, status, took)
	share := c.shareOf(s, status, took)
	if share < 1 && c.chance() >= share {
		c.Metrics.Unlogged()
		return
	}
	line := c.Log.Check(zap.InfoLevel, "request")
	if line == nil {
		return
	}
	line.Write(zap.Inline(&accessLine{s, r, status, took, share}))
}

// slow is from when a request always has its line.
const slow = time.Second

// shareOf is the share of requests like this one whose line is written: all of those
// that did not go well, or took long. A long-poll waits, and is never slow.
func (c *chain) shareOf(s *Scope, status int, took time.Duration) float64 {
	switch {
	case c.LogSample == nil, s.refused != "", s.end != endWhole, s.cause != nil, status < 200, status > 299, s.Route.Tail == SSE:
		return 1
	case took >= slow && s.Route.Tail == NoTail:
		return 1
	default:
		return *c.LogSample
	}
}

// accessLine writes its fields straight into the encoder: a list of them was the
// largest single allocation of a small read.
type accessLine struct {
	*Scope
	request *http.Request
	status  int
	took    time.Duration
	share   float64 // of requests like this whose line is written
}

var _ zapcore.ObjectMarshaler = (*accessLine)(nil)

// MarshalLogObject implements zapcore.ObjectMarshaler. telemetry.AccessFields says of
// each key what it is.
func (l *accessLine) MarshalLogObject(e zapcore.ObjectEncoder) error {
	// A client's own id may be anything that has an id's form, a key too (M02).
	e.AddString("request_id", telemetry.Foreign(l.ID))
	if l.span != nil {
		e.AddString("trace_id", l.span.TraceID())
	}
	e.AddString("client", l.Client.String())
	e.AddString("proto", l.request.Proto)
	e.AddString("method", telemetry.Foreign(l.request.Method))
	e.AddString("operation", l.Route.Operation.String())
	e.AddInt("status", l.status)
	e.AddString("end", string(l.end))
	e.AddInt64("bytes_in", l.bytesIn)
	e.AddInt64("bytes_out", l.answer.use.Bytes())
	e.AddDuration("seconds", l.took)
	if l.share < 1 {
		e.AddFloat64("sampled", l.share)
	}
	if l.Route.Operation == NoOperation {
		e.AddString("target", telemetry.Foreign(pathOf(l.request.RequestURI)))
	} else {
		e.AddString("account", telemetry.Foreign(string(l.Route.Account)))
		e.AddString("stream", telemetry.Foreign(string(l.Route.Stream)))
	}
	if l.Route.Tail != NoTail {
		e.AddString("tail", l.Route.Tail.String())
	}
	if l.Principal != nil {
		e.AddString("key_id", l.Principal.KeyID)
	}
	if l.trail.Attempts > 0 {
		e.AddString("node", l.trail.Node)
		e.AddInt("attempts", l.trail.Attempts)
		e.AddDuration("node_seconds", l.trail.Took)
	}
	if l.refused != "" {
		e.AddString("code", string(l.refused))
	}
	if l.cause != nil {
		text := l.cause.Error()
		e.AddString("cause", text[:min(len(text), maxCause)])
	}
	return nil
}

// maxCause bounds what a line holds of a cause, which may quote what a node sent.
const maxCause = 512

func pathOf(target string) string {
	for i := range len(target) {
		if target[i] == '?' {
			return target[:i]
		}
	}
	return target
}
