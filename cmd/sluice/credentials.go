package main

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"go.uber.org/zap"

	"sluice/auth"
	"sluice/config"
	"sluice/internal/store/memory"
	"sluice/internal/telemetry"
	"sluice/ratelimit"
)

// declare reads what the file declares and changes nothing yet, but for the first
// time, when there is nothing to change; put puts it in force. Its error is that of
// the randomness or of the store.
func (a *App) declare(c *config.Config) (content memory.Content, put func() error, err error) {
	if content, err = declared(c); err != nil {
		return content, nil, err
	}
	switch {
	case a.directory == nil:
		return content, func() error { return nil }, a.credentials(c, content)
	case a.stored != nil:
		return content, func() error {
			if err := a.stored.declare(context.Background(), c, content); err != nil {
				return err
			}
			a.stored.replica.SetDefaults(limitsOf(c.Limits.Default))
			return nil
		}, nil
	default:
		p, err := memory.Prepare(content)
		return content, func() error { return a.declared.Put(p) }, err
	}
}

// credentials opens the directory, and builds what tells who somebody is.
func (a *App) credentials(c *config.Config, content memory.Content) (err error) {
	var used func(keyID string)
	if c.Store.Configured() {
		if err := a.openStore(c, content); err != nil {
			return err
		}
		a.directory, used = a.stored.replica, a.stored.replica.Used
	} else {
		if a.declared, err = memory.Open(memory.Options{Content: content, Now: time.Now, Random: rand.Reader}); err != nil {
			return err
		}
		a.directory = a.declared
	}
	a.identities(c, used)
	return nil
}

// identities builds what tells who somebody is by the directory, which is there. used is told
// of keys that were used; nil: nobody is.
func (a *App) identities(c *config.Config, used func(keyID string)) {
	a.issuers = auth.NewIssuers(auth.IssuersOptions{
		Origin: c.Origin, Now: time.Now,
		Changed: a.issuerChanged,
		Failed:  a.issuerFailed,
	})
	a.authenticator = auth.New(auth.Options{Directory: a.directory, Now: time.Now, Origin: c.Origin, Issuers: a.issuers, Used: used})
	a.exchanges = ratelimit.NewMemory(ratelimit.MemoryOptions{Now: time.Now})
	a.failures = ratelimit.NewMemory(ratelimit.MemoryOptions{Now: time.Now})
}

// issuerChanged has open tails looked at: credentials of an issuer may have ended.
func (a *App) issuerChanged(string) {
	if g := a.gateway.Load(); g != nil {
		g.Recheck()
	}
}

// issuerFailed tells of another issuer whose keys could not be fetched, and when
// they can again.
func (a *App) issuerFailed(issuer string, err error) {
	if err == nil {
		a.log.Info("the keys of an issuer can be fetched again", zap.String("issuer", issuer))
		return
	}
	a.log.Warn("the keys of an issuer cannot be fetched; the last good ones serve", zap.String("issuer", issuer), zap.Error(err))
}

func (a *App) credentialGauges() error {
	return errors.Join(
		telemetry.GaugeFunc(a.registry, "sluice_token_cache_entries", func() float64 { return float64(a.authenticator.TokenStats().Entries) }),
		telemetry.GaugeFunc(a.registry, "sluice_token_cache_capacity", func() float64 { return float64(a.authenticator.TokenStats().Capacity) }),
		telemetry.CounterFunc(a.registry, "sluice_tokens_seen_total", func() float64 { return float64(a.authenticator.TokenStats().Hits) }),
		telemetry.CounterFunc(a.registry, "sluice_tokens_new_total", func() float64 { return float64(a.authenticator.TokenStats().Misses) }),
		telemetry.GaugeFunc(a.registry, "sluice_issuers_failing", func() float64 {
			return float64(count(a.issuers.Stats(), func(s auth.IssuerStats) bool { return s.Failing }))
		}),
		telemetry.GaugeFunc(a.registry, "sluice_issuers_without_keys", func() float64 {
			return float64(count(a.issuers.Stats(), func(s auth.IssuerStats) bool { return s.Keys == 0 }))
		}),
		telemetry.GaugeFunc(a.registry, "sluice_failure_subjects", func() float64 { return float64(a.failures.Subjects()) }),
	)
}

// count counts the elements that have a property.
func count[T any](list []T, has func(T) bool) (n int) {
	for _, e := range list {
		if has(e) {
			n++
		}
	}
	return n
}

// rotateEvery is how often it is looked whether a signing key is due to be followed
// by another.
const rotateEvery = time.Hour

// rotateKeys replaces signing keys that live in memory, in time, until ctx ends. Those of
// a store are replaced by the replica that is due.
func (a *App) rotateKeys(ctx context.Context) error {
	if a.declared == nil {
		return nil
	}
	tick := time.NewTicker(rotateEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := a.declared.RotateSigningKeys(); err != nil {
				a.log.Error("the signing key could not be followed by another one", zap.Error(err))
			}
		}
	}
}
