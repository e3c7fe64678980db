package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"sluice/config"
	"sluice/internal/manage"
	"sluice/internal/store"
	"sluice/internal/store/memory"
	known "sluice/internal/store/replica"
	"sluice/internal/telemetry"
	"sluice/internal/tenant"
	"sluice/ratelimit"
)

const (
	// storePatience is how long a start waits for the store, and storeRetry how often it
	// tries: a replica that knows nobody is of no use, and a supervisor starts it again.
	storePatience = 30 * time.Second
	storeRetry    = 500 * time.Millisecond
	// keysPerAccount is how many known keys there are to one known account.
	keysPerAccount = 5
)

// managementRate is how often one account may call the Management API (design §6: its
// calls are no requests of the account's).
var managementRate = ratelimit.Rate{PerSecond: 20, Burst: 60}

// stored are the parts that a store brings: what is kept, what this replica knows of it,
// and what manages it.
type stored struct {
	store      *store.Store
	replica    *known.Replica
	reconciler *manage.Reconciler
	calls      *ratelimit.Memory // of the Management API, by account
	auditKeep  atomic.Int64      // audit.keep in force; 0 until one is
}

// storeOptions are what the file says of the store.
func storeOptions(c *config.Config) (store.Options, error) {
	o := store.Options{URL: c.Store.URL.Reveal(), Now: time.Now, Random: rand.Reader}
	if c.Auth.SealingKey.IsZero() {
		return o, nil
	}
	var err error
	o.SealingKey, err = base64.StdEncoding.DecodeString(c.Auth.SealingKey.Reveal())
	return o, err
}

// openStore opens the store and makes what the file declares true in it. One that is out
// of reach is waited for.
func (a *App) openStore(c *config.Config, content memory.Content) error {
	o, err := storeOptions(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), storePatience)
	defer cancel()
	o.Claim = a.handed.claim()
	a.stored = &stored{calls: ratelimit.NewMemory(ratelimit.MemoryOptions{Now: time.Now})}
	tick := time.NewTicker(storeRetry)
	defer tick.Stop()
	for told := false; ; {
		// What the file declares is a part of it: a store that takes no write may do so soon.
		err = a.stored.open(ctx, o, c, content)
		if err == nil || !errors.Is(err, store.ErrUnavailable) {
			break
		}
		if !told {
			a.log.Warn("the store cannot be reached: waiting for it", zap.Error(err))
			told = true
		}
		select {
		case <-tick.C:
			continue
		case <-ctx.Done():
		}
		break
	}
	if err != nil {
		return err
	}
	a.stored.replica = known.New(ctx, known.Options{
		Source: a.stored.store, Defaults: limitsOf(c.Limits.Default), StaleFor: c.Store.StaleFor, Now: time.Now,
		Keys: c.Store.KnownKeys, Streams: c.Store.KnownKeys, Accounts: c.Store.KnownKeys / keysPerAccount,
		Events: known.Events{Lost: a.storeLost, Back: a.storeBack},
	})
	a.stored.reconciler = manage.NewReconciler(manage.ReconcilerOptions{
		Store: a.stored.store, Nodes: nodeClient{a}, Log: a.log, Now: time.Now, Random: rand.Reader, Holder: rand.Text(),
		Audit: a.stored.store, AuditKeep: func() time.Duration { return time.Duration(a.stored.auditKeep.Load()) },
	})
	return nil
}

// open opens the store, where it is not open yet, and declares what the file states.
func (s *stored) open(ctx context.Context, o store.Options, c *config.Config, content memory.Content) error {
	if s.store == nil {
		opened, err := store.Open(ctx, o)
		if err != nil {
			return fmt.Errorf("store.url: %w", err)
		}
		s.store = opened
	}
	return s.declare(context.WithoutCancel(ctx), c, content) // with a time of its own
}

// declare makes what the file states true in the store. content is what was read of c.
func (s *stored) declare(ctx context.Context, c *config.Config, content memory.Content) error {
	d := store.Declaration{Streams: content.Streams, Keys: content.Keys}
	for i, a := range c.Accounts {
		d.Accounts = append(d.Accounts, store.Account{ID: content.Accounts[i].ID, State: content.Accounts[i].State, Limits: ownLimits(a.Limits)})
	}
	ctx, cancel := context.WithTimeout(ctx, storePatience)
	defer cancel()
	if err := s.store.Declare(ctx, d); err != nil {
		return fmt.Errorf("declare the accounts of the file: %w", err)
	}
	return nil
}

