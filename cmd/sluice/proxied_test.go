package main

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"sluice/config"
)

// ways are those in which clients speak to a gateway.
func ways() map[string]func() *http.Client {
	return map[string]func() *http.Client{
		"HTTP/1.1": http1,
		"HTTP/2":   http2,
	}
}

// H08, H09: behind a balancer that passes connections on, all clients were the balancer, or
// whoever they said they were. The address in the header is the client's, over each protocol
// and whatever X-Forwarded-For says; a header that names nobody is of the balancer itself,
// and so is what the balancer leaves out, where it may.
func TestProxyProtocol(t *testing.T) {
	const forged = "198.51.100.66"
	local := "\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"
	for _, over := range []string{"", "tls: {mode: internal}\n"} {
		for _, mode := range []string{config.ProxyOptional, config.ProxyRequired} {
			e := proxiedEdge(t, mode, over)
			n := 0
			for way, client := range ways() {
				for _, tc := range []struct{ name, local, before, want string }{
					{"version 1", balancerAddress, header(t, 1, "203.0.113.7:56324"), "203.0.113.7"},
					{"version 2", balancerAddress, header(t, 2, "203.0.113.7:56324"), "203.0.113.7"},
					{"version 2, IPv6", balancerAddress, header(t, 2, "[2001:db8::7]:56324"), "2001:db8::7"},
					{"version 1, IPv4 in IPv6", balancerAddress, "PROXY TCP6 ::ffff:203.0.113.7 ::1 1 2\r\n", "203.0.113.7"},
					{"of another trusted proxy", balancerAddress, header(t, 2, balancerAddress+":1"), forged},
					{"unknown", balancerAddress, "PROXY UNKNOWN\r\n", balancerAddress},
					{"its own", balancerAddress, local, balancerAddress},
					{"none", balancerAddress, "", forged},
					{"none of a stranger", strangerAddress, "", strangerAddress},
				} {
					if mode == config.ProxyRequired && tc.before == "" {
						continue
					}
					res := e.doAs(t, throughBalancer(client(), tc.local, tc.before), e.Key, http.MethodGet, e.path("json"), nil,
						"X-Forwarded-For", forged, "Forwarded", "for="+forged, "X-Real-IP", forged)
					want(t, res, http.StatusOK)
					if n++; (res.ProtoMajor == 2) != (way == "HTTP/2") || (res.TLS != nil) != (over != "") {
						t.Errorf("%s, %s", way, res.Proto)
					}
					if got := e.clientOfLine(t, n); got != tc.want {
						t.Errorf("%s%s, %s, %s: the client is %s, want %s", over, mode, way, tc.name, got, tc.want)
					}
				}
			}
			e.headers(t, "client", 5*len(ways()))
			e.headers(t, "balancer", 2*len(ways()))
			if mode == config.ProxyOptional {
				e.headers(t, "none", len(ways()))
			}
		}
	}
}

