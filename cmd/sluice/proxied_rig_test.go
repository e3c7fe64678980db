package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"
)

// Peers of tests of the PROXY protocol: all of 127.0.0.0/8 is this machine.
const (
	balancerAddress = "127.0.0.1" // in trusted_proxies
	strangerAddress = "127.0.0.2"
)

// proxiedEdge is an edge that takes the PROXY protocol of the balancer's address.
func proxiedEdge(t *testing.T, mode, more string) *edge {
	t.Helper()
	e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	return e.start(t, edgeFile(e, []string{standIn(t)}, fmt.Sprintf("proxy_protocol: %q\ntrusted_proxies: [%s]\n%s", mode, balancerAddress, more)), nil)
}

// header is one of that version, of a client with the address and port.
func header(t *testing.T, version byte, client string) string {
	t.Helper()
	source, to := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(client)), "10.0.0.1:443"
	if source.IP.To4() == nil {
		to = "[2001:db8::1]:443"
	}
	text, err := proxyproto.HeaderProxyFromAddrs(version, source, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(to))).Format()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// from dials of one of this machine's addresses.
func from(ctx context.Context, local, address string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(local)}}
	return d.DialContext(ctx, "tcp", address)
}

// throughBalancer has a client's connections come of an address, with something before
// their first byte.
func throughBalancer(c *http.Client, local, before string) *http.Client {
	c.Timeout = 20 * time.Second
	c.Transport.(*http.Transport).DialContext = func(ctx context.Context, _, address string) (net.Conn, error) { //nolint:errcheck // clientOf makes no other
		conn, err := from(ctx, local, address)
		if err == nil {
			_, err = io.WriteString(conn, before)
		}
		return conn, err
	}
	return c
}

// opened is a connection of an address that has been written to.
func opened(t *testing.T, local, address, text string) net.Conn {
	t.Helper()
	conn, err := from(t.Context(), local, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = io.WriteString(conn, text) // it may be closed by now
	return conn
}

// answered is what comes back on a connection until its end.
func answered(t *testing.T, conn net.Conn) string {
	t.Helper()
	text, err := io.ReadAll(conn)
	if timeout, ok := err.(net.Error); ok && timeout.Timeout() { //nolint:errorlint // read returns it as it is
		t.Error("the connection stays open")
	}
	return string(text)
}

// clientOfLine waits for the n-th line of the access log, and gives the client in it.
func (e *edge) clientOfLine(t *testing.T, n int) string {
	t.Helper()
	var lines []string
	eventually(t, fmt.Sprintf("line %d of the access log", n), func() bool {
		lines = nil
		for line := range strings.Lines(e.Log.String()) {
			if strings.Contains(line, `"client":`) {
				lines = append(lines, line)
			}
		}
		return len(lines) >= n
	})
	var line struct{ Client string }
	if err := json.Unmarshal([]byte(lines[n-1]), &line); err != nil {
		t.Fatal(err)
	}
	return line.Client
}

// headers waits for a count of PROXY headers by outcome.
func (e *edge) headers(t *testing.T, outcome string, count int) {
	t.Helper()
	sample := fmt.Sprintf("\nsluice_proxy_headers_total{outcome=%q} %d\n", outcome, count)
	eventually(t, strings.TrimSpace(sample), func() bool { return strings.Contains(e.admin(t, http.MethodGet, "/metrics").Text, sample) })
}
