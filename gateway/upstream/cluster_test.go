package upstream

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/bubble"
)

// newUntoldPipes makes nodes that do not tell their cluster's id yet.
func newUntoldPipes(t *testing.T, count int) (*Pool, []*pipeNode, *outcomes) {
	t.Helper()
	ps := &pipes{nodes: map[string]*pipeNode{}}
	nodes, urls := make([]*pipeNode, count), make([]string, count)
	for i := range nodes {
		nodes[i], urls[i] = ps.serve(t, string(rune('a'+i))+":1", i, time.Hour, ok, nil)
		nodes[i].d.setCluster("")
	}
	seen := &outcomes{}
	return newPoolOf(t, Options{Nodes: urls, Dial: ps.dialRequest, probeDial: ps.dial, Observer: seen}), nodes, seen
}

// Ready is what the readiness page says: nobody answers yet, all is well, two
// clusters, nobody answers any more.
func TestReady(t *testing.T) {
	wantKind(t, newPool(t).Ready(), NoUpstream)
	bubble.Test(t, func(t *testing.T) {
		p, nodes, _ := newUntoldPipes(t, 2)
		time.Sleep(3 * probeEvery)
		if err := p.Ready(); !errors.Is(err, ErrNotIdentified) {
			t.Errorf("before any has told who it is: %v", err)
		}
		nodes[0].d.setCluster("double")
		nodes[1].d.setCluster("double")
		time.Sleep(2 * probeEvery)
		if err := p.Ready(); err != nil {
			t.Errorf("with both nodes: %v", err)
		}
		nodes[0].kill()
		lasts(t, p.is("a:1", Stopped))
		if err := p.Ready(); err != nil {
			t.Errorf("with one node of two: %v", err)
		}
		nodes[1].freeze()
		lasts(t, p.is("b:1", Silent))
		if err := p.Ready(); !errors.Is(err, ErrNoneAnswers) {
			t.Errorf("with none: %v", err)
		}
		if diff := cmp.Diff(map[string]State{"a:1": Stopped, "b:1": Silent}, p.States()); diff != "" {
			t.Errorf("states (-want +got):\n%s", diff)
		}
		nodes[0].d.setCluster("another")
		nodes[0].revive()
		lasts(t, func() bool { return errors.Is(p.Ready(), ErrTwoClusters) })
		nodes[0].kill()
		nodes[0].d.setCluster("double")
		nodes[0].revive()
		lasts(t, func() bool { return p.Ready() == nil })
	})
}

// A node that comes back as another cluster's is noticed: after an outage, after
// a restart between two probes, and within the time of the regular question where
// the connection tells nothing. Each news is told once.
func TestClusterChanges(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, nodes, seen := newUntoldPipes(t, 1)
		time.Sleep(3 * probeEvery) // a node that does not tell is asked again soon
		if err := p.Ready(); !errors.Is(err, ErrNotIdentified) {
			t.Errorf("a node that does not tell: %v", err)
		}
		steps := []struct {
			name   string
			change func()
			within time.Duration
			events []string
		}{
			{"it tells", func() {}, probeEvery, []string{"cluster one"}},
			{"out and back", func() {
				nodes[0].kill()
				lasts(t, p.is("a:1", Stopped))
				nodes[0].revive()
			}, probeEvery, []string{"a:1 stopped", "a:1 up", "cluster two"}},
			{"restart between two probes", func() {
				nodes[0].kill()
				nodes[0].revive()
			}, probeEvery, []string{"cluster three"}},
			{"frozen and back on its connections", func() {
				nodes[0].freeze()
				lasts(t, p.is("a:1", Silent))
				nodes[0].unfreeze()
			}, probeEvery, []string{"a:1 silent", "a:1 up", "cluster four"}},
			{"behind the same address", func() {}, 10*time.Second + probeEvery, []string{"cluster five"}},
			{"long after", func() { time.Sleep(3 * identityEvery) }, probeEvery, nil},
		}
		for i, s := range steps {
			if i < len(steps)-1 {
				nodes[0].d.setCluster([]string{"one", "two", "three", "four", "five"}[i])
			}
			s.change()
			time.Sleep(s.within)
			bubble.Wait()
			if diff := cmp.Diff(s.events, seen.takeEvents()); diff != "" {
				t.Errorf("%s: events (-want +got):\n%s", s.name, diff)
			}
		}
	})
}

// Nodes that disagree for a while and then agree on what was known all along are
// no news; a reload that settles the matter is, if another id comes of it.
func TestClusterDisputes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, nodes, seen := newWatchedPipes(t, ok, ok)
		restart := func(i int, id string) {
			nodes[i].d.setCluster(id)
			nodes[i].kill()
			nodes[i].revive()
			time.Sleep(2 * probeEvery)
		}
		bubble.Wait()
		if diff := cmp.Diff([]string{"cluster double"}, seen.takeEvents()); diff != "" {
			t.Errorf("at the start: events (-want +got):\n%s", diff)
		}
		restart(0, "other")
		if err := p.Ready(); !errors.Is(err, ErrTwoClusters) {
			t.Errorf("two clusters: %v", err)
		}
		restart(0, "double")
		if err := p.Ready(); err != nil {
			t.Errorf("one cluster again: %v", err)
		}
		if got := seen.takeEvents(); len(got) != 0 {
			t.Errorf("after a dispute: events %v, want none", got)
		}
		restart(0, "other")
		for _, step := range []struct {
			base string
			want []string
		}{{"http://b:1", nil}, {"http://a:1", []string{"cluster other"}}} {
			if err := p.SetNodes([]string{"http://a:1", "http://b:1"}, 0); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * probeEvery)
			if err := p.SetNodes([]string{step.base}, 0); err != nil {
				t.Fatal(err)
			}
			if err := p.Ready(); err != nil {
				t.Errorf("%s alone: %v", step.base, err)
			}
			if diff := cmp.Diff(step.want, seen.takeEvents()); diff != "" {
				t.Errorf("%s alone: events (-want +got):\n%s", step.base, diff)
			}
		}
	})
}

// A node that is taken out of the list is not probed any more, and what is known
// of one that stays is kept: a reload brings no dead node back.
func TestReloadKeepsEjections(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, nodes, seen := newWatchedPipes(t, saying("a"), saying("b"), saying("c"))
		bubble.Wait()
		nodes[0].kill()
		nodes[1].freeze()
		lasts(t, p.is("b:1", Silent))
		seen.takeEvents()
		if err := p.SetNodes([]string{"http://c:1", "http://b:1", "http://a:1"}, 4); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]State{"a:1": Stopped, "b:1": Silent, "c:1": Up}, p.States()); diff != "" {
			t.Errorf("states (-want +got):\n%s", diff)
		}
		for range 10 {
			(<-p.begin(t, keylessKind())).want(t, "c", 0, 0)
		}
		if err := p.SetNodes([]string{"http://c:1"}, 0); err != nil {
			t.Fatal(err)
		}
		bubble.Wait()
		before := nodes[0].probed.Load()
		nodes[0].revive()
		time.Sleep(5 * time.Second)
		if got := nodes[0].probed.Load() - before; got != 0 {
			t.Errorf("a node that was taken out was probed %d times", got)
		}
		if got := seen.takeEvents(); len(got) != 0 {
			t.Errorf("events %v, want none", got)
		}
	})
}