// H09: anybody could say who they were, crash the gateway, or learn of it what is behind.
// What is refused is closed without an answer, before TLS and on the plain listener too.
func TestProxyProtocolRefused(t *testing.T) {
	const request = "GET / HTTP/1.1\r\nHost: gw\r\nConnection: close\r\n\r\n"
	v1, v2 := header(t, 1, "203.0.113.7:56324"), header(t, 2, "203.0.113.7:56324")
	for _, over := range []string{"", "tls: {mode: internal, http_listen: \"127.0.0.1:0\"}\n"} {
		for _, mode := range []string{config.ProxyOptional, config.ProxyRequired} {
			e := proxiedEdge(t, mode, over)
			places := []string{e.app.addresses()[0]}
			if over != "" {
				places = append(places, e.app.plain.Addr().String())
			}
			for i, address := range places {
				for _, sent := range []string{v1, v2, "PROXY UNKNOWN\r\n", "PROXY ", v1 + v1, v2[:13]} {
					if got := answered(t, opened(t, strangerAddress, address, sent+request)); got != "" {
						t.Errorf("%s, a stranger's %q: %q", mode, sent, got)
					}
				}
				e.headers(t, "untrusted", 6*(i+1))
				for _, sent := range []string{"PROXY TCP4 x\r\n", "PROXY " + strings.Repeat("x", 200), v2[:14] + "\xff\xff" + v2[16:], v2[:13] + "\x13" + v2[14:]} {
					if got := answered(t, opened(t, balancerAddress, address, sent+request)); got != "" {
						t.Errorf("%s, %q: %q", mode, sent, got)
					}
				}
				e.headers(t, "malformed", 4*(i+1))
				if mode == config.ProxyRequired {
					if got := answered(t, opened(t, balancerAddress, address, request)); got != "" {
						t.Errorf("no header: %q", got)
					}
					e.headers(t, "missing", i+1)
				}
				// A second header is the client's, and a bad request: 400, or no TLS.
				got := answered(t, opened(t, balancerAddress, address, v1+header(t, 1, "198.51.100.66:1")+request))
				if plain := over == "" || i == 1; strings.HasPrefix(got, "HTTP/1.1 400 ") != plain || strings.Contains(got, "200 OK") {
					t.Errorf("%s, two headers: %q", mode, got)
				}
			}
			if log := e.Log.String(); strings.Count(log, "a connection was closed for its PROXY header") > 3*len(places) || !strings.Contains(log, `"peer":"`+strangerAddress) {
				t.Errorf("the log says %s", log)
			}
			// Operators reach theirs without a header, and with none other.
			want(t, e.admin(t, http.MethodGet, "/readyz"), http.StatusOK)
			if got := answered(t, opened(t, balancerAddress, strings.TrimPrefix(e.Admin, "http://"), v1+request)); !strings.HasPrefix(got, "HTTP/1.1 400 ") {
				t.Errorf("a header on the admin listener: %q", got)
			}
		}
	}
	e := newEdge(t, standIn(t))
	if got := answered(t, opened(t, balancerAddress, e.app.addresses()[0], v1+request)); !strings.HasPrefix(got, "HTTP/1.1 400 ") {
		t.Errorf("off: %q", got)
	}
}

// H09, H16: connections that never sent their header, or half of it, kept others from being
// taken. They hold up nobody, neither those behind them nor a stop.
func TestHalfAHeader(t *testing.T) {
	for _, over := range []string{"", "tls: {mode: internal}\n"} {
		e := proxiedEdge(t, config.ProxyRequired, over)
		v1 := header(t, 1, "203.0.113.7:56324")
		for i := range 100 {
			opened(t, balancerAddress, e.app.addresses()[0], v1[:i%20])
		}
		c := throughBalancer(http1(), balancerAddress, v1)
		for range 3 {
			want(t, e.doAs(t, c, e.Key, http.MethodGet, e.path("json"), nil), http.StatusOK)
		}
		e.Stop()
		select {
		case err := <-e.Stopped:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(20 * time.Second):
			t.Error("the stop waits for headers")
		}
	}
}

