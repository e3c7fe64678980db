package main

import (
	"context"
	"crypto/rand"
	"time"

	"sluice/config"
	"sluice/gateway"
	"sluice/internal/manage"
)

// protocol lets the gateway have what clients do to streams written down.
type protocol struct{ *manage.Protocol }

// Begin implements gateway.Lifecycle.
func (p protocol) Begin(ctx context.Context, c gateway.StreamChange) (gateway.Attempt, error) {
	attempt, err := p.Protocol.Begin(ctx, manage.StreamChange(c))
	if err != nil {
		return nil, err // and no *manage.Attempt that is nil
	}
	return attempt, nil
}

// Look implements gateway.Lifecycle.
func (p protocol) Look(ctx context.Context, c gateway.StreamChange) error {
	return p.Protocol.Look(ctx, manage.StreamChange(c))
}

// lifecycle is what PUT and DELETE of a stream are told to; nil where they are refused.
func (a *App) lifecycle(c *config.Config) gateway.Lifecycle {
	if c.Streams.Lifecycle != config.Protocol {
		return nil
	}
	return protocol{manage.NewProtocol(manage.ProtocolOptions{
		Streams: a.stored.store, Reconciler: a.stored.reconciler, Log: a.log, Now: time.Now, Random: rand.Reader, Region: c.Region,
	})}
}
