package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/bench/failover"
	"sluice/internal/tenant"
	"sluice/internal/ursulatest/realursula"
)

// The failure trials: real nodes, two gateways, a load that behaves as the
// protocol tells its clients to, and nodes that die under it.

const (
	clusterNodes  = 3
	clusterGroups = 4                // of realursula.StartCluster
	settleWithin  = 10 * time.Second // of each restart, for every client that repeats
	aloneWithin   = 20 * time.Second // for a cluster that lost its leader without notice: an election and a repeat
)

// soak reports whether the long form is asked for.
func soak() bool { return os.Getenv("SLUICE_SOAK") == "1" }

// trial is a cluster with two gateways in front and a load on both.
type trial struct {
	nodes []*realursula.Server
	edges [2]*edge
	paths [][]string // streams by Raft group
	load  *failover.Load
}

// newTrial starts the cluster and the gateways, which declare the same account
// with perGroup streams in each Raft group.
func newTrial(t *testing.T, perGroup int) *trial {
	t.Helper()
	tr := &trial{nodes: realursula.StartCluster(t, clusterNodes)}
	first := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	tr.paths = failover.Paths(clusterGroups, perGroup, func(i int) string { return first.path(fmt.Sprintf("load-%d", i)) })
	second := &edge{Account: first.Account, Key: first.Key, Reads: first.Reads}
	for i, e := range []*edge{first, second} {
		tr.edges[i] = e.start(t, trialFile(e, tr.nodes, slices.Concat(tr.paths...)), nil)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for i, e := range tr.edges {
				t.Logf("log of gateway %d, but for what went well:\n%s", i+1, troubles(e.Log.String()))
			}
		}
	})
	return tr
}

// troubles are the last lines of a log that do not tell of a 2xx.
func troubles(log string) string {
	lines := slices.DeleteFunc(strings.Split(log, "\n"), func(l string) bool { return strings.Contains(l, `"status":2`) })
	return strings.Join(lines[max(0, len(lines)-60):], "\n")
}

// trialFile is the operator's file of a gateway of a trial.
func trialFile(e *edge, nodes []*realursula.Server, paths []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "listen: 127.0.0.1:0\norigin: https://streams.example.com\nadmin: {listen: \"127.0.0.1:0\"}\nursula:\n  nodes:\n")
	for _, n := range nodes {
		fmt.Fprintf(&b, "    - %q\n", n.URL)
	}
	fmt.Fprintf(&b, "drain_delay: 0s\ndrain_timeout: 2s\naccounts:\n  - id: %s\n    limits: {requests_per_second: 100000, burst: 100000, open_tails: 1000}\n    streams:\n", e.Account)
	for _, p := range paths {
		fmt.Fprintf(&b, "      - {name: %s, content_type: text/plain}\n", p[strings.Index(p, "/s.")+3:])
	}
	fmt.Fprintf(&b, "    keys:\n      - {name: all, digest: %q}\n      - {name: reads, digest: %q, access: read}\n",
		tenant.DigestOf(e.Key), tenant.DigestOf(e.Reads))
	return b.String()
}

// start begins the load: producers spread over all groups, every third of them
// proving what it is told, one more in each group without keys; a reader and
// two tails in each group where asked.
func (tr *trial) start(ctx context.Context, producers int, every time.Duration, tails []string) {
	o := failover.Options{
		Gateways: []string{tr.edges[0].URL, tr.edges[1].URL}, Key: tr.edges[0].Key,
		Every: every, Tails: tails,
	}
	for i := range producers {
		group := tr.paths[i%clusterGroups]
		kind := failover.Keyed
		if i%3 == 2 {
			kind = failover.Proving
		}
		o.Producers = append(o.Producers, failover.Producer{
			ID: fmt.Sprintf("p%d", i), Path: group[i/clusterGroups%len(group)], Kind: kind,
		})
	}
	for g, group := range tr.paths {
		o.Producers = append(o.Producers, failover.Producer{ID: fmt.Sprintf("keyless%d", g), Path: group[0], Kind: failover.Keyless})
		o.Readers = append(o.Readers, group[0])
	}
	tr.load = failover.Start(ctx, o)
}

// leaders are the nodes that lead each group now, as they say themselves.
func (tr *trial) leaders(t *testing.T) []*realursula.Server {
	t.Helper()
	urls := make([]string, 0, len(tr.nodes))
	for _, n := range tr.nodes {
		urls = append(urls, n.URL)
	}
	var ids []int
	eventually(t, "every group has a leader", func() bool {
		var err error
		ids, err = failover.Leaders(t.Context(), urls, clusterGroups)
		return err == nil
	})
	led := make([]*realursula.Server, 0, len(ids))
	for _, id := range ids {
		led = append(led, tr.nodes[id-1])
	}
	return led
}

// leader is the node that leads the first group, which is the one with tails.
func (tr *trial) leader(t *testing.T) *realursula.Server {
	t.Helper()
	return tr.leaders(t)[0]
}

// settle waits until every client has got on since now.
func (tr *trial) settle(t *testing.T, after string, within time.Duration) {
	t.Helper()
	took, err := tr.load.Settle(t.Context(), within)
	if err != nil {
		t.Errorf("%s: %v", after, err)
		return
	}
	t.Logf("%s: every producer and reader got on within %.2f s", after, took.Seconds())
}

// finish ends the load and holds it against the promises.
func (tr *trial) finish(t *testing.T) failover.Verdict {
	t.Helper()
	tr.load.Stop(t.Context())
	verdict, err := tr.load.Verify(t.Context())
	if err != nil {
		t.Errorf("the streams could not be read whole: %v", err)
	}
	if !verdict.Clean() {
		t.Errorf("lost %d, doubled %d, out of order %d, refused and yet stored %d, foreign %d, other offsets than acknowledged %d:\n%s",
			verdict.Lost, verdict.Doubled, verdict.OutOfOrder, verdict.Refused, verdict.Foreign, verdict.Misplaced, strings.Join(verdict.Examples, "\n"))
	}
	for _, o := range tr.load.Oddities() {
		t.Errorf("against the contract: %s", o)
	}
	return verdict
}

// row sums up what happened between a time and now, and logs what readers and
// tails met.
func (tr *trial) row(t *testing.T, fault string, from time.Time) failover.Row {
	t.Helper()
	now := time.Now()
	readers, tails := tr.load.Failures(from, now)
	t.Logf("%s: readers met %s; tails met %s", fault, failover.Counts(readers), failover.Counts(tails))
	return tr.load.Row(fault, "Sluice", from, now)
}
