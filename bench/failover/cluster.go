package failover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"strings"
	"time"
)

// Group is the Raft group that a stream belongs to, of a cluster with so many
// groups (facts §2: FNV-1a-64 over bucket, slash, stream).
func Group(path string, groups int) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(strings.TrimPrefix(path, "/"))) // never fails
	return int(h.Sum64() % uint64(groups))                //nolint:gosec // below groups, which is an int
}

// ErrNoLeader says that no node that answers knows the leader of a group.
var ErrNoLeader = errors.New("no node names a leader")

// Leaders asks the nodes themselves who leads each group: group → node id. Nodes
// that do not answer within a second are passed over, and of two answers the
// one of the later term counts.
func Leaders(ctx context.Context, nodes []string, groups int) ([]int, error) {
	leaders := make([]int, groups)
	for g := range groups {
		term := -1
		for _, node := range nodes {
			var group struct {
				Replica struct {
					Term   int  `json:"current_term"`
					Leader *int `json:"current_leader"`
				} `json:"replica"`
			}
			if err := ask(ctx, fmt.Sprintf("%s/__ursula/placement/groups/%d", node, g), &group); err != nil {
				continue // a node that is down has nothing to say
			}
			if l := group.Replica.Leader; l != nil && group.Replica.Term > term {
				term, leaders[g] = group.Replica.Term, *l
			}
		}
		if term < 0 {
			return nil, fmt.Errorf("group %d: %w", g, ErrNoLeader)
		}
	}
	return leaders, nil
}

func ask(ctx context.Context, url string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: status %d", url, res.StatusCode)
	}
	return json.NewDecoder(res.Body).Decode(into)
}

// Paths makes up stream names of an account, n for each group in turn, so that
// a load meets every group. name is called with 0, 1, … and returns the paths'
// candidates.
func Paths(groups, n int, name func(int) string) [][]string {
	paths := make([][]string, groups)
	for i, missing := 0, groups*n; missing > 0; i++ {
		path := name(i)
		if g := Group(path, groups); len(paths[g]) < n {
			paths[g] = append(paths[g], path)
			missing--
		}
	}
	return paths
}
