package tls

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"sync"
	"testing"
	"time"

	"github.com/mholt/acmez/v3/acme"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"sluice/internal/bubble"
)

// made is a certificate that nobody signed but itself.
func made(t *testing.T, from time.Time, lives time.Duration, names ...string) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: from, NotAfter: from.Add(lives), DNSNames: names}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key, Leaf: leaf}
}

// office is an authority of a test, with the storage that replicas share.
type office struct {
	t     *testing.T
	lives time.Duration

	mu     sync.Mutex
	stored *tls.Certificate
	closed error // what an order ends with
	lost   error // what the storage ends with
	broken bool
	half   bool // broken until another replica is done
	orders []time.Time
}

func (o *office) set(change func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change()
}

func (o *office) load(context.Context, string) (*tls.Certificate, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.lost != nil:
		return nil, o.lost
	case o.broken:
		return nil, errBroken
	case o.stored == nil:
		return nil, fmt.Errorf("nothing: %w", fs.ErrNotExist)
	}
	return o.stored, nil
}

func (o *office) order(_ context.Context, _ string, anyway bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.lost != nil:
		return o.lost
	case !anyway && o.stored != nil && time.Now().Before(dueAt(o.stored.Leaf)):
		if o.half {
			o.broken = false
		}
		return nil // another replica was there first
	}
	o.orders = append(o.orders, time.Now())
	if o.closed != nil {
		return o.closed
	}
	o.stored, o.broken = made(o.t, time.Now(), o.lives, "streams.example.com"), false
	return nil
}

func (o *office) tried() []time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]time.Time(nil), o.orders...)
}

// replica keeps the one domain fresh, until the test's end.
func (o *office) replica(t *testing.T) (*managed, *observer.ObservedLogs) {
	t.Helper()
	core, lines := observer.New(zap.InfoLevel)
	m := &managed{name: "streams.example.com", from: o, log: zap.New(core), now: time.Now}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { m.run(ctx) })
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	return m, lines
}

// pass lets time pass in a bubble.
func pass(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal("the test is over")
	}
	bubble.Wait()
}

// C01: a peer renewed, and the others served the old certificate until they were started
// again. Each name is ordered once, and all replicas have each renewal at the next look.
func TestReplicasServeWhatOneOrdered(t *testing.T) {
	for _, lives := range []time.Duration{30 * time.Second, 2 * time.Minute, 24 * time.Hour, 90 * 24 * time.Hour} {
		t.Run(lives.String(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				o := &office{t: t, lives: lives}
				a, _ := o.replica(t)
				b, _ := o.replica(t)
				pass(t, time.Millisecond)
				look := min(max(lives/lookPart, leastLook), mostLook)
				for round := 1; round <= 4; round++ {
					if n := len(o.tried()); n != round {
						t.Fatalf("round %d: %d orders", round, n)
					}
					if a.inUse.Load() != o.stored || b.inUse.Load() != o.stored {
						t.Errorf("round %d: a replica has another certificate", round)
					}
					pass(t, lives*2/renewPart+look)
				}
				for i, at := range o.tried()[1:] {
					if after := at.Sub(o.tried()[i]); after < lives*2/renewPart-time.Second || after > lives*2/renewPart+look {
						t.Errorf("renewed after %v of %v", after, lives)
					}
				}
				// One that was not due: an operator had it replaced.
				o.set(func() { o.stored = made(t, time.Now(), lives, "streams.example.com") })
				pass(t, look)
				if a.inUse.Load() != o.stored || b.inUse.Load() != o.stored {
					t.Error("a replica did not see the other's certificate")
				}
			})
		})
	}
}

