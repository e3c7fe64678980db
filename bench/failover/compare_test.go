package failover

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"sluice/internal/ursulatest/realursula"
)

// A killed leader may cost our clients at most this much more time than those of
// Ursula's own gateway, in the same run.
const gapRatio = 1.1

// comparison is the size of one.
type comparison struct {
	producers int // of each gateway
	every     time.Duration
	rounds    int // of each fault
	faults    []string
	rest      time.Duration // after each step that went well
}

func sizeOf() comparison {
	if os.Getenv("SLUICE_SOAK") == "1" {
		return comparison{20, 50 * time.Millisecond, 3, []string{"killed", "frozen", "drained"}, 2 * time.Second}
	}
	return comparison{8, 100 * time.Millisecond, 1, []string{"killed"}, 0}
}

// The same script against Sluice and Ursula's own gateway, two processes of each,
// on one cluster at the same time: each fault hits both at once, so that both
// wait for the same election. With SLUICE_SOAK=1 it prints the table of
// docs/benchmarks.md; the short form only shows that the script works.
func TestCompare(t *testing.T) {
	size := sizeOf()
	nodes := realursula.StartCluster(t, 3)
	var streams [2][][][]string
	for round := range size.rounds * len(size.faults) {
		for i := range streams {
			streams[i] = append(streams[i], Paths(groups, 2, func(n int) string {
				return fmt.Sprintf("/%s/s.side%d-round%d-%d", account, i, round, n)
			}))
		}
	}
	ours, peer := startSluice(t, nodes, append(flat(streams[0]), flat(streams[1])...)), startPeer(t, nodes)
	ours.streams, peer.streams = streams[0], streams[1]

	var rows []Row
	worst := map[string]time.Duration{}
	for i := range size.rounds * len(size.faults) {
		fault := size.faults[i%len(size.faults)]
		both := size.round(t, i, fault, nodes, [2]*side{ours, peer})
		for _, row := range both {
			rows = append(rows, row)
			worst[fault+row.Gateway] = max(worst[fault+row.Gateway], row.Longest)
		}
		if v := both[0].Verdict; !v.Clean() {
			t.Errorf("round %d, %s: %+v", i, fault, v)
		}
	}
	t.Logf("\n%s", Table(Sum(rows)))
	t.Logf("each round:\n%s", Table(rows))
	if us, them := worst["killed"+ours.name], worst["killed"+peer.name]; size.rounds > 1 && float64(us) > gapRatio*float64(them) {
		t.Errorf("longest gap on SIGKILL %v, want at most %.1f × the peer's %v", us, gapRatio, them)
	}
}

// round runs both loads through one fault and its repair.
func (c comparison) round(t *testing.T, round int, fault string, nodes []*realursula.Server, sides [2]*side) (rows [2]Row) {
	t.Helper()
	var loads [2]*Load
	for i, s := range sides {
		loads[i] = s.begin(t.Context(), round, c.producers, c.every)
	}
	settle := func(after string, within time.Duration) {
		t.Helper()
		for i, l := range loads {
			if _, err := l.Settle(t.Context(), within); err != nil {
				t.Errorf("%s, %s: %v", sides[i].name, after, err)
			}
		}
		if c.rest > 0 {
			wait(t.Context(), c.rest)
		}
	}
	settle("start", 10*time.Second)
	from := time.Now()
	node := leaderOf(t, nodes, 0)
	breakNode(t, node, fault)
	settle(fault, 20*time.Second)
	if fault == "frozen" {
		if err := node.Cont(); err != nil {
			t.Fatal(err)
		}
	} else {
		node.Restart(t)
	}
	settle(fault+" and back", 10*time.Second)
	to := time.Now()
	for i, l := range loads {
		l.Stop(t.Context())
		rows[i] = l.Row(fault, sides[i].name, from, to)
		verdict, err := l.Verify(t.Context())
		if err != nil {
			t.Errorf("%s: %v", sides[i].name, err)
		}
		rows[i].Verdict = verdict
		if odd := l.Oddities(); len(odd) > 0 {
			text := fmt.Sprintf("%s, %s, against our contract:\n%s", sides[i].name, fault, strings.Join(odd, "\n"))
			if i == 0 {
				t.Error(text)
			} else {
				t.Log(text)
			}
		}
	}
	return rows
}

func breakNode(t *testing.T, n *realursula.Server, fault string) {
	t.Helper()
	switch fault {
	case "killed":
		n.Kill()
	case "drained":
		n.Stop()
	case "frozen":
		if err := n.Pause(); err != nil {
			t.Fatal(err)
		}
	default:
		t.Fatalf("no fault %q", fault)
	}
}
