package ursulatest_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"sluice/internal/ursulatest"
	"sluice/internal/ursulatest/realursula"
)

// followerSteps are asked of a node that does not lead (facts §4.1). The stream
// /B/s holds "0123456789" of text with a snapshot at 4; /B/closed is closed.
func followerSteps() []step {
	const zero = "/chunk/00000000000000000000"
	return []step{
		{name: "append", method: "POST", target: "/B/s?a=b", header: []string{textType}, body: "x"},
		{name: "keyed append", method: "POST", target: "/B/s", header: keyed("p", "0", "0"), body: "x"},
		{name: "bad producer", method: "POST", target: "/B/s", header: keyed("p", "x", "0"), body: "x"},
		{name: "empty append", method: "POST", target: "/B/s", header: []string{textType}},
		{name: "close", method: "POST", target: "/B/s", header: []string{"Stream-Closed: true"}},
		{name: "create", method: "PUT", target: "/B/s", header: []string{textType}},
		{name: "delete", method: "DELETE", target: "/B/s"},
		{name: "publish", method: "PUT", target: "/B/s/snapshot/5", body: "x"},
		{name: "retention", method: "PUT", target: "/B/s/retention/1"},
		get("long-poll", "/B/s?offset=0&live=long-poll"),
		get("sse", "/B/s?offset=0&live=sse"),
		get("live without offset", "/B/s?live=sse"),
		get("snapshot", "/B/s/snapshot/4"),
		get("bootstrap", "/B/s/bootstrap"),
		get("immutable snapshot", "/B/s/incarnation/{wrong}/snapshot/00000000000000000004"),
		{name: "head", method: "HEAD", target: "/B/s"},
		get("catch-up", "/B/s"),
		get("catch-up part", "/B/s?offset=2&max_bytes=3"),
		get("catch-up to the tail", "/B/s?offset=9"),
		get("at the tail", "/B/s?offset=10"),
		get("beyond", "/B/s?offset=11"),
		get("now", "/B/s?offset=now"),
		get("leader", "/B/s?consistency=leader"),
		get("wrong token", "/B/s", "Stream-Incarnation: {wrong}"),
		get("right token", "/B/s", "Stream-Incarnation: {inc}"),
		get("bad offset", "/B/s?offset=x"),
		get("chunk", "/B/s/incarnation/{inc}"+zero),
		get("chunk wrong token", "/B/s/incarnation/{wrong}"+zero),
		get("closed", "/B/closed"),
		get("closed tail", "/B/closed?offset=3"),
		{name: "closed head", method: "HEAD", target: "/B/closed"},
		get("closed chunk", "/B/closed/incarnation/{inc}"+zero),
	}
}

// TestFollowerConformance asks a follower of a real three-node cluster and one
// of the stand-in, and then both without a leader.
func TestFollowerConformance(t *testing.T) {
	servers := realursula.StartCluster(t, 3)
	c := start(t, ursulatest.Options{Nodes: 3, ClusterID: servers[0].ClusterID})
	bucket, leader := led(t, servers)
	follower := (leader + 1) % 3
	setUp(t, newScript(servers[leader].URL), bucket)
	setUp(t, newScript(c.URLs()[0]), bucket)
	caughtUp(t, servers[follower].URL+bucket+"s", "00000000000000000010")
	caughtUp(t, servers[follower].URL+bucket+"closed", "00000000000000000003")

	standIn, realNode := newScript(c.URLs()[1]), newScript(servers[follower].URL)
	nodes := func() (real3 []string, stand []string) {
		for _, s := range servers {
			real3 = append(real3, s.URL)
		}
		return real3, c.URLs()
	}
	for _, st := range followerSteps() {
		st.target = strings.ReplaceAll(st.target, "/B/", bucket)
		t.Run(st.name, func(t *testing.T) { compareRouted(t, standIn, realNode, st, nodes) })
	}

	for i, s := range servers {
		if i != follower {
			s.Kill()
		}
	}
	c.SetLeader(-1)
	lostLeader(t, servers[follower].URL+bucket+"s")
	for _, st := range followerSteps() {
		if st.name == "chunk" || st.name == "closed chunk" {
			st.name += " kept" // the marked one is served, the unmarked asks the leader
		}
		st.target = strings.ReplaceAll(st.target, "/B/", bucket)
		t.Run("no leader/"+st.name, func(t *testing.T) { compareRouted(t, standIn, realNode, st, nodes) })
	}
}

