package ursulatest

import (
	"net/http"
	"strconv"
)

// raftGroup and raftTerm stand for the one group of all streams.
const (
	raftGroup = "0"
	raftTerm  = "1"
)

// routeBody is routeAway for a write that carries a body, which the node routes
// before it reads any of it.
func (n *Node) routeBody(r *request) *answer {
	if n.askLeader() != nil {
		return noLeader("no leader of the stream's group is known")
	}
	return n.routeAway(r)
}

// routeAway answers what only the leader answers: nil on the leader, 307 on a
// follower, 503 when no leader is known (facts §4.1).
func (n *Node) routeAway(r *request) *answer {
	leader := n.cluster.leaderIndex()
	if leader == n.index {
		return nil
	}
	if a := n.askLeader(); a != nil {
		return a
	}
	a := newAnswer(http.StatusTemporaryRedirect).
		set("Location", n.cluster.nodes[leader].URL()+r.raw).
		set("X-Ursula-Raft-Leader-Id", strconv.Itoa(leader+1)).
		set(hRaftGroup, raftGroup).set("X-Ursula-Raft-Term", raftTerm).
		set(hContentType, "text/plain; charset=utf-8")
	a.body = []byte("this node does not lead the stream's group")
	return a
}

// askLeader stands for a follower's internal call to the leader: nil when there
// is one, since the nodes share their state.
func (n *Node) askLeader() *answer {
	leader := n.cluster.leaderIndex()
	if leader < 0 || leader >= len(n.cluster.nodes) {
		return noLeader("no leader of the stream's group is known; retry")
	}
	return nil
}

func (n *Node) leads() bool { return n.cluster.leaderIndex() == n.index }

func noLeader(message string) *answer {
	return refuse(http.StatusServiceUnavailable, "NO_LEADER", message).
		set(hRetryAfter, "1").set(hRaftGroup, raftGroup)
}
