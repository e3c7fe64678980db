package main

import (
	"net"
	"sync/atomic"

	"go.uber.org/zap"

	"sluice/config"
	"sluice/gateway/proxyproto"
)

// proxied is a public listener whose connections begin with who the client is, where load
// balancers say so.
func (a *App) proxied(l net.Listener) net.Listener {
	if a.started.ProxyProtocol == config.ProxyOff {
		return l
	}
	told := make(map[proxyproto.Refusal]*atomic.Bool) // not changed any more
	for _, why := range proxyproto.Refusals() {
		told[why] = new(atomic.Bool)
	}
	return proxyproto.NewListener(l, proxyproto.Options{
		Required: a.started.ProxyProtocol == config.ProxyRequired,
		Clients:  a.connections,
		Taken:    func(as proxyproto.Taken) { a.metrics.Header(string(as)) },
		Refused: func(why proxyproto.Refusal, peer net.Addr) {
			a.metrics.Header(string(why))
			// Strangers may have it come often: the log has the first, which tells of a
			// balancer that is not listed, and the metric all.
			if told[why].CompareAndSwap(false, true) {
				a.log.Warn("a connection was closed for its PROXY header; sluice_proxy_headers_total counts the next ones",
					zap.String("why", string(why)), zap.Stringer("peer", peer))
			}
		},
	})
}
