package postgrestest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// Encrypt has the server speak TLS from now on, as 127.0.0.1 and by a certificate that
// signs itself, and take no connection without it. It returns the file of the certificate.
func (s *Server) Encrypt(tb testing.TB) (certificate string) {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	of := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, of, of, &key.PublicKey, key)
	if err != nil {
		tb.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	for name, content := range map[string]string{
		"server.crt":       string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		"server.key":       string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})),
		"data/pg_hba.conf": "hostssl all all 127.0.0.1/32 scram-sha-256\n",
	} {
		if err := s.give(name, content); err != nil {
			tb.Fatal(err)
		}
	}
	certificate = filepath.Join(s.dir, "server.crt")
	s.command = append(s.command, "-c", "ssl=on", "-c", "ssl_cert_file="+certificate, "-c", "ssl_key_file="+filepath.Join(s.dir, "server.key"))
	s.mode = "require"
	s.Restart(tb)
	return certificate
}
