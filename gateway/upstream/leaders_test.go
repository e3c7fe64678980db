package upstream

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/ursulatest"
)

// L1, R6: who led after a redirect is asked first the next time, and only a 2xx
// teaches that.
func TestLeaderIsLearned(t *testing.T) {
	tests := []struct {
		name, nodes string
		learned     bool
	}{
		{"L1 success", "->2 ok ok", true},
		{"R6 404", "->2 ok 404", false},
		{"R6 409", "->2 ok 409", false},
		{"R6 503", "->2 ok 503", false},
		{"R23 broken", "->2 ok cut", false},
		{"R8 found by search", "->else 404 ok", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			urls, order, _ := fleet(t, strings.Fields(tt.nodes)...)
			p := newPool(t, urls...)
			p.firstIs(0, len(urls))
			m := Meta{Path: streamPath, Body: []byte("x")}
			_, _ = p.send(t.Context(), http.MethodPost, streamPath, m)
			asked := len(order())
			p.firstIs(1, len(urls))
			_, _ = p.send(t.Context(), http.MethodPost, streamPath, m)
			want := 1
			if tt.learned {
				want = 2
			}
			if got := order()[asked]; got != want {
				t.Errorf("the next request of the stream went to node %d, want %d", got, want)
			}
			p.firstIs(1, len(urls))
			asked = len(order())
			_, _ = p.send(t.Context(), http.MethodPost, "/acme/s.other", Meta{Path: "/acme/s.other", Body: []byte("x")})
			if got := order()[asked]; got != 1 {
				t.Errorf("another stream's request went to node %d, want 1", got)
			}
		})
	}
}

// L1: only a redirect teaches a leader. Who answers because another node refused the
// connection, or did not answer, may be any follower.
func TestNoLeaderWithoutARedirect(t *testing.T) {
	for _, first := range []string{"dead", "ok"} {
		urls, _, _ := fleet(t, first, "ok", "ok")
		p := newBlindPool(t, urls...)
		p.firstIs(0, len(urls))
		p.mustSend(t, http.MethodGet, streamPath, Meta{Path: streamPath, Read: true})
		if n := p.leaders.get(streamPath); n != nil {
			t.Errorf("first node %s: %s was learned as the leader", first, n.base)
		}
	}
}

// L2: a 503 that asks to come back, from the node that is taken for the leader,
// drops the route; L3: so does a refused connection, and the request goes on; a
// redirect and a broken exchange do too.
func TestLeaderIsForgotten(t *testing.T) {
	const key = "/acme/s.priv"
	tests := []struct {
		name, nodes string
		status      int // 0 = an error
		kept        bool
	}{
		{"L2 503 with Retry-After", "503 ok", 503, false},
		{"L3 refused connection", "dead ok", 200, false},
		{"redirect", "->1 ok", 200, false},
		{"redirect, then a refusal", "->1 404", 404, false},
		{"L19 broken exchange", "cut ok", 0, false},
		{"404", "404 ok", 404, true},
		{"500", "500 ok", 500, true},
		{"success", "ok ok", 200, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			urls, _, _ := fleet(t, strings.Fields(tt.nodes)...)
			p := newBlindPool(t, urls...)
			nodes := *p.nodes.Load()
			p.leaders.learn(key, nodes[0])
			res, err := p.send(t.Context(), http.MethodPost, key, Meta{Path: key, Body: []byte("x")})
			switch {
			case tt.status == 0:
				wantKind(t, err, Failed)
			case err != nil || res.StatusCode != tt.status:
				t.Fatalf("got %v, error %v; want %d", res.Response, err, tt.status)
			}
			if got := p.leaders.get(key) == nodes[0]; got != tt.kept {
				t.Errorf("route kept: %v, want %v", got, tt.kept)
			}
		})
	}
}

// The cache of leaders is bounded (facts §4.2).
func TestLeaderCacheIsBounded(t *testing.T) {
	p := newPool(t, "http://127.0.0.1:1")
	n := (*p.nodes.Load())[0]
	for i := range 3*maxLeaders + 7 {
		p.leaders.learn(fmt.Sprint("/acme/s.", i), n)
		if got := len(p.leaders.byKey); got > maxLeaders {
			t.Fatalf("%d routes after %d streams, want %d at the most", got, i+1, maxLeaders)
		}
	}
	if p.leaders.get(fmt.Sprint("/acme/s.", 3*maxLeaders+6)) != n {
		t.Error("the last route learned is gone")
	}
}

