package upstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"sluice/gateway/upstream/wire"
)

// maxKept bounds how many kept connections that a node has ended meanwhile one
// attempt may meet; after as many it goes out on a new one.
const maxKept = 8

// exchange makes one attempt at one node and tells the observer. On an error
// what says what became of it.
func (p *Pool) exchange(ctx context.Context, req *http.Request, w *walk, n *node) (*http.Response, event, error) {
	began := time.Now()
	told := w.meta.Trail.begin(n, w, req.Header)
	res, what, err := p.once(ctx, req, w, n, false)
	for i := 1; err != nil && table[what][w.class] == actSame && i <= maxKept; i++ {
		res, what, err = p.once(ctx, req, w, n, i == maxKept)
	}
	outcome, status := "", 0
	switch {
	case err == nil:
		outcome, status = statusClass(res.StatusCode), res.StatusCode
	case ctx.Err() != nil:
		outcome = clientClosed
	default:
		if what == eventUnconnected {
			p.noConnection(n, err)
		}
		if what == eventUnwritten {
			what = eventUnconnected // nothing has reached the node, as little as there
		}
		outcome = kindOf(what).String()
	}
	took := time.Since(began)
	if w.meta.Trail != nil {
		w.meta.Trail.Took += took
	}
	if told != nil {
		told(status, outcome)
	}
	if w.meta.LongPoll {
		took = -1
	}
	if err == nil || what != eventNoRoom { // nobody was asked
		p.observer.Exchanged(n.host, outcome, took)
	}
	return res, what, err
}

// noConnection puts a node out that takes no connection, at once; a request's
// own timeout, in contrast, ejects nobody (facts L9, L15, R11, R19).
func (p *Pool) noConnection(n *node, err error) {
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, errEjectedSilent), errors.Is(err, errEjectedStopped): // it is out
	case errors.As(err, &timeout) && timeout.Timeout():
		p.eject(n, Silent)
	default:
		p.eject(n, Stopped)
	}
}

// try is one request on one connection to a node.
type try struct {
	wire.Exchange
	walk *walk
	node *node
	stop func() bool // of the wait for the client's leaving
	live atomic.Bool // a live read whose answer has begun: it goes on waiting, for events
}

// elsewhere reports whether another node could take the request now.
func (t *try) elsewhere() bool { return !t.walk.moved && t.walk.another(t.node) != nil }

// ended is called when nothing is left of the try.
func (t *try) ended() {
	t.stop()
	if t.live.Load() {
		t.node.leave(t)
	}
}

// once sends the request on one connection, a new one where fresh.
func (p *Pool) once(ctx context.Context, req *http.Request, w *walk, n *node, fresh bool) (*http.Response, event, error) {
	t := &try{walk: w, node: n}
	// Connecting has a time of its own; the head's begins when a connection stands.
	t.Fresh, t.Connect, t.Head, t.Ended = fresh, 2*ConnectTimeout, headerTimeout(w.meta), t.ended
	t.Idle, t.IdleAfter = w.meta.Idle, w.meta.IdleAfter
	t.stop = context.AfterFunc(ctx, func() { t.Cut(context.Cause(ctx)) })
	n.wait(t)
	res, err := t.Do(ctx, n.conns, direct(req, w, n))
	if err == nil && w.meta.Live && res.Body != http.NoBody {
		t.live.Store(true)
	} else {
		n.leave(t)
	}
	switch {
	case err == nil:
		return res, eventBroken, nil
	case errors.Is(err, wire.ErrRequest):
		return nil, eventBroken, err // no request that could be sent, and no node's fault (facts L18)
	default:
		return nil, t.became(err), err
	}
}

// became says what became of a try that ended with err.
func (t *try) became(err error) event {
	switch {
	case !t.Connected() && isOurs(err):
		return eventNoRoom
	case !t.Connected():
		return eventUnconnected
	case errors.Is(err, wire.ErrHeadTimeout), errors.Is(err, errEjectedSilent):
		return eventSilent
	case errors.Is(err, errEjectedStopped):
		return eventStopped
	case !t.Wrote():
		return eventUnwritten
	case t.Unanswered():
		return eventUnanswered
	default:
		return eventBroken
	}
}

// direct makes the request one to that node. Nobody holds it any more: what an
// earlier attempt was writing has ended with it.
func direct(req *http.Request, w *walk, n *node) *http.Request {
	req.URL.Scheme, req.URL.Host, req.URL.RawQuery = n.scheme, n.host, w.query
	w.plain = w.meta.CatchUp && !w.confirm && w.pool.leads.sure(w.key, n)
	if w.meta.CatchUp && !w.plain && len(w.nodes) > 1 {
		req.URL.RawQuery = leaderQuery(w.query)
	}
	// An empty Host makes the node's own address the Host header (H19).
	req.Host = ""
	req.Body, req.ContentLength, req.GetBody = nil, int64(len(w.meta.Body)), nil
	if len(w.meta.Body) > 0 {
		req.Body = io.NopCloser(bytes.NewReader(w.meta.Body))
	}
	return req
}

const (
	// maxDiscard and discardTime bound what is read of an answer that is not
	// wanted, so that its connection can be used again.
	maxDiscard  = 16 << 10
	discardTime = 500 * time.Millisecond
)

// discard reads the rest of a small answer, so that its connection is kept. A
// node that does not end it loses the connection, never the request its time.
func discard(res *http.Response, cut func()) {
	if res.Body != http.NoBody {
		timer := time.AfterFunc(discardTime, cut)
		defer timer.Stop()
		_, _ = io.CopyN(io.Discard, res.Body, maxDiscard)
	}
	_ = res.Body.Close()
}

// discardAnswer is discard for the answer to a try.
func discardAnswer(res *http.Response) {
	discard(res, func() {
		if x, ok := res.Body.(*wire.Exchange); ok {
			x.Cut(errDiscarded)
		}
	})
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
