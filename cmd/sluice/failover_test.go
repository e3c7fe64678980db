package main

import (
	"slices"
	"testing"
	"time"

	"sluice/bench/failover"
	"sluice/internal/ursulatest/realursula"
)

// fault is a way in which a node goes away, and comes back.
type fault struct {
	name        string
	breakNode   func(*testing.T, *realursula.Server)
	restoreNode func(*testing.T, *realursula.Server)
}

func faults() []fault {
	restart := func(t *testing.T, n *realursula.Server) { t.Helper(); n.Restart(t) }
	return []fault{
		{"killed", func(_ *testing.T, n *realursula.Server) { n.Kill() }, restart},
		{"frozen", func(t *testing.T, n *realursula.Server) {
			t.Helper()
			if err := n.Pause(); err != nil {
				t.Fatal(err)
			}
		}, func(t *testing.T, n *realursula.Server) {
			t.Helper()
			if err := n.Cont(); err != nil {
				t.Fatal(err)
			}
		}},
		{"drained", func(_ *testing.T, n *realursula.Server) { n.Stop() }, restart},
	}
}

// Acknowledged and lost, stored twice, out of order: none of them, whatever way
// the leader goes, and only answers that the contract has.
func TestLeaderGoes(t *testing.T) {
	t.Parallel()
	producers, every, perGroup, whole := 8, 100*time.Millisecond, 1, time.Duration(0)
	if soak() {
		producers, every, perGroup, whole = 20, 50*time.Millisecond, 3, 60*time.Second
	}
	tr := newTrial(t, perGroup)
	tr.start(t.Context(), producers, every, []string{tr.paths[0][0]})
	begun := time.Now()
	tr.settle(t, "start", settleWithin)
	rows := make([]failover.Row, 0, len(faults()))
	for i, f := range faults() {
		from := time.Now()
		node := tr.leader(t)
		f.breakNode(t, node)
		tr.settle(t, f.name, aloneWithin)
		f.restoreNode(t, node)
		tr.settle(t, f.name+" and back", settleWithin)
		// In the long form the faults fill the time evenly.
		until := begun.Add(whole * time.Duration(i+1) / time.Duration(len(faults())))
		for time.Now().Before(until) && !t.Failed() {
			if _, err := tr.load.Settle(t.Context(), settleWithin); err != nil {
				t.Errorf("%s, later: %v", f.name, err)
			}
		}
		rows = append(rows, tr.row(t, f.name, from))
	}
	verdict := tr.finish(t)
	for i := range rows {
		rows[i].Verdict = verdict
	}
	t.Logf("in %.1f s:\n%s", time.Since(begun).Seconds(), failover.Table(rows))
	ends := tr.load.TailEnds()
	t.Logf("tails: %+v", ends)
	if ends.Cut == 0 {
		t.Error("no tail was cut, though the node that had it was killed")
	}
	if slices.ContainsFunc(rows, func(r failover.Row) bool { return r.Acked == 0 }) {
		t.Error("a fault without any append")
	}
}
