package main

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/internal/ursulatest/realursula"
)

// What the probes promise (docs/architecture.md), and how it is told from
// outside: a request that was given to a frozen node is late.
const (
	outWithin  = 1750 * time.Millisecond // of a freeze: the last request that is still given to the node
	backWithin = 500 * time.Millisecond  // of the first answer after it: the next request that the node answers
	late       = 500 * time.Millisecond  // for a small read on loopback, where every other node is well
	moveWithin = time.Second             // beyond outWithin, room for a busy machine: reads that waited on the node are answered by another
)

// sample is one small read.
type sample struct {
	begun, ended time.Time
	status       int
}

// sampler reads an immutable chunk through one gateway, again and again, without
// waiting for the answers: any node can give them, so that all are asked in turn.
type sampler struct {
	edge *edge
	path string
	mu   sync.Mutex
	all  []sample
}

func (s *sampler) run(ctx context.Context, t *testing.T) {
	c := http1()
	defer c.CloseIdleConnections()
	var reads sync.WaitGroup
	defer reads.Wait()
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		reads.Go(func() {
			one := sample{begun: time.Now()}
			one.status = s.edge.status(t, c, s.path)
			one.ended = time.Now()
			s.mu.Lock()
			defer s.mu.Unlock()
			s.all = append(s.all, one)
		})
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// since returns the samples that began after a time.
func (s *sampler) since(begin time.Time) []sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.all), func(o sample) bool { return o.begun.Before(begin) })
}

// status reads a path and returns the answer's status; 0 = none.
func (e *edge) status(t *testing.T, c *http.Client, path string) int {
	t.Helper()
	// Not the test's context, which ends before the reads under way are over.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.URL+path, nil)
	if err != nil {
		t.Error(err)
		return 0
	}
	req.Header.Set("Authorization", "Bearer "+e.Key)
	res, err := c.Do(req)
	if err != nil {
		return 0
	}
	defer func() { _ = res.Body.Close() }()
	_, _ = io.Copy(io.Discard, res.Body) // the status is what is asked for
	return res.StatusCode
}

// exchanges is how many requests a node has answered with a 2xx, by the
// gateway's own count.
func (e *edge) exchanges(t *testing.T, node string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.Admin+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	series := `sluice_upstream_exchanges_total{node="` + strings.TrimPrefix(node, "http://") + `",outcome="2xx"} `
	for line := range strings.Lines(string(text)) {
		if count, ok := strings.CutPrefix(strings.TrimSpace(line), series); ok {
			n, err := strconv.ParseFloat(count, 64)
			if err != nil {
				t.Fatal(err)
			}
			return int(n)
		}
	}
	return 0
}

// L6, L7: a node that is silent (SIGSTOP: its connections stand, nothing answers)
// is out of selection within 1.75 s on each gateway, reads that waited on it are
// answered by another, and it is asked again within 500 ms of answering again.
func TestFrozenNode(t *testing.T) {
	tr := newTrial(t, 1)
	leaders := tr.leaders(t)
	frozen := tr.nodes[slices.IndexFunc(tr.nodes, func(n *realursula.Server) bool { return n != leaders[0] })]
	chunk := immutableChunk(t, tr)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	var samplers [2]*sampler
	for i, e := range tr.edges {
		s := &sampler{edge: e, path: chunk}
		samplers[i] = s
		running.Go(func() { s.run(ctx, t) })
		for _, n := range tr.nodes {
			before := e.exchanges(t, n.URL)
			eventually(t, "immutable reads are spread over all nodes", func() bool { return e.exchanges(t, n.URL) > before+2 })
		}
	}

	froze := time.Now()
	if err := frozen.Pause(); err != nil {
		t.Fatal(err)
	}
	hold := time.NewTimer(outWithin + moveWithin + time.Second)
	<-hold.C
	for i, s := range samplers {
		checkEjection(t, i+1, froze, s.since(froze))
	}

	counts := [2]int{tr.edges[0].exchanges(t, frozen.URL), tr.edges[1].exchanges(t, frozen.URL)}
	if err := frozen.Cont(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node answers again", func() bool { return answers(t, frozen) })
	answered := time.Now()
	for i, e := range tr.edges {
		eventually(t, "the node is asked again", func() bool { return e.exchanges(t, frozen.URL) > counts[i] })
		back := time.Since(answered)
		t.Logf("gateway %d: asked again %v after it answered", i+1, back.Round(time.Millisecond))
		if back > backWithin {
			t.Errorf("gateway %d: the node was asked again only %v after it answered, want %v", i+1, back, backWithin)
		}
	}
}

func checkEjection(t *testing.T, gateway int, froze time.Time, samples []sample) {
	t.Helper()
	var last, moved time.Duration
	caught := 0
	for _, s := range samples {
		if s.status != http.StatusOK {
			t.Errorf("gateway %d: a read begun %v after the freeze was answered %d", gateway, s.begun.Sub(froze), s.status)
		}
		if s.ended.Sub(s.begun) < late {
			continue
		}
		caught++
		last, moved = max(last, s.begun.Sub(froze)), max(moved, s.ended.Sub(froze))
	}
	t.Logf("gateway %d: of %d reads %d waited on the frozen node; the last of them begun %v after the freeze, all answered after %v",
		gateway, len(samples), caught, last.Round(time.Millisecond), moved.Round(time.Millisecond))
	if caught == 0 {
		t.Errorf("gateway %d: no read was ever given to the frozen node: the trial did not try what it is for", gateway)
	}
	if last > outWithin {
		t.Errorf("gateway %d: a read was given to the node %v after it froze, want none after %v", gateway, last, outWithin)
	}
	if moved > outWithin+moveWithin {
		t.Errorf("gateway %d: a read waited on the frozen node until %v after the freeze, want at most %v", gateway, moved, outWithin+moveWithin)
	}
}

// immutableChunk closes a stream of the first group and returns its chunk's path.
func immutableChunk(t *testing.T, tr *trial) string {
	t.Helper()
	e, path := tr.edges[0], tr.paths[0][0]
	want(t, e.do(t, http.MethodPost, path, []byte("some text\n"), "Content-Type", "text/plain"), http.StatusNoContent)
	want(t, e.do(t, http.MethodPost, path, nil, "Stream-Closed", "true"), http.StatusNoContent)
	incarnation := e.do(t, http.MethodHead, path, nil).Header.Get("Stream-Incarnation")
	chunk := path + "/incarnation/" + incarnation + "/chunk/00000000000000000000"
	// A follower may be behind for a moment.
	for _, n := range tr.nodes {
		eventually(t, "each node has the chunk", func() bool {
			return (&edge{URL: n.URL}).status(t, http.DefaultClient, chunk) == http.StatusOK
		})
	}
	return chunk
}

// answers reports whether a node answers a probe of the test's own within 50 ms.
func answers(t *testing.T, n *realursula.Server) bool {
	t.Helper()
	return answersWith(t, n.URL+"/__ursula/live", http.StatusNoContent, 50*time.Millisecond)
}
