package gateway

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// The cases of nodes as a client meets them: through the whole gateway, over real
// connections. gateway/upstream has the same on a clock of its own.

// U01: a kept connection that the node had closed cost clients a 502, or a write
// its place. The node closes idle connections after 1 s, and about when the
// gateway gives them up itself (0.5 s); requests come about as far apart.
func TestGapsAboutTheNodesIdleTimeout(t *testing.T) {
	const clients = 16
	for _, tc := range []struct {
		idle   time.Duration
		rounds int
		race   bool // the node may close just as a write goes out: lost, and never sent again
	}{{time.Second, 3, false}, {500 * time.Millisecond, 5, true}} {
		t.Run(fmt.Sprint(tc.idle), func(t *testing.T) {
			t.Parallel()
			rg, u := newUpRig(t, func(c *upConn, r *upRequest) {
				_ = c.SetReadDeadline(time.Time{})
				c.say(whole("200 OK", "Stream-Cursor: "+r.Target+"\r\n", "ok"))
				_ = c.SetReadDeadline(time.Now().Add(tc.idle))
			}, rigOptions{})
			var wait sync.WaitGroup
			for client := range clients {
				wait.Go(func() {
					for round := range tc.rounds {
						target := fmt.Sprintf("/acme/s.priv?n=%d-%d", client, round)
						method := []string{http.MethodGet, http.MethodPost}[client%2]
						res := rg.Do(t, method, target, key, map[string]string{http.MethodPost: target}[method])
						lost := tc.race && method == http.MethodPost && res.code() == "UPSTREAM_FAILED"
						if !lost && (res.StatusCode != 200 || res.Header.Get("Stream-Cursor") != target) {
							t.Errorf("%s %s: %d %s", method, target, res.StatusCode, res.Text)
						}
						gap := tc.idle*9/10 + rand.N(tc.idle/5) //nolint:gosec // a gap, not a secret
						<-time.After(gap)
					}
				})
			}
			wait.Wait()
			seen := map[string]int{}
			for _, r := range u.requests() {
				if r.Method == http.MethodPost {
					seen[r.Body]++
				}
			}
			for body, times := range seen {
				if times != 1 {
					t.Errorf("append %s reached the node %d times", body, times)
				}
			}
		})
	}
}

// U03: the gateway's own repetition doubled a write. An append whose node applied
// it and then cut the connection, or sent half a 503, is one attempt; the client
// is told that the outcome is unknown, or gets no whole answer. It is the same on
// a connection that was kept and on a new one.
func TestNoRetryOfItsOwn(t *testing.T) {
	refusal := whole("503 X", "Content-Type: application/json\r\n", `{"error":{"code":"NO_LEADER","message":"no leader"}}`)
	for name, end := range map[string]func(*upConn){
		"reset":          func(c *upConn) { c.reset() },
		"closed":         func(c *upConn) { _ = c.Close() },
		"503 body, half": func(c *upConn) { c.say(refusal[:len(refusal)-20]); _ = c.Close() },
	} {
		for _, kept := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", kept ", kept), func(t *testing.T) { oneAttempt(t, end, kept) })
		}
	}
}

func oneAttempt(t *testing.T, end func(*upConn), kept bool) {
	var nodes [2]*up
	for i := range nodes {
		nodes[i] = newUp(t, func(c *upConn, r *upRequest) {
			if r.Body == "warm" {
				c.say(whole("200 OK", "", "ok"))
				return
			}
			end(c)
		})
	}
	seen := func() int { return len(nodes[0].requests()) + len(nodes[1].requests()) }
	rg := newRig(t, rigOptions{nodes: []string{nodes[0].URL, nodes[1].URL}})
	for _, k := range writeKinds() {
		for i := 0; kept && i < len(nodes); i++ {
			rg.Do(t, http.MethodPost, "/acme/s.priv", key, "warm")
		}
		before := seen()
		raw := rg.raw(t, k.bytes(rg))
		if head, body, ok := strings.Cut(raw, "\r\n\r\n"); ok {
			if got := parsedHead(t, head, body); k.says(got) != saysUnknown {
				t.Errorf("%s: answered %q, which proves something", k.name, raw)
			}
		}
		if n := seen() - before; n != 1 {
			t.Errorf("%s: %d attempts, want 1", k.name, n)
		}
	}
}

