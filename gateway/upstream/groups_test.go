package upstream

import (
	"fmt"
	"hash/fnv"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/ursulatest/realursula"
)

// Facts L24, L25: with the number of groups known, all streams of one group share
// a key, by the hash that the nodes use; without it each stream is its own. What a
// stream's subresources share with it is the path that the gateway gives.
func TestGroupKeys(t *testing.T) {
	if got := newGroupKeys(0).of(streamPath); got != streamPath {
		t.Errorf("without groups: key %q, want the path", got)
	}
	for _, count := range []uint32{1, 4, 16, 1000} {
		groups := newGroupKeys(int(count))
		seen := map[string]int{}
		for i := range 5000 {
			path := fmt.Sprintf("/acme/s.%d", i)
			hash := fnv.New64a()
			_, _ = hash.Write([]byte(path[1:]))
			want := strconv.FormatUint(hash.Sum64()%uint64(count), 10)
			if got := groups.of(path); got != want {
				t.Fatalf("%d groups: key of %s is %s, want %s", count, path, got, want)
			}
			seen[want]++
		}
		if len(seen) > int(count) || len(seen) < int(min(count, 16)) {
			t.Errorf("5000 streams are in %d of %d groups", len(seen), count)
		}
	}
	// A request that is of no stream has no key: nothing is learned of it.
	if got := newGroupKeys(16).of(""); got != "" {
		t.Errorf("key %q without a path", got)
	}
}

// Facts L25: the hash is the nodes' own: each names the group of a stream as it
// sends a write away.
func TestGroupsAreTheNodes(t *testing.T) {
	const groups = 4 // of the cluster
	servers := realursula.StartCluster(t, 3)
	keys := newGroupKeys(groups)
	compared := 0
	for i := range 24 {
		path := fmt.Sprintf("/acme%d/s.stream-%d", i%3, i)
		for _, s := range servers {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+path, strings.NewReader("x"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "text/plain")
			res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			if res.StatusCode != http.StatusTemporaryRedirect {
				continue
			}
			if got := res.Header.Get("X-Ursula-Raft-Group"); got != keys.of(path) {
				t.Errorf("%s: group %s at the node, %s here", path, got, keys.of(path))
			}
			compared++
		}
	}
	if compared < 24 {
		t.Errorf("%d streams' groups were told, want 24 at least", compared)
	}
}

// Facts L25: one redirect teaches the leader of all streams of its group and of
// no other; a reload that changes the number of groups keeps the pool going.
func TestGroupLearnsAtOnce(t *testing.T) {
	const count = 16
	groups := newGroupKeys(count)
	var same, other []string
	for i := range 1000 {
		path := fmt.Sprintf("/acme/s.%d", i)
		if groups.of(path) == groups.of("/acme/s.0") {
			same = append(same, path)
		} else {
			other = append(other, path)
		}
	}
	urls, order, _ := fleet(t, "->1", "ok", "->1")
	p := newPoolOf(t, Options{Nodes: urls, GroupCount: count})
	post := func(path string) []int {
		t.Helper()
		before := len(order())
		p.firstIs(0, len(urls))
		p.mustSend(t, http.MethodPost, path, Meta{Path: path, Body: []byte("x")})
		return order()[before:]
	}
	if diff := cmp.Diff([]int{0, 1}, post(same[0])); diff != "" {
		t.Errorf("first request of a group (-want +got):\n%s", diff)
	}
	for _, path := range same[1:] {
		if diff := cmp.Diff([]int{1}, post(path)); diff != "" {
			t.Fatalf("%s, of the same group (-want +got):\n%s", path, diff)
		}
	}
	if diff := cmp.Diff([]int{0, 1}, post(other[0])); diff != "" {
		t.Errorf("first request of another group (-want +got):\n%s", diff)
	}
	for _, count := range []int{0, 1, 5} {
		if err := p.SetNodes(urls, count); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]int{0, 1}, post("/acme/s.fresh")); count != 1 && diff != "" {
			t.Errorf("%d groups: a stream that is new (-want +got):\n%s", count, diff)
		}
	}
}

// Immutable reads go to all nodes in turn, whoever leads, and take no part in
// what is learned; with a node out, to the others (design §8).
func TestSpread(t *testing.T) {
	urls, order, _ := fleet(t, "ok", "ok", "ok")
	p := newBlindPool(t, urls...)
	nodes := *p.nodes.Load()
	p.leaders.learn(streamPath, nodes[1])
	counts := func(requests int) []int {
		t.Helper()
		before, n := len(order()), make([]int, len(urls))
		for range requests {
			p.mustSend(t, http.MethodGet, streamPath, Meta{Path: streamPath, Read: true, Spread: true})
		}
		for _, i := range order()[before:] {
			n[i]++
		}
		return n
	}
	if diff := cmp.Diff([]int{20, 20, 20}, counts(60)); diff != "" {
		t.Errorf("requests by node (-want +got):\n%s", diff)
	}
	p.eject(nodes[1], Silent)
	if diff := cmp.Diff([]int{30, 0, 30}, counts(60)); diff != "" {
		t.Errorf("requests by node, one out (-want +got):\n%s", diff)
	}
	if p.leaders.get(streamPath) != nodes[1] {
		t.Error("the route that others learned was dropped")
	}
}
