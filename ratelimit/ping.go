package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// clusterSlots is how many a Cluster has.
const clusterSlots = 16384

// Ping asks whether the servers answer and take writes, and leaves nothing behind:
// for a check before a start. The error is ErrServers, or says what the first that
// does not answer said; it repeats no password. ctx bounds the whole.
func Ping(ctx context.Context, s Servers) error {
	o, err := s.options()
	if err != nil {
		return err
	}
	client := o.client()
	defer func() { _ = client.Close() }()
	one := func(ctx context.Context, c *redis.Client) error {
		role, err := c.Info(ctx, "replication").Result()
		switch {
		case err != nil && ctx.Err() != nil:
			return ErrSlow
		case err != nil:
			return fmt.Errorf("does not answer: %w", err)
		case !strings.Contains(role, "role:master"):
			return errors.New("is a replica, which takes no writes: name its master, or all of its Cluster or Sentinels")
		}
		return nil
	}
	switch c := client.(type) {
	case *redis.Client:
		return one(ctx, c)
	case *redis.ClusterClient:
		// The client asks the same, so a user of Redis that serves it may.
		slots, err := c.ClusterSlots(ctx).Result() //nolint:staticcheck // see above
		served := 0
		for _, s := range slots {
			served += s.End - s.Start + 1
		}
		switch {
		case err != nil && ctx.Err() != nil:
			return ErrSlow
		case err != nil:
			return fmt.Errorf("does not answer: %w", err)
		case served < clusterSlots:
			return fmt.Errorf("is a Cluster that serves %d of %d slots", served, clusterSlots)
		}
		return c.ForEachMaster(ctx, one)
	default:
		return client.Ping(ctx).Err()
	}
}