// U03, what may go out again: a keyed append, once, with the same bytes, when its
// node does not answer in time.
func TestRepeatHasTheSameBytes(t *testing.T) {
	t.Parallel()
	var nodes [2]*up
	var once sync.Once
	for i := range nodes {
		nodes[i] = newUp(t, func(c *upConn, _ *upRequest) {
			first := false
			once.Do(func() { first = true })
			if first {
				c.hold()
				return
			}
			c.say("HTTP/1.1 200 OK\r\nStream-Offset: 0\r\nStream-Next-Offset: 4\r\nContent-Length: 0\r\n\r\n")
		})
	}
	rg := newRig(t, rigOptions{nodes: []string{nodes[0].URL, nodes[1].URL}})
	k := writeKinds()["keyed append"]
	if res := k.do(t, rg); k.says(res) != saysApplied {
		t.Fatalf("answer %d %s", res.StatusCode, res.Text)
	}
	a, b := nodes[0].await(t, 1), nodes[1].await(t, 1)
	without := func(r *upRequest) string { return strings.Replace(r.Head, "Host: "+r.Host, "Host:", 1) + r.Body }
	if without(a) != without(b) || len(nodes[0].requests())+len(nodes[1].requests()) != 2 {
		t.Errorf("sent first %q, then %q", without(a), without(b))
	}
}

// U05: an answer that nobody had asked for, or what was left of one, was given to
// the next request of a kept connection.
func TestNobodyGetsAnothersAnswer(t *testing.T) {
	const poison = "HTTP/1.1 200 OK\r\nStream-Cursor: poison\r\nContent-Length: 6\r\n\r\npoison"
	named := func(r *upRequest) string { return "Stream-Cursor: " + r.Target + "\r\n" }
	for name, tc := range map[string]struct {
		method string
		answer func(*upRequest) string
	}{
		"body after HEAD":          {http.MethodHead, func(r *upRequest) string { return whole("200 OK", named(r), poison) }},
		"body after 304":           {http.MethodGet, func(r *upRequest) string { return "HTTP/1.1 304 X\r\n" + named(r) + "\r\n" + poison }},
		"body after 204":           {http.MethodPost, func(r *upRequest) string { return "HTTP/1.1 204 X\r\n" + named(r) + "\r\n" + poison }},
		"a second answer":          {http.MethodGet, func(r *upRequest) string { return whole("200 OK", named(r), "ok") + poison }},
		"a second answer to a 409": {http.MethodPost, func(r *upRequest) string { return whole("409 X", named(r), "{}") + poison }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rg, _ := newUpRig(t, func(c *upConn, r *upRequest) { c.say(tc.answer(r)) }, rigOptions{})
			var wait sync.WaitGroup
			for worker := range 4 {
				wait.Go(func() {
					for i := range 50 {
						target := fmt.Sprintf("/acme/s.priv?n=%d-%d", worker, i)
						res := rg.Do(t, tc.method, target, key, map[string]string{http.MethodPost: "x"}[tc.method])
						if res.Header.Get("Stream-Cursor") != target || strings.Contains(res.Text, "poison") {
							t.Errorf("%s was answered %d %v %q", target, res.StatusCode, res.Header, res.Text)
						}
					}
				})
			}
			wait.Wait()
		})
	}
}

