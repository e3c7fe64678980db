package gateway

import (
	"io"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"sluice/auth"
	"sluice/gateway/upstream"
	"sluice/internal/telemetry"
	"sluice/internal/tenant"
	"sluice/ratelimit"
)

// Upstream is the way to the nodes; upstream.Pool implements it. Send's error is
// *upstream.Error, or the context's error when the client has left.
type Upstream interface {
	Send(r *http.Request, m upstream.Meta) (*http.Response, error)
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
	Upstream      Upstream
	Log           *zap.Logger
	Metrics       *telemetry.Metrics
	Budget        *BodyBudget
	Now           func() time.Time // nil = time.Now
	Random        io.Reader        // of request ids; must not fail

	// MaxRequestBytes bounds the bodies of requests whose account is not known
	// (yet): what is read of a refused one before it is answered. 0 = 8 MiB.
	MaxRequestBytes int64
	// TrustedProxies are the peers whose forwarded client address is believed;
	// none by default.
	TrustedProxies []netip.Prefix
	// Pace bounds how slowly bodies may come; zero fields have defaults.
	Pace Pace
}

// Gateway is the handler of the public listener. It is safe for concurrent use.
type Gateway struct{ current atomic.Pointer[chain] }

// New makes a gateway with a first chain.
func New(o Options) *Gateway {
	g := &Gateway{}
	g.Swap(o)
	return g
}

// Swap builds a new chain and puts it in force for requests that begin from now
// on; those under way, open tails among them, end on the chain they began with.
func (g *Gateway) Swap(o Options) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.MaxRequestBytes == 0 {
		o.MaxRequestBytes = tenant.DefaultLimits().RequestBytes
	}
	o.Pace = o.Pace.withDefaults()
	g.current.Store(newChain(o))
}

// ServeHTTP implements http.Handler.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.current.Load().ServeHTTP(w, r)
}
