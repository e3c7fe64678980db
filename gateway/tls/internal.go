package tls

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

const (
	rootLife = 10 * 365 * 24 * time.Hour
	// leafLife is short, so that a renewal is seen in development too.
	leafLife     = 7 * 24 * time.Hour
	internalLook = time.Hour
	// backdate allows for clients whose clocks are behind.
	backdate   = time.Hour
	serialBits = 128

	rootKeyFile  = "ca.key" // the key and the certificate, since the pair has to be of one piece
	rootCertFile = "ca.pem" // the certificate, for clients
)

// InternalOptions say what an authority for development issues certificates for.
type InternalOptions struct {
	// Names are host names, "*." and a host name, or addresses; the first is the origin's.
	// localhost and the loopback addresses are added.
	Names []string
	// Dir is where the authority is kept, made where it is missing; "" = in memory.
	Dir    string
	Log    *zap.Logger
	Now    func() time.Time
	Random io.Reader
}

// Internal is an authority of this process's own, and the one certificate that it issues.
// It is for development: no client trusts it by itself.
type Internal struct {
	o       InternalOptions
	root    *x509.Certificate
	rootKey *ecdsa.PrivateKey
	inUse   atomic.Pointer[tls.Certificate]

	mu      sync.Mutex // guards what follows
	names   []string
	failing bool
}

// OpenInternal reads or makes the authority, and issues a certificate.
func OpenInternal(o InternalOptions) (*Internal, error) {
	i := &Internal{o: o}
	if err := i.openRoot(); err != nil {
		return nil, fmt.Errorf("the authority of tls.mode internal: %w", err)
	}
	return i, i.Set(o.Names)
}

// Root is the authority's certificate in PEM, for clients.
func (i *Internal) Root() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.root.Raw})
}

// RootFile is where Root is, "" where it is in memory alone.
func (i *Internal) RootFile() string {
	if i.o.Dir == "" {
		return ""
	}
	return filepath.Join(i.o.Dir, rootCertFile)
}

// openRoot reads the authority, or makes one. Of several processes that make one at once,
// the first one's is kept.
func (i *Internal) openRoot() error {
	if i.o.Dir == "" {
		_, err := i.makeRoot()
		return err
	}
	if err := os.MkdirAll(i.o.Dir, 0o700); err != nil {
		return err
	}
	path := filepath.Join(i.o.Dir, rootKeyFile)
	err := i.readRoot(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err = i.writeRoot(path); err == nil {
			err = i.readRoot(path)
		}
	}
	if err != nil {
		return err
	}
	return os.WriteFile(i.RootFile(), i.Root(), 0o644) //nolint:gosec // it is for every client
}

func (i *Internal) writeRoot(path string) error {
	text, err := i.makeRoot()
	if err != nil {
		return err
	}
	next, err := os.CreateTemp(i.o.Dir, rootKeyFile+".new-*") // of mode 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(next.Name()) }() // a second name by then
	_, err = next.Write(text)
	if err = errors.Join(err, next.Sync(), next.Close()); err != nil {
		return err
	}
	if err = os.Link(next.Name(), path); errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

func (i *Internal) readRoot(path string) error {
	text, err := readPEM(path)
	if err != nil {
		return err
	}
	c, err := tls.X509KeyPair(text, text)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	key, ok := c.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !c.Leaf.IsCA {
		return fmt.Errorf("%s is no authority that was made here; remove it", path)
	}
	if i.o.Now().Add(leafLife).After(c.Leaf.NotAfter) {
		return fmt.Errorf("%s: %w; remove it, and give clients the next one", path, errExpired)
	}
	i.root, i.rootKey = c.Leaf, key
	return nil
}

// makeRoot makes an authority, and gives its key and certificate in PEM.
func (i *Internal) makeRoot() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), i.o.Random)
	if err != nil {
		return nil, err
	}
	serial, err := i.serial()
	if err != nil {
		return nil, err
	}
	now := i.o.Now()
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "Sluice development authority"},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(rootLife),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	raw, err := x509.CreateCertificate(i.o.Random, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	if i.root, err = x509.ParseCertificate(raw); err != nil {
		return nil, err
	}
	i.rootKey = key
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), i.Root()...), nil
}

func (i *Internal) serial() (*big.Int, error) {
	raw := make([]byte, serialBits/8)
	_, err := io.ReadFull(i.o.Random, raw)
	raw[0] &= 0x7f // positive
	return new(big.Int).SetBytes(raw), err
}

// Set has the certificate be for other names. The error is that of the randomness.
func (i *Internal) Set(names []string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	all := slices.Concat(names, []string{"localhost", "127.0.0.1", "::1"})
	slices.Sort(all[1:])
	all = slices.Compact(all)
	if slices.Equal(all, i.names) {
		return nil
	}
	return i.issue(all)
}

// issue makes a certificate for the names and puts it in use.
func (i *Internal) issue(names []string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), i.o.Random)
	if err != nil {
		return err
	}
	serial, err := i.serial()
	if err != nil {
		return err
	}
	now := i.o.Now()
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "Sluice"},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(leafLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	raw, err := x509.CreateCertificate(i.o.Random, template, i.root, key.Public(), i.rootKey)
	if err != nil {
		return err
	}
	leaf, err := x509.ParseCertificate(raw)
	if err != nil {
		return err
	}
	i.names = names
	i.inUse.Store(&tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key, Leaf: leaf})
	i.o.Log.Info("certificate issued by the internal authority", zap.Strings("names", names), zap.Time("expires", leaf.NotAfter))
	return nil
}

// Run renews the certificate until ctx ends.
func (i *Internal) Run(ctx context.Context) {
	every(ctx, internalLook, i.renew)
}

func (i *Internal) renew() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.o.Now().Before(dueAt(i.inUse.Load().Leaf)) {
		return
	}
	err := i.issue(i.names)
	if i.failing = err != nil; i.failing {
		i.o.Log.Error("the internal authority could not issue another certificate", zap.Error(err))
	}
}

// Certificate implements Source. Who names nobody is given the certificate: clients that
// connect to an address do so.
func (i *Internal) Certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	c := i.inUse.Load()
	if hello.ServerName == "" || covers(c.Leaf, hello.ServerName) {
		return c, nil
	}
	return nil, nil //nolint:nilnil // Source says what it means
}

func covers(leaf *x509.Certificate, name string) bool { return leaf.VerifyHostname(name) == nil }

// States implements Source.
func (i *Internal) States() []State {
	i.mu.Lock()
	defer i.mu.Unlock()
	return []State{{Domain: i.names[0], Expires: i.inUse.Load().Leaf.NotAfter, Failing: i.failing}}
}

var _ Source = (*Internal)(nil)
