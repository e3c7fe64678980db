package tls

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"sluice/internal/pebbletest"
)

// C06: a stop waited for an authority that took connections and said nothing.
func TestStopWhileTheAuthorityHangs(t *testing.T) {
	t.Parallel()
	silent, public := listen(t), listen(t)
	defer func() { _ = public.Close() }()
	asked := make(chan net.Conn, 16)
	go func() {
		for {
			c, err := silent.Accept()
			if err != nil {
				return
			}
			asked <- c
		}
	}()
	defer func() { _ = silent.Close() }()
	a := NewACME(ACMEOptions{
		Domains: []string{"streams.example.com"}, CA: "https://" + silent.Addr().String() + "/dir", Storage: &certmagic.FileStorage{Path: t.TempDir()},
		TLSPort: portOf(public), Log: zap.NewNop(), Now: time.Now,
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.Run(ctx)
	}()
	c := <-asked
	defer func() { _ = c.Close() }()
	stop()
	select {
	case <-done:
	case <-time.After(20 * time.Second): // its own limits are 30 s each
		t.Error("it goes on")
	}
	a.Set([]string{"other.example.com"}, "") // a reload that comes late starts nothing
	if n := len(a.running); n != 0 {
		t.Errorf("%d domains are kept fresh after the end", n)
	}
}

// edge is a server of TLS with a listener for plain HTTP, as the program has them.
type edge struct {
	*ACME
	public, plain string
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func portOf(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port } //nolint:errcheck // listen makes no other

// serve has certificates of pebble for the domains, until the test's end.
func serve(t *testing.T, public, plain net.Listener, pebble *pebbletest.Server, dir string, domains ...string) *edge {
	t.Helper()
	core, lines := observer.New(zap.DebugLevel)
	t.Cleanup(func() { // M02: what a library logs at its finest
		for _, line := range lines.All() {
			if text := fmt.Sprint(line.Message, line.ContextMap()); strings.Contains(text, "PRIVATE KEY") || strings.Contains(text, "Authorization") {
				t.Errorf("logged: %s", text)
			}
		}
		if lines.Len() == 0 {
			t.Error("nothing is logged")
		}
	})
	text, err := os.ReadFile(pebble.RootFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	o := ACMEOptions{
		Domains: domains, Email: "ops@example.com", CA: pebble.URL, Roots: roots, Storage: &certmagic.FileStorage{Path: dir},
		TLSPort: portOf(public), Log: zap.New(core), Now: time.Now,
	}
	e := &edge{public: public.Addr().String()}
	if plain != nil {
		e.plain, o.HTTPPort = plain.Addr().String(), portOf(plain)
	}
	e.ACME = NewACME(o)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { e.Run(ctx) })
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	})}
	servers := []*http.Server{server}
	running.Go(func() { _ = server.Serve(tls.NewListener(public, ServerConfig(e.ACME))) })
	if plain != nil {
		redirect := NewRedirectServer(NewRedirect(RedirectOptions{
			Origin: "https://" + domains[0], Challenge: e.HTTPChallenge, RequestID: func() string { return "one" },
		}), nil)
		servers = append(servers, redirect)
		running.Go(func() { _ = redirect.Serve(plain) })
	}
	t.Cleanup(func() {
		stop()
		for _, s := range servers {
			_ = s.Close()
		}
		running.Wait()
	})
	return e
}

func (e *edge) wait(t *testing.T) {
	t.Helper()
	eventually(t, "each domain has a certificate", func() bool { return Missing(e.States(), time.Now()) == "" })
}

// eventually polls a condition that has nothing to wait on.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 60 s", what)
		}
		<-tick.C
	}
}

// shake makes a handshake, and gives what was agreed on and the certificate.
func shake(t *testing.T, address, name string, roots *x509.CertPool, protocols ...string) (tls.ConnectionState, error) {
	t.Helper()
	d := tls.Dialer{Config: &tls.Config{ServerName: name, RootCAs: roots, NextProtos: protocols, InsecureSkipVerify: roots == nil}} //nolint:gosec // where the test is not about trust
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer func() { _ = conn.Close() }()
	return conn.(*tls.Conn).ConnectionState(), nil //nolint:errcheck // tls.Dialer makes no other
}

