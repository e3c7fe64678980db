package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"sluice/config"
	"sluice/internal/pebbletest"
)

// H09: a client behind the balancer sends a header itself, where only the balancer is
// believed: inside of TLS, or after its first message. It is a bad request, or no TLS, and
// the client is whom the balancer names.
func TestHeaderInsideTLS(t *testing.T) {
	const request = "GET / HTTP/1.1\r\nHost: gw\r\nConnection: close\r\n\r\n"
	for _, mode := range []string{config.ProxyOptional, config.ProxyRequired} {
		e := proxiedEdge(t, mode, "tls: {mode: internal}\n")
		named, forged := header(t, 1, "203.0.113.7:56324"), header(t, 1, "198.51.100.66:1")
		raw := opened(t, balancerAddress, e.app.addresses()[0], named)
		conn := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}) //nolint:gosec // not about trust
		must(t, conn.HandshakeContext(t.Context()))
		_, err := io.WriteString(conn, forged+request)
		must(t, err)
		if got := answered(t, conn); !strings.HasPrefix(got, "HTTP/1.1 400 ") {
			t.Errorf("%s, a header inside of TLS: %q", mode, got)
		}
		late := named + clientHello
		if got := answered(t, opened(t, balancerAddress, e.app.addresses()[0], late+forged)); strings.Contains(got, "HTTP/1.1 200") {
			t.Errorf("%s, a header behind the client's first message: %q", mode, got)
		}
		// The balancer's own header behind it is no header at all.
		got := answered(t, opened(t, balancerAddress, e.app.addresses()[0], clientHello+named))
		if mode == config.ProxyRequired && got != "" || strings.Contains(got, "HTTP/1.1") {
			t.Errorf("%s, the first message before the header: %q", mode, got)
		}
		if log := e.Log.String(); strings.Contains(log, "198.51.100.66") {
			t.Errorf("the log has what a client says:\n%s", log)
		}
	}
}

// clientHello is how the first message of a client begins in TLS: a record of 5 bytes, in
// which a message of another length is said to be.
const clientHello = "\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03"

// H09: a certificate authority reaches the gateway through the balancer as clients do: by
// TLS-ALPN-01 on the port of TLS, by HTTP-01 on the plain one, each alone.
func TestCertificateThroughTheBalancer(t *testing.T) {
	before := header(t, 2, "203.0.113.7:56324")
	for name, only := range map[string]func(tlsPort, plainPort int, none int) pebbletest.Options{
		"TLS-ALPN-01": func(tlsPort, _, none int) pebbletest.Options {
			return pebbletest.Options{HTTPPort: none, TLSPort: tlsPort}
		},
		"HTTP-01": func(_, plainPort, none int) pebbletest.Options {
			return pebbletest.Options{HTTPPort: plainPort, TLSPort: none}
		},
	} {
		t.Run(name, func(t *testing.T) {
			nodes, public, plain := standIn(t), freePort(t), freePort(t)
			front := balanceBehind(t, before, public)
			options := only(front, balanceBehind(t, before, plain), balance(t))
			options.Life = time.Hour
			pebble := pebbletest.Start(t, options)
			e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
			file := edgeFile(e, []string{nodes}, fmt.Sprintf("proxy_protocol: required\ntrusted_proxies: [%s]\ntls: {mode: acme, http_listen: %q, ca: %q, ca_root: %q, storage: %q}\n",
				balancerAddress, plain, pebble.URL, pebble.RootFile, t.TempDir()))
			log, err := os.Create(t.TempDir() + "/log")
			must(t, err)
			p, _ := runProcess(t, e, strings.Replace(file, "listen: 127.0.0.1:0\n", "listen: "+public+"\n", 1), log)
			eventually(t, "it is ready", func() bool { return answersWith(t, p.Admin+"/readyz", http.StatusOK, time.Second) })
			c, err := presented(t, fmt.Sprintf("https://127.0.0.1:%d", front), "streams.example.com", pebble.Issues)
			if err != nil || len(c.DNSNames) != 1 {
				t.Errorf("%v", err)
			}
		})
	}
}
