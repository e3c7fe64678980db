package main

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"go.uber.org/zap"

	"sluice/gateway"
	"sluice/gateway/upstream"
	"sluice/internal/manage"
)

// nodeClient lets the keeper speak to the cluster through the pool.
type nodeClient struct{ app *App }

func (n nodeClient) Do(r *http.Request) (*http.Response, error) {
	res, err := n.app.pool.Send(r.Context(), r, upstream.Meta{
		Path: r.URL.Path, Read: r.Method == http.MethodHead, Trail: gateway.TraceAttempts(r.Context(), r.Method, &upstream.Trail{}),
	})
	var e *upstream.Error
	if errors.As(err, &e) {
		switch e.Kind {
		case upstream.Unreachable, upstream.NoLeader, upstream.NoUpstream, upstream.NoRoom:
			err = fmt.Errorf("%w: %w", manage.ErrNotApplied, err)
		default: // a node may have it
		}
	}
	return res, err
}

// nodeWatcher logs and counts what the pool sees of its nodes.
type nodeWatcher struct{ app *App }

var _ upstream.Observer = nodeWatcher{}

// Exchanged implements upstream.Observer.
func (w nodeWatcher) Exchanged(node, outcome string, took time.Duration) {
	w.app.metrics.Exchanged(node, outcome, took)
}

// NodeChanged implements upstream.Observer.
func (w nodeWatcher) NodeChanged(node, state string) {
	w.app.metrics.Node(node, state)
	if state == upstream.Up.String() {
		w.app.log.Info("node answers again", zap.String("node", node))
		return
	}
	w.app.log.Warn("node ejected", zap.String("node", node), zap.String("state", state))
}

// ClusterChanged implements upstream.Observer: another cluster may lack the
// declared streams.
func (w nodeWatcher) ClusterChanged(id string) {
	w.app.log.Info("cluster identified", zap.String("cluster_id", id))
	// The first cluster's streams are being looked at already; doing so again would
	// take back a readiness that has been told.
	if before := w.app.cluster.Swap(&id); before != nil && *before != id {
		w.app.recheck()
	}
}

func nodesUp(states map[string]upstream.State) map[string]bool {
	up := make(map[string]bool, len(states))
	for node, s := range states {
		up[node] = s == upstream.Up
	}
	return up
}
