package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
)

// slots is the number of hash slots of a Cluster.
const slots = 16384

// Cluster is a Redis Cluster of masters without replicas.
type Cluster struct{ Nodes []*Server }

// StartCluster runs three masters that share the slots evenly, and ends them with
// the test.
func StartCluster(tb testing.TB) *Cluster {
	tb.Helper()
	c := &Cluster{}
	for range 3 {
		c.Nodes = append(c.Nodes, Start(tb, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000",
			"--cluster-port", strconv.Itoa(freePort(tb))))
	}
	ctx := context.Background()
	for i, node := range c.Nodes {
		client := node.Client(tb)
		first, last := i*slots/len(c.Nodes), (i+1)*slots/len(c.Nodes)-1
		if err := client.ClusterAddSlotsRange(ctx, first, last).Err(); err != nil {
			tb.Fatalf("give a node its slots: %v", err)
		}
		for _, other := range c.Nodes[:i] {
			host, port, err := net.SplitHostPort(other.Addr)
			if err != nil {
				tb.Fatal(err)
			}
			if err := client.Do(ctx, "CLUSTER", "MEET", host, port, other.busPort()).Err(); err != nil {
				tb.Fatalf("have nodes meet: %v", err)
			}
		}
	}
	for _, node := range c.Nodes {
		client := node.Client(tb)
		poll(tb, "a node knows the Cluster", func(ctx context.Context) error {
			info, err := client.ClusterInfo(ctx).Result()
			if err == nil && (!strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, fmt.Sprintf("cluster_size:%d", len(c.Nodes)))) {
				err = fmt.Errorf("%w: %s", os.ErrNotExist, info)
			}
			return err
		})
	}
	return c
}

// busPort is what the node's peers reach it at.
func (s *Server) busPort() string {
	for i, arg := range s.args {
		if arg == "--cluster-port" {
			return s.args[i+1]
		}
	}
	return ""
}

// Addrs are the addresses of all nodes.
func (c *Cluster) Addrs() []string {
	addrs := make([]string, len(c.Nodes))
	for i, node := range c.Nodes {
		addrs[i] = node.Addr
	}
	return addrs
}
