package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"sluice/auth"
	"sluice/config"
	"sluice/gateway"
	"sluice/gateway/upstream"
	"sluice/internal/manage"
	"sluice/internal/store/memory"
	"sluice/internal/telemetry"
	"sluice/internal/tenant"
	"sluice/internal/tracing"
	"sluice/ratelimit"
)

// appOptions are what an App is given from outside.
type appOptions struct {
	Config *config.Config
	Log    *zap.Logger
	Level  zap.AtomicLevel
	// Lost is how many log lines were dropped; nil = none are.
	Lost func() int64
	// Load reads the configuration again, for a reload; nil = there is no file.
	Load func() (*config.Config, error)
	// Now is the clock by which use is metered; nil = the system's.
	Now func() time.Time
	// Public and Admin are listeners that stand already; nil = listen as the
	// configuration says.
	Public []net.Listener
	Admin  net.Listener
	// Handed is what the process was started with; nil = nothing.
	Handed *inheritance
}

// App is the whole program: every part, built once, and the configuration in
// force. Parts that hold state outlive a reload; the chain is built anew.
type App struct {
	log           *zap.Logger
	level         zap.AtomicLevel
	load          func() (*config.Config, error)
	metrics       *telemetry.Metrics
	registry      *prometheus.Registry
	tracer        *tracing.Tracer
	pool          *upstream.Pool
	limits        limits
	shared        *ratelimit.Redis                // the same; nil where each process counts by itself
	gateway       atomic.Pointer[gateway.Gateway] // an issuer's keys may change before it is there
	keeper        *manage.Keeper
	public        []net.Listener
	admin         net.Listener
	handed        *inheritance
	activated     struct{ public, admin, plain bool } // by systemd, whatever the file says
	successor     chan struct{}                       // closed when another process serves
	supervisor    supervisor
	plain         net.Listener // tls.http_listen; nil = none
	secure        *secure      // nil where TLS is off
	draining      chan struct{}
	cluster       atomic.Pointer[string] // the id of the cluster that was identified last
	directory     tenant.Directory
	declared      *memory.Directory // the same; nil where there is a store
	stored        *stored           // nil where there is none
	streams       []tenant.Stream   // declared
	issuers       *auth.Issuers
	authenticator *auth.Authenticator
	exchanges     *ratelimit.Memory // of tokens, by key
	failures      *ratelimit.Memory // of credentials, by address
	started       *config.Config    // at the start: what needs a restart is as it says

	metering    *metering // nil where nothing is metered
	connections *gateway.Connections
	guard       *gateway.ConnGuard
	operators   *gateway.Connections // of the admin listener
	lingering   *gateway.Lingering
	random      io.Reader // of request ids
	now         func() time.Time

	reloading chan struct{} // full while a reload is under way: one at a time

	mu     sync.Mutex     // guards what is in force; never held over I/O
	config *config.Config // in force
	budget *gateway.BodyBudget
}

// newApp builds every part and opens the listeners. Close ends it.
func newApp(o appOptions) (*App, error) {
	a := &App{
		log: o.Log, level: o.Level, load: o.Load, started: o.Config,
		registry: prometheus.NewRegistry(), draining: make(chan struct{}),
		public: o.Public, admin: o.Admin, handed: o.Handed, successor: make(chan struct{}), supervisor: supervisor{o.Log},
		now: o.Now, random: newBuffered(rand.Reader), reloading: make(chan struct{}, 1), connections: gateway.NewConnections(),
		lingering: gateway.NewLingering(), operators: gateway.NewConnections(),
	}
	a.watchConnections()
	if a.now == nil {
		a.now = time.Now
	}
	var err error
	if a.metrics, err = telemetry.NewMetrics(a.registry); err != nil {
		return nil, err
	}
	level, err := telemetry.ParseLevel(o.Config.Log.Level)
	if err != nil {
		return nil, err
	}
	a.level.SetLevel(level) // before any part speaks
	a.metrics.Loaded(time.Now())
	a.warn(o.Config)
	a.guard = gateway.NewConnGuard(gateway.ConnGuardOptions{Log: a.log, Metrics: a.metrics, Now: time.Now, Random: a.random})
	a.tracer = a.newTracer(o.Config)
	if err = a.newLimits(o.Config); err != nil {
		return nil, err
	}
	a.keeper = manage.NewKeeper(manage.KeeperOptions{Nodes: nodeClient{a}, Log: a.log})
	if a.pool, err = upstream.New(upstream.Options{Nodes: o.Config.Ursula.Nodes, GroupCount: o.Config.Ursula.GroupCount, Observer: nodeWatcher{a}}); err != nil {
		return nil, err
	}
	a.budget = gateway.NewBodyBudget(int64(o.Config.Limits.BodyBudget))
	if o.Lost == nil {
		o.Lost = func() int64 { return 0 }
	}
	if err = errors.Join(a.gauges(o.Lost), a.apply(o.Config), a.listen(o.Config), a.certificateGauges()); err != nil {
		a.Close()
		return nil, err
	}
	if err = a.openTLS(o.Config); err != nil {
		a.Close()
		return nil, err
	}
	return a, nil
}

