package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	h2 "golang.org/x/net/http2"

	"sluice/config"
	"sluice/internal/ursulatest"
)

// protocolsOverTLS are what is agreed on by ALPN.
func protocolsOverTLS() []string { return []string{"http/1.1", "h2"} }

// secureEdge is an edge of the internal authority, whose certificate is in a file.
func secureEdge(t *testing.T, extra string, nodes ...string) (e *edge, roots *x509.CertPool, file string) {
	t.Helper()
	dir := t.TempDir()
	e = &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	e.start(t, edgeFile(e, nodes, fmt.Sprintf("tls: {mode: internal, storage: %q%s}\n", dir, extra)), nil)
	file = filepath.Join(dir, "ca.pem")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	roots = x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	return e, roots, file
}

// Whoever reads the log can paste its line: curl trusts the authority by its file, and
// agrees on HTTP/2 or HTTP/1.1.
func TestCurlOverTLS(t *testing.T) {
	needCommand(t, "curl")
	e, _, file := secureEdge(t, "", standIn(t))
	if line := "curl --cacert " + file + " https://streams.example.com"; !strings.Contains(e.Log.String(), line) {
		t.Errorf("the log has no line %q", line)
	}
	_, port, err := net.SplitHostPort(e.app.addresses()[0])
	if err != nil {
		t.Fatal(err)
	}
	curl := func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		base := []string{"-sS", "-i", "--resolve", "streams.example.com:" + port + ":127.0.0.1"}
		out, err := exec.CommandContext(ctx, "curl", append(base, args...)...).CombinedOutput()
		return string(out), err
	}
	url := "https://streams.example.com:" + port + e.path("json")
	key := []string{"--cacert", file, "-H", "Authorization: Bearer " + e.Key, "-H", "Content-Type: application/json"}
	for flag, version := range map[string]string{"--http1.1": "HTTP/1.1 ", "--http2": "HTTP/2 ", "--tlsv1.2": "HTTP/2 ", "--tlsv1.3": "HTTP/2 "} {
		for _, tc := range []struct {
			args []string
			want []string
		}{
			{append(key, "-d", `{"n":1}`, url), []string{version + "204"}},
			{append(key, url), []string{version + "200", `{"n":1}`}},
			{append(key, "-I", url), []string{version + "200"}},
			{[]string{"--cacert", file, url}, []string{version + "401", "INVALID_CREDENTIAL"}},
			{append(key, "-X", "DELETE", url), []string{version + "403", "STREAM_LIFECYCLE"}},
			{append(key, "-N", "--max-time", "1", url+"?offset=-1&live=sse"), []string{version + "200", `data:`}},
		} {
			out, _ := curl(append([]string{flag}, tc.args...)...)
			for _, want := range tc.want {
				if !strings.Contains(out, want) {
					t.Errorf("%s %v: no %q in\n%s", flag, tc.args, want, out)
				}
			}
		}
	}
	if out, err := curl(url); err == nil {
		t.Errorf("an authority that nobody knows is trusted: %s", out)
	}
	if out, err := curl("--tls-max", "1.1", "-k", url); err == nil {
		t.Errorf("TLS 1.1: %s", out)
	}
	// H18: net/http answered by itself, and bare.
	if out, _ := curl("http://streams.example.com:" + port + e.path("json")); !strings.Contains(out, "400 Bad Request") || !strings.Contains(out, `"code":"INVALID_REQUEST","message":"This port speaks TLS`) {
		t.Errorf("plain HTTP to the port of https: %s", out)
	}
}

