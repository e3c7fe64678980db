package gateway

import (
	"context"
	"errors"
	"net/http"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"sluice/auth"
	"sluice/gateway/upstream"
	"sluice/internal/telemetry"
	"sluice/ratelimit"
)

// dryRun is one request's way through a chain that only looks: the steps of the chain in
// force, in their order, over parts that say what they would do and do nothing. Limits are
// looked at and not taken, no key counts as used, nothing is written down, and in place of
// the nodes there is what notes the request that they would get. It belongs to one goroutine.
type dryRun struct {
	chain  *chain
	steps  []ExplainedStep
	traced bool // the chain in force records traces

	scope *Scope
	rate  ratelimit.Decision // of the account's rate, once it was looked at
	err   error              // of the step that refused it
	sent  *http.Request      // what a node would get
	meta  upstream.Meta      // and how it would be chosen
}

// errUndecided says that what decides is not in a request's head: its body, or what is
// stored.
var errUndecided = errors.New("its body, or what is stored, decides")

// newDryRun builds the chain. The error is that of a metrics registry.
func newDryRun(c *chain) (*dryRun, error) {
	d := &dryRun{traced: c.Tracer.On()}
	metrics, err := telemetry.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		return nil, err
	}
	o := c.Options
	o.Log, o.Metrics, o.Meter, o.Tracer, o.Upstream = zap.NewNop(), metrics, nil, nil, d
	o.Limiter = lookingLimiter{c.Limiter, &d.rate}
	o.Failures, o.Exchanges = lookingLimiter{c.Failures, nil}, lookingLimiter{c.Exchanges, nil}
	o.Tails, o.Uploads = lookingTails{c.Tails}, lookingUploads{c.Uploads}
	o.Authenticator = c.Authenticator.Quiet()
	// A form that could be exchanged never comes: no body does.
	o.Exchanger = nil
	if c.Management != nil {
		o.Management = lookingManagement{c.Management}
	}
	if c.Lifecycle != nil {
		o.Lifecycle = lookingLifecycle{c.Lifecycle}
	}
	open := &openTails{now: c.Now, random: func() float64 { return 0 }, maxAge: c.TailMaxAge}
	d.chain = bareChain(o, open, c.crossOrigin)
	open.check = func(ctx context.Context, t *openTail) (*auth.Principal, error) { return d.chain.recheck(ctx, t) }
	d.chain.fold(d.watch)
	return d, nil
}

// run sends a request through.
func (d *dryRun) run(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if p := recover(); p != nil && !isAbort(p) {
			panic(p)
		}
	}()
	d.chain.ServeHTTP(w, r)
}

// watch puts a step before those that follow it, and notes what comes of it.
func (d *dryRun) watch(st step, next handler) handler {
	run, passed := st.run, false
	if st.look != nil {
		run = st.look
	}
	inner := run(func(s *Scope, w http.ResponseWriter, r *http.Request) error {
		passed = true
		d.note(st.name, passedWhy(d, st.name, s, r))
		return next(s, w, r)
	})
	return func(s *Scope, w http.ResponseWriter, r *http.Request) error {
		if d.scope == nil {
			d.scope = s
			d.note(stepScope, passedWhy(d, stepScope, s, r))
		}
		err := inner(s, w, r)
		if !passed {
			d.stopped(st.name, err)
		}
		return err
	}
}

func (d *dryRun) note(name string, why reason) {
	outcome := StepPassed
	if why.skipped {
		outcome = StepSkipped
	}
	d.steps = append(d.steps, ExplainedStep{Step: name, Outcome: outcome, Why: telemetry.Redact(why.text)})
}

// stopped notes the step that answered, or refused.
func (d *dryRun) stopped(name string, err error) {
	d.err = err
	st := ExplainedStep{Step: name, Outcome: StepRefused}
	switch {
	case err == nil:
		st.Outcome, st.Why = StepAnswered, "the gateway answers this by itself"
	case errors.Is(err, errUndecided):
		st.Outcome, st.Why = StepAnswered, "the gateway answers this by itself: "+errUndecided.Error()
	default:
		if ref := asRefusal(err); ref.Cause != nil {
			st.Why = telemetry.Redact(ref.Cause.Error())
		}
	}
	d.steps = append(d.steps, st)
}

