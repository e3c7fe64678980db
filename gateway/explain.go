package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"sluice/internal/refusal"
	"sluice/internal/telemetry"
	"sluice/internal/tracing"
)

// What became of a step.
const (
	StepPassed   = "passed"
	StepSkipped  = "skipped" // it has nothing to decide about this request
	StepRefused  = "refused"
	StepAnswered = "answered"
)

// What would become of a request.
const (
	Forwarded = "forwarded" // to a node, whose answer is the client's
	Refused   = "refused"
	Answered  = "answered" // by the gateway itself
)

// ExplainedStep is what one step of the chain makes of a request, and why.
type ExplainedStep struct {
	Step    string `json:"step"`
	Outcome string `json:"outcome"`
	Why     string `json:"why"`
}

// ForwardedRequest is what a node would get.
type ForwardedRequest struct {
	Method string `json:"method"`
	Target string `json:"target"`
	// To says which node.
	To      string            `json:"to"`
	Headers map[string]string `json:"headers"`
	// CacheControl is that of the answer, if it is a success.
	CacheControl string `json:"cache_control"`
}

// Explanation is what the chain in force would make of a request. Nothing in it is a
// credential, and what looks like one is left out.
type Explanation struct {
	Request string          `json:"request"`
	Steps   []ExplainedStep `json:"steps"`
	Outcome string          `json:"outcome"`
	// Status is what the client gets; 0 where a node, the body or what is stored decides.
	Status int `json:"status,omitempty"`
	// Code and Message are those of the refusal.
	Code    string            `json:"code,omitempty"`
	Message string            `json:"message,omitempty"`
	Headers map[string]string `json:"headers,omitempty"` // of the refusal
	// Forwarded is set with the outcome of that name.
	Forwarded *ForwardedRequest `json:"forwarded,omitempty"`
	// Notes are what the head of a request cannot tell.
	Notes []string `json:"notes,omitempty"`
}

// Explain says what the chain in force would make of a request now: by the chain's own
// steps, over parts that look and take nothing. No node is asked, nothing is counted,
// written or logged, and no key counts as used; a token of another issuer may have that
// issuer asked for its keys. The error is ErrQuestion, with what to write instead.
func (g *Gateway) Explain(ctx context.Context, q Question) (Explanation, error) {
	c := g.current.Load()
	r, status, err := q.request(ctx, c.HeaderBytes)
	if err != nil {
		return Explanation{}, err
	}
	e := Explanation{Request: telemetry.Redact(strings.TrimSpace(q.Method + " " + q.URL))}
	if q.otherHost(c.Origin) {
		e.Notes = append(e.Notes, "the URL's host is not that of origin, "+c.Origin+": whether such a request comes here is not for the gateway to say")
	}
	if status != 0 {
		w := &headWriter{header: http.Header{}}
		_ = refusal.Write(w, "", unread(status))
		e.Outcome, e.Status, e.Headers = Refused, w.status, telling(w.header)
		e.Code, e.Message = refusalIn(w.body)
		e.Steps = []ExplainedStep{{"server", StepRefused, e.Message + " The HTTP server makes no request of it: the log has it as 'no request', under an id of its own"}}
		return e, nil
	}
	d, err := newDryRun(c)
	if err != nil {
		return Explanation{}, err
	}
	w := &headWriter{header: http.Header{}}
	d.run(w, r)
	e.Steps = d.steps
	d.conclude(&e, w, r)
	return e, nil
}

