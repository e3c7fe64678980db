package upstream

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

// The rules of facts §4.2 on how far a request goes from node to node.
const (
	maxHops          = 3               // after the first, search hops included
	redirectDeadline = 5 * time.Second // no hop starts later after the first redirect
)

// A redirect is a node's way of saying "not here": the request was not applied
// there, whatever its method (facts §5.3).
func isRedirect(res *http.Response) bool {
	return res.StatusCode == http.StatusTemporaryRedirect || res.StatusCode == http.StatusPermanentRedirect
}

// isForeignRedirect reports a 3xx that Ursula does not send and that proves
// nothing of a write.
func isForeignRedirect(res *http.Response) bool {
	return res.StatusCode >= 300 && res.StatusCode < 400 && res.StatusCode != http.StatusNotModified && !isRedirect(res)
}

// namesLeader tells a redirect to a known leader from a hint at some replica.
func namesLeader(res *http.Response) bool {
	return res.Header.Get("X-Ursula-Raft-Leader-Id") != ""
}

// locate finds the configured node that a Location names: its base must end
// there, or be followed by '/' or '?', so that http://h:8 is not taken for
// http://h:80 or http://h:8.evil (facts R22).
func locate(nodes []*node, location string) *node {
	for _, n := range nodes {
		rest, ok := strings.CutPrefix(location, n.base)
		if ok && (rest == "" || rest[0] == '/' || rest[0] == '?') {
			return n
		}
	}
	return nil
}

// nextUntried is the search order: configured order, beginning after the node
// that sent the request away (facts R20), over those of nodes that are among.
func nextUntried(among, nodes []*node, after *node, tried []*node) *node {
	start := slices.Index(nodes, after) + 1
	for i := range nodes {
		n := nodes[(start+i)%len(nodes)]
		if contains(among, n) && !contains(tried, n) {
			return n
		}
	}
	return nil
}

func contains(list []*node, n *node) bool { return slices.Contains(list, n) }
