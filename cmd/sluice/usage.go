package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"sluice/config"
	"sluice/gateway"
	"sluice/internal/telemetry"
	"sluice/internal/usage"
)

// lastFlush is how long a stop waits for what is not written yet of usage.
const lastFlush = 5 * time.Second

// metering are the parts that count what accounts use.
type metering struct {
	meter         *usage.Meter
	flusher       *usage.Flusher
	store, export *usage.Outbox // nil where there is none
	file          *usage.File
	forgotten     chan struct{} // closed when nothing is forgotten any more
	stop          context.CancelFunc
}

// startMetering begins to count, where there is somewhere to write it, once.
func (a *App) startMetering(c *config.Config) error {
	if a.metering != nil || a.stored == nil && c.Usage.Export == "" {
		return nil
	}
	m := &metering{forgotten: make(chan struct{})}
	m.meter = usage.NewMeter(usage.Options{ChunkBytes: int64(c.Usage.ChunkBytes), StreamReads: c.Usage.StreamReads})
	// Another one at each start. The file's batches are not the store's: one may have been
	// merged where the other was not. Their ids tell that they are of one process.
	replica := rand.Text()
	outbox := func(id, to string, sink usage.Sink) *usage.Outbox {
		return usage.NewOutbox(usage.OutboxOptions{
			Sink: sink, Replica: id, StreamReads: c.Usage.StreamReads,
			Failed: func(err error) {
				a.log.Error("usage cannot be written: it is kept and tried again", zap.String("to", to), zap.Error(err))
			},
			Back: func() { a.log.Info("usage is written again", zap.String("to", to)) },
		})
	}
	var all []*usage.Outbox
	if c.Usage.Export != "" {
		open := usage.OpenFile
		if a.handed.waited() {
			open = usage.TakeOverFile
		}
		var err error
		if m.file, err = open(c.Usage.Export); err != nil {
			return noExport(err)
		}
		m.export = outbox(replica+"-file", "usage.export", m.file)
		all = append(all, m.export)
	}
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	if a.stored != nil {
		m.store = outbox(replica, "store", usage.SinkFunc(a.stored.store.WriteUsage))
		all = append(all, m.store)
		go func() {
			defer close(m.forgotten)
			usage.Forget(ctx, usage.RetentionOptions{
				Store: a.stored.store, Holder: replica, Batches: c.Usage.KeepBatches, Hours: c.Usage.KeepHours, Now: a.now,
				Failed: func(err error) { a.log.Warn("old usage could not be forgotten; it is tried again", zap.Error(err)) },
			})
		}()
	} else {
		close(m.forgotten)
	}
	m.flusher = usage.NewFlusher(m.meter, c.Usage.Flush, a.now, all...)
	m.flusher.Start()
	a.metering = m
	return nil
}

// noExport says what to do about an export file that cannot be written.
func noExport(err error) error {
	return fmt.Errorf("usage.export: %w; it is a file in a folder that is there, and made where it is missing", err)
}

// meter is nil, and not a Meter that is, where nothing is metered.
func (a *App) meter() gateway.Meter {
	if a.metering == nil {
		return nil
	}
	return a.metering.meter
}

// close writes what is left. Requests that are still under way, of connections that were
// cut, are counted as far as they have come.
func (m *metering) close(log *zap.Logger) {
	m.stop()
	<-m.forgotten
	ctx, cancel := context.WithTimeout(context.Background(), lastFlush)
	defer cancel()
	if err := m.flusher.Close(ctx); err != nil {
		log.Error("usage is lost that could not be written before the stop", zap.Error(err))
	}
	if m.file != nil {
		if err := m.file.Close(); err != nil {
			log.Warn("the export of usage was not closed well", zap.Error(err))
		}
	}
}

func (a *App) usageGauges() error {
	read := func(of func(*metering) *usage.Outbox, value func(usage.OutboxStats) float64) func() float64 {
		return func() float64 {
			if a.metering == nil || of(a.metering) == nil {
				return 0
			}
			return value(of(a.metering).Stats())
		}
	}
	var errs []error
	merged := func(s usage.OutboxStats) float64 { return float64(s.Merged) }
	store, export := func(m *metering) *usage.Outbox { return m.store }, func(m *metering) *usage.Outbox { return m.export }
	for name, of := range map[string]func(*metering) *usage.Outbox{"store": store, "export": export} {
		errs = append(errs,
			telemetry.GaugeFunc(a.registry, "sluice_usage_"+name+"_pending", read(of, func(s usage.OutboxStats) float64 { return float64(s.Pending) })),
			telemetry.CounterFunc(a.registry, "sluice_usage_"+name+"_failures_total", read(of, func(s usage.OutboxStats) float64 { return float64(s.Failures) })),
			telemetry.GaugeFunc(a.registry, "sluice_usage_"+name+"_written_timestamp_seconds", read(of, func(s usage.OutboxStats) float64 {
				if s.Written.IsZero() {
					return 0
				}
				return float64(s.Written.UnixMilli()) / 1e3
			})))
	}
	errs = append(errs, telemetry.CounterFunc(a.registry, "sluice_usage_merged_total", func() float64 {
		return read(store, merged)() + read(export, merged)()
	}))
	return errors.Join(errs...)
}