// ownLimits are those that an account of the file has of its own.
func ownLimits(l config.AccountLimits) store.OwnLimits {
	bytes := func(b *config.Bytes) *int64 {
		if b == nil {
			return nil
		}
		n := int64(*b)
		return &n
	}
	return store.OwnLimits{
		RequestsPerSecond: l.RequestsPerSecond, Burst: l.Burst, OpenTails: l.OpenTails, Uploads: l.Uploads,
		UploadBytes: bytes(l.UploadBytes), RequestBytes: bytes(l.RequestBytes),
	}
}

// manageOptions are what both sides of the Management API are built of.
func (a *App) manageOptions(c *config.Config) manage.Options {
	s := a.stored
	return manage.Options{
		Streams: s.store, Keys: s.store, Accounts: s.store, Audit: s.store, Usage: s.store, Reconciler: s.reconciler,
		Log: a.log, Now: time.Now, Random: rand.Reader,
		Origin: a.started.Origin, Region: c.Region, DefaultLimits: limitsOf(c.Limits.Default),
		Authenticator: a.authenticator, Directory: a.directory,
		Allow: func(account tenant.AccountID) manage.Allowance {
			d := s.calls.Allow(ratelimit.Subject{Account: string(account)}, managementRate)
			return manage.Allowance{
				OK: d.Allowed, RetryAfter: d.RetryAfter, Remaining: d.Remaining,
				PerSecond: managementRate.PerSecond, Burst: managementRate.Burst,
			}
		},
		OpenTails: a.tailsOf,
	}
}

// errManyReplicas says that this replica does not know what the others have open.
var errManyReplicas = errors.New("tails may be open at other replicas too")

// tailsOf is how many tails an account has open, where this replica is the only one: a
// store or a Redis that may be shared says that it need not be.
func (a *App) tailsOf(_ context.Context, account tenant.AccountID) (int, error) {
	if a.shared != nil || a.stored.store.Shared() {
		return 0, errManyReplicas
	}
	return a.limits.TailsOf(ratelimit.Subject{Account: string(account)}), nil
}

// operatorAPI is the Management API of the admin listener, of the configuration in force.
func (a *App) operatorAPI() http.Handler {
	if a.stored == nil {
		return nil
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		c := a.config
		a.mu.Unlock()
		manage.NewOperator(a.manageOptions(c)).ServeHTTP(w, r)
	})
}

func (a *App) storeLost(cause error) {
	a.log.Warn("the store is lost: what is known goes on to be used for store.stale_for", zap.Error(cause))
}

func (a *App) storeBack(after time.Duration) {
	a.log.Info("the store is back", zap.Duration("seconds", after))
}

// close ends what the store brought, in the order in which one needs the other.
func (s *stored) close(log *zap.Logger) {
	if s.reconciler != nil {
		s.reconciler.Close()
	}
	if s.replica != nil {
		if err := s.replica.Close(); err != nil {
			log.Warn("the last uses of keys could not be written", zap.Error(err))
		}
	}
	if s.store != nil {
		if err := s.store.Close(); err != nil {
			log.Warn("the store was not closed well", zap.Error(err))
		}
	}
}

func (a *App) storeGauges() error {
	stats := func(read func(known.Stats) float64) func() float64 {
		return func() float64 {
			if a.stored == nil || a.stored.replica == nil {
				return 0
			}
			return read(a.stored.replica.Stats())
		}
	}
	return errors.Join(
		telemetry.GaugeFunc(a.registry, "sluice_store_lost", stats(func(s known.Stats) float64 {
			if s.LostSince.IsZero() {
				return 0
			}
			return 1
		})),
		telemetry.GaugeFunc(a.registry, "sluice_store_read_timestamp_seconds", stats(func(s known.Stats) float64 { return float64(s.ReadAt.UnixMilli()) / 1e3 })),
		telemetry.GaugeFunc(a.registry, "sluice_store_revision", stats(func(s known.Stats) float64 { return float64(s.Revision) })),
		telemetry.GaugeFunc(a.registry, "sluice_store_keys", stats(func(s known.Stats) float64 { return float64(s.Keys) })),
		telemetry.GaugeFunc(a.registry, "sluice_store_accounts", stats(func(s known.Stats) float64 { return float64(s.Accounts) })),
		telemetry.GaugeFunc(a.registry, "sluice_store_streams", stats(func(s known.Stats) float64 { return float64(s.Streams) })),
		telemetry.GaugeFunc(a.registry, "sluice_streams_retried", func() float64 {
			if a.stored == nil || a.stored.reconciler == nil {
				return 0
			}
			return float64(a.stored.reconciler.Trying())
		}),
		telemetry.GaugeFunc(a.registry, "sluice_store_unknown", stats(func(s known.Stats) float64 { return float64(s.Unknown) })),
	)
}
