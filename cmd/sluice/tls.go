package main

import (
	"context"
	"crypto/rand"
	cryptotls "crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"

	"sluice/config"
	"sluice/gateway/tls"
	"sluice/internal/certstore"
	"sluice/internal/store"
	"sluice/internal/telemetry"
)

// secure is what ends TLS on the public listeners.
type secure struct {
	source    tls.Source
	config    *cryptotls.Config
	set       func(c *config.Config) error // takes up what a reload changes
	challenge func(http.ResponseWriter, *http.Request) bool
	temporary string // a file to remove at the end
}

// openTLS makes the source of certificates that the file asks for. The public listeners
// stand already.
func (a *App) openTLS(c *config.Config) error {
	if !c.TLS.On() {
		return nil
	}
	s := &secure{}
	a.secure = s
	var err error
	switch c.TLS.Mode {
	case config.TLSFiles:
		err = s.openFiles(a, c)
	case config.TLSInternal:
		err = s.openInternal(a, c)
	default:
		err = s.openACME(a, c)
	}
	if err != nil {
		return err
	}
	s.config = tls.ServerConfig(s.source)
	return nil
}

func (s *secure) openFiles(a *App, c *config.Config) error {
	files, err := tls.OpenFiles(tls.FilesOptions{Cert: c.TLS.Cert, Key: c.TLS.Key, Log: a.log, Now: time.Now})
	if err != nil {
		return fmt.Errorf("tls.cert, tls.key: %w", err)
	}
	s.source = files
	s.set = func(c *config.Config) error {
		if c.TLS.Mode != config.TLSFiles {
			return nil // needs a restart, and is named
		}
		if err := files.Set(c.TLS.Cert, c.TLS.Key); err != nil {
			return fmt.Errorf("tls.cert, tls.key: %w", err)
		}
		return nil
	}
	return nil
}

func (s *secure) openInternal(a *App, c *config.Config) error {
	internal, err := tls.OpenInternal(tls.InternalOptions{
		Names: c.TLSDomains(), Dir: internalDir(c), Log: a.log, Now: time.Now, Random: rand.Reader,
	})
	if err != nil {
		return err
	}
	root := internal.RootFile()
	if root == "" {
		file, err := os.CreateTemp("", "sluice-ca-*.pem")
		if err != nil {
			return err
		}
		_, err = file.Write(internal.Root())
		root, s.temporary = file.Name(), file.Name()
		if err = errors.Join(err, file.Close()); err != nil {
			return err
		}
	}
	a.log.Info("certificates are the internal authority's, for development: curl --cacert "+root+" "+c.Origin, zap.String("cacert", root))
	s.source = internal
	s.set = func(c *config.Config) error { return internal.Set(append([]string{internalHost(a)}, c.TLS.Domains...)) }
	return nil
}

// internalHost is the host of the origin in force, which no reload changes.
func internalHost(a *App) string { return a.started.OriginHost() }

// internalDir is where the internal authority is kept; "" = in memory.
func internalDir(c *config.Config) string {
	if c.TLS.Storage != "" {
		return c.TLS.Storage
	}
	if path, ok := strings.CutPrefix(c.Store.URL.Reveal(), "sqlite:"); ok {
		return path + ".tls"
	}
	return ""
}

func (s *secure) openACME(a *App, c *config.Config) error {
	roots, err := acmeRoots(c.TLS.CARoot)
	if err != nil {
		return fmt.Errorf("tls.ca_root: %w", err)
	}
	storage, err := a.certificateStorage(c)
	if err != nil {
		return err
	}
	o := tls.ACMEOptions{
		Domains: c.TLSDomains(), Email: c.TLS.Email, CA: c.TLS.CA, Roots: roots, Storage: storage,
		TLSPort: portOf(a.public[0]), Log: a.log.Named("acme"), Now: time.Now,
	}
	if a.plain != nil {
		o.HTTPPort = portOf(a.plain)
	}
	acme := tls.NewACME(o)
	s.source, s.challenge = acme, acme.HTTPChallenge
	s.set = func(c *config.Config) error {
		if c.TLS.Mode == config.TLSACME {
			acme.Set(c.TLSDomains(), c.TLS.Email)
		}
		return nil
	}
	return nil
}

func portOf(l net.Listener) int {
	if t, ok := l.Addr().(*net.TCPAddr); ok {
		return t.Port
	}
	return 0
}

// acmeRoots reads the certificates of a file; nil where none is named.
func acmeRoots(path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // no pool is the system's
	}
	text, err := os.ReadFile(path) //nolint:gosec // the operator names this file
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate in PEM", path)
	}
	return roots, nil
}