// C06: while the authority or the storage was away over a renewal, the valid certificate
// went out of use, or the authority was asked without end.
func TestAuthorityAwayOverARenewal(t *testing.T) {
	refused := acme.Problem{Type: "urn:ietf:params:acme:error:rateLimited"}
	for name, tc := range map[string]struct {
		away  func(*office, error)
		with  error
		first time.Duration
	}{
		"nobody answers":   {func(o *office, err error) { o.closed = err }, errors.New("no route"), firstRetry},
		"it refuses":       {func(o *office, err error) { o.closed = err }, fmt.Errorf("order: %w", refused), refusedRetry},
		"the storage lost": {func(o *office, err error) { o.lost = err }, errors.New("no store"), firstRetry},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				const lives = 90 * 24 * time.Hour
				o := &office{t: t, lives: lives}
				m, lines := o.replica(t)
				pass(t, time.Millisecond)
				first := m.inUse.Load()
				o.set(func() { tc.away(o, tc.with) })
				pass(t, lives/2)
				if s := m.state(); s.Failing || !s.Expires.Equal(first.Leaf.NotAfter) {
					t.Errorf("before it is due: %+v", s)
				}
				pass(t, lives/3)
				if s := m.state(); !s.Failing || m.inUse.Load() != first || Missing([]State{s}, time.Now()) != "" {
					t.Errorf("when it is due: %+v", s)
				}
				told := lines.FilterMessageSnippet("stays in use").All()
				if len(told) == 0 || told[0].ContextMap()["retry_in"] != tc.first {
					t.Errorf("told %d times, first %v", len(told), told)
				}
				if n := len(o.tried()); n > 1+int(lives/3/(backOff*tc.first))+10 {
					t.Errorf("asked %d times", n)
				}
				o.set(func() { tc.away(o, nil) })
				pass(t, backOff*tc.first)
				if s := m.state(); s.Failing || m.inUse.Load() == first {
					t.Errorf("back again: %+v", s)
				}
				if lines.FilterMessageSnippet("well again").Len() == 0 {
					t.Error("nobody was told")
				}
			})
		})
	}
}

// C06: a start with an expired certificate in the storage. It is renewed at once, and the
// gateway is not ready before.
func TestStartWithAnExpiredCertificate(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		o := &office{t: t, lives: time.Hour, closed: errors.New("no route")}
		o.stored = made(t, time.Now().Add(-2*time.Hour), time.Hour, "streams.example.com")
		m, lines := o.replica(t)
		pass(t, time.Second)
		if s := m.state(); !s.Failing || Missing([]State{s}, time.Now()) == "" {
			t.Errorf("expired: %+v", s)
		}
		if lines.FilterMessage("certificate is due").Len() != 1 {
			t.Errorf("told %v", lines.All())
		}
		o.set(func() { o.closed = nil })
		pass(t, firstRetry)
		if s := m.state(); s.Failing || Missing([]State{s}, time.Now()) != "" {
			t.Errorf("renewed: %+v", s)
		}
	})
}

// A replica died between the certificate and its key: the half of a pair is ordered anew,
// though it is not due, and nothing else is.
func TestHalfOfAPairIsOrderedAnew(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		o := &office{t: t, lives: time.Hour, broken: true}
		o.stored = made(t, time.Now(), time.Hour, "streams.example.com")
		m, _ := o.replica(t)
		pass(t, time.Minute)
		if n := len(o.tried()); n != 1 || m.state().Failing || m.inUse.Load() == nil {
			t.Errorf("%d orders, %+v", n, m.state())
		}
	})
}

// A replica read the one file of a pair before its peer had written the other, and ordered
// once more.
func TestHalfOfAPairThatIsBeingWritten(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		o := &office{t: t, lives: time.Hour, broken: true, half: true}
		o.stored = made(t, time.Now(), time.Hour, "streams.example.com")
		m, _ := o.replica(t)
		pass(t, time.Minute)
		if n := len(o.tried()); n != 0 || m.state().Failing || m.inUse.Load() != o.stored {
			t.Errorf("%d orders, %+v", n, m.state())
		}
	})
}

// An authority whose certificates are due as they come is asked as one that fails.
func TestCertificatesThatAreDueAtOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		o := &office{t: t, lives: -time.Second}
		m, _ := o.replica(t)
		pass(t, time.Minute)
		if n := len(o.tried()); n > 60 || !m.state().Failing {
			t.Errorf("%d orders, %+v", n, m.state())
		}
	})
}
