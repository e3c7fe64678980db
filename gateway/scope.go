package gateway

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"runtime/debug"
	"time"

	"go.uber.org/zap"

	"sluice/auth"
	"sluice/gateway/upstream"
	"sluice/internal/refusal"
	"sluice/internal/telemetry"
	"sluice/internal/tenant"
	"sluice/internal/tracing"
)

// Scope is the state of one request. The outermost step makes it; each step
// fills in what it has found out. It belongs to the request's goroutine.
type Scope struct {
	ID     string     // request id: the client's where it is well formed, else random
	Client netip.Addr // who asks, behind trusted proxies
	Start  time.Time

	Route      Route
	Credential bool            // the request carries an Authorization header
	Principal  *auth.Principal // nil = anonymous
	Standing   auth.Standing
	Public     bool // the stream is public
	Account    *tenant.Account

	tail     *openTail // nil but for a live read
	attempt  Attempt   // nil but for a PUT or DELETE of a stream that goes to a node
	body     []byte    // whole, once readBody has passed
	bodyDone bool      // nothing is left to drain: read whole, broken or none
	bodyLeft bool      // a refused body was given up before its end
	bytesIn  int64
	handed   bool // to the nodes, who may have it
	metered  bool // the meter follows the answer

	trail upstream.Trail // of the exchange with the nodes
	span  *tracing.Span  // nil where the request is not recorded
	begun bool           // it was ended with the head of a tail's answer

	answer  recorder
	refused refusal.Code // "" = a node answered
	failure error        // of the exchange with the nodes
	cause   error        // for the log
	end     ending
}

// ending says how an answer ended, for the log and the metrics.
type ending string

const (
	endWhole        ending = "whole"
	endClientClosed ending = "client_closed"
	endCut          ending = "cut"
	endPanic        ending = "panic"
	endShutdown     ending = "shutdown"
	endCredential   ending = "credential" // a tail whose credential has ended
	endStalled      ending = "stalled"    // a client that stopped reading
	endDrain        ending = "drain"      // a tail that was ended since the gateway stops
	endMaxAge       ending = "max_age"    // a tail that was older than tails.max_age
)

// ErrShutdown is the cause with which a server's base context ends when what is
// still under way is cut at the end of a drain.
var ErrShutdown = errors.New("the gateway is shutting down")

// statusClientClosed stands in logs and metrics for a client that left before
// it was answered; it is never sent.
const statusClientClosed = 499

// errClientGone says that there is nobody left to answer.
var errClientGone = errors.New("client closed the request")

const requestIDHeader = "X-Request-Id"

func (c *chain) newScope(w http.ResponseWriter, r *http.Request) *Scope {
	s := &Scope{ID: r.Header.Get(requestIDHeader), Start: c.Now(), end: endWhole, bodyDone: r.Body == nil || r.Body == http.NoBody}
	if !refusal.WellFormedID(s.ID) {
		s.ID = c.newID()
	}
	s.Client = clientAddress(r, c.TrustedProxies)
	c.beginSpan(s, r)
	s.answer.ResponseWriter = w
	if r.ProtoMajor > 1 {
		s.answer.stream, s.answer.stall = true, c.Pace.StreamWrite
	}
	return s
}

func (c *chain) newID() string {
	var raw [12]byte
	_, _ = io.ReadFull(c.Random, raw[:])
	return hex.EncodeToString(raw[:])
}

// ServeHTTP is the outermost step: it makes the Scope, guards against panics,
// answers refusals and writes the one line of the access log.
func (c *chain) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s := c.newScope(w, r)
	defer c.guard(s, r)
	if err := c.serve(s, &s.answer, r); err != nil {
		c.refuse(s, r, err)
	}
}

// guard ends every request, also one that panicked. http.ErrAbortHandler goes
// on, so that a cut answer stays cut: swallowing it would end a broken body
// cleanly, which for the reader of a stream is data loss (style fact 3).
func (c *chain) guard(s *Scope, r *http.Request) {
	p := recover()
	abort := p != nil
	switch {
	case p == nil:
	case isAbort(p) && errors.Is(context.Cause(r.Context()), ErrShutdown):
		s.end = endShutdown
	case isAbort(p) && s.tail.ended() != nil:
		// It could not be ended between events; a client that does not read has not left.
		s.end = endingOf(s.tail.ended())
	case isAbort(p) && s.answer.stalled:
		s.end = endStalled
	case isAbort(p) && (s.answer.gone || r.Context().Err() != nil):
		s.end = endClientClosed
	case isAbort(p):
		s.end = endCut
	default:
		s.end = endPanic
		c.Metrics.Panicked()
		c.Log.Error("panic", zap.String("request_id", telemetry.Foreign(s.ID)), zap.Any("panic", panicText(p)), zap.String("stack", string(debug.Stack())))
		if s.answer.status == 0 {
			// Whether a write reached a node is unknown, which 500 says.
			s.refused, abort = refusal.Internal, false
			s.answer.Header().Set(requestIDHeader, s.ID)
			_ = refusal.Write(&s.answer, r.Method, refusal.New(refusal.Internal, nil))
		}
	}
	s.answer.release()
	c.leaveBody(s)
	c.logRequest(s, r)
	if abort {
		panic(http.ErrAbortHandler)
	}
}

func isAbort(p any) bool {
	err, ok := p.(error)
	return ok && errors.Is(err, http.ErrAbortHandler)
}

// panicText keeps values out of the log: a panic may hold anything, a request's
// credential too (M02).
func panicText(p any) string {
	if err, ok := p.(error); ok {
		return telemetry.Foreign(err.Error())
	}
	if s, ok := p.(string); ok {
		return telemetry.Foreign(s)
	}
	return "a value of another type"
}