// certificateStorage is the store, or else a folder.
func (a *App) certificateStorage(c *config.Config) (certmagic.Storage, error) {
	if a.stored != nil {
		return certstore.New(tlsFiles{a.stored.store}, rand.Text()), nil
	}
	if err := os.MkdirAll(c.TLS.Storage, 0o700); err != nil {
		return nil, fmt.Errorf("tls.storage: %w", err)
	}
	return &certmagic.FileStorage{Path: c.TLS.Storage}, nil
}

// tlsFiles is the store as certstore sees it.
type tlsFiles struct{ *store.Store }

func (f tlsFiles) Put(ctx context.Context, name string, content []byte) error {
	return f.PutTLSFile(ctx, name, content)
}

func (f tlsFiles) Get(ctx context.Context, name string) ([]byte, error) {
	content, err := f.TLSFile(ctx, name)
	if errors.Is(err, store.ErrNotFound) {
		err = fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	return content, err
}

func (f tlsFiles) Delete(ctx context.Context, name string) error { return f.DeleteTLSFiles(ctx, name) }

func (f tlsFiles) List(ctx context.Context, name string) ([]certstore.File, error) {
	files, err := f.TLSFiles(ctx, name)
	list := make([]certstore.File, len(files))
	for i, file := range files {
		list[i] = certstore.File{Name: file.Name, Size: file.Size, Modified: file.ModifiedAt}
	}
	return list, err
}

var _ certstore.Store = tlsFiles{}

// secured is a public listener whose connections are guarded, and end TLS where the
// gateway does.
func (a *App) secured(l net.Listener) net.Listener {
	if a.secure == nil {
		return a.guard.Listener(l, nil)
	}
	return a.guard.Listener(l, a.secure.config)
}

// keepCertificates keeps certificates fresh until ctx ends.
func (a *App) keepCertificates(ctx context.Context) error {
	if a.secure != nil {
		a.secure.source.Run(ctx)
	}
	return nil
}

// redirect answers what comes without TLS.
func (a *App) redirect() http.Handler {
	o := tls.RedirectOptions{Origin: a.started.Origin, RequestID: rand.Text}
	if a.secure != nil {
		o.Challenge = a.secure.challenge
	}
	return tls.NewRedirect(o)
}

// closeTLS ends what openTLS began.
func (a *App) closeTLS() {
	if a.secure == nil {
		return
	}
	if a.secure.temporary != "" {
		_ = os.Remove(a.secure.temporary)
	}
}

// certificates are the states of what is served; none where TLS is off, or not open yet.
func (a *App) certificates() []tls.State {
	if a.secure == nil || a.secure.source == nil {
		return nil
	}
	return a.secure.source.States()
}

func (a *App) certificateGauges() error {
	each := func(value func(tls.State) float64) func() map[string]float64 {
		return func() map[string]float64 {
			values := make(map[string]float64)
			for _, s := range a.certificates() {
				values[s.Domain] = value(s)
			}
			return values
		}
	}
	return errors.Join(
		telemetry.GaugesFunc(a.registry, "sluice_certificate_expires_timestamp_seconds", each(func(s tls.State) float64 {
			if s.Expires.IsZero() {
				return 0
			}
			return float64(s.Expires.Unix())
		})),
		telemetry.GaugesFunc(a.registry, "sluice_certificate_failing", each(func(s tls.State) float64 {
			if s.Failing {
				return 1
			}
			return 0
		})),
	)
}

// checkTLS says what is wrong with the files that TLS needs, which is an error, and what
// is unwise.
func checkTLS(c *config.Config, now time.Time) (unwise []string, err error) {
	switch c.TLS.Mode {
	case config.TLSFiles:
		ofCert, ofKey, err := tls.CheckFiles(c.TLS.Cert, c.TLS.Key, c.OriginHost(), now)
		if err != nil {
			return nil, fmt.Errorf("tls.cert, tls.key: %w", err)
		}
		for _, w := range ofCert {
			unwise = append(unwise, "tls.cert: "+c.TLS.Cert+" "+w)
		}
		for _, w := range ofKey {
			unwise = append(unwise, "tls.key: "+c.TLS.Key+" "+w)
		}
	case config.TLSACME:
		if _, err := acmeRoots(c.TLS.CARoot); err != nil {
			return nil, fmt.Errorf("tls.ca_root: %w", err)
		}
		if info, err := os.Stat(filepath.Clean(c.TLS.Storage)); c.TLS.Storage != "" && err == nil && !info.IsDir() {
			return nil, fmt.Errorf("tls.storage: %s is no folder", c.TLS.Storage)
		}
	}
	return unwise, nil
}
