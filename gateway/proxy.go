package gateway

import (
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync"

	"go.uber.org/zap"

	"sluice/gateway/upstream"
)

// newProxy makes the ReverseProxy of a chain. Access has been decided before it
// is entered; it copies, streams and cleans. It flushes server-sent events and
// answers of unknown length at once by itself.
func (c *chain) newProxy() *httputil.ReverseProxy {
	// It complains of what the access log already tells, at a level of its own.
	quiet, _ := zap.NewStdLogAt(c.Log.Named("proxy"), zap.DebugLevel)
	return &httputil.ReverseProxy{
		Rewrite:        rewrite,
		Transport:      nodes{c.Upstream},
		ModifyResponse: c.clean,
		ErrorHandler: func(_ http.ResponseWriter, r *http.Request, err error) {
			scopeOf(r.Context()).failure = err
		},
		BufferPool: copyBuffers{},
		ErrorLog:   quiet,
	}
}

// forward is the innermost handler. An exchange that failed before anything was
// answered is its error; one that broke later has panicked with
// http.ErrAbortHandler, so that the answer is cut for the client too.
func (c *chain) forward(s *Scope, w http.ResponseWriter, r *http.Request) error {
	c.proxy.ServeHTTP(w, r.WithContext(s.ctx))
	if s.failure != nil && r.Context().Err() != nil {
		return errClientGone
	}
	return s.failure
}

// rewrite writes what goes to a node: the target that was authorised, byte for
// byte, and the headers that a node may see. ReverseProxy has dropped query
// parameters that it could not parse by now; setting the query again undoes
// that (style fact 1).
func rewrite(p *httputil.ProxyRequest) {
	s := scopeOf(p.In.Context())
	out := p.Out
	out.URL = &url.URL{
		Path: s.Route.Path, RawQuery: s.Route.Query,
		ForceQuery: s.Route.HasQuery && s.Route.Query == "",
	}
	out.Host = ""
	cleanRequest(out.Header)
	out.Header.Set(requestIDHeader, s.ID)
	out.Trailer = nil
	// The body was read whole; the pool sends it from memory.
	out.Body, out.ContentLength, out.TransferEncoding = nil, 0, nil
}

// nodes joins ReverseProxy to the pool.
type nodes struct{ upstream Upstream }

// RoundTrip implements http.RoundTripper. It goes on with the client's own
// context: it ends when the client leaves, and is free of the hooks by which
// ReverseProxy would pass a node's 1xx on (H10).
func (n nodes) RoundTrip(out *http.Request) (*http.Response, error) {
	s := scopeOf(out.Context())
	res, err := n.upstream.Send(out.WithContext(s.ctx), upstream.Meta{
		Path:     streamKey(s.Route),
		Body:     s.body,
		Read:     !s.Route.Operation.Writes(),
		Keyed:    isKeyed(s.Route.Operation, out.Header),
		Spread:   s.Route.Operation == ReadChunk,
		CatchUp:  s.Route.Operation == Read && s.Route.Tail == NoTail && !s.Route.Leader,
		Live:     s.Route.Tail == SSE,
		LongPoll: s.Route.Tail == LongPoll,
		Wait:     s.Route.Wait,
		Parts:    partsOf(s.Route.Operation, out.Header),
	})
	if err != nil {
		return nil, err
	}
	// A copy, since the transport writes a node's trailers into its own at the
	// body's end, past everything that is cleaned (H23).
	own := *res
	own.Trailer = nil
	return &own, nil
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
	_ http.RoundTripper   = nodes{}
	_ httputil.BufferPool = copyBuffers{}
)
