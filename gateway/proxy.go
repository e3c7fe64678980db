package gateway

import (
	"context"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync"
	"time"

	"sluice/gateway/upstream"
	"sluice/internal/tracing"
)

// passage is the way of one request through httputil.ReverseProxy, whose hooks
// are given nothing of the request's Scope: so each request has a proxy of its
// own, which costs less than to carry the Scope in a context. Access has been
// decided before it is entered; it copies, streams and cleans, and flushes
// server-sent events and answers of unknown length at once by itself.
type passage struct {
	proxy  httputil.ReverseProxy
	chain  *chain
	scope  *Scope
	header http.Header     // of the answer to the client
	client context.Context // of the client's request
	events *eventBody      // of a live=sse read, once its head has come
}

// forward is the innermost handler. An exchange that failed before anything was
// answered is its error; one that broke later has panicked with
// http.ErrAbortHandler, so that the answer is cut for the client too.
func (c *chain) forward(s *Scope, w http.ResponseWriter, r *http.Request) error {
	p := &passage{proxy: c.proxy, chain: c, scope: s, header: w.Header(), client: r.Context()}
	c.openUse(s)
	p.proxy.Rewrite, p.proxy.Transport, p.proxy.ModifyResponse, p.proxy.ErrorHandler = p.rewrite, p, p.answer, p.failed
	p.proxy.ServeHTTP(w, r)
	if s.failure != nil && r.Context().Err() != nil {
		return errClientGone
	}
	return s.failure
}

func (p *passage) failed(_ http.ResponseWriter, _ *http.Request, err error) { p.scope.failure = err }

// rewrite writes what goes to a node: the target that was authorised, byte for
// byte, and the headers that a node may see. ReverseProxy has dropped query
// parameters that it could not parse by now; setting the query again undoes
// that (style fact 1).
func (p *passage) rewrite(r *httputil.ProxyRequest) {
	s, out := p.scope, r.Out
	out.URL = &url.URL{
		Path: s.Route.Path, RawQuery: s.Route.Query,
		ForceQuery: s.Route.HasQuery && s.Route.Query == "",
	}
	out.Host = ""
	traced := out.Header[tracing.ParentHeader]
	cleanRequest(out.Header)
	p.chain.passTrace(s, traced, out.Header)
	out.Header[requestIDHeader] = []string{s.ID}
	out.Trailer = nil
	// The body was read whole; the pool sends it from memory.
	out.Body, out.ContentLength, out.TransferEncoding = nil, 0, nil
}

// RoundTrip implements http.RoundTripper. It goes on with the client's own
// context: it ends when the client leaves, and is free of the hooks by which
// ReverseProxy would pass a node's 1xx on (H10). The request is ReverseProxy's
// own copy, and becomes the pool's.
func (p *passage) RoundTrip(out *http.Request) (*http.Response, error) {
	var short *http.Request
	if p.scope.Route.Tail == LongPoll {
		short = out.Clone(p.scope.tail.client)
	}
	res, err := p.send(p.client, out, p.scope.Route.Wait)
	if t := p.scope.tail; short != nil && !t.answered(err) && t.client.Err() == nil {
		if err == nil {
			_ = res.Body.Close()
		}
		askShort(short)
		p.client = t.client
		res, err = p.send(t.client, short, shortWait)
	}
	if err != nil {
		return nil, err
	}
	// A copy, since reading the body writes a node's trailers into its own, past
	// everything that is cleaned (H23).
	own := *res
	own.Trailer = nil
	return &own, nil
}

// send asks a node; wait is how long that may wait for something to come.
func (p *passage) send(ctx context.Context, out *http.Request, wait time.Duration) (*http.Response, error) {
	s := p.scope
	m := upstream.Meta{
		Path:      streamKey(s.Route),
		Body:      s.body,
		Read:      !s.Route.Operation.Writes(),
		Keyed:     isKeyed(s.Route.Operation, out.Header),
		Spread:    s.Route.Operation == ReadChunk,
		CatchUp:   s.Route.Operation == Read && s.Route.Tail == NoTail && !s.Route.Leader,
		Live:      s.Route.Tail == SSE,
		LongPoll:  s.Route.Tail == LongPoll,
		Wait:      wait,
		Parts:     partsOf(s.Route.Operation, out.Header),
		Idle:      p.idle(),
		IdleAfter: p.chain.Heartbeat,
		Trail:     &s.trail,
	}
	traceAttempts(m.Trail, s.span, out.Method, s.Route.Operation.template())
	if s.attempt != nil {
		return p.sendChange(out, m)
	}
	return p.chain.Upstream.Send(ctx, out, m)
}

