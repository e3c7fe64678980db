package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"

	"sluice/config"
	"sluice/gateway"
	"sluice/gateway/tls"
	"sluice/gateway/upstream"
	"sluice/internal/telemetry"
	"sluice/internal/tracing"
)

func (a *App) gauges(lost func() int64) error {
	return errors.Join(
		telemetry.CounterFunc(a.registry, "sluice_log_lines_dropped_total", func() float64 { return float64(lost()) }),
		a.registry.Register(collectors.NewGoCollector()),
		a.registry.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})),
		a.limitGauges(),
		telemetry.GaugeFunc(a.registry, "sluice_body_budget_bytes", func() float64 {
			a.mu.Lock()
			defer a.mu.Unlock()
			return float64(a.budget.Used())
		}),
		a.credentialGauges(),
		a.storeGauges(),
		a.usageGauges(),
		telemetry.CounterFunc(a.registry, "sluice_connections_refused_total", func() float64 { return float64(a.connections.Refused()) }),
		telemetry.GaugeFunc(a.registry, "sluice_client_addresses", func() float64 { return float64(a.connections.Addresses()) }),
		a.connectionGauges(),
		a.gatewayGauges(),
		a.traceGauges(),
		telemetry.BuildInfo(a.registry, release()),
		telemetry.GaugeFunc(a.registry, "sluice_ready", func() float64 {
			if len(a.missing()) > 0 {
				return 0
			}
			return 1
		}),
	)
}

// gatewayGauges are what the chain and the pool tell of this moment.
func (a *App) gatewayGauges() error {
	return errors.Join(
		telemetry.GaugesFunc(a.registry, "sluice_open_tails_by_kind", func() map[string]float64 {
			if g := a.gateway.Load(); g != nil {
				return g.OpenTails()
			}
			return nil
		}),
		telemetry.GaugeFunc(a.registry, "sluice_tails_largest_share", func() float64 {
			if g := a.gateway.Load(); g != nil {
				return g.LargestShare()
			}
			return 0
		}),
		telemetry.GaugesFunc(a.registry, "sluice_upstream_groups_led", func() map[string]float64 {
			led := map[string]float64{}
			for node, n := range a.pool.GroupsLed() {
				led[node] = float64(n)
			}
			return led
		}),
		telemetry.GaugesFunc(a.registry, "sluice_ready_part", func() map[string]float64 {
			ready := map[string]float64{}
			for _, p := range a.parts() {
				ready[p.Name] = asNumber(p.Ready)
			}
			return ready
		}),
	)
}

func (a *App) traceGauges() error {
	return errors.Join(
		telemetry.CounterFunc(a.registry, "sluice_trace_spans_sent_total", func() float64 { return float64(a.tracer.Stats().Sent) }),
		telemetry.CounterFunc(a.registry, "sluice_trace_spans_dropped_total", func() float64 { return float64(a.tracer.Stats().Dropped) }),
		telemetry.GaugeFunc(a.registry, "sluice_trace_failing", func() float64 { return asNumber(a.tracer.Stats().Failing) }),
	)
}

func asNumber(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// newTracer makes what traces are made by; it is off until settings are in force.
func (a *App) newTracer(c *config.Config) *tracing.Tracer {
	return tracing.New(tracing.Options{
		Service: "sluice", Version: release(), Region: c.Region,
		Random: rand.Float64, // a chance, not a secret
		Changed: func(err error) {
			if err != nil {
				a.log.Warn("traces cannot be sent: what is too much to keep is dropped", zap.Error(err))
				return
			}
			a.log.Info("traces can be sent")
		},
	})
}

// traceSettings are what the file says of traces.
func traceSettings(c *config.Config) tracing.Settings {
	return tracing.Settings{
		Endpoint: c.Trace.Endpoint, Header: c.Trace.Header(), Sample: c.Trace.Sample, ParentsPerSecond: c.Trace.ParentsPerSecond,
	}
}

// profiles reports whether admin.pprof is true.
func (a *App) profiles() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.config.Admin.Pprof
}

// missing names what keeps the gateway from being ready.
func (a *App) missing() map[string]string { return gateway.Missing(a.parts()) }

// parts are what the gateway is ready by, those first that are always there. What is
// lost without keeping it from being ready is said too.
func (a *App) parts() []gateway.Part {
	parts := []gateway.Part{a.serverPart(), a.nodesPart()}
	if a.stored != nil {
		p := gateway.Part{Name: "store", Ready: a.stored.replica.Ready() == nil, State: "not read yet"}
		if p.Ready {
			p.State = ""
			if !a.stored.replica.Stats().LostSince.IsZero() {
				p.State = "out of reach; what is known goes on to be used"
			}
		}
		parts = append(parts, p)
	}
	if certificates := a.certificates(); len(certificates) > 0 {
		without := tls.Missing(certificates, time.Now())
		parts = append(parts, gateway.Part{Name: "certificates", Ready: without == "", State: without})
	}
	streams := gateway.Part{Name: "declared_streams", Ready: true}
	if n := a.keeper.Pending(); n > 0 {
		streams.Ready, streams.State = false, fmt.Sprintf("%d not looked at yet", n)
	}
	parts = append(parts, streams)
	if a.shared != nil {
		p := gateway.Part{Name: "redis", Ready: true, State: fmt.Sprintf("limits are shared by %d", a.shared.Replicas())}
		if a.shared.Degraded() {
			p.State = "lost; limits are counted by this replica alone"
		}
		parts = append(parts, p)
	}
	if a.tracer.On() {
		p := gateway.Part{Name: "traces", Ready: true}
		if a.tracer.Stats().Failing {
			p.State = "cannot be sent"
		}
		parts = append(parts, p)
	}
	return parts
}

func (a *App) serverPart() gateway.Part {
	select {
	case <-a.draining:
		return gateway.Part{Name: "server", State: "shutting down"}
	default:
		return gateway.Part{Name: "server", Ready: true}
	}
}

func (a *App) nodesPart() gateway.Part {
	states, up := a.pool.States(), 0
	for _, s := range states {
		if s == upstream.Up {
			up++
		}
	}
	err := a.pool.Ready()
	switch {
	case errors.Is(err, upstream.ErrTwoClusters):
		return gateway.Part{Name: "nodes", State: upstream.ErrTwoClusters.Error()} // without the addresses in err
	case err != nil:
		return gateway.Part{Name: "nodes", State: err.Error()}
	case up < len(states):
		return gateway.Part{Name: "nodes", Ready: true, State: fmt.Sprintf("%d of %d answer", up, len(states))}
	default:
		return gateway.Part{Name: "nodes", Ready: true}
	}
}
