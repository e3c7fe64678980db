package pebbletest

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/miekg/dns"
)

// Options say how the authority works.
type Options struct {
	// HTTPPort and TLSPort are where it asks for challenges, on 127.0.0.1, whatever the
	// name; a port that nobody listens on fails them.
	HTTPPort, TLSPort int
	Life              time.Duration // of certificates; in whole seconds
}

// Server is an authority. Its methods are safe for concurrent use.
type Server struct {
	// URL is that of the directory, and RootFile a PEM file with what its server's
	// certificate is trusted by.
	URL, RootFile string
	// Issues holds what the certificates that it issues are trusted by.
	Issues *x509.CertPool

	server  *http.Server
	address string
	config  *tls.Config

	mu     sync.Mutex
	orders map[string]int
}

// Start starts an authority. It sets variables of the environment, so that the test cannot
// be parallel to others.
func Start(tb testing.TB, o Options) *Server {
	tb.Helper()
	// Waits and refusals at random are for finding faults of ACME clients; certmagic is
	// tested for them.
	for name, value := range map[string]string{"PEBBLE_VA_NOSLEEP": "1", "PEBBLE_WFE_NONCEREJECT": "0", "PEBBLE_AUTHZREUSE": "0"} {
		tb.Setenv(name, value)
	}
	quiet := log.New(io.Discard, "", 0)
	store := db.NewMemoryStore()
	issuer := ca.New(quiet, store, "", "ecdsa", 0, 1, map[string]ca.Profile{
		"default": {Description: "for tests", ValidityPeriod: uint64(o.Life / time.Second)}, //nolint:gosec // above 0
	})
	asks := va.New(quiet, o.HTTPPort, o.TLSPort, false, nameServer(tb), store)
	front := wfe.New(quiet, store, asks, issuer, []string{"pebble.letsencrypt.org"}, false, false, 1, 1)

	s := &Server{Issues: x509.NewCertPool(), orders: make(map[string]int)}
	s.Issues.AddCert(issuer.GetRootCert(0).Cert)
	pages := httptest.NewTLSServer(http.NotFoundHandler()) // for its certificate
	s.config = &tls.Config{Certificates: pages.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12}
	s.RootFile = filepath.Join(tb.TempDir(), "pebble.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pages.Certificate().Raw})
	pages.Close()
	if err := os.WriteFile(s.RootFile, text, 0o600); err != nil {
		tb.Fatal(err)
	}
	s.server = &http.Server{Handler: s.counting(front.Handler()), ReadHeaderTimeout: time.Minute, ErrorLog: quiet}
	s.address = "127.0.0.1:0" // any port, and that one from then on
	s.Up(tb)
	s.URL = "https://" + s.address + wfe.DirectoryPath
	tb.Cleanup(func() { _ = s.server.Close() })
	return s
}

// Down has nobody answer at the authority's address.
func (s *Server) Down(tb testing.TB) {
	tb.Helper()
	if err := s.server.Close(); err != nil {
		tb.Fatal(err)
	}
}

// Up has it answer again, with all that it knew.
func (s *Server) Up(tb testing.TB) {
	tb.Helper()
	s.server = &http.Server{Handler: s.server.Handler, ReadHeaderTimeout: time.Minute, ErrorLog: s.server.ErrorLog}
	var lc net.ListenConfig
	l, err := lc.Listen(tb.Context(), "tcp", s.address)
	if err != nil {
		tb.Fatal(err)
	}
	s.address = l.Addr().String()
	server := s.server
	go func() { _ = server.Serve(tls.NewListener(l, s.config)) }() // until Close
}

// Orders is how often each name was ordered.
func (s *Server) Orders(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.orders[name]
}

// counting counts the orders that are taken.
func (s *Server) counting(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/order-plz") {
			next.ServeHTTP(w, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		status := &statusWriter{ResponseWriter: w}
		next.ServeHTTP(status, r)
		if status.code == http.StatusCreated {
			s.count(body)
		}
	})
}

type statusWriter struct {
	http.ResponseWriter
	code int
}

// WriteHeader implements http.ResponseWriter.
func (w *statusWriter) WriteHeader(code int) {
	w.code = code
	w.ResponseWriter.WriteHeader(code)
}

// count counts the names of an order, which is a signed object (RFC 8555 §6.2, §7.4).
func (s *Server) count(body []byte) {
	var signed struct{ Payload string }
	var order struct {
		Identifiers []struct{ Value string }
	}
	text, err := []byte(nil), json.Unmarshal(body, &signed)
	if err == nil {
		text, err = base64.RawURLEncoding.DecodeString(signed.Payload)
	}
	if errors.Join(err, json.Unmarshal(text, &order)) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range order.Identifiers {
		s.orders[name.Value]++
	}
}

// nameServer says that every name is at 127.0.0.1.
func nameServer(tb testing.TB) string {
	tb.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	server := &dns.Server{Listener: l, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		answer := new(dns.Msg)
		answer.SetReply(q)
		for _, question := range q.Question {
			if question.Qtype == dns.TypeA {
				answer.Answer = append(answer.Answer, &dns.A{
					Hdr: dns.RR_Header{Name: question.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.IPv4(127, 0, 0, 1),
				})
			}
		}
		_ = w.WriteMsg(answer)
	})}
	go func() { _ = server.ActivateAndServe() }() // until Shutdown
	tb.Cleanup(func() { _ = server.Shutdown() })
	return l.Addr().String()
}