// apply builds a chain of c and puts it in force. Whatever can fail is done
// before anything is changed, so that no half of a configuration is ever live.
func (a *App) apply(c *config.Config) error {
	content, put, err := a.declare(c)
	if err != nil {
		return err
	}
	level, err := telemetry.ParseLevel(c.Log.Level)
	if err != nil {
		return err
	}
	traces := traceSettings(c)
	if err := traces.Check(); err != nil {
		return err
	}
	// The one that may fail for reasons outside the file goes first.
	if err := put(); err != nil {
		return err
	}
	if err := a.startMetering(c); err != nil {
		return err
	}
	if err := a.pool.SetNodes(c.Ursula.Nodes, c.Ursula.GroupCount); err != nil {
		return err
	}
	if err := a.issuers.Set(issuersOf(c)); err != nil {
		return err
	}
	if a.secure != nil {
		if err := a.secure.set(c); err != nil {
			return err
		}
	}
	if err := a.tracer.Set(traces); err != nil {
		return err
	}
	// From here on nothing fails.
	a.metrics.Nodes(nodesUp(a.pool.States()))
	a.level.SetLevel(level)
	if a.shared != nil {
		a.shared.SetFloor(floorOf(c))
	}
	if a.stored != nil {
		a.stored.auditKeep.Store(int64(c.Audit.Keep))
	}
	a.boundConnections(c)
	a.guard.Set(c.TrustedProxies)
	if size := int64(c.Limits.BodyBudget); size != a.budget.Size() {
		a.budget = gateway.NewBodyBudget(size)
	}
	options := a.chainOptions(c)
	if g := a.gateway.Load(); g != nil {
		g.Swap(options)
	} else {
		a.gateway.Store(gateway.New(options))
	}
	a.streams = content.Streams
	a.recheck()
	a.config = c
	return nil
}

// chainOptions are what a chain of c is built of.
func (a *App) chainOptions(c *config.Config) gateway.Options {
	var management gateway.Management
	var lifecycle gateway.Lifecycle
	if a.stored != nil {
		management = manage.NewOwner(a.manageOptions(c))
		lifecycle = a.lifecycle(c)
	}
	return gateway.Options{
		Management:    management,
		Lifecycle:     lifecycle,
		Directory:     a.directory,
		Authenticator: a.authenticator,
		Origin:        a.started.Origin,
		Exchanger: auth.NewExchanger(auth.ExchangeOptions{
			Authenticator: a.authenticator, Random: rand.Reader, TokenLifetime: c.Auth.TokenLifetime,
		}),
		Meter:              a.meter(),
		Exchanges:          a.exchanges,
		ExchangesPerSecond: c.Auth.ExchangePerSecond,
		Failures:           a.failures,
		FailedPerMinute:    c.Server.FailedCredentialsPerMinute,
		Origins:            c.CORS.Origins,
		Heartbeat:          c.Tails.Heartbeat,
		TailMaxAge:         c.Tails.MaxAge,
		HeaderBytes:        int64(a.started.Server.HeaderBytes),
		TailsPerConnection: c.Server.TailsPerConnection,
		Limiter:            a.limits,
		Tails:              a.limits,
		Uploads:            a.limits,
		Upstream:           a.pool,
		Log:                a.log,
		Metrics:            a.metrics,
		Tracer:             a.tracer,
		LogSample:          &c.Log.Sample,
		Budget:             a.budget,
		Now:                a.now,
		Random:             a.random,
		MaxRequestBytes:    largestBody(c),
		TrustedProxies:     c.TrustedProxies,
	}
}

// recheck has the keeper look again whether all declared streams exist.
func (a *App) recheck() {
	if a.directory != nil {
		a.keeper.Keep(a.streams)
	}
}

