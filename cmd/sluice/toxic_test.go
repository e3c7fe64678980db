package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/bench/failover"
)

// round is what happens at one time: a fault of the leader's wire, and one of
// another node's.
type round struct{ leader, other string }

// shortRounds meet each fault once.
func shortRounds() []round {
	return []round{
		{"cut in a request", "slow"},
		{"cut in an answer", "byte by byte"},
		{"reset at a request", "cut in an answer"},
		{"reset at an answer", "refused"},
		{"late", "reset at a request"},
		{"requests held", "cut in a request"},
		{"answers lost", "answers held"},
		{"blackhole", "requests lost"},
	}
}

// soakRounds meet every fault at the leader beside every other, in an order of
// chance.
func soakRounds(r *rand.Rand) []round {
	names := slices.Sorted(maps.Keys(wireFaults()))
	all := make([]round, 0, len(names)*(len(names)+1))
	for _, leader := range names {
		for _, other := range append(names, "") {
			all = append(all, round{leader, other})
		}
	}
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// A network that cuts in the middle of requests and answers, resets, stalls, loses
// one direction or both, and is slow, between the gateways and the nodes, while
// producers write with and without keys: acknowledged and lost 0, stored twice 0,
// refused and yet stored 0, only codes of the contract, and no tail that is cut
// ends as if that were its end.
func TestToxicNetwork(t *testing.T) {
	t.Parallel()
	for _, upstream := range []string{"stand-in", "ursula"} {
		t.Run(upstream, func(t *testing.T) {
			t.Parallel()
			const seed = 1
			chance := rand.New(rand.NewPCG(seed, 4)) //nolint:gosec // a trial that can be repeated
			producers, every, perGroup, rounds := 8, 100*time.Millisecond, 1, shortRounds()
			if soak() {
				producers, every, perGroup, rounds = 20, 50*time.Millisecond, 2, soakRounds(chance)
			}
			tt := newToxicTrial(t, upstream == "ursula", perGroup)
			tt.start(t.Context(), producers, every, []string{tt.paths[0][0]})
			begun := time.Now()
			tt.settle(t, "start", settleWithin)
			rows := make([]failover.Row, 0, len(rounds))
			for _, r := range rounds {
				rows = append(rows, tt.round(t, r, chance))
				if t.Failed() {
					break
				}
			}
			verdict := tt.finish(t)
			for i := range rows {
				rows[i].Verdict = verdict
			}
			t.Logf("in %.1f s:\n%s", time.Since(begun).Seconds(), failover.Table(rows))
			ends := tt.load.TailEnds()
			t.Logf("tails: %+v", ends)
			if ends.Cut == 0 {
				t.Error("no tail was cut")
			}
		})
	}
}

// round plays one, waits until everybody got on again, and sums it up.
func (tt *toxicTrial) round(t *testing.T, r round, chance *rand.Rand) failover.Row {
	t.Helper()
	faults := wireFaults()
	leader := tt.leader(t)
	other := (leader + 1 + chance.IntN(len(tt.wires)-1)) % len(tt.wires)
	name := strings.TrimSuffix(fmt.Sprintf("%s, %s", r.leader, r.other), ", ")
	from := time.Now()
	hold := faults[r.leader].hold
	tt.wires[leader].poison(t, faults[r.leader], chance)
	if r.other != "" {
		tt.wires[other].poison(t, faults[r.other], chance)
		hold = max(hold, faults[r.other].hold)
	}
	lasts := time.NewTimer(hold)
	<-lasts.C
	tt.wires[leader].heal(t)
	tt.wires[other].heal(t)
	tt.settle(t, name, settleWithin)
	row := tt.row(t, name, from)
	// Over many rounds a fault now and then meets no request.
	if faults[r.leader].bites && len(row.Failures) == 0 && !soak() {
		t.Errorf("%s: no producer noticed: the trial did not try what it is for", name)
	}
	return row
}