// U03: the gateway sent a keyless append again after a connection had stood: the
// record was there twice. One attempt, at all nodes together.
func TestNothingIsSentTwice(t *testing.T) {
	faults := map[string]ursulatest.Fault{
		"cut before the body is read": ursulatest.Reset,
		"cut after the body":          ursulatest.ReadThen(ursulatest.Reset),
		"503 half sent":               halfAnswer,
	}
	for name, fault := range faults {
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
			t.Run(name+"/"+method, func(t *testing.T) {
				c := newCluster(t, 3)
				p := newPool(t, c.URLs()...)
				// Connections stand before, so that the faults meet kept ones.
				waitIdentity(t, p)
				for i := range 3 {
					c.Node(i).SetFault(fault)
				}
				c.ResetRequests()
				_, err := p.send(t.Context(), method, streamPath+"/snapshot/0", Meta{Path: streamPath, Body: []byte("once")}, "Content-Type", "text/plain")
				var own *Error
				if errors.As(err, &own) && own.Kind != Failed {
					t.Errorf("error %v, want kind failed: the outcome is unknown", err)
				}
				if err == nil {
					t.Error("half an answer was taken for a whole one")
				}
				if got := len(clientRequests(c)); got != 1 {
					t.Errorf("%d requests reached the nodes, want 1", got)
				}
			})
		}
	}
}

// halfAnswer sends a head that promises more than comes.
func halfAnswer(w http.ResponseWriter, r *http.Request) bool {
	w.Header().Set("Content-Length", "100")
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = w.Write([]byte("half"))
	_ = http.NewResponseController(w).Flush()
	return ursulatest.Reset(w, r)
}

// Catch-up reads say Stream-Up-To-Date whichever node is asked first: with
// several nodes they ask for consistency=leader, with one the query is untouched.
func TestCatchUpReads(t *testing.T) {
	tests := []struct {
		name   string
		nodes  int
		query  string
		m      Meta
		target string
	}{
		{"one node", 1, "?offset=-1", Meta{Read: true, CatchUp: true}, "?offset=-1"},
		{"one node, bare ?", 1, "?", Meta{Read: true, CatchUp: true}, "?"},
		{"three nodes", 3, "?offset=-1", Meta{Read: true, CatchUp: true}, "?offset=-1&consistency=leader"},
		{"three nodes, no query", 3, "", Meta{Read: true, CatchUp: true}, "?consistency=leader"},
		{"three nodes, bare ?", 3, "?", Meta{Read: true, CatchUp: true}, "?consistency=leader"},
		{"three nodes, open end", 3, "?offset=-1&", Meta{Read: true, CatchUp: true}, "?offset=-1&consistency=leader"},
		{"three nodes, order and unknown ones kept", 3, "?b=%2B&a=1&offset=-1", Meta{Read: true, CatchUp: true}, "?b=%2B&a=1&offset=-1&consistency=leader"},
		{"three nodes, not a catch-up read", 3, "?offset=-1", Meta{Read: true}, "?offset=-1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newCluster(t, tt.nodes)
			p := newPool(t, c.URLs()...)
			p.mustSend(t, http.MethodPost, streamPath, Meta{Path: streamPath, Body: []byte("a")}, "Content-Type", "text/plain")
			waitIdentity(t, p)
			for first := range tt.nodes {
				p.leaders.keep(nil)
				p.firstIs(first, tt.nodes)
				c.ResetRequests()
				tt.m.Path = streamPath
				res := p.mustSend(t, http.MethodGet, streamPath+tt.query, tt.m)
				if res.StatusCode != http.StatusOK || res.Text != "a" {
					t.Fatalf("node %d: %d %q", first, res.StatusCode, res.Text)
				}
				if got := res.Header.Get("Stream-Up-To-Date"); (got == "true") != (tt.m.CatchUp || first == 0) {
					t.Errorf("node %d first: Stream-Up-To-Date %q", first, got)
				}
				var targets []string
				for _, r := range clientRequests(c) {
					targets = append(targets, r.Target)
				}
				if diff := cmp.Diff([]string{streamPath + tt.target}, targets); diff != "" {
					t.Errorf("node %d first: targets (-want +got):\n%s", first, diff)
				}
			}
		})
	}
}