// conclude says what the client gets.
func (d *dryRun) conclude(e *Explanation, w *headWriter, r *http.Request) {
	switch {
	case d.sent != nil:
		e.Outcome = Forwarded
		e.Forwarded = d.forwarded(w, r)
		e.Steps = append(e.Steps, ExplainedStep{stepProxy, StepPassed, "goes to " + e.Forwarded.To})
		e.Notes = append(e.Notes, d.unsaid(r)...)
		return
	case errors.Is(d.err, errUndecided):
		e.Outcome = Answered
		e.Notes = append(e.Notes, "what the gateway answers here is decided by the request's body, or by what is stored, which is not looked at")
		return
	case d.err == nil:
		e.Outcome = Answered
	default:
		e.Outcome = Refused
	}
	e.Status = w.status
	e.Code, e.Message = refusalIn(w.body)
	if e.Code == "" {
		e.Code = string(d.scope.refused) // of a HEAD, which has no body
	}
	e.Headers = telling(w.header)
	if last := &e.Steps[len(e.Steps)-1]; last.Why == "" {
		last.Why = e.Message
	}
}

// refusalIn reads what a refusal's body says, in either of its shapes.
func refusalIn(body []byte) (code, message string) {
	var own struct {
		Error struct{ Code, Message string }
	}
	var oauth struct {
		Error       string
		Description string `json:"error_description"`
	}
	if json.Unmarshal(body, &own) == nil {
		return own.Error.Code, own.Error.Message
	}
	_ = json.Unmarshal(body, &oauth) // what is neither says nothing
	return oauth.Error, oauth.Description
}

// telling are the headers of an answer that say more than its status.
func telling(h http.Header) map[string]string {
	kept := flat(h)
	maps.DeleteFunc(kept, func(name, _ string) bool {
		return !strings.HasPrefix(name, "Access-Control-") && !slices.Contains([]string{
			"Allow", "Retry-After", "Ratelimit", "Ratelimit-Policy", "Vary", "Www-Authenticate", maxRequestBytesHeader,
		}, name)
	})
	return kept
}

// flat is a header as people read it, without what looks like a credential.
func flat(h http.Header) map[string]string {
	lines := make(map[string]string, len(h))
	for name, values := range h {
		if len(values) > 0 {
			lines[name] = telemetry.Redact(strings.Join(values, ", "))
		}
	}
	return lines
}

func (d *dryRun) forwarded(w *headWriter, r *http.Request) *ForwardedRequest {
	to := "the node that leads the stream's group"
	if d.meta.Spread {
		to = "any node, since all have it"
	}
	out := &ForwardedRequest{
		Method: d.sent.Method, Target: telemetry.Redact(d.sent.URL.RequestURI()), To: to,
		Headers: flat(d.sent.Header), CacheControl: w.header.Get("Cache-Control"),
	}
	// The first is sent, and none that is empty.
	if out.Headers["User-Agent"] = telemetry.Redact(d.sent.UserAgent()); out.Headers["User-Agent"] == "" {
		delete(out.Headers, "User-Agent")
	}
	if d.traced {
		delete(out.Headers, tracing.ParentHeader) // what it says then is chance's, and the attempt's
	}
	if r.ContentLength > 0 {
		out.Headers["Content-Length"] = strconv.FormatInt(r.ContentLength, 10)
	}
	return out
}

// unsaid is what may still come of a request that would be forwarded.
func (d *dryRun) unsaid(r *http.Request) []string {
	notes := []string{"whether the stream exists, and what it answers, the node says"}
	if r.ContentLength != 0 {
		notes = append(notes, "the body has to come whole, in time: else it is 400 BODY_UNREADABLE or 408 BODY_TOO_SLOW, and no node sees it")
	}
	if r.ContentLength < 0 {
		notes = append(notes, "a body of undeclared length is held to request_bytes, uploads and upload_bytes while it comes")
	}
	if d.meta.CatchUp {
		notes = append(notes, "of several nodes, consistency=leader is added to the query unless the node is sure that it leads")
	}
	if d.scope.Route.Operation == Delete {
		notes = append(notes, "Stream-Incarnation is added to a DELETE, where the store knows which stream it is for")
	}
	if d.traced {
		notes = append(notes, "Traceparent is the gateway's own, and another one with each attempt")
	}
	return notes
}
