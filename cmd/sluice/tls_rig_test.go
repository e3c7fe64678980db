package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// balance is a load balancer that knows nothing of TLS: each connection goes to the next
// of the addresses that takes it. It gives its port.
func balance(t *testing.T, to ...string) int {
	t.Helper()
	return balanceBehind(t, "", to...)
}

// balanceBehind is balance, with something before the first byte of each connection.
func balanceBehind(t *testing.T, before string, to ...string) int {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	var n atomic.Int64
	running.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			first := int(n.Add(1))
			running.Go(func() {
				for i := range to {
					if join(in, before, to[(first+i)%len(to)]) {
						return
					}
				}
				_ = in.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		running.Wait()
	})
	return l.Addr().(*net.TCPAddr).Port //nolint:errcheck // it listens on TCP
}

// join connects a connection to an address, to which it writes before, until either side is done. It reports whether
// the address took it.
func join(in net.Conn, before, address string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	defer func() { _ = in.Close() }()
	defer func() { _ = out.Close() }()
	limit := time.Now().Add(time.Minute)
	_, _ = in.SetDeadline(limit), out.SetDeadline(limit)
	_, _ = io.WriteString(out, before) // the other side may be gone
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(out, in)
		_ = out.Close()
	}()
	_, _ = io.Copy(in, out)
	_ = in.Close()
	<-done
	return true
}

// verified is a client that trusts an authority alone, and calls whoever it connects to by
// a name. protocol is "h2" or "http/1.1".
func verified(t *testing.T, roots *x509.CertPool, name, protocol string) *http.Client {
	t.Helper()
	c := clientOf(func(p *http.Protocols) {
		p.SetHTTP1(protocol == "http/1.1")
		p.SetHTTP2(protocol == "h2")
	})
	c.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: roots, ServerName: name, MinVersion: tls.VersionTLS12} //nolint:errcheck // clientOf makes no other
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// presented makes a handshake for a name, and gives the certificate that was shown.
func presented(t *testing.T, url, name string, roots *x509.CertPool) (*x509.Certificate, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	d := tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: name, MinVersion: tls.VersionTLS12}}
	conn, err := d.DialContext(ctx, "tcp", url[strings.Index(url, "//")+2:])
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0], nil //nolint:errcheck // tls.Dialer makes no other
}
