package upstream

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"sluice/gateway/upstream/wire"
)

const (
	// idleTimeout is Ursula's own gateway's: a node that drains keeps idle
	// connections for a second only, so none is used that is older than half of
	// that (facts §4.3). Under traffic connections never reach it.
	idleTimeout = 500 * time.Millisecond
	// idlePerNode bounds the connections kept to one node.
	idlePerNode = 512
	// maxHeadBytes bounds a node's response head and all 1xx before it.
	maxHeadBytes = 64 << 10
	// tcpUserTimeout is how long sent bytes may stay unacknowledged, and the
	// keepalive follows from it: idle 2/5, interval 1/5 (facts L27).
	tcpUserTimeout = 5 * time.Second
)

// DialFunc opens a connection to a node.
type DialFunc = wire.DialFunc

func defaultDial() DialFunc {
	return (&net.Dialer{
		Timeout: ConnectTimeout,
		Control: UserTimeout(tcpUserTimeout),
		KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: 2 * tcpUserTimeout / 5, Interval: tcpUserTimeout / 5, Count: 3,
		},
	}).DialContext
}

// newConns makes the connections for requests to a node. They use no proxy of
// the environment (U08), and add no coding of their own (U06).
func newConns(u *url.URL, dial DialFunc) *wire.Conns {
	o := wire.Options{Dial: dial, Idle: idleTimeout, MaxIdle: idlePerNode, MaxHead: maxHeadBytes}
	port := "80"
	if u.Scheme == "https" {
		port = "443"
		o.TLS = &tls.Config{ServerName: u.Hostname(), NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12}
	}
	if u.Port() != "" {
		port = u.Port()
	}
	o.Address = net.JoinHostPort(u.Hostname(), port)
	return wire.New(o)
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

func newNode(base string, dial DialFunc) (*node, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
		return nil, fmt.Errorf("node %s: want http://host:port or https://host:port", base)
	}
	return &node{base: u.Scheme + "://" + u.Host, scheme: u.Scheme, host: u.Host, conns: newConns(u, dial)}, nil
}
