package manage

import (
	"context"
	_ "embed"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"sluice/auth"
	"sluice/internal/refusal"
	"sluice/internal/store"
	"sluice/internal/telemetry"
	"sluice/internal/tenant"
)

// Prefix begins every path of the Management API.
const Prefix = "/v1/"

// Options are the parts of the Management API. All are needed but where it is said.
type Options struct {
	Streams  StreamStore
	Keys     KeyStore
	Accounts AccountStore
	Audit    AuditStore
	Usage    UsageStore
	// Reconciler takes the first steps of a stream at once.
	Reconciler *Reconciler
	Log        *zap.Logger
	Now        func() time.Time // nil = time.Now
	Random     io.Reader        // crypto/rand.Reader outside tests

	// Origin is what clients call the gateway, without a slash at its end.
	Origin string
	// Region is where streams are kept; the only one there is.
	Region string
	// DefaultLimits are those of accounts that have none of their own.
	DefaultLimits tenant.Limits
	// CreateWait is how long a create waits for the nodes before it answers that the
	// stream is being created. 0 = 3 s.
	CreateWait time.Duration
	// BodyWait is how long a body may take to come. 0 = 30 s.
	BodyWait time.Duration

	// Of the owner's API alone:

	Authenticator *auth.Authenticator
	// Directory knows the standing of accounts from memory.
	Directory tenant.Directory
	// Allow counts one call of an account; nil lets all pass.
	Allow func(account tenant.AccountID) Allowance
	// OpenTails is how many tails an account has open, over all replicas; nil where that
	// is not known, as is what it gives an error for.
	OpenTails func(ctx context.Context, account tenant.AccountID) (int, error)
}

// Allowance says whether an account may make one more call now.
type Allowance struct {
	OK bool
	// RetryAfter is when it may where it may not, and Remaining how many more it may make.
	RetryAfter time.Duration
	Remaining  int
	// PerSecond and Burst are the rate that it is held to, both above 0.
	PerSecond, Burst int
}

// API is the Management API of one listener: the owner's or the operator's. It keeps no
// state, and is safe for concurrent use.
type API struct {
	o        Options
	operator bool
}

// NewOwner makes the API of the public listener.
func NewOwner(o Options) *API { return &API{o: o.withDefaults()} }

// NewOperator makes the API of the admin listener, whose own token guards it.
func NewOperator(o Options) *API { return &API{o: o.withDefaults(), operator: true} }

func (o Options) withDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.CreateWait == 0 {
		o.CreateWait = 3 * time.Second
	}
	if o.BodyWait == 0 {
		o.BodyWait = 30 * time.Second
	}
	return o
}

//go:embed openapi.yaml
var reference []byte

// Reference is openapi.yaml: what the API takes and answers. It must not be changed.
func Reference() []byte { return reference }

// call is one request to the API.
type call struct {
	w         http.ResponseWriter
	r         *http.Request
	client    netip.Addr      // who asks; the zero value where that is not known
	principal *auth.Principal // of an owner's call; nil = not known
	query     query
	account   tenant.AccountID // whose things it is about
	id        string           // the name or id in the path; "" = there is none
}

// reply is an answer that is no refusal; a nil body is none.
type reply struct {
	status int
	body   any
}

// handler answers a call or says why not.
type handler func(c *call) (reply, error)

// ServeHTTP answers a request of a listener of its own, where who asks is the peer; refusals
// too.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, err := a.Serve(w, r, peer(r)); err != nil { //nolint:contextcheck // the context is the request's
		ref := refusal.From(err)
		if ref.Status() >= http.StatusInternalServerError {
			a.o.Log.Warn("management API", zap.String("request_id", telemetry.Foreign(w.Header().Get(requestIDHeader))), zap.Error(err))
		}
		_ = refusal.Write(w, r.Method, ref)
	}
}

// Serve answers a request, or returns the *refusal.Refusal to answer it with, having
// written no more than headers. The refusal wraps the error of package auth where a
// credential is not good. client is who asks, as the records of changes have it. The
// principal is who asked, also where it was refused; nil where that is nobody that is known.
func (a *API) Serve(w http.ResponseWriter, r *http.Request, client netip.Addr) (*auth.Principal, error) {
	a.identify(w, r)
	c := &call{w: w, r: r, client: client}
	rep, err := a.answer(c)
	if err != nil {
		return c.principal, asRefusal(err)
	}
	return c.principal, rep.write(w, r)
}

// Look says what Serve would refuse a request of the owner's API with, as far as its head
// tells: nil where what is stored, or the body, decides. It counts nothing, the calls that
// an account may make are not looked at, and nobody is told that a key was used. Its results
// are as those of Serve.
func (a *API) Look(r *http.Request) (*auth.Principal, error) {
	quiet := *a
	quiet.o.Allow, quiet.o.Authenticator = nil, a.o.Authenticator.Quiet()
	c := &call{r: r}
	if _, err := quiet.prepare(c); err != nil {
		return c.principal, asRefusal(err)
	}
	return c.principal, nil
}

func (a *API) answer(c *call) (reply, error) {
	target, err := a.prepare(c)
	if err != nil {
		return reply{}, err
	}
	return target.handle(c)
}

// prepare finds out what a call is, and refuses by its head.
func (a *API) prepare(c *call) (target, error) {
	r := c.r
	target, err := a.route(r)
	if err != nil {
		return target, err
	}
	c.id = target.id
	if !target.open {
		if err := a.admit(c, target); err != nil {
			return target, err
		}
	}
	if c.query, err = parseQuery(r.URL.RawQuery, target.parameters); err != nil {
		return target, err
	}
	if r.ContentLength != 0 && !target.body {
		return target, refusal.Because(refusal.InvalidRequest, "This request takes no body: send none.", nil)
	}
	return target, nil
}

// admit finds the account that a call is about, and whether it may be made.
func (a *API) admit(c *call, t target) error {
	if !a.operator {
		return a.admitOwner(c)
	}
	if t.account == "" {
		return nil
	}
	id, err := tenant.ParseAccountID(t.account)
	if err != nil {
		return badField("account", "The account in the path is none: "+sentence(err))
	}
	if t.ofAccount {
		// So that a list of what a missing account has is not an empty list.
		if _, err := a.o.Accounts.Account(c.r.Context(), id); err != nil {
			return accountError(err)
		}
	}
	c.account = id
	return nil
}

const requestIDHeader = "X-Request-Id"

// identify gives the answer a request id, where whoever mounted the API has not.
func (a *API) identify(w http.ResponseWriter, r *http.Request) {
	if w.Header().Get(requestIDHeader) != "" {
		return
	}
	id := r.Header.Get(requestIDHeader)
	if !refusal.WellFormedID(id) {
		// Without randomness it is empty, and what needs ids or keys fails by itself.
		id, _ = newID(a.o.Random, "")
	}
	w.Header().Set(requestIDHeader, id)
}

// asRefusal is the one table from errors to refusals. What reaches it has done
// nothing, or is not known to have.
func asRefusal(err error) *refusal.Refusal {
	var own *refusal.Refusal
	switch {
	case errors.As(err, &own):
		return own
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return refusal.New(refusal.StoreUnavailable, err)
	default:
		return refusal.From(err)
	}
}

// tooMany is a call beyond the account's rate.
func tooMany(a Allowance) error {
	return refusal.Because(refusal.RateLimited, "This account calls the Management API too often: wait for Retry-After seconds.", nil).
		OverRate("management", a.PerSecond, a.Burst, a.Remaining, a.RetryAfter)
}
