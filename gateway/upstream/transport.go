package upstream

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// idleTimeout is Ursula's own gateway's: a node that drains keeps idle
	// connections for a second only, so none is used that is older than half of
	// that (facts §4.3). Under traffic connections never reach it.
	idleTimeout = 500 * time.Millisecond
	// idlePerNode bounds the connections kept to one node, idleTotal to all.
	idlePerNode = 512
	idleTotal   = 2048
	// maxHeadBytes bounds a node's response head and all 1xx before it.
	maxHeadBytes = 64 << 10
	// copyBuffer sizes the reads and writes of a connection.
	copyBuffer = 16 << 10
	// tcpUserTimeout is how long sent bytes may stay unacknowledged, and the
	// keepalive follows from it: idle 2/5, interval 1/5 (facts L27).
	tcpUserTimeout = 5 * time.Second
)

// DialFunc opens a connection to a node.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

func defaultDial() DialFunc {
	return (&net.Dialer{
		Timeout: ConnectTimeout,
		Control: userTimeout,
		KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: 2 * tcpUserTimeout / 5, Interval: tcpUserTimeout / 5, Count: 3,
		},
	}).DialContext
}

// newTransport makes the one http.Transport of a pool's requests. It uses no
// proxy of the environment (U08), adds no coding of its own (U06) and speaks
// HTTP/1.1.
func newTransport(dial DialFunc) *http.Transport {
	return &http.Transport{
		DialContext:            watched(dial),
		DisableCompression:     true,
		MaxIdleConns:           idleTotal,
		MaxIdleConnsPerHost:    idlePerNode,
		IdleConnTimeout:        idleTimeout,
		TLSHandshakeTimeout:    ConnectTimeout,
		MaxResponseHeaderBytes: maxHeadBytes,
		ReadBufferSize:         copyBuffer,
		WriteBufferSize:        copyBuffer,
	}
}

// newProber makes the transport of probes: its connections are not the
// requests', so that none waits for the other, and are kept between probes.
func newProber(dial DialFunc) *http.Transport {
	return &http.Transport{
		DialContext:         dial,
		DisableCompression:  true,
		MaxIdleConnsPerHost: 2,
		// Longer than any probe: the transport's timer for a kept connection may
		// end one that has just brought an answer, and the answer with it.
		IdleConnTimeout:        HeaderTimeout + 4*probeEvery,
		TLSHandshakeTimeout:    ConnectTimeout,
		MaxResponseHeaderBytes: maxHeadBytes,
	}
}

func newNode(base string) (*node, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
		return nil, fmt.Errorf("node %s: want http://host:port or https://host:port", base)
	}
	return &node{base: u.Scheme + "://" + u.Host, scheme: u.Scheme, host: u.Host}, nil
}