// Reload reads the configuration again and puts it in force; on any error the
// old one stays, whole. It returns the changed fields that need a restart. Where
// another reload is under way it waits for that one, which may have read the file
// before its last change; ctx ends the wait.
func (a *App) Reload(ctx context.Context) ([]string, error) {
	select {
	case a.reloading <- struct{}{}:
		defer func() { <-a.reloading }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	a.supervisor.reloading()
	defer a.supervisor.ready()
	restart, err := a.reload() //nolint:contextcheck // what is applied lives on after the request that asked for it
	a.metrics.Reloaded(err == nil, time.Now())
	if err != nil {
		a.log.Error("reload refused; the old configuration stays in force", zap.Error(err))
		return nil, err
	}
	a.log.Info("configuration reloaded", zap.Strings("restart_needed", restart))
	return restart, nil
}

func (a *App) reload() ([]string, error) {
	if a.load == nil {
		return nil, errors.New("there is no configuration file to reload")
	}
	next, err := a.load()
	if err != nil {
		return nil, err
	}
	a.warn(next)
	restart := config.RestartOnly(a.started, next)
	a.mu.Lock()
	defer a.mu.Unlock()
	return restart, a.apply(next)
}

// warn logs what is legal in a configuration but unwise.
func (a *App) warn(c *config.Config) {
	for _, w := range slices.Concat(c.Warnings(time.Now()), c.Crowded(descriptors())) {
		a.log.Warn("configuration: " + w.String())
	}
}

func (a *App) listen(c *config.Config) (err error) {
	defer a.handed.close()
	lc := listenConfig()
	if a.public == nil {
		a.public = a.handed.take(namePublic + fromSystemd)
		a.activated.public = len(a.public) > 0
	}
	if a.public == nil {
		for _, address := range c.Listen {
			if handed := a.handed.take(namePublic + address); handed != nil {
				a.public = append(a.public, handed...)
				continue
			}
			l, err := lc.Listen(context.Background(), "tcp", address)
			if err != nil {
				return fmt.Errorf("public listener: %w; is another one running? Change listen, or stop it", err)
			}
			a.public = append(a.public, l)
		}
	}
	for _, address := range []string{fromSystemd, c.Admin.Listen} {
		if handed := a.handed.take(nameAdmin + address); handed != nil && a.admin == nil {
			a.admin, a.activated.admin = handed[0], address == fromSystemd
		}
	}
	if err := a.listenPlain(c); err != nil {
		return err
	}
	if a.admin == nil {
		l, err := lc.Listen(context.Background(), "tcp", c.Admin.Listen)
		if err != nil {
			return fmt.Errorf("admin listener: %w; change admin.listen", err)
		}
		a.admin = l
	}
	return nil
}

// listenPlain opens the listener of plain HTTP beside TLS, where there is one: the file's,
// or systemd's.
func (a *App) listenPlain(c *config.Config) (err error) {
	if !c.TLS.On() {
		return nil
	}
	for _, address := range []string{fromSystemd, c.TLS.HTTPListen} {
		if handed := a.handed.take(namePlain + address); handed != nil && a.plain == nil {
			a.plain, a.activated.plain = handed[0], address == fromSystemd
		}
	}
	if a.plain != nil || c.TLS.HTTPListen == "" {
		return nil
	}
	if a.plain, err = listenConfig().Listen(context.Background(), "tcp", c.TLS.HTTPListen); err != nil {
		return fmt.Errorf("plain HTTP listener: %w; change tls.http_listen, or remove it", err)
	}
	return nil
}

// Close ends every part that App owns. It is called once, after Serve.
func (a *App) Close() {
	for _, l := range append([]net.Listener{a.admin, a.plain}, a.public...) {
		if l != nil {
			_ = l.Close()
		}
	}
	a.closeTLS()
	if a.keeper != nil {
		a.keeper.Close()
	}
	if a.issuers != nil {
		a.issuers.Close()
	}
	if a.metering != nil {
		a.metering.close(a.log) // before the store that it is written to
	}
	if a.stored != nil {
		a.stored.close(a.log)
	}
	if a.shared != nil {
		a.shared.Close() // gives back what this replica held
	}
	if g := a.gateway.Load(); g != nil {
		g.Close()
	}
	if a.pool != nil {
		a.pool.Close()
	}
	a.tracer.Close() // last, since the others may end spans
}