// H16: behind a balancer nobody was counted, or all clients were one. A client has its
// connections by the address in the header, before TLS, and its own failures.
func TestLimitsBehindTheBalancer(t *testing.T) {
	e := proxiedEdge(t, config.ProxyRequired, "server: {connections_per_address: 2, failed_credentials_per_minute: 60}\ntls: {mode: internal}\n")
	address := e.app.addresses()[0]
	greedy := header(t, 2, "203.0.113.7:1")
	held := []net.Conn{opened(t, balancerAddress, address, greedy), opened(t, balancerAddress, address, greedy)}
	eventually(t, "both are counted, before TLS", func() bool {
		return strings.Contains(e.admin(t, http.MethodGet, "/metrics").Text, `sluice_proxy_headers_total{outcome="client"} 2`)
	})
	if got := answered(t, opened(t, balancerAddress, address, greedy)); got != "" {
		t.Errorf("one too many: %q", got)
	}
	eventually(t, "it is counted", func() bool { return e.app.connections.Refused() == 1 })
	other := throughBalancer(http1(), balancerAddress, header(t, 2, "203.0.113.8:1"))
	want(t, e.doAs(t, other, e.Key, http.MethodGet, e.path("json"), nil), http.StatusOK)
	_ = held[0].Close()
	again := func() error {
		conn := tls.Client(opened(t, balancerAddress, address, greedy), &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // not about trust
		defer func() { _ = conn.Close() }()
		return conn.HandshakeContext(t.Context())
	}
	eventually(t, "what closes makes room", func() bool { return again() == nil })
	_ = held[1].Close()
	eventually(t, "all are given back", func() bool { return e.app.connections.Addresses() <= 1 })

	// Failures of one client, whatever it says that it is, are not another one's.
	for i := range 61 {
		eventually(t, "the one before is given back", func() bool { return e.app.connections.Addresses() == 0 })
		res := e.doAs(t, throughBalancer(http1(), balancerAddress, header(t, 1, fmt.Sprintf("203.0.113.9:%d", i+1))), newTestKey(t), http.MethodGet, e.path("json"), nil,
			"X-Forwarded-For", fmt.Sprintf("198.51.100.%d", i))
		if res.StatusCode != http.StatusUnauthorized && (i < 60 || res.StatusCode != http.StatusTooManyRequests) {
			t.Fatalf("failure %d: %d", i+1, res.StatusCode)
		}
	}
	eventually(t, "all are given back", func() bool { return e.app.connections.Addresses() == 0 })
	over := e.doAs(t, throughBalancer(http1(), balancerAddress, header(t, 1, "203.0.113.9:99")), newTestKey(t), http.MethodGet, e.path("json"), nil)
	want(t, over, http.StatusTooManyRequests)
	want(t, e.doAs(t, other, newTestKey(t), http.MethodGet, e.path("json"), nil), http.StatusUnauthorized)
}

// A balancer that is added is believed with its next connection, and one that is taken away
// is not, without a restart. Whether there is a header at all needs one.
func TestTrustedProxiesReload(t *testing.T) {
	e, path, file := reloadable(t)
	e.Stop()
	must(t, <-e.Stopped)
	const required = "proxy_protocol: required\ntrusted_proxies: [%s]\n"
	writeFile(t, path, file(fmt.Sprintf(required, balancerAddress)))
	e.start(t, readFile(t, path), func() (*config.Config, error) { return config.Load(path, config.Options{Grammar: grammar()}) })
	v1 := header(t, 1, "203.0.113.7:56324")
	served := func(local string) bool {
		conn := opened(t, local, e.app.addresses()[0], v1+"GET / HTTP/1.1\r\nHost: gw\r\n\r\n")
		defer func() { _ = conn.Close() }()
		line, err := bufio.NewReader(conn).ReadString('\n')
		return err == nil && strings.HasPrefix(line, "HTTP/1.1 404 ")
	}
	if !served(balancerAddress) || served(strangerAddress) {
		t.Error("at the start")
	}
	kept := opened(t, balancerAddress, e.app.addresses()[0], v1)
	writeFile(t, path, file(fmt.Sprintf(required, strangerAddress)))
	want(t, e.admin(t, http.MethodPost, "/reload"), http.StatusOK)
	if served(balancerAddress) || !served(strangerAddress) {
		t.Error("after the reload")
	}
	_, _ = io.WriteString(kept, "GET / HTTP/1.1\r\nHost: gw\r\nConnection: close\r\n\r\n")
	if got := answered(t, kept); !strings.HasPrefix(got, "HTTP/1.1 404 ") {
		t.Errorf("a connection of before: %q", got)
	}
	writeFile(t, path, file(""))
	if res := e.admin(t, http.MethodPost, "/reload"); res.StatusCode != http.StatusOK || !strings.Contains(res.Text, `"proxy_protocol"`) {
		t.Errorf("without: %d %s", res.StatusCode, res.Text)
	}
	writeFile(t, path, file("proxy_protocol: required\n"))
	if res := e.admin(t, http.MethodPost, "/reload"); res.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(res.Text, "trusted_proxies") {
		t.Errorf("with nobody who is believed: %d %s", res.StatusCode, res.Text)
	}
}
