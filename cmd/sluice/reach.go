package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/config"
	"sluice/gateway/upstream"
	"sluice/internal/store"
	"sluice/ratelimit"
)

const (
	// reachTime bounds how long check waits for all that the file names.
	reachTime = 2 * time.Second
	reachPoll = 10 * time.Millisecond
)

// unreached says of what the file names and serve would connect to what does not
// answer, or not as serve needs it. serve starts all the same (L03), so none of it
// is an error.
func unreached(ctx context.Context, c *config.Config) []string {
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	said := make([]string, len(c.Ursula.Nodes)+2)
	var all errgroup.Group
	if c.Redis.Configured() {
		all.Go(func() error {
			if err := ratelimit.Ping(ctx, serversOf(c.Redis)); err != nil {
				said[0] = fmt.Sprintf("redis: %v; until that is mended each replica counts limits alone", err)
			}
			return nil
		})
	}
	if c.Store.Configured() {
		all.Go(func() error {
			if err := store.Ping(ctx, c.Store.URL.Reveal()); err != nil {
				said[1] = fmt.Sprintf("store: %v; serve waits for it, and ends without it", err)
			}
			return nil
		})
	}
	for i, node := range c.Ursula.Nodes {
		all.Go(func() error {
			if err := reachNode(ctx, node); err != nil {
				said[i+2] = fmt.Sprintf("ursula.nodes[%d]: %s: %v", i, node, err)
			}
			return nil
		})
	}
	_ = all.Wait() // none of them fails
	var lines []string
	for _, line := range said {
		if line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// reachNode waits until the node has said which cluster it is of.
func reachNode(ctx context.Context, base string) error {
	pool, err := upstream.New(upstream.Options{Nodes: []string{base}}) //nolint:contextcheck // a pool's life is its own, until Close
	if err != nil {
		return err
	}
	defer pool.Close()
	tick := time.NewTicker(reachPoll)
	defer tick.Stop()
	for {
		if _, err = pool.Identity(); err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.New("does not answer as an Ursula node")
		}
	}
}
