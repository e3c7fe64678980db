package main

import (
	"slices"
	"testing"
	"time"

	"sluice/bench/failover"
	"sluice/internal/ursulatest/realursula"
)

// All three nodes are restarted, one after the other, as an upgrade does it:
// nothing is lost or doubled, nobody who repeats is left without success for
// 10 s, and a tail is cut in the middle, never ended as if that were its end.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	producers, every, perGroup := 8, 100*time.Millisecond, 1
	if soak() {
		producers, every, perGroup = 20, 50*time.Millisecond, 3
	}
	tr := newTrial(t, perGroup)
	tails := make([]string, 0, len(tr.paths))
	for _, group := range tr.paths {
		tails = append(tails, group[0])
	}
	if !soak() {
		tails = tails[:1]
	}
	tr.start(t.Context(), producers, every, tails)
	tr.settle(t, "start", settleWithin)
	rows := make([]failover.Row, 0, clusterNodes)
	for left := slices.Clone(tr.nodes); len(left) > 0; {
		var node *realursula.Server
		node, left = tr.nextToRestart(t, left)
		from := time.Now()
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			node.Stop()
		}()
		tr.settle(t, "told to stop", settleWithin)
		<-gone
		t.Logf("node %d took %.1f s to end", node.NodeID, time.Since(from).Seconds())
		tr.settle(t, "stopped", settleWithin)
		node.Restart(t)
		tr.settle(t, "started again", settleWithin)
		gap, who := tr.load.Gap(from, time.Now())
		t.Logf("node %d: longest without success %.2f s, %s", node.NodeID, gap.Seconds(), who)
		if gap > settleWithin {
			t.Errorf("%s was without success for %v during the restart of node %d, want at most %v", who, gap, node.NodeID, settleWithin)
		}
		rows = append(rows, tr.row(t, "restarted", from))
	}
	verdict := tr.finish(t)
	for i := range rows {
		rows[i].Verdict = verdict
	}
	t.Logf("\n%s", failover.Table(rows))
	ends := tr.load.TailEnds()
	t.Logf("tails: %+v", ends)
	if ends.Cut+ends.Told == 0 {
		t.Error("no tail ended, though each node that had one went away")
	}
}

// nextToRestart takes the next node off the list: those first that do not lead
// the group with the tails, since a node with an open tail takes 10 s longer to
// stop, and a tail would be moved to a node that is yet to come.
func (tr *trial) nextToRestart(t *testing.T, left []*realursula.Server) (next *realursula.Server, rest []*realursula.Server) {
	t.Helper()
	leader := tr.leader(t)
	i := max(0, slices.IndexFunc(left, func(n *realursula.Server) bool { return n != leader }))
	next = left[i]
	return next, slices.Delete(left, i, i+1)
}