// U06: the gateway asked for gzip by itself and unpacked it: other bytes under the
// node's ETag, and no length.
func TestNodesAreAskedForNoCoding(t *testing.T) {
	plain := strings.Repeat("a line\n", 100)
	rg, u := newUpRig(t, func(c *upConn, r *upRequest) {
		if r.Header.Get("Accept-Encoding") != "" {
			c.say(whole("200 OK", "Content-Encoding: gzip\r\nETag: \"packed\"\r\n", "\x1f\x8bpacked"))
			return
		}
		c.say(whole("200 OK", "ETag: \"plain\"\r\n", plain))
	}, rigOptions{})
	for name, c := range protocols(t) {
		for _, path := range []string{"/acme/s.priv?offset=-1", "/acme/s.priv/snapshot/7", "/acme/s.pub/incarnation/7/chunk/00000000000000000000"} {
			res := do(t, c, http.MethodGet, rg.URL+path, rg.Keys[key])
			if res.Text != plain || res.ContentLength != int64(len(plain)) || res.Header.Get("Etag") != `"plain"` || res.Header.Get("Content-Encoding") != "" {
				t.Errorf("%s %s: %d bytes of %d, %v", name, path, len(res.Text), res.ContentLength, res.Header)
			}
		}
	}
	if slices.ContainsFunc(u.requests(), func(r *upRequest) bool { return r.Header.Get("Accept-Encoding") != "" }) {
		t.Error("a node was asked for a coding that no client wanted")
	}
}

// H23, the redirects that are followed: to a configured node, with the same
// method, target and bytes; the client learns nothing of the way.
func TestRedirectsAreFollowedInside(t *testing.T) {
	leader := newUp(t, func(c *upConn, r *upRequest) {
		if strings.Contains(r.Target, "live=sse") {
			c.say(sseHead + chunk("data: 1\n\n"))
			c.hold()
			return
		}
		c.say(whole("200 OK", "Stream-Next-Offset: 7\r\nX-Ursula-Raft-Group: 3\r\n", "led"))
	})
	toLeader := func(c *upConn, r *upRequest) {
		c.say(whole("307 Temporary Redirect", "Location: "+leader.URL+r.Target+"\r\nX-Ursula-Raft-Leader-Id: 2\r\nX-Ursula-Raft-Group: 3\r\nX-Ursula-Raft-Term: 9\r\n", "not here"))
	}
	follower := newUp(t, toLeader)
	// Of three nodes at most one leads, so some requests begin at a follower.
	rg := newRig(t, rigOptions{nodes: []string{follower.URL, newUp(t, toLeader).URL, leader.URL}})
	for i, k := range slices.Collect(maps.Values(writeKinds())) {
		// A stream of its own each, so that no leader is known.
		res := rg.Do(t, k.method, fmt.Sprintf("/acme/s.w%d%s", i, k.behind), key, k.body, k.headers...)
		checkNoWay(t, k.name, res, "led")
	}
	for i := range 3 {
		checkNoWay(t, "read", rg.Do(t, http.MethodGet, fmt.Sprintf("/acme/s.r%d/snapshot/7", i), key, ""), "led")
		res, cancel := rg.open(t, client(), fmt.Sprintf("/acme/s.t%d?offset=now&live=sse", i), key)
		checkNoWay(t, "tail", answer{res.Response, readN(t, res.Body, 9)}, "data: 1\n\n")
		cancel()
	}
	if len(follower.requests()) == 0 {
		t.Error("no request began at a follower")
	}
	for _, r := range follower.requests() {
		same := func(l *upRequest) bool { return l.Method == r.Method && l.Target == r.Target && l.Body == r.Body }
		if !slices.ContainsFunc(leader.requests(), same) {
			t.Errorf("the leader never got %s %s %q", r.Method, r.Target, r.Body)
		}
	}
}

func checkNoWay(t *testing.T, what string, res answer, text string) {
	t.Helper()
	if res.StatusCode != http.StatusOK || res.Text != text {
		t.Errorf("%s: %d %q, want 200 %q", what, res.StatusCode, res.Text, text)
	}
	for name, values := range res.Header {
		if name == "Location" || strings.HasPrefix(name, "X-Ursula-") || strings.Contains(fmt.Sprint(values), "127.0.0.1") {
			t.Errorf("%s: the client is told %s: %q", what, name, values)
		}
	}
}
