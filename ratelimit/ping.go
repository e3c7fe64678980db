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

// Ping asks whether the servers do what a Redis will ask of them, by doing it under
// names of nobody, and whether they keep what they are told: for a check before a
// start. What it leaves behind ends within minutes. The error is ErrServers, or says
// what is wrong; it repeats no password. ctx bounds the whole.
func Ping(ctx context.Context, servers Servers) error {
	if err := servers.Validate(); err != nil {
		return err
	}
	o := Options{Servers: servers}.withDefaults()
	s, err := newSession(servers, 1, map[bool]*keys{false: newKeys(o.Prefix, false), true: newKeys(o.Prefix, true)})
	if err != nil {
		return err
	}
	defer s.end(errClosed)
	if cluster, ok := s.client.(*redis.ClusterClient); ok {
		if err := serves(ctx, cluster); err != nil {
			return err
		}
		if err := cluster.ForEachMaster(ctx, keeps); err != nil {
			return err
		}
	} else if single, ok := s.client.(*redis.Client); ok {
		if err := keeps(ctx, single); err != nil {
			return err
		}
	}
	if err := s.try(ctx, newScripts(), o); err != nil {
		return fmt.Errorf("cannot be used: %w", err)
	}
	return nil
}

// serves asks whether a Cluster has a master for each slot.
func serves(ctx context.Context, c *redis.ClusterClient) error {
	// The client asks the same, so a user of Redis that serves it may.
	slots, err := c.ClusterSlots(ctx).Result() //nolint:staticcheck // see above
	if err != nil {
		return fmt.Errorf("does not answer: %w", err)
	}
	served := 0
	for _, s := range slots {
		served += s.End - s.Start + 1
	}
	if served < clusterSlots {
		return fmt.Errorf("is a Cluster that serves %d of %d slots", served, clusterSlots)
	}
	return nil
}

// keeps asks a server whether it keeps what it is told until it expires.
func keeps(ctx context.Context, c *redis.Client) error {
	info, err := c.InfoMap(ctx, "replication", "memory").Result()
	if err != nil {
		return fmt.Errorf("does not answer: %w", err)
	}
	if role := info["Replication"]["role"]; role != "master" {
		return errors.New("is a replica, which takes no writes: name its master, or all of its Cluster or Sentinels")
	}
	memory := info["Memory"]
	if policy := memory["maxmemory_policy"]; memory["maxmemory"] != "0" && !strings.HasPrefix(policy, "noeviction") {
		return fmt.Errorf("evicts what it is told (maxmemory-policy %s): set it to noeviction", policy)
	}
	return nil
}
