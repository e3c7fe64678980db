package upstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

// maxKept bounds how many kept connections that a node has ended meanwhile one
// attempt may meet; after as many it goes out on a new one.
const maxKept = 8

// exchange makes one attempt at one node and tells the observer. On an error
// what says what became of it.
func (p *Pool) exchange(req *http.Request, w *walk, n *node) (*http.Response, event, error) {
	res, what, err := p.once(req, w, n, p.transport)
	for i := 1; err != nil && table[what][w.class] == actSame && i <= maxKept; i++ {
		via := p.transport
		if i == maxKept {
			via = p.single
		}
		res, what, err = p.once(req, w, n, via)
	}
	switch {
	case err == nil:
		p.observer.Exchanged(n.host, statusClass(res.StatusCode))
		return res, what, nil
	case req.Context().Err() != nil:
		p.observer.Exchanged(n.host, clientClosed)
		return nil, what, err
	case what == eventUnconnected:
		p.noConnection(n, err)
	case what == eventUnwritten:
		what = eventUnconnected // nothing has reached the node, as little as there
	}
	p.observer.Exchanged(n.host, kindOf(what).String())
	return nil, what, err
}

// noConnection puts a node out that takes no connection, at once; a request's
// own timeout, in contrast, ejects nobody (facts L9, L15, R11, R19).
func (p *Pool) noConnection(n *node, err error) {
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, errEjectedSilent), errors.Is(err, errEjectedStopped): // it is out
	case errors.Is(err, errHeaderTimeout), errors.As(err, &timeout) && timeout.Timeout():
		p.eject(n, Silent)
	default:
		p.eject(n, Stopped)
	}
}

// try is one request on one connection, seen through the transport's hooks.
type try struct {
	waiter
	timer    *time.Timer
	head     time.Duration // how long the head may take once a connection stands
	conn     *watchedConn  // nil where it is not watched: TLS reads when nobody asks
	reused   bool
	answered atomic.Bool // a byte of the answer has come; set by the transport's reader
	sought   bool        // the transport took the request and went for a connection
	again    bool        // the transport went for another connection by itself
}

// getConn is called when the transport goes for a connection. A second time it
// would repeat the request by itself; that is for the table to decide.
func (t *try) getConn(string) {
	t.sought = true
	if t.connected.Load() {
		t.again = true
		t.cancel(errKept)
	}
}

func (t *try) gotConn(info httptrace.GotConnInfo) {
	conn, _ := info.Conn.(*watchedConn)
	if conn != nil {
		conn.handOver()
	}
	if t.again {
		_ = info.Conn.Close() // so that nothing is written on it
		return
	}
	t.reused, t.conn = info.Reused, conn
	t.connected.Store(true)
	t.timer.Reset(t.head)
}

// once sends the request on one connection of via.
func (p *Pool) once(req *http.Request, w *walk, n *node, via *http.Transport) (*http.Response, event, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	t := &try{
		waiter: waiter{cancel: cancel, class: w.class, elsewhere: func() bool { return !w.moved && w.another(n) != nil }},
		head:   headerTimeout(w.meta),
	}
	// The connection has a time of its own; the head's begins when it stands.
	t.timer = time.AfterFunc(2*ConnectTimeout, func() { cancel(errHeaderTimeout) })
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn:              t.getConn,
		GotConn:              t.gotConn,
		GotFirstResponseByte: func() { t.answered.Store(true) },
	})
	n.wait(&t.waiter)
	res, err := via.RoundTrip(outgoing(ctx, req, w.meta, n, len(w.nodes) > 1))
	live := err == nil && w.meta.Live
	if live {
		t.key.Store(&w.key) // it goes on waiting, for events
	} else {
		n.leave(&t.waiter)
	}
	t.timer.Stop()
	switch {
	case err != nil:
	case ctx.Err() != nil:
		// The head came as the attempt was ended: its body is cut already.
		err = context.Cause(ctx)
	case res.StatusCode == http.StatusSwitchingProtocols:
		err = errUnexpected1xx
	default:
		body := &bodyCloser{ReadCloser: res.Body, cancel: cancel}
		if live {
			body.leave = func() { n.leave(&t.waiter) }
		}
		res.Body = body
		return res, eventBroken, nil
	}
	n.leave(&t.waiter)
	if res != nil {
		_ = res.Body.Close()
	}
	cause := context.Cause(ctx)
	if cause != nil {
		err = cause
	}
	cancel(nil)
	if !t.sought && cause == nil {
		return nil, eventBroken, err // no request that could be sent, and no node's fault (facts L18)
	}
	return nil, t.became(err), err
}

// became says what became of a try that ended with err.
func (t *try) became(err error) event {
	switch {
	case !t.connected.Load():
		return eventUnconnected
	case errors.Is(err, errHeaderTimeout), errors.Is(err, errEjectedSilent):
		return eventSilent
	case errors.Is(err, errEjectedStopped):
		return eventStopped
	case t.conn != nil && t.conn.untouched():
		return eventUnwritten
	case t.reused && !t.answered.Load():
		return eventUnanswered
	default:
		return eventBroken
	}
}

// outgoing is the request as it goes to that node.
func outgoing(ctx context.Context, req *http.Request, m Meta, n *node, several bool) *http.Request {
	out := req.WithContext(ctx)
	target := *req.URL
	target.Scheme, target.Host = n.scheme, n.host
	if m.CatchUp && several {
		target.RawQuery = leaderQuery(target.RawQuery)
	}
	out.URL = &target
	// An empty Host makes the node's own address the Host header (H19).
	out.Host = ""
	out.Body, out.ContentLength, out.GetBody = nil, int64(len(m.Body)), nil
	if len(m.Body) > 0 {
		// GetBody stays nil: the transport may not send a body twice by itself.
		out.Body = io.NopCloser(bytes.NewReader(m.Body))
	}
	return out
}

// bodyCloser ends the attempt's context with the answer's body.
type bodyCloser struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
	leave  func() // of a live answer; nil otherwise
}

func (b *bodyCloser) Close() error {
	err := b.ReadCloser.Close()
	b.cancel(nil)
	if b.leave != nil {
		b.leave()
	}
	return err
}

const (
	// maxDiscard and discardTime bound what is read of an answer that is not
	// wanted, so that its connection can be used again.
	maxDiscard  = 16 << 10
	discardTime = 500 * time.Millisecond
)

// discard reads the rest of a small answer, so that its connection is kept. A
// node that does not end it loses the connection, never the request its time.
func discard(res *http.Response) {
	if res.StatusCode == http.StatusSwitchingProtocols {
		_ = res.Body.Close() // it is the connection itself, and has no end
		return
	}
	if b, ok := res.Body.(*bodyCloser); ok {
		timer := time.AfterFunc(discardTime, func() { b.cancel(nil) })
		defer timer.Stop()
	}
	_, _ = io.CopyN(io.Discard, res.Body, maxDiscard)
	_ = res.Body.Close()
}

// clientClosed is the outcome that blames nobody: the client left.
const clientClosed = "client_closed"

// statusClass names a status' class in metrics.
func statusClass(status int) string {
	switch status / 100 {
	case 2:
		return "2xx"
	case 3:
		return "3xx"
	case 4:
		return "4xx"
	default:
		return "5xx"
	}
}
