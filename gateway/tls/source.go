package tls

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"
)

// Source has the certificates of the public listeners. Its methods are safe for
// concurrent use; Run is called once.
type Source interface {
	// Certificate is asked in each handshake that is not resumed. nil without an error
	// refuses the name (alert unrecognized_name); an error says that there is no
	// certificate for it now (internal_error).
	Certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error)
	// States tells of each certificate, in an order that stays the same.
	States() []State
	// Run keeps the certificates fresh until ctx ends, and ends with all it began.
	Run(ctx context.Context)
}

// State is what there is to tell of one certificate.
type State struct {
	Domain  string    // the name that it is for; one of a few, whatever clients ask for
	Expires time.Time // zero = there is none yet
	// Failing says that it is time for another one, which could not be had.
	Failing bool
}

// Missing says why the listeners cannot be used yet: "" where each name has a certificate
// that is valid at the given time.
func Missing(states []State, now time.Time) string {
	without := 0
	for _, s := range states {
		if !now.Before(s.Expires) {
			without++
		}
	}
	if without == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d without a certificate that is valid now", without, len(states))
}

// alpnACME is the protocol of the challenge TLS-ALPN-01 (RFC 8737).
const alpnACME = "acme-tls/1"

// ServerConfig is what listeners need: TLS 1.2 or later with Go's own choice of suites,
// and HTTP/2 before HTTP/1.1. Session tickets are Go's: their keys change every day and
// are this process's own.
//
// Who serves with it bounds the handshake, and answers a request in plain HTTP.
func ServerConfig(s Source) *tls.Config {
	c := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2", "http/1.1"},
		GetCertificate: s.Certificate,
	}
	if _, ok := s.(*ACME); ok {
		// The last, so that a client that offers others as well speaks HTTP. Whoever
		// serves closes a connection that speaks it after its handshake.
		c.NextProtos = append(c.NextProtos, alpnACME)
	}
	return c
}

// every calls do at each tick, until ctx ends.
func every(ctx context.Context, pause time.Duration, do func()) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}
