package gateway

import (
	"context"
	"io"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"sluice/auth"
	"sluice/gateway/upstream"
	"sluice/internal/telemetry"
	"sluice/internal/tenant"
	"sluice/internal/tracing"
	"sluice/ratelimit"
)

// Upstream is the way to the nodes; upstream.Pool implements it. Send's error is
// *upstream.Error, or ctx's error when the client has left; it may change r.
type Upstream interface {
	Send(ctx context.Context, r *http.Request, m upstream.Meta) (*http.Response, error)
	Identity() (upstream.Identity, error)
}

var _ Upstream = (*upstream.Pool)(nil)

// Options are the parts that a chain is built of. All are needed but where a
// zero value's meaning is stated.
type Options struct {
	Directory     tenant.Directory
	Authenticator *auth.Authenticator
	Limiter       ratelimit.Limiter
	Tails         ratelimit.Tails
	Uploads       ratelimit.Uploads
	Upstream      Upstream
	Log           *zap.Logger
	Metrics       *telemetry.Metrics
	Tracer        *tracing.Tracer // nil: nothing is traced
	Budget        *BodyBudget
	Now           func() time.Time // nil = time.Now
	Random        io.Reader        // of request ids; must not fail

	// Origin is what clients call the gateway, without a slash at its end.
	Origin string
	// Exchanger makes tokens, each key at most ExchangesPerSecond of them over a
	// while and twice as many at once, counted by Exchanges.
	Exchanger          *auth.Exchanger
	Exchanges          ratelimit.Limiter
	ExchangesPerSecond int
	// Management is the API under /v1; nil: there is none.
	Management Management
	// Meter counts what requests use; nil: nobody does.
	Meter Meter
	// Lifecycle is told of PUT and DELETE of streams, which then go to the nodes; nil: they
	// are refused, since the Management API does their work.
	Lifecycle Lifecycle
	// Failures counts bad credentials by client address: FailedPerMinute are
	// answered 401, from then on one a second (or their 60th part, if more). 0
	// counts none.
	Failures        ratelimit.Limiter
	FailedPerMinute int
	// Origins are those whose pages may read answers; none turns CORS off.
	Origins []string

	// MaxRequestBytes bounds the bodies of requests whose account is not known
	// (yet): what is read of a refused one before it is answered. 0 = 8 MiB.
	MaxRequestBytes int64
	// TrustedProxies are the peers whose forwarded client address is believed;
	// none by default.
	TrustedProxies []netip.Prefix
	// Heartbeat is how long a stream of events may be silent before a comment is
	// sent; 0 sends none.
	Heartbeat time.Duration
	// TailMaxAge is how old a live read may get before it is ended, at a place to
	// resume from; the last tenth is chance's, so that those which began together do
	// not end together. 0: any age.
	TailMaxAge time.Duration
	// HeaderBytes is what the server takes of a request's line and headers together; Explain
	// tells by it. 0 = 32 KiB.
	HeaderBytes int64
	// TailsPerConnection is how many tails one HTTP/2 connection may have open; 0: any
	// number, up to the requests that it may have under way.
	TailsPerConnection int
	// LogSample is the share of requests that went well and fast whose line is written,
	// 0 to 1; nil: all of them.
	LogSample *float64
	// Pace bounds how slowly bodies may come, and tails be read; zero fields have
	// defaults.
	Pace Pace
}

// Gateway is the handler of the public listener. It is safe for concurrent use.
// Close ends what it listens to.
type Gateway struct {
	current atomic.Pointer[chain]
	open    openTails
	leaving atomic.Bool

	mu      sync.Mutex // guards changes of what is watched
	watched tenant.Directory
	unwatch func()
}

// New makes a gateway with a first chain.
func New(o Options) *Gateway {
	g := &Gateway{unwatch: func() {}}
	g.open.check = func(ctx context.Context, t *openTail) (*auth.Principal, error) {
		return g.current.Load().recheck(ctx, t)
	}
	g.Swap(o)
	return g
}

// Swap builds a new chain and puts it in force for requests that begin from now
// on. Those under way end on the chain they began with, but open tails are looked
// at under the new rules, and end where those do not allow them.
func (g *Gateway) Swap(o Options) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.MaxRequestBytes == 0 {
		o.MaxRequestBytes = tenant.DefaultLimits().RequestBytes
	}
	if o.HeaderBytes == 0 {
		o.HeaderBytes = maxHead
	}
	o.Pace = o.Pace.withDefaults()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open.set(o.Now, fractions(o.Random), o.TailMaxAge)
	g.current.Store(newChain(o, &g.open))
	if o.Directory != g.watched {
		g.unwatch()
		g.watched, g.unwatch = o.Directory, o.Directory.Watch(g.open.changed)
	}
	g.Recheck()
}

// Recheck looks at every open tail again: what tells whether a credential is good
// may have changed, as when another issuer's keys have.
func (g *Gateway) Recheck() { g.open.changed(tenant.Change{Kind: tenant.Everything}) }

// OpenTails counts the live reads that are open, by kind.
func (g *Gateway) OpenTails() map[string]float64 { return g.open.byKind() }

// LargestShare is the greatest part of its open tails' limit that an account has open
// here, or that strangers have of its public streams.
func (g *Gateway) LargestShare() float64 { return g.open.largestShare() }

// Close stops listening for changes. Requests under way go on.
func (g *Gateway) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unwatch()
	g.unwatch = func() {}
	g.open.close()
}

// ServeHTTP implements http.Handler.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if g.leaving.Load() {
		// Over HTTP/2 net/http makes a GOAWAY of it (G05).
		w.Header().Set("Connection", "close")
	}
	g.current.Load().ServeHTTP(w, r)
}
