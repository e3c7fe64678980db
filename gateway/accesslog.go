package gateway

import (
	"net/http"

	"go.uber.org/zap"

	"sluice/internal/telemetry"
)

// logRequest writes the request's one line and counts it. No header and no
// query is ever logged; a target that was not understood is cut and cleaned.
func (c *chain) logRequest(s *Scope, r *http.Request) {
	took := c.Now().Sub(s.Start)
	status := s.answer.status
	if status == 0 && s.end == endClientClosed {
		status = statusClientClosed
	}
	c.Metrics.Request(s.Route.Operation.String(), status, took, s.Route.Tail != NoTail)
	c.Metrics.Ended(string(s.end))
	c.Metrics.Bytes(s.bytesIn, s.answer.bytes)
	if s.refused != "" {
		c.Metrics.Refused(string(s.refused))
	}
	line := c.Log.Check(zap.InfoLevel, "request")
	if line == nil {
		return
	}
	fields := make([]zap.Field, 0, 20)
	fields = append(fields,
		// A client's own id may be anything that has an id's form, a key too (M02).
		zap.String("request_id", telemetry.Foreign(s.ID)),
		zap.String("client", s.Client.String()),
		zap.String("proto", r.Proto),
		zap.String("method", telemetry.Foreign(r.Method)),
		zap.String("operation", s.Route.Operation.String()),
		zap.Int("status", status),
		zap.String("end", string(s.end)),
		zap.Int64("bytes_in", s.bytesIn),
		zap.Int64("bytes_out", s.answer.bytes),
		zap.Duration("seconds", took),
	)
	if s.Route.Operation == NoOperation {
		fields = append(fields, zap.String("target", telemetry.Foreign(pathOf(r.RequestURI))))
	} else {
		fields = append(fields,
			zap.String("account", telemetry.Foreign(string(s.Route.Account))),
			zap.String("stream", telemetry.Foreign(string(s.Route.Stream))))
	}
	if s.Route.Tail != NoTail {
		fields = append(fields, zap.String("tail", s.Route.Tail.String()))
	}
	if s.Principal != nil {
		fields = append(fields, zap.String("key_id", s.Principal.KeyID))
	}
	if s.refused != "" {
		fields = append(fields, zap.String("code", string(s.refused)))
	}
	if s.cause != nil {
		text := s.cause.Error()
		fields = append(fields, zap.String("cause", text[:min(len(text), maxCause)]))
	}
	line.Write(fields...)
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