// S01, S11: TLS and HTTP/2 hold back what is written, and close without a word. Each event
// comes as it is appended, and a client that leaves is noticed.
func TestTailsOverTLS(t *testing.T) {
	e, roots, _ := secureEdge(t, "", standIn(t))
	for _, protocol := range protocolsOverTLS() {
		t.Run(protocol, func(t *testing.T) {
			c := verified(t, roots, "streams.example.com", protocol)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			res := e.open(ctx, t, c, e.Key, http.MethodGet, e.path("json")+"?offset=now&live=sse", nil)
			defer func() { _ = res.Body.Close() }()
			if (res.ProtoMajor == 2) != (protocol == "h2") || res.TLS == nil {
				t.Fatalf("%s, TLS %t", res.Proto, res.TLS != nil)
			}
			events := bufio.NewReader(res.Body)
			readEvent(t, events) // control
			for i := range 3 {
				e.append(t, "json", fmt.Sprintf(`{"n":%d}`, i))
				// Nothing else is sent before it was read, so none waits for the next.
				if event := readEvent(t, events); !strings.Contains(event, fmt.Sprintf(`"n":%d`, i)) {
					t.Errorf("event %d: %q", i, event)
				}
				readEvent(t, events) // control
			}
			if n := e.app.limits.OpenTails(); n != 1 {
				t.Errorf("%d open tails", n)
			}
			cancel()
			eventually(t, "the client's leaving is noticed", func() bool { return e.app.limits.OpenTails() == 0 })
		})
	}
}

// Issue 3: an answer that a node cut is cut for the client, also where TLS could close
// in good order.
func TestCutOverTLS(t *testing.T) {
	cluster := ursulatest.New(ursulatest.Options{})
	if err := cluster.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cluster.Close() })
	e, roots, _ := secureEdge(t, "", cluster.URLs()[0])
	e.append(t, "text", strings.Repeat("half", 64<<10))
	for _, protocol := range protocolsOverTLS() {
		cluster.Node(0).SetFault(ursulatest.CutAfter(100_000))
		c := verified(t, roots, "streams.example.com", protocol)
		res := e.open(t.Context(), t, c, e.Key, http.MethodGet, e.path("text"), nil)
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		var reset h2.StreamError
		if !errors.As(err, &reset) && !errors.Is(err, io.ErrUnexpectedEOF) && !strings.Contains(fmt.Sprint(err), "INTERNAL_ERROR") {
			t.Errorf("%s: %d bytes, %v", protocol, len(body), err)
		}
		cluster.Node(0).SetFault(nil)
	}
}

// pairFor writes a certificate of its own and its key.
func pairFor(t *testing.T, dir, host string, lives time.Duration) (cert, key string, c *x509.Certificate) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(lives),
		DNSNames: []string{host}, IsCA: true, BasicConstraintsValid: true,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(raw); err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	writeFile(t, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})))
	writeFile(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	return cert, key, c
}

