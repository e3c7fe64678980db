package gateway

import (
	"net/http"
	"net/http/httputil"
	"slices"

	"go.uber.org/zap"
)

// The names of the steps, by which 'sluice explain' tells of them.
const (
	stepScope        = "scope"
	stepCORS         = "cors"
	stepRoute        = "route"
	stepOwn          = "own"
	stepAuthenticate = "authenticate"
	stepAuthorize    = "authorize"
	stepAccount      = "account"
	stepLifecycle    = "lifecycle"
	stepSize         = "size"
	stepRate         = "rate"
	stepTail         = "tail"
	stepLive         = "live"
	stepBody         = "body"
	stepChange       = "change"
	stepProxy        = "proxy"
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

// step is one step of the chain.
type step struct {
	name string
	run  middleware
	// look is run in place of run by a chain that only looks (dryrun.go): of a step that takes
	// something itself, and not by a part that is passed in. nil: run.
	look middleware
}

func newChain(o Options, open *openTails) *chain {
	c := bareChain(o, open, newCrossOrigin(o.Origins))
	c.fold(func(st step, next handler) handler { return st.run(next) })
	return c
}

// bareChain is a chain that serves nothing yet.
func bareChain(o Options, open *openTails, x *crossOrigin) *chain {
	c := &chain{Options: o, open: open, crossOrigin: x, chance: fractions(o.Random)}
	// It complains of what the access log already tells, at a level of its own.
	quiet, _ := zap.NewStdLogAt(c.Log.Named("proxy"), zap.DebugLevel)
	c.proxy = httputil.ReverseProxy{BufferPool: copyBuffers{}, ErrorLog: quiet}
	return c
}

// fold puts the steps together, the innermost first.
func (c *chain) fold(put func(st step, next handler) handler) {
	c.serve = c.forward
	for _, st := range slices.Backward(c.order()) {
		c.serve = put(st, c.serve)
	}
}

// order is the one place that says what comes before what.
func (c *chain) order() []step {
	return []step{
		// Before everything, so that its headers are on every answer, and no
		// preflight asks about what is behind the path.
		{name: stepCORS, run: c.cors},
		// Nothing is decided about a request that does not parse, and all later
		// steps decide on the Route, never on the request.
		{name: stepRoute, run: c.route},
		// What is no stream's goes no further.
		{name: stepOwn, run: c.own},
		// Before any look-up of the stream: a bad credential is refused even where
		// none is needed, since a broken credential is not no credential (A18).
		{name: stepAuthenticate, run: c.authenticate},
		// Before the account's standing, so that strangers learn nothing of it.
		{name: stepAuthorize, run: c.authorize},
		{name: stepAccount, run: c.account},
		// After access: only who may write the stream is told that its lifecycle
		// is managed; everybody else gets the refusal of any other write.
		{name: stepLifecycle, run: c.lifecycle},
		// Before the rate, since it costs nothing and the client sees it coming.
		{name: stepSize, run: c.declaredSize},
		// Before the tail's slot, so that opening and closing tails in a loop is
		// held by the rate as well (S16).
		{name: stepRate, run: c.rate},
		{name: stepTail, run: c.tail},
		// Only what has its slot is followed.
		{name: stepLive, run: c.live},
		// Only what passed everything else may occupy the body budget.
		{name: stepBody, run: c.readBody, look: c.lookAtBody},
		// Last, when nothing is left that could refuse it: what is written down here is
		// about to go to a node, and until then no byte of it has.
		{name: stepChange, run: c.change},
	}
}