// Send implements Upstream: it notes the request, and gives an answer that has everything by
// which the gateway's own headers are decided.
func (d *dryRun) Send(ctx context.Context, r *http.Request, m upstream.Meta) (*http.Response, error) {
	d.sent, d.meta = r.Clone(ctx), m
	return &http.Response{
		StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r, Body: http.NoBody,
		Header: http.Header{"Stream-Immutable": {"true"}},
	}, nil
}

var errNotAsked = errors.New("no node is asked")

// Identity implements Upstream.
func (d *dryRun) Identity() (upstream.Identity, error) { return upstream.Identity{}, errNotAsked }

// lookingLimiter counts nothing, and keeps what it has said.
type lookingLimiter struct {
	ratelimit.Limiter
	said *ratelimit.Decision
}

// Allow implements ratelimit.Limiter.
func (l lookingLimiter) Allow(s ratelimit.Subject, r ratelimit.Rate) ratelimit.Decision {
	d := l.Look(s, r)
	if l.said != nil {
		*l.said = d
	}
	return d
}

// lookingTails takes no slot.
type lookingTails struct{ ratelimit.Tails }

// Acquire implements ratelimit.Tails.
func (l lookingTails) Acquire(_ context.Context, s ratelimit.Subject, limit int) (ratelimit.Lease, error) {
	if err := l.LookTail(s, limit); err != nil {
		return nil, err
	}
	return nothing{}, nil
}

// lookingUploads takes neither a slot nor bytes.
type lookingUploads struct{ ratelimit.Uploads }

// AcquireUpload implements ratelimit.Uploads.
func (l lookingUploads) AcquireUpload(_ context.Context, s ratelimit.Subject, limits ratelimit.UploadLimits, bytes int64) (ratelimit.Upload, error) {
	if err := l.LookUpload(s, limits, bytes); err != nil {
		return nil, err
	}
	return nothing{}, nil
}

// nothing is what was taken: a lease, an upload, an attempt.
type nothing struct{}

// Release implements ratelimit.Lease.
func (nothing) Release() {}

// Resize implements ratelimit.Upload.
func (nothing) Resize(context.Context, int64) error { return nil }

// Incarnation implements Attempt.
func (nothing) Incarnation() string { return "" }

// End implements Attempt.
func (nothing) End(context.Context, int, http.Header, string) {}

// Unsent implements Attempt.
func (nothing) Unsent(context.Context) {}

// lookingManagement answers nothing.
type lookingManagement struct{ Management }

// Serve implements Management.
func (l lookingManagement) Serve(_ http.ResponseWriter, r *http.Request, _ netip.Addr) (*auth.Principal, error) {
	p, err := l.Look(r)
	if err == nil {
		err = errUndecided
	}
	return p, err
}

// lookingLifecycle writes nothing down.
type lookingLifecycle struct{ Lifecycle }

// Begin implements Lifecycle.
func (l lookingLifecycle) Begin(ctx context.Context, c StreamChange) (Attempt, error) {
	if err := l.Look(ctx, c); err != nil {
		return nil, err
	}
	return nothing{}, nil
}

var (
	_ Upstream          = (*dryRun)(nil)
	_ ratelimit.Limiter = lookingLimiter{}
	_ ratelimit.Tails   = lookingTails{}
	_ ratelimit.Uploads = lookingUploads{}
	_ ratelimit.Upload  = nothing{}
	_ Attempt           = nothing{}
	_ Management        = lookingManagement{}
	_ Lifecycle         = lookingLifecycle{}
)

// unsentBody is the body of a request that is only asked about.
type unsentBody struct{}

func (unsentBody) Read([]byte) (int, error) { return 0, errUndecided }
func (unsentBody) Close() error             { return nil }

// headWriter keeps the head of an answer, and what little is written of its body.
type headWriter struct {
	header http.Header
	status int
	body   []byte
}

const maxKept = 4 << 10 // bytes of a body: a refusal's

func (w *headWriter) Header() http.Header { return w.header }

func (w *headWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
}

func (w *headWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	w.body = append(w.body, p[:min(len(p), maxKept-len(w.body))]...)
	return len(p), nil
}
