package gateway

import (
	"net/http"
	"net/http/httputil"
	"slices"

	"go.uber.org/zap"
)

// handler serves one request or says why not. An error is answered in one
// place, chain.refuse; a handler that has begun to write returns none.
type handler func(s *Scope, w http.ResponseWriter, r *http.Request) error

// middleware is one step of the chain.
type middleware func(next handler) handler

// chain is one configuration in force: built whole, then swapped in, and never
// changed. Requests keep the chain that they began with.
type chain struct {
	Options
	serve handler
	proxy httputil.ReverseProxy // what the proxies of all requests have in common
	open  *openTails            // the gateway's
	// crossOrigin is nil where no origin is listed.
	crossOrigin *crossOrigin
	chance      func() float64 // in [0, 1)
}

func newChain(o Options, open *openTails) *chain {
	c := &chain{Options: o, open: open, crossOrigin: newCrossOrigin(o.Origins), chance: fractions(o.Random)}
	// It complains of what the access log already tells, at a level of its own.
	quiet, _ := zap.NewStdLogAt(c.Log.Named("proxy"), zap.DebugLevel)
	c.proxy = httputil.ReverseProxy{BufferPool: copyBuffers{}, ErrorLog: quiet}
	c.serve = c.forward
	for _, step := range slices.Backward(c.order()) {
		c.serve = step(c.serve)
	}
	return c
}

// order is the one place that says what comes before what.
func (c *chain) order() []middleware {
	return []middleware{
		// Before everything, so that its headers are on every answer, and no
		// preflight asks about what is behind the path.
		c.cors,
		// Nothing is decided about a request that does not parse, and all later
		// steps decide on the Route, never on the request.
		c.route,
		// What is no stream's goes no further.
		c.own,
		// Before any look-up of the stream: a bad credential is refused even where
		// none is needed, since a broken credential is not no credential (A18).
		c.authenticate,
		// Before the account's standing, so that strangers learn nothing of it.
		c.authorize,
		c.account,
		// After access: only who may write the stream is told that its lifecycle
		// is managed; everybody else gets the refusal of any other write.
		c.lifecycle,
		// Before the rate, since it costs nothing and the client sees it coming.
		c.declaredSize,
		// Before the tail's slot, so that opening and closing tails in a loop is
		// held by the rate as well (S16).
		c.rate,
		c.tail,
		// Only what has its slot is followed.
		c.live,
		// Only what passed everything else may occupy the body budget.
		c.readBody,
		// Last, when nothing is left that could refuse it: what is written down here is
		// about to go to a node, and until then no byte of it has.
		c.change,
	}
}
