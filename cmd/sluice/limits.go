package main

import (
	"errors"
	"time"

	"go.uber.org/zap"

	"sluice/config"
	"sluice/internal/telemetry"
	"sluice/ratelimit"
)

// limits is who counts: this process, or all replicas over Redis.
type limits interface {
	ratelimit.Limiter
	ratelimit.Tails
	ratelimit.Uploads
	OpenTails() int
	OpenUploads() int
	Subjects() int
	TailsOf(s ratelimit.Subject) int
}

// newLimits makes the limits that the file asks for. A Redis that does not answer
// yet is no error: limits are local until it does.
func (a *App) newLimits(c *config.Config) error {
	if !c.Redis.Configured() {
		a.limits = ratelimit.NewMemory(ratelimit.MemoryOptions{Now: time.Now})
		return nil
	}
	shared, err := ratelimit.NewRedis(ratelimit.Options{
		Servers: serversOf(c.Redis), Floor: floorOf(c), Now: time.Now,
		Events: ratelimit.Events{Degraded: a.redisLost, Shared: a.redisShared},
	})
	if err != nil {
		return err
	}
	a.limits, a.shared = shared, shared
	return nil
}

func floorOf(c *config.Config) ratelimit.Floor {
	return ratelimit.Floor{RequestsPerSecond: c.Limits.Floor.RequestsPerSecond, OpenTails: c.Limits.Floor.OpenTails}
}

func (a *App) redisLost(cause error) {
	a.log.Warn("Redis is lost: limits are counted by each replica alone until it is back", zap.Error(cause))
}

func (a *App) redisShared(after time.Duration) {
	a.log.Info("limits are counted over all replicas", zap.Duration("seconds", after))
}

func (a *App) limitGauges() error {
	degraded, replicas := func() float64 { return 0 }, func() float64 { return 1 }
	if shared := a.shared; shared != nil {
		degraded = func() float64 {
			if shared.Degraded() {
				return 1
			}
			return 0
		}
		replicas = func() float64 { return float64(shared.Replicas()) }
	}
	return errors.Join(
		telemetry.GaugeFunc(a.registry, "sluice_open_tails", func() float64 { return float64(a.limits.OpenTails()) }),
		telemetry.GaugeFunc(a.registry, "sluice_open_uploads", func() float64 { return float64(a.limits.OpenUploads()) }),
		telemetry.GaugeFunc(a.registry, "sluice_rate_subjects", func() float64 { return float64(a.limits.Subjects()) }),
		telemetry.GaugeFunc(a.registry, "sluice_redis_degraded", degraded),
		telemetry.GaugeFunc(a.registry, "sluice_replicas", replicas),
	)
}
