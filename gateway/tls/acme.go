package tls

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"
)

// challengesAtOnce bounds the questions of challenges that read the storage at one time:
// strangers may ask them.
const challengesAtOnce = 8

// ACMEOptions say what certificates are ordered, of whom, and where they are kept.
type ACMEOptions struct {
	// Domains are the names to have certificates for, no others. The first is for clients
	// that name nobody.
	Domains []string
	Email   string         // "" = none is given
	CA      string         // URL of the authority's directory
	Roots   *x509.CertPool // by which its server is trusted; nil = the system's
	// Storage is what the replicas share: accounts, certificates, open challenges, and the
	// locks by which one of them orders for all.
	Storage certmagic.Storage
	// HTTPPort is the port of the plain HTTP listener, 0 where there is none and with it no
	// HTTP-01; TLSPort that of a public one. Both stand already.
	HTTPPort, TLSPort int
	Log               *zap.Logger
	Now               func() time.Time
}

// ACME orders certificates by ACME and renews them (certmagic, which does the protocol, the
// challenges and the layout of the storage). When that is done is this package's own, in
// renewal.go: certmagic's own schedule is of one length for all certificates, waits a
// minute after a failure whatever their life, and lives in variables of the process, on
// goroutines that nobody ends.
//
// ACME Renewal Information is not asked for, nor are OCSP responses, which no handshake
// and no start then waits for.
type ACME struct {
	o      ACMEOptions
	cache  *certmagic.Cache // certmagic wants one; nothing is in it
	asking chan struct{}
	// serving and ordering are the same but for what they log: strangers bring about what
	// the first one does.
	serving, ordering atomic.Pointer[certmagic.Config]
	issuer            atomic.Pointer[acmeIssuer]
	inUse             atomic.Pointer[[]*managed] // in the order of the domains

	mu      sync.Mutex // guards what follows
	ctx     context.Context
	running map[string]context.CancelFunc
	wg      sync.WaitGroup
}

// acmeIssuer is certmagic's, but that it never asks a terminal.
type acmeIssuer struct{ *certmagic.ACMEIssuer }

// PreCheck implements certmagic.PreChecker.
func (i acmeIssuer) PreCheck(ctx context.Context, names []string, _ bool) error {
	return i.ACMEIssuer.PreCheck(ctx, names, false)
}

// NewACME makes a source that has no certificate yet: Run loads or orders them.
func NewACME(o ACMEOptions) *ACME {
	a := &ACME{o: o, asking: make(chan struct{}, challengesAtOnce), running: make(map[string]context.CancelFunc)}
	a.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return a.ordering.Load(), nil },
		Logger:           zap.NewNop(),
		// Five times this before its end a certificate is due whatever else is said, which
		// would have those that live for minutes renewed without end.
		RenewCheckInterval: time.Millisecond,
	})
	a.cache.Stop() // its goroutine: nothing in it is renewed
	a.inUse.Store(&[]*managed{})
	a.Set(o.Domains, o.Email)
	return a
}

// Set has other domains, and another address for the authority to write to. Certificates
// of names that stay stay in use.
func (a *ACME) Set(domains []string, email string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.configure(email)
	before := *a.inUse.Load()
	next := make([]*managed, 0, len(domains))
	for _, name := range domains {
		at := slices.IndexFunc(before, func(m *managed) bool { return m.name == name })
		if at >= 0 {
			next = append(next, before[at])
			continue
		}
		m := &managed{name: name, from: a, log: a.o.Log, now: a.o.Now}
		next = append(next, m)
		a.start(m)
	}
	for _, m := range before {
		if stop := a.running[m.name]; stop != nil && !slices.Contains(next, m) {
			stop()
			delete(a.running, m.name)
		}
	}
	a.inUse.Store(&next)
}

// start keeps a domain fresh, once Run was called.
func (a *ACME) start(m *managed) {
	if a.ctx == nil || a.ctx.Err() != nil {
		return
	}
	ctx, stop := context.WithCancel(a.ctx)
	a.running[m.name] = stop
	a.wg.Go(func() { m.run(ctx) })
}

// Run implements Source.
func (a *ACME) Run(ctx context.Context) {
	a.mu.Lock()
	a.ctx = ctx
	for _, m := range *a.inUse.Load() {
		a.start(m) //nolint:contextcheck // ctx is where it looks
	}
	a.mu.Unlock()
	<-ctx.Done()
	a.mu.Lock()   // whoever was about to start one has seen the end of ctx, or has started it
	a.mu.Unlock() //nolint:staticcheck // an empty section, for that
	a.wg.Wait()
}

