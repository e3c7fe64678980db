package tls

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"sync/atomic"
	"time"

	"github.com/mholt/acmez/v3/acme"
	"go.uber.org/zap"
)

// When a certificate is looked at and replaced, by how long it lives: a public authority's
// lives for weeks, one of a private authority may live for minutes.
const (
	// renewPart: the last third of a certificate's life is for its renewal.
	renewPart = 3
	// lookPart and mostLook: what is stored is looked at a twentieth of its life after the
	// last look, and at least every 10 min, so that all replicas have what one of them
	// ordered (C01).
	lookPart  = 20
	mostLook  = 10 * time.Minute
	leastLook = time.Second
	// retryPart bounds the first wait after a failure in the same way. firstRetry is that
	// where nobody answered, refusedRetry that where the authority said no: it counts how
	// often it does. Each further wait is twice as long, up to backOff times the first.
	retryPart    = 40
	firstRetry   = 5 * time.Second
	refusedRetry = 2 * time.Minute
	backOff      = 32

	loadTime  = 30 * time.Second
	orderTime = 5 * time.Minute // the wait for another replica's order included
)

// dueAt is when it is time for the next certificate: a moment later than by certmagic's own
// reckoning, which has the last word under the lock.
func dueAt(leaf *x509.Certificate) time.Time {
	return leaf.NotBefore.Add(life(leaf) - life(leaf)/renewPart + time.Millisecond)
}

// life is how long a certificate is valid. Its last second counts (RFC 5280 §4.1.2.5).
func life(leaf *x509.Certificate) time.Duration {
	return leaf.NotAfter.Truncate(time.Second).Add(time.Second).Sub(leaf.NotBefore)
}

// authority is where the certificate of a domain is stored and comes from. Its errors hold
// nothing secret.
type authority interface {
	// load reads what is stored. The error wraps fs.ErrNotExist where nothing is, and
	// errBroken where it is no pair, or not yet again.
	load(ctx context.Context, domain string) (*tls.Certificate, error)
	// order has another one stored, or waits for whoever is at it. Where the certificate that
	// is stored is not due it does nothing, unless anyway is set.
	order(ctx context.Context, domain string, anyway bool) error
}

var (
	errBroken   = errors.New("what is stored is no pair of a certificate and its key")
	errStillDue = errors.New("the authority's certificate is due for renewal as it comes")
)

// managed is one domain whose certificate is kept fresh.
type managed struct {
	name  string
	from  authority
	log   *zap.Logger
	now   func() time.Time
	inUse atomic.Pointer[tls.Certificate]
	sick  atomic.Bool // the last round failed
}

// state tells of the domain. A round that fails while the certificate is not due does no
// harm: another one follows.
func (m *managed) state() State {
	s := State{Domain: m.name, Failing: m.sick.Load()}
	if c := m.inUse.Load(); c != nil {
		s.Expires = c.Leaf.NotAfter
		s.Failing = s.Failing && !m.now().Before(dueAt(c.Leaf))
	}
	return s
}

// run keeps the certificate fresh until ctx ends.
func (m *managed) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		wait, err := m.round(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			if failures > 0 {
				m.log.Info("the certificate is well again", zap.String("domain", m.name))
			}
			failures = 0
		default:
			wait = m.retry(err, failures)
			failures++
			m.tell(err, wait)
		}
		m.sick.Store(err != nil)
		timer.Reset(wait)
	}
}

func (m *managed) tell(err error, wait time.Duration) {
	fields := []zap.Field{zap.String("domain", m.name), zap.Duration("retry_in", wait), zap.Error(err)}
	if c := m.inUse.Load(); c != nil {
		m.log.Warn("the next certificate could not be had: the one before stays in use", append(fields, zap.Time("expires", c.Leaf.NotAfter))...)
		return
	}
	m.log.Error("there is no certificate yet", fields...)
}

// retry is how long to wait after a failure that followed on so many others.
func (m *managed) retry(err error, failures int) time.Duration {
	first := firstRetry
	if _, said := errors.AsType[acme.Problem](err); said {
		first = refusedRetry
	}
	if c := m.inUse.Load(); c != nil {
		first = min(first, max(life(c.Leaf)/retryPart, leastLook))
	}
	wait := first
	for range failures {
		wait = min(2*wait, backOff*first)
	}
	return wait
}

// round brings what is in use up to date with what is stored, and that up to date with
// the time. It says when to look again.
func (m *managed) round(ctx context.Context) (time.Duration, error) {
	stored, err := m.load(ctx)
	if errors.Is(err, errBroken) {
		// Another replica may be between the two files. An order waits for it, and is none
		// where what it wrote is good.
		if err = m.order(ctx, false); err == nil {
			stored, err = m.load(ctx)
		}
	}
	broken := errors.Is(err, errBroken)
	if err != nil && !broken && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	if stored == nil || m.isDue(stored) {
		m.log.Info("certificate is due", zap.String("domain", m.name), zap.Bool("renewal", stored != nil))
		if stored, err = m.replace(ctx, broken); err != nil {
			return 0, err
		}
	}
	look := min(max(life(stored.Leaf)/lookPart, leastLook), mostLook)
	return max(min(look, dueAt(stored.Leaf).Sub(m.now())), 0), nil
}

// replace has another certificate ordered, and puts it in use.
func (m *managed) replace(ctx context.Context, anyway bool) (*tls.Certificate, error) {
	if err := m.order(ctx, anyway); err != nil {
		return nil, err
	}
	stored, err := m.load(ctx)
	if err == nil && m.isDue(stored) {
		err = errStillDue
	}
	return stored, err
}

func (m *managed) isDue(c *tls.Certificate) bool { return !m.now().Before(dueAt(c.Leaf)) }

func (m *managed) order(ctx context.Context, anyway bool) error {
	ctx, cancel := context.WithTimeout(ctx, orderTime)
	defer cancel()
	return m.from.order(ctx, m.name, anyway)
}

// load reads what is stored, and puts it in use where it is the better one.
func (m *managed) load(ctx context.Context) (*tls.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, loadTime)
	defer cancel()
	c, err := m.from.load(ctx, m.name)
	if err != nil {
		return nil, err
	}
	if in := m.inUse.Load(); in == nil || c.Leaf.NotAfter.After(in.Leaf.NotAfter) {
		m.inUse.Store(c)
		m.log.Info("certificate in use", zap.String("domain", m.name), zap.Time("expires", c.Leaf.NotAfter))
	}
	return c, nil
}