// C07: a reload takes the next pair for new connections, and leaves open ones alone; a bad
// pair elsewhere is refused, and one in the same place raises the gauge.
func TestFilesReload(t *testing.T) {
	dir := t.TempDir()
	cert, key, first := pairFor(t, dir, "streams.example.com", 90*24*time.Hour)
	node := standIn(t)
	e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
	text := func(cert string) string {
		return edgeFile(e, []string{node}, fmt.Sprintf("tls: {mode: files, cert: %q, key: %q}\n", cert, key))
	}
	path := filepath.Join(dir, "sluice.yaml")
	writeFile(t, path, text(cert))
	e.start(t, text(cert), func() (*config.Config, error) { return config.Load(path, config.Options{Grammar: grammar()}) })
	serves := func(want *x509.Certificate) {
		t.Helper()
		roots := x509.NewCertPool()
		roots.AddCert(want)
		if _, err := presented(t, e.URL, "streams.example.com", roots); err != nil {
			t.Error(err)
		}
	}
	gauge := func(want string) {
		t.Helper()
		if text := e.admin(t, http.MethodGet, "/metrics").Text; !strings.Contains(text, want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	serves(first)
	gauge(fmt.Sprintf(`sluice_certificate_expires_timestamp_seconds{domain="streams.example.com"} %g`, float64(first.NotAfter.Unix())))
	res := e.open(t.Context(), t, http2(), e.Key, http.MethodGet, e.path("json")+"?offset=now&live=sse", nil)
	defer func() { _ = res.Body.Close() }()
	events := bufio.NewReader(res.Body)
	readEvent(t, events)

	_, _, second := pairFor(t, dir, "streams.example.com", 80*24*time.Hour)
	want(t, e.admin(t, http.MethodPost, "/reload"), http.StatusOK)
	serves(second)
	gauge(`sluice_certificate_failing{domain="streams.example.com"} 0`)
	e.append(t, "json", `{"n":1}`)
	if event := readEvent(t, events); !strings.Contains(event, `"n":1`) {
		t.Errorf("the open tail: %q", event)
	}

	writeFile(t, cert, "half")
	want(t, e.admin(t, http.MethodPost, "/reload"), http.StatusOK)
	serves(second)
	gauge(`sluice_certificate_failing{domain="streams.example.com"} 1`)
	writeFile(t, path, text(filepath.Join(dir, "none.crt")))
	if res := e.admin(t, http.MethodPost, "/reload"); res.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(res.Text, "none.crt") {
		t.Errorf("%d %s", res.StatusCode, res.Text)
	}
	serves(second)
	writeFile(t, path, strings.Replace(text(cert), "mode: files", "http_listen: \"127.0.0.1:1\", mode: files", 1))
	if res := e.admin(t, http.MethodPost, "/reload"); !strings.Contains(res.Text, `"restart_needed":["tls.http_listen"]`) {
		t.Errorf("%d %s", res.StatusCode, res.Text)
	}
}

// check says of the pair what serve would refuse or clients would; serve does not begin
// without one.
func TestCheckReadsThePair(t *testing.T) {
	dir := t.TempDir()
	cert, key, _ := pairFor(t, dir, "other.example.com", -time.Second)
	if err := os.Chmod(key, 0o644); err != nil { //nolint:gosec // as people have it by mistake
		t.Fatal(err)
	}
	path := filepath.Join(dir, "sluice.yaml")
	writeFile(t, path, "origin: https://streams.example.com\nursula: {nodes: [\"http://127.0.0.1:1\"]}\nauth: {exchange_per_second: 1}\n"+
		"tls: {mode: files, cert: tls.crt, key: tls.key}\n")
	code, _, errOut := command(t, nil, "check", "--offline", "--config", path)
	for _, want := range []string{"tls.cert: " + cert + " has expired", "is not for the host of origin, streams.example.com", "tls.key: " + key + " can be read by everybody"} {
		if !strings.Contains(errOut, want) {
			t.Errorf("no %q in\n%s", want, errOut)
		}
	}
	if code != exitDone {
		t.Errorf("exit %d", code)
	}
	writeFile(t, key, "nothing")
	for _, name := range []string{"check", "serve"} {
		if code, _, errOut := command(t, nil, name, "--config", path); code != exitFailed || !strings.Contains(errOut, "tls.cert, tls.key: ") {
			t.Errorf("%s: exit %d, %s", name, code, errOut)
		}
	}
}

// C03: the plain listener leads to the origin, whatever Host says, and tells a client that
// its credential has gone over the network in clear.
func TestPlainListener(t *testing.T) {
	plain := freePort(t)
	e, _, _ := secureEdge(t, fmt.Sprintf(", http_listen: %q", plain), standIn(t))
	get := func(headers ...string) reply {
		return ask(t, http.MethodGet, "http://"+plain+e.path("json")+"?offset=-1", nil, headers...)
	}
	want(t, get(), http.StatusPermanentRedirect, "Location", "https://streams.example.com"+e.path("json")+"?offset=-1", "Cache-Control", "no-store")
	refused := get("Authorization", "Bearer "+e.Key)
	want(t, refused, http.StatusForbidden, "X-Request-Id", "*", "Location", "")
	if refused.code() != "FORBIDDEN" || strings.Contains(refused.Text, e.Key) || strings.Contains(e.Log.String(), e.Key) {
		t.Errorf("%s", refused.Text)
	}
	want(t, ask(t, http.MethodGet, "http://"+plain+"/.well-known/acme-challenge/x", nil), http.StatusNotFound)
	for _, path := range []string{"/livez", "/metrics", "/v1/streams", "/.well-known/jwks.json"} {
		want(t, ask(t, http.MethodGet, "http://"+plain+path, nil), http.StatusPermanentRedirect)
	}
}