// C04, C05: a challenge's certificate was given to whoever asked, and HTTP was served to
// the authority; names that nobody has a certificate for got some other one.
func TestACME(t *testing.T) {
	public, plain := listen(t), listen(t)
	pebble := pebbletest.Start(t, pebbletest.Options{HTTPPort: portOf(plain), TLSPort: portOf(public), Life: time.Hour})
	e := serve(t, public, plain, pebble, filepath.Join(t.TempDir(), "acme"), "streams.example.com", "other.example.com")
	e.wait(t)
	for _, name := range []string{"streams.example.com", "other.example.com"} {
		for _, protocol := range []string{"h2", "http/1.1"} {
			got, err := shake(t, e.public, name, pebble.Issues, protocol)
			if err != nil || got.NegotiatedProtocol != protocol || got.Version < tls.VersionTLS12 {
				t.Errorf("%s, %s: %+v, %v", name, protocol, got.NegotiatedProtocol, err)
			}
		}
		if n := pebble.Orders(name); n != 1 {
			t.Errorf("%s was ordered %d times", name, n)
		}
	}
	var refused *tls.CertificateVerificationError
	for name, want := range map[string]string{
		"foreign.example.com":   "unrecognized name",
		"a.streams.example.com": "unrecognized name",
	} {
		if _, err := shake(t, e.public, name, nil); err == nil || errors.As(err, &refused) || !containsText(err, want) {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	if got, err := shake(t, e.public, "", nil); err != nil || got.PeerCertificates[0].DNSNames[0] != "streams.example.com" {
		t.Errorf("no name: %v", err)
	}
	// Go's client sends no name with a dot at its end, nor upper case.
	for _, name := range []string{"Other.EXAMPLE.com", "other.example.com."} {
		if m := e.domain(name); m == nil || m.name != "other.example.com" {
			t.Errorf("%q is not found", name)
		}
	}
	if _, err := shake(t, e.public, "streams.example.com", nil, alpnACME); err == nil {
		t.Error("a challenge that nobody opened was answered")
	}
}

// Each of the two challenges is enough, with the redirect on: the other one fails.
func TestEitherChallenge(t *testing.T) {
	for name, overHTTP := range map[string]bool{"http-01": true, "tls-alpn-01": false} {
		t.Run(name, func(t *testing.T) {
			public, plain, closed := listen(t), listen(t), listen(t)
			o := pebbletest.Options{HTTPPort: portOf(closed), TLSPort: portOf(closed), Life: time.Hour}
			if err := closed.Close(); err != nil {
				t.Fatal(err)
			}
			if overHTTP {
				o.HTTPPort = portOf(plain)
			} else {
				o.TLSPort = portOf(public)
			}
			pebble := pebbletest.Start(t, o)
			e := serve(t, public, plain, pebble, t.TempDir(), "streams.example.com")
			e.wait(t)
			if _, err := shake(t, e.public, "streams.example.com", pebble.Issues); err != nil {
				t.Error(err)
			}
		})
	}
}

// Two that share a folder order each name once.
func TestFolderIsShared(t *testing.T) {
	public, plain, other := listen(t), listen(t), listen(t)
	pebble := pebbletest.Start(t, pebbletest.Options{HTTPPort: portOf(plain), TLSPort: portOf(public), Life: time.Hour})
	dir := t.TempDir()
	for _, e := range []*edge{serve(t, public, plain, pebble, dir, "streams.example.com"), serve(t, other, nil, pebble, dir, "streams.example.com")} {
		e.wait(t)
		if _, err := shake(t, e.public, "streams.example.com", pebble.Issues); err != nil {
			t.Error(err)
		}
	}
	if n := pebble.Orders("streams.example.com"); n != 1 {
		t.Errorf("ordered %d times", n)
	}
}

// Names come and go while it runs: those that stay keep their certificates.
func TestOtherDomains(t *testing.T) {
	public, plain := listen(t), listen(t)
	pebble := pebbletest.Start(t, pebbletest.Options{HTTPPort: portOf(plain), TLSPort: portOf(public), Life: time.Hour})
	e := serve(t, public, plain, pebble, t.TempDir(), "streams.example.com", "old.example.com")
	e.wait(t)
	e.Set([]string{"streams.example.com", "new.example.com"}, "other@example.com")
	e.wait(t)
	for name, ok := range map[string]bool{"streams.example.com": true, "new.example.com": true, "old.example.com": false} {
		if _, err := shake(t, e.public, name, pebble.Issues); (err == nil) != ok {
			t.Errorf("%s: %v", name, err)
		}
		if n := pebble.Orders(name); n != 1 {
			t.Errorf("%s was ordered %d times", name, n)
		}
	}
	if n := len(e.running); n != 2 {
		t.Errorf("%d domains are kept fresh", n)
	}
}

// C04: the protocol of the challenge never carries HTTP.
func TestNoHTTPOverTheChallengeProtocol(t *testing.T) {
	t.Parallel()
	public := listen(t)
	certificate := httptest.NewTLSServer(http.NotFoundHandler())
	defer certificate.Close()
	c := &tls.Config{Certificates: certificate.TLS.Certificates, NextProtos: []string{"h2", "http/1.1", alpnACME}, MinVersion: tls.VersionTLS12}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("served") })}
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(tls.NewListener(public, c)) })
	defer running.Wait()
	defer func() { _ = server.Close() }()
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{alpnACME}}} //nolint:gosec // not about trust
	conn, err := d.DialContext(t.Context(), "tcp", public.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = conn.Write([]byte("GET / HTTP/1.1\r\nHost: streams.example.com\r\n\r\n"))
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Errorf("answered with %d bytes", n)
	}
}

func containsText(err error, text string) bool { return strings.Contains(err.Error(), text) }