// answer makes the head of a node's answer the client's. It hands the header over
// itself, since ReverseProxy would copy each value, except where ReverseProxy
// decides by the media type when to flush.
func (p *passage) answer(res *http.Response) error {
	if err := p.follow(res); err != nil {
		return err
	}
	p.scope.answered(res.StatusCode)
	p.settle(res)
	p.chain.headSpan(p.scope, res.StatusCode)
	h := p.header
	if p.scope.Route.Tail == SSE {
		h = res.Header
		pass(h, h, true)
	} else {
		pass(res.Header, h, false)
		res.Header = nil
	}
	p.chain.finish(p.scope, res, h)
	return nil
}

// follow makes a live read's answer end when the read does.
func (p *passage) follow(res *http.Response) error {
	t := p.scope.tail
	if t == nil {
		return nil
	}
	if p.scope.Route.Tail != SSE || res.StatusCode != http.StatusOK {
		return t.begin(nil)
	}
	p.events = &eventBody{body: res.Body, cancel: t.cancel, until: p.scope.answer.until}
	res.Body = p.events
	return t.begin(p.events)
}

// idle is what is done where nothing comes for a while: nil for nothing.
func (p *passage) idle() func() error {
	if p.chain.Heartbeat <= 0 || p.scope.Route.Tail != SSE {
		return nil
	}
	return p.beat
}

// heartbeat is a comment, which readers of events pass over: it keeps middleboxes
// from cutting a silent tail (S05), and finds clients that are gone (S10).
const heartbeat = ":\n\n"

// beat writes a heartbeat, never inside an event. It is called by the Read of the
// goroutine that writes the answer.
func (p *passage) beat() error {
	if p.events == nil || !p.events.between() {
		return nil
	}
	if err := p.scope.answer.beat(heartbeat); err != nil {
		return errClientGone
	}
	p.chain.Metrics.Heartbeat()
	return nil
}

// streamKey is the stream's path, which all its subresources share (facts L24).
func streamKey(rt Route) string {
	return rt.Path[:len("/")+len(rt.Account)+len("/s.")+len(rt.Stream)]
}

// isKeyed reports an append that is stored once however often it is sent: it has
// all three producer headers, once each, in what goes to the node.
func isKeyed(op Operation, h http.Header) bool {
	return op == Append && len(h["Producer-Id"]) == 1 && len(h["Producer-Epoch"]) == 1 && len(h["Producer-Seq"]) == 1
}

// partsOf is how many staged parts a commit names; a malformed number counts as
// none, and the node refuses it (facts F9).
func partsOf(op Operation, h http.Header) int {
	if op != PublishSnapshot {
		return 0
	}
	n, err := strconv.ParseUint(h.Get("Stream-Snapshot-Parts"), 10, 16)
	if err != nil {
		return 0
	}
	return int(n)
}

const copyBufferSize = 32 << 10

// copyPool is shared by all chains: buffers hold nothing between uses.
var copyPool = sync.Pool{New: func() any { return new([copyBufferSize]byte) }}

// copyBuffers implements httputil.BufferPool.
type copyBuffers struct{}

// Get implements httputil.BufferPool.
func (copyBuffers) Get() []byte {
	b, _ := copyPool.Get().(*[copyBufferSize]byte)
	return b[:]
}

// Put implements httputil.BufferPool.
func (copyBuffers) Put(b []byte) { copyPool.Put((*[copyBufferSize]byte)(b)) }

var (
	_ http.RoundTripper   = (*passage)(nil)
	_ httputil.BufferPool = copyBuffers{}
)
