package tls

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

const (
	// filesEvery is how often the pair is looked at. It is read, not watched: a look costs
	// two small reads, and sees what renames, swapped symbolic links and network folders
	// do alike (C07).
	filesEvery = 5 * time.Second
	// maxPEM bounds a file of the pair, in bytes.
	maxPEM = 1 << 20
	// maxNames bounds the names of a certificate that are told of.
	maxNames = 100
)

// FilesOptions say where a certificate and its key are.
type FilesOptions struct {
	Cert, Key string // paths of PEM files
	Log       *zap.Logger
	Now       func() time.Time
}

// Files serves the one certificate of a pair of files, whatever name a client asks for. A
// pair is taken as a whole or not at all.
type Files struct {
	log   *zap.Logger
	now   func() time.Time
	inUse atomic.Pointer[tls.Certificate]

	mu      sync.Mutex // guards what follows, and is held over reading
	paths   pair[string]
	seen    pair[[]byte] // what was read last
	failing bool
}

// pair is something of the certificate and of its key.
type pair[T any] struct{ cert, key T }

// OpenFiles reads the pair. An error says what is wrong with it.
func OpenFiles(o FilesOptions) (*Files, error) {
	f := &Files{log: o.Log, now: o.Now}
	return f, f.Set(o.Cert, o.Key)
}

// Set reads the pair, anew where the paths are the same. What is wrong with a pair at
// other paths is an error, and nothing is changed; one at the same paths may be half
// written, so that the one in use goes on and State says so.
func (f *Files) Set(cert, key string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	paths := pair[string]{cert, key}
	if paths == f.paths {
		f.look()
		return nil
	}
	seen, c, err := f.read(paths)
	if err != nil {
		return err
	}
	f.paths, f.seen, f.failing = paths, seen, false
	f.use(c)
	return nil
}

// Run looks at the pair every 5 s until ctx ends.
func (f *Files) Run(ctx context.Context) {
	every(ctx, filesEvery, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.look()
	})
}

// look takes the pair where it has changed and is a good one.
func (f *Files) look() {
	seen, c, err := f.read(f.paths)
	switch {
	case err != nil && !f.failing:
		f.failing = true
		f.log.Warn("the certificate's files are no pair: the one before stays in use", zap.Error(err))
	case err != nil:
	case f.failing || !bytes.Equal(seen.cert, f.seen.cert) || !bytes.Equal(seen.key, f.seen.key):
		f.seen, f.failing = seen, false
		f.use(c)
	}
}

func (f *Files) use(c *tls.Certificate) {
	f.inUse.Store(c)
	f.log.Info("certificate in use", zap.Strings("names", namesOf(c)), zap.Time("expires", c.Leaf.NotAfter))
}

// read reads a pair, and refuses one that is worse than what is in use.
func (f *Files) read(paths pair[string]) (seen pair[[]byte], c *tls.Certificate, err error) {
	if seen.cert, err = readPEM(paths.cert); err != nil {
		return seen, nil, err
	}
	if seen.key, err = readPEM(paths.key); err != nil {
		return seen, nil, err
	}
	made, err := tls.X509KeyPair(seen.cert, seen.key)
	if err != nil {
		return seen, nil, fmt.Errorf("%s and %s: %w", paths.cert, paths.key, err)
	}
	now := f.now()
	if in := f.inUse.Load(); in != nil && now.After(made.Leaf.NotAfter) && now.Before(in.Leaf.NotAfter) {
		return seen, nil, fmt.Errorf("%s: %w", paths.cert, errExpired)
	}
	return seen, &made, nil
}

var (
	errExpired    = errors.New("the certificate has expired")
	errNotRegular = errors.New("it is no regular file")
	errTooLarge   = fmt.Errorf("it is larger than %d bytes", maxPEM)
)

// readPEM reads a file that may be a pipe by mistake, or large.
func readPEM(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "read", Path: path, Err: errNotRegular}
	}
	if err != nil {
		return nil, err
	}
	file, err := os.Open(path) //nolint:gosec // the operator names this file
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, maxPEM+1))
	if err == nil && len(text) > maxPEM {
		err = &fs.PathError{Op: "read", Path: path, Err: errTooLarge}
	}
	return text, err
}

// Certificate implements Source.
func (f *Files) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return f.inUse.Load(), nil
}

// States implements Source: one for each name of the certificate.
func (f *Files) States() []State {
	f.mu.Lock()
	failing := f.failing
	f.mu.Unlock()
	c := f.inUse.Load()
	if c == nil {
		return nil
	}
	var states []State
	for _, name := range namesOf(c) {
		states = append(states, State{Domain: name, Expires: c.Leaf.NotAfter, Failing: failing})
	}
	return states
}

// namesOf are those that a certificate is for.
func namesOf(c *tls.Certificate) []string {
	names := append([]string(nil), c.Leaf.DNSNames...)
	for _, ip := range c.Leaf.IPAddresses {
		names = append(names, ip.String())
	}
	if len(names) == 0 { // good for no client of today, but it is what there is
		names = []string{c.Leaf.Subject.CommonName}
	}
	return names[:min(len(names), maxNames)]
}

const (
	// soonTime and soonPart say when a certificate is about to expire: the shorter counts.
	soonTime = 14 * 24 * time.Hour
	soonPart = 3
	// readByAll are the modes of a key that others than its owner and group may read.
	readByAll fs.FileMode = 0o007
)

// CheckFiles says of a pair what is wrong, which is an error, and what is unwise about the
// certificate and about its key. host is what clients call the gateway.
func CheckFiles(cert, key, host string, now time.Time) (ofCert, ofKey []string, err error) {
	f := &Files{now: func() time.Time { return now }}
	_, c, err := f.read(pair[string]{cert, key})
	if err != nil {
		return nil, nil, err
	}
	leaf := c.Leaf
	switch left := leaf.NotAfter.Sub(now); {
	case left <= 0:
		ofCert = append(ofCert, "has expired at "+leaf.NotAfter.Format(time.RFC3339)+": the gateway is not ready, and clients refuse it")
	case now.Before(leaf.NotBefore):
		ofCert = append(ofCert, "is not valid before "+leaf.NotBefore.Format(time.RFC3339))
	case left < min(soonTime, leaf.NotAfter.Sub(leaf.NotBefore)/soonPart):
		ofCert = append(ofCert, "expires at "+leaf.NotAfter.Format(time.RFC3339)+"; put the next one there")
	}
	if leaf.VerifyHostname(host) != nil {
		ofCert = append(ofCert, "is not for the host of origin, "+host+": clients refuse it")
	}
	if info, err := os.Stat(key); err == nil && info.Mode().Perm()&readByAll != 0 {
		ofKey = append(ofKey, fmt.Sprintf("can be read by everybody on this machine (mode %04o); chmod 0600", info.Mode().Perm()))
	}
	return ofCert, ofKey, nil
}

var _ Source = (*Files)(nil)
