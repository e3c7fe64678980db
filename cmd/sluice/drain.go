package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"sluice/gateway"
	"sluice/gateway/tls"
)

const (
	// handOverDelay is how long the answers of a process that has handed over close their
	// connections, before those on which nothing comes are closed.
	handOverDelay = time.Second
	// tailEnd is what is kept of the drain time for events that are not whole yet.
	tailEnd = 5 * time.Second
	// tailsApart is the least time between the ends of two tails that a drain needs: a few
	// of them hold up no stop.
	tailsApart = 100 * time.Millisecond
	// readyLook is how often a process that takes over looks whether it is ready.
	readyLook = 10 * time.Millisecond
)

// Serve answers on all listeners until ctx ends, or another process has taken over; then
// it leaves as leave says. A process that takes over answers once it is ready, and tells
// the one before. It returns nil after a stop.
func (a *App) Serve(ctx, cut context.Context) error {
	errorLog, err := zap.NewStdLogAt(a.log.Named("server"), zap.DebugLevel)
	if err != nil {
		return err
	}
	base, cutRest := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cutRest(nil)
	public := gateway.NewServer(a.gateway.Load(), errorLog)
	gateway.ServerLimits{HeaderBytes: int64(a.started.Server.HeaderBytes), Idle: a.started.Server.Idle}.Apply(public)
	a.guard.Attach(public)
	public.BaseContext = func(net.Listener) context.Context { return base }
	admin := gateway.NewServer(a.operator(), errorLog)
	a.operators.MakeRoom(admin)
	var group errgroup.Group
	failed, fail := context.WithCancel(ctx)
	defer fail()
	serve := func(s *http.Server, l net.Listener) {
		group.Go(func() error {
			err := s.Serve(l)
			if errors.Is(err, http.ErrServerClosed) || a.handedOver() {
				return nil
			}
			fail()
			return err
		})
	}
	group.Go(func() error { return a.rotateKeys(failed) })
	group.Go(func() error { return a.keepCertificates(failed) }) // none is ready without
	if a.handed.waited() && !a.awaitReady(ctx) {
		fail()
		return group.Wait()
	}
	serve(admin, a.operators.Listener(a.admin))
	for _, l := range a.public {
		serve(public, a.counted(a.lingering.Listener(l)))
	}
	surplus := gateway.NewServer(nil, errorLog)
	gateway.ServeSurplus(surplus)
	serve(surplus, a.connections.Surplus())
	plain := tls.NewRedirectServer(a.redirect(), errorLog)
	if a.plain != nil {
		serve(plain, a.proxied(a.inTheClear(a.plain)))
	}
	a.handed.ready()
	a.supervisor.ready()
	select {
	case <-failed.Done():
	case <-a.successor:
	}
	a.leave(ctx, cut, public, admin)
	cutRest(gateway.ErrShutdown)
	_ = public.Close()
	_ = admin.Close()
	_ = plain.Close()
	_ = surplus.Close()
	fail()
	err = group.Wait()
	a.log.Info("stopped", zap.Error(err))
	return err
}

// operator is the handler of the admin listener.
func (a *App) operator() http.Handler {
	return gateway.NewOperator(gateway.OperatorOptions{
		Token:  a.started.Admin.Token,
		Parts:  a.parts,
		Reload: a.Reload,
		Explain: func(ctx context.Context, q gateway.Question) (gateway.Explanation, error) {
			return a.gateway.Load().Explain(ctx, q)
		},
		Metrics: promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{}),

		Profiles:   a.profiles,
		Management: a.operatorAPI(),
		Tracer:     a.tracer,
	})
}

// awaitReady waits until nothing is missing, so that whoever is served by the process
// before goes on to be served; false: ctx has ended before.
func (a *App) awaitReady(ctx context.Context) bool {
	tick := time.NewTicker(readyLook)
	defer tick.Stop()
	for len(a.missing()) > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// handedOver reports whether another process serves the listeners.
func (a *App) handedOver() bool {
	select {
	case <-a.successor:
		return true
	default:
		return false
	}
}

// leave ends the serving in an order that loses nothing: first it is not ready any more,
// and each answer ends its connection, while new ones are still taken; then none are, and
// the requests under way have their time. A process that has handed over leaves new
// connections to the other at once, and its admin listener with them. ctx tells a stop
// from a failure, which has nothing to wait for; cut ends all waiting.
func (a *App) leave(ctx, cut context.Context, public, admin *http.Server) {
	a.mu.Lock()
	delay, timeout := a.config.DrainDelay, a.config.DrainTimeout
	a.mu.Unlock()
	close(a.draining)
	a.lingering.Begin()
	a.gateway.Load().Leave()
	switch {
	case a.handedOver():
		for _, l := range append([]net.Listener{a.admin, a.plain}, a.public...) {
			if l != nil {
				_ = l.Close()
			}
		}
		go func() { _ = admin.Shutdown(cut) }() // ends with the Close that follows
		delay = handOverDelay
	case ctx.Err() == nil:
		delay = 0
		fallthrough
	default:
		a.supervisor.stopping()
	}
	a.log.Info("draining", zap.Duration("drain_delay", delay), zap.Duration("drain_timeout", timeout))
	wait := time.NewTimer(delay)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-cut.Done():
	}
	a.drain(cut, public, timeout)
}

// drain takes no connection any more, ends the tails, and waits for the other requests
// under way, as long as it may.
func (a *App) drain(cut context.Context, public *http.Server, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(cut, timeout)
	var ending sync.WaitGroup
	over := min(timeout-min(timeout/4, tailEnd), time.Duration(a.limits.OpenTails())*tailsApart)
	ending.Go(func() { a.gateway.Load().EndTails(ctx, over) })
	err := public.Shutdown(ctx)
	a.lingering.Wait(ctx)
	cancel()
	ending.Wait()
	switch {
	case err == nil:
	case cut.Err() != nil:
		a.log.Warn("told again to stop: cutting the requests that are left")
	default:
		a.log.Warn("the drain time is over: cutting the requests that are left")
	}
}