// compareRouted is compare where the addresses, the group and the term differ.
func compareRouted(t *testing.T, standIn, realNode *script, st step, nodes func() ([]string, []string)) {
	t.Helper()
	want, got := realNode.do(t, st), standIn.do(t, st)
	realURLs, standInURLs := nodes()
	route(want, realURLs)
	route(got, standInURLs)
	if diff := diffShots(want, got); diff != "" {
		t.Errorf("%s %s\nreal follower (-) and stand-in (+) differ:\n%s", st.method, st.target, diff)
	}
}

// route makes the routing headers of an answer comparable.
func route(s shot, urls []string) {
	delete(s.Header, "Ursula-Max-Snapshot-Bytes") // the cluster has a cold store
	for name, values := range s.Header {
		switch {
		case name == "Location":
			for _, u := range urls {
				values[0] = strings.Replace(values[0], u, "<node>", 1)
			}
		case strings.HasPrefix(name, "X-Ursula-Raft-"):
			values[0] = "<number>"
		}
	}
}

// led finds a bucket whose streams s and closed one node of the cluster leads.
func led(t *testing.T, servers []*realursula.Server) (bucket string, leader int) {
	t.Helper()
	leaderOf := func(target string) int {
		for i, s := range servers {
			got := newScript(s.URL).do(t, step{method: "DELETE", target: target})
			if got.Status != http.StatusTemporaryRedirect && got.Status != http.StatusServiceUnavailable {
				return i
			}
		}
		return -1
	}
	for n := range 64 {
		bucket := fmt.Sprintf("/follow-%d/", n)
		if i := leaderOf(bucket + "s"); i >= 0 && i == leaderOf(bucket+"closed") {
			return bucket, i
		}
	}
	t.Fatal("no two streams of a bucket have the same leader")
	return "", 0
}

func setUp(t *testing.T, s *script, bucket string) {
	t.Helper()
	for _, st := range []step{
		{method: "PUT", target: "s", header: []string{textType}, body: "0123456789"},
		{method: "PUT", target: "s/snapshot/4", header: []string{textType}, body: "snap"},
		{method: "PUT", target: "closed", header: []string{textType, "Stream-Closed: true"}, body: "all"},
	} {
		st.target = bucket + st.target
		if got := s.do(t, st); got.Status >= 300 {
			t.Fatalf("%s %s: status %d %s", st.method, st.target, got.Status, got.Body)
		}
	}
}

// until asks a real node again until its answer is as wanted: replication and
// elections happen in another process, which only polling shows.
func until(t *testing.T, method, url string, ok func(*http.Response) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, method, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultTransport.RoundTrip(req) // follows no redirect
		if err == nil {
			_ = res.Body.Close()
			if ok(res) {
				return
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s %s never answered as wanted: %v", method, url, err)
		}
	}
}

func caughtUp(t *testing.T, url, next string) {
	t.Helper()
	until(t, http.MethodGet, url, func(res *http.Response) bool { return res.Header.Get("Stream-Next-Offset") == next })
}

func lostLeader(t *testing.T, url string) {
	t.Helper()
	// A follower goes on naming a dead leader until its election fails.
	until(t, http.MethodGet, url+"?offset=0&live=long-poll", func(res *http.Response) bool { return res.StatusCode == http.StatusServiceUnavailable })
}
