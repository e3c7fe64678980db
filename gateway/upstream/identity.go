package upstream

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// Identity is what the nodes of a cluster say of themselves on HEAD answers
// (facts 0.9): the protocol's version and the cluster's id.
type Identity struct {
	Protocol  string
	ClusterID string
}

// The headers that carry an Identity.
const (
	ProtocolHeader  = "Ursula-Protocol"
	ClusterIDHeader = "Ursula-Cluster-Id"
)

const (
	// identityPath is a stream that cannot exist: "console" is no account id.
	identityPath = "/console/s.identity"
	// identifyEvery is the pause between questions to a node that has not told
	// its identity yet, recheckEvery to one that has.
	identifyEvery = 250 * time.Millisecond
	recheckEvery  = 10 * time.Second
)

// identities holds what each node said last.
type identities struct {
	mu     sync.RWMutex
	byNode map[*node]Identity
	// agreed is the one identity of all nodes that have told theirs; zero when
	// none has, or when they differ.
	agreed Identity
	err    error
}

// set notes what a node said, unless ctx has ended: a node that was removed
// while it answered has no say any more.
func (i *identities) set(ctx context.Context, n *node, id Identity) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	if i.byNode == nil {
		i.byNode = make(map[*node]Identity)
	}
	i.byNode[n] = id
	i.settle()
}

func (i *identities) keep(nodes []*node) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for n := range i.byNode {
		if !contains(nodes, n) {
			delete(i.byNode, n)
		}
	}
	i.settle()
}

func (i *identities) settle() {
	i.agreed, i.err = Identity{}, ErrNotIdentified
	for n, id := range i.byNode {
		switch {
		case i.err != nil:
			i.agreed, i.err = id, nil
		case i.agreed.ClusterID != id.ClusterID:
			i.agreed, i.err = Identity{}, fmt.Errorf("%w: one is %q, %s is %q", ErrTwoClusters, i.agreed.ClusterID, n.base, id.ClusterID)
			return
		}
	}
}

func (i *identities) get() (Identity, error) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	return i.agreed, i.err
}

// identify asks the node who it is until ctx ends: often until it has told,
// seldom afterwards, since a node may come back as another cluster's.
func (p *Pool) identify(ctx context.Context, n *node) {
	for {
		pause := identifyEvery
		if id, err := p.askIdentity(ctx, n); err == nil {
			p.identities.set(ctx, n, id)
			pause = recheckEvery
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

func (p *Pool) askIdentity(ctx context.Context, n *node) (Identity, error) {
	ctx, cancel := context.WithTimeout(ctx, HeaderTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, n.base+identityPath, nil)
	if err != nil {
		return Identity{}, err
	}
	res, err := p.transport.RoundTrip(req)
	if err != nil {
		return Identity{}, err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 1<<10))
	_ = res.Body.Close()
	id := Identity{Protocol: res.Header.Get(ProtocolHeader), ClusterID: res.Header.Get(ClusterIDHeader)}
	if id.Protocol == "" || id.ClusterID == "" {
		return Identity{}, ErrNotIdentified
	}
	return id, nil
}
