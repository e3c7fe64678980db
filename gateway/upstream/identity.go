package upstream

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
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

// identityPath is a stream that cannot exist: "console" is no account id.
const identityPath = "/console/s.identity"

// identities holds what each node said last.
type identities struct {
	mu     sync.RWMutex
	byNode map[*node]Identity
	// agreed is the one identity of all nodes that have told theirs; zero when
	// none has, or when they differ.
	agreed Identity
	err    error
	told   string // the id that was agreed upon and told last
}

// set notes what a node said, unless ctx has ended: a node that was removed
// while it answered has no say any more. It returns the id of the cluster when
// that is agreed upon and another than before.
func (i *identities) set(ctx context.Context, n *node, id Identity) (changed string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if ctx.Err() != nil {
		return ""
	}
	if i.byNode == nil {
		i.byNode = make(map[*node]Identity)
	}
	i.byNode[n] = id
	return i.settle()
}

// keep forgets what nodes that are not among nodes said. It returns what set does.
func (i *identities) keep(nodes []*node) (changed string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for n := range i.byNode {
		if !contains(nodes, n) {
			delete(i.byNode, n)
		}
	}
	return i.settle()
}

// settle works out agreed, and returns its id when that is news.
func (i *identities) settle() (changed string) {
	i.agreed, i.err = Identity{}, ErrNotIdentified
	for n, id := range i.byNode {
		switch {
		case i.err != nil:
			i.agreed, i.err = id, nil
		case i.agreed.ClusterID != id.ClusterID:
			i.agreed, i.err = Identity{}, fmt.Errorf("%w: one is %q, %s is %q", ErrTwoClusters, i.agreed.ClusterID, n.base, id.ClusterID)
			return ""
		}
	}
	if i.err != nil || i.agreed.ClusterID == i.told {
		return ""
	}
	i.told = i.agreed.ClusterID
	return i.told
}

func (i *identities) get() (Identity, error) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	return i.agreed, i.err
}

// identified notes what a node said of itself and tells when that is news.
func (p *Pool) identified(ctx context.Context, n *node, id Identity) {
	p.tell(p.identities.set(ctx, n, id))
}

func (p *Pool) tell(changed string) {
	if changed != "" {
		p.observer.ClusterChanged(changed)
	}
}

func (p *Pool) askIdentity(ctx context.Context, n *node) (Identity, error) {
	ctx, cancel := context.WithTimeout(ctx, HeaderTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, n.base+identityPath, nil)
	if err != nil {
		return Identity{}, err
	}
	res, err := p.asker.RoundTrip(req)
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
