package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"sluice/gateway/upstream"
	"sluice/internal/refusal"
	"sluice/internal/tenant"
)

// Lifecycle keeps what is known of streams in step with what PUT and DELETE of a stream do
// at the nodes (streams.lifecycle: protocol).
type Lifecycle interface {
	// Begin writes down that a change is about to go to a node. An error that is a
	// *refusal.Refusal says why it may not; whatever the error is, nothing is sent.
	Begin(ctx context.Context, c StreamChange) (Attempt, error)
	// Look is the error that Begin would give at this instant. It writes nothing down.
	Look(ctx context.Context, c StreamChange) error
}

// StreamChange is a PUT or DELETE of a stream, who sends it and from where.
type StreamChange struct {
	Account tenant.AccountID
	Stream  tenant.StreamName
	// Remove says that it is a DELETE.
	Remove bool
	// ContentType and Incarnation are the request's headers; "" where it has none.
	ContentType, Incarnation string
	// Deadline is when the gateway gives it up.
	Deadline time.Time

	KeyID     string
	Client    netip.Addr
	RequestID string
}

// Attempt is a change that is written down. At most one of its ends is called, before the
// client is answered; none is where it is not known what a node made of it.
type Attempt interface {
	// Incarnation is what a DELETE that names none itself is to be for: a node that has
	// another under the name does nothing, and says which; "" = send none.
	Incarnation() string
	// End is given a node's answer: its head, and the code of its error, if it has one.
	End(ctx context.Context, status int, header http.Header, code string)
	// Unsent says that surely no node was given the request.
	Unsent(ctx context.Context)
}

const (
	// changeTime bounds the exchange of a change with the nodes, all redirects included,
	// beside what its body needs (changePace, bytes a second): how long its stream's row is
	// nobody else's depends on it.
	changeTime = 10 * time.Second
	changePace = 8 << 20
	// maxMoved bounds how often a DELETE follows a stream whose incarnation is another than
	// what is known.
	maxMoved = 3
	// maxErrorBody bounds what is read of a node's error for its code, in bytes.
	maxErrorBody = 4 << 10

	incarnationHeader = "Stream-Incarnation"
)

// changes reports whether a request makes or deletes a stream.
func changes(op Operation) bool { return op == Create || op == Delete }

// lifecycle keeps the making and deleting of streams for the Management API, unless
// clients do so themselves.
func (c *chain) lifecycle(next handler) handler {
	return func(s *Scope, w http.ResponseWriter, r *http.Request) error {
		if c.Lifecycle == nil && changes(s.Route.Operation) {
			return refusal.New(refusal.StreamLifecycle, nil)
		}
		return next(s, w, r)
	}
}

// change writes a client's change of a stream down before any byte of it goes to a node.
func (c *chain) change(next handler) handler {
	return func(s *Scope, w http.ResponseWriter, r *http.Request) error {
		if !changes(s.Route.Operation) {
			return next(s, w, r)
		}
		deadline := c.Now().Add(changeTime + time.Duration(len(s.body))*time.Second/changePace)
		step := s.span.Child("write change down")
		var err error
		s.attempt, err = c.Lifecycle.Begin(r.Context(), StreamChange{
			Account: s.Route.Account, Stream: s.Route.Stream, Remove: s.Route.Operation == Delete,
			ContentType: r.Header.Get("Content-Type"), Incarnation: strings.Join(r.Header[incarnationHeader], ","), Deadline: deadline,
			KeyID: s.Principal.KeyID, Client: s.Client, RequestID: s.ID,
		})
		step.End()
		if err != nil {
			return orGone(r.Context(), err)
		}
		client := r.Context()
		ctx, cancel := context.WithDeadline(client, deadline)
		defer cancel()
		err = next(s, w, r.WithContext(ctx))
		return c.unanswered(client, s, err)
	}
}

// unanswered ends an attempt that surely reached no node. err is why a change was not
// answered; nil where it was.
func (c *chain) unanswered(client context.Context, s *Scope, err error) error {
	if errors.Is(err, errClientGone) && client.Err() == nil {
		err = &upstream.Error{Kind: upstream.TimedOut, Err: context.DeadlineExceeded}
	}
	var node *upstream.Error
	if errors.As(err, &node) {
		switch node.Kind {
		case upstream.NoUpstream, upstream.NoRoom, upstream.Unreachable, upstream.NoLeader:
			s.attempt.Unsent(client)
		default: // a node may have it
		}
	}
	return err
}

// sendChange sends a PUT or DELETE to the nodes, a DELETE for the incarnation that is known: one that
// takes effect late deletes nothing that was made since. A client that names one itself
// knows better.
func (p *passage) sendChange(out *http.Request, m upstream.Meta) (*http.Response, error) {
	s := p.scope
	known := ""
	if len(out.Header[incarnationHeader]) == 0 {
		known = s.attempt.Incarnation()
	}
	for moved := 0; ; moved++ {
		if known == "" || moved == maxMoved {
			return p.chain.Upstream.Send(p.client, out, m)
		}
		try := out.Clone(p.client)
		try.Header[incarnationHeader] = []string{known}
		res, err := p.chain.Upstream.Send(p.client, try, m)
		if err != nil || res.StatusCode != http.StatusPreconditionFailed {
			return res, err
		}
		// It was made anew past us: nothing of the DELETE applied.
		known = res.Header.Get(incarnationHeader)
		_ = res.Body.Close()
	}
}

// settle tells what became of a change, before its client is told.
func (p *passage) settle(res *http.Response) {
	s := p.scope
	if s.attempt == nil {
		return
	}
	code := ""
	if res.StatusCode >= http.StatusBadRequest {
		code = errorCode(res)
	}
	step := s.span.Child("settle change")
	s.attempt.End(p.client, res.StatusCode, res.Header, code)
	step.End()
}

// errorCode reads the code of a node's error, and leaves the answer as it is: one that is
// cut short is so for the client too.
func errorCode(res *http.Response) string {
	text, _ := io.ReadAll(io.LimitReader(res.Body, maxErrorBody)) // the next Read fails again
	res.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(text), res.Body), res.Body}
	var body struct {
		Error struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	_ = json.Unmarshal(text, &body) // an error without a code has none
	return body.Error.Code
}