// configure makes certmagic's parts.
func (a *ACME) configure(email string) {
	template := certmagic.Config{
		RenewalWindowRatio: 1.0 / renewPart, Storage: a.o.Storage, DisableStorageCheck: true, DisableARI: true,
		OCSP: certmagic.OCSPConfig{DisableStapling: true}, Logger: a.o.Log,
	}
	build := func(log *zap.Logger) (*certmagic.Config, *acmeIssuer) {
		template.Logger = log
		c := certmagic.New(a.cache, template)
		i := &acmeIssuer{certmagic.NewACMEIssuer(c, certmagic.ACMEIssuer{
			CA: a.o.CA, Email: email, Agreed: true, TrustedRoots: a.o.Roots, Logger: log,
			DisableHTTPChallenge: a.o.HTTPPort == 0, AltHTTPPort: a.o.HTTPPort, AltTLSALPNPort: a.o.TLSPort,
		})}
		c.Issuers = []certmagic.Issuer{i}
		return c, i
	}
	ordering, _ := build(a.o.Log)
	serving, issuer := build(zap.NewNop())
	a.ordering.Store(ordering)
	a.serving.Store(serving)
	a.issuer.Store(issuer)
}

// load implements authority.
func (a *ACME) load(ctx context.Context, domain string) (*tls.Certificate, error) {
	key := a.issuer.Load().IssuerKey()
	text, err := a.o.Storage.Load(ctx, certmagic.StorageKeys.SiteCert(key, domain))
	if err != nil {
		return nil, fmt.Errorf("read the certificate: %w", err)
	}
	private, err := a.o.Storage.Load(ctx, certmagic.StorageKeys.SitePrivateKey(key, domain))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errBroken
	}
	if err != nil {
		return nil, fmt.Errorf("read the certificate's key: %w", err)
	}
	defer clear(private)
	c, err := tls.X509KeyPair(text, private)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBroken, err)
	}
	return &c, nil
}

// order implements authority. What is stored is looked at again under the lock, so that of
// several replicas one orders.
func (a *ACME) order(ctx context.Context, domain string, anyway bool) error {
	return a.ordering.Load().RenewCertSync(ctx, domain, anyway)
}

// Certificate implements Source. Challenges have their own certificate, which is given to
// their own protocol alone (C04).
func (a *ACME) Certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	m := a.domain(hello.ServerName)
	switch {
	case m == nil:
		return nil, nil //nolint:nilnil // Source says what it means
	case slices.Equal(hello.SupportedProtos, []string{alpnACME}):
		return a.challenge(hello)
	}
	c := m.inUse.Load()
	if c == nil {
		return nil, fmt.Errorf("there is no certificate for %s yet", m.name)
	}
	return c, nil
}

// domain finds the domain of a name as a client sends it: in any case, with a dot at its
// end or without. Who names nobody gets the first.
func (a *ACME) domain(name string) *managed {
	domains := *a.inUse.Load()
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	for _, m := range domains {
		if name == "" || m.name == name {
			return m
		}
	}
	return nil
}

var errBusy = errors.New("too many questions of challenges at one time")

func (a *ACME) challenge(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if !a.ask() {
		return nil, errBusy
	}
	defer a.answered()
	c, err := a.serving.Load().GetCertificate(hello)
	if err == nil {
		a.o.Log.Info("answered a challenge", zap.String("domain", hello.ServerName), zap.String("challenge", "tls-alpn-01"))
	}
	return c, err
}

// HTTPChallenge answers a question of HTTP-01, where one is open for its host, whichever
// replica opened it. It reports whether it did.
func (a *ACME) HTTPChallenge(w http.ResponseWriter, r *http.Request) bool {
	host, _, _ := strings.Cut(r.Host, ":")
	if host == "" || a.domain(host) == nil || !a.ask() {
		return false
	}
	defer a.answered()
	answered := a.issuer.Load().HandleHTTPChallenge(w, r)
	if answered {
		a.o.Log.Info("answered a challenge", zap.String("domain", host), zap.String("challenge", "http-01"))
	}
	return answered
}

func (a *ACME) ask() bool {
	select {
	case a.asking <- struct{}{}:
		return true
	default:
		return false
	}
}

func (a *ACME) answered() { <-a.asking }

// States implements Source.
func (a *ACME) States() []State {
	domains := *a.inUse.Load()
	states := make([]State, len(domains))
	for i, m := range domains {
		states[i] = m.state()
	}
	return states
}

var (
	_ Source               = (*ACME)(nil)
	_ authority            = (*ACME)(nil)
	_ certmagic.PreChecker = acmeIssuer{}
)
