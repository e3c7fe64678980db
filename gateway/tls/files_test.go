package tls

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"sluice/internal/bubble"
)

// text is a certificate and its key in PEM.
func text(t *testing.T, c *tls.Certificate) (cert, key string) {
	t.Helper()
	raw, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}))
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// folder writes a pair into a folder.
func folder(t *testing.T, dir string, c *tls.Certificate) (cert, key string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	a, b := text(t, c)
	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	write(t, cert, a)
	write(t, key, b)
	return cert, key
}

// watched serves a pair in a bubble.
func watched(t *testing.T, cert, key string) (*Files, *observer.ObservedLogs) {
	t.Helper()
	core, lines := observer.New(zap.InfoLevel)
	f, err := OpenFiles(FilesOptions{Cert: cert, Key: key, Log: zap.New(core), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { f.Run(ctx) })
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	return f, lines
}

func (f *Files) serves(t *testing.T, c *tls.Certificate, failing bool) {
	t.Helper()
	got, err := f.Certificate(&tls.ClientHelloInfo{ServerName: "any.example.org"})
	if err != nil || !got.Leaf.Equal(c.Leaf) {
		t.Errorf("another certificate is served: %v", err)
	}
	for _, s := range f.States() {
		if s.Failing != failing || !s.Expires.Equal(c.Leaf.NotAfter) {
			t.Errorf("%+v, want failing %t", s, failing)
		}
	}
}

// C07: the certificate was read before its key was replaced, or half written, and what was
// served then was neither the old pair nor the new.
func TestPairIsTakenWhole(t *testing.T) {
	for _, first := range []string{"cert", "key"} {
		t.Run(first+" first", func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				before, after := made(t, time.Now(), time.Hour, "a.example.com"), made(t, time.Now(), 2*time.Hour, "a.example.com", "b.example.com")
				cert, key := folder(t, t.TempDir(), before)
				f, lines := watched(t, cert, key)
				f.serves(t, before, false)
				a, b := text(t, after)
				steps := []func(){func() { write(t, cert, a) }, func() { write(t, key, b) }}
				if first == "key" {
					slices.Reverse(steps)
				}
				steps[0]()
				pass(t, 4*filesEvery)
				f.serves(t, before, true)
				if n := lines.FilterMessageSnippet("no pair").Len(); n != 1 {
					t.Errorf("told %d times", n)
				}
				steps[1]()
				pass(t, filesEvery)
				f.serves(t, after, false)
				write(t, cert, a[:len(a)/2])
				pass(t, filesEvery)
				f.serves(t, after, true)
				write(t, cert, a)
				pass(t, filesEvery)
				f.serves(t, after, false)
				if err := os.Remove(key); err != nil {
					t.Fatal(err)
				}
				pass(t, filesEvery)
				f.serves(t, after, true)
			})
		})
	}
}

// C07: Kubernetes replaces a folder by a symbolic link that is renamed over the one before.
func TestSwappedLink(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		before, after := made(t, time.Now(), time.Hour, "a.example.com"), made(t, time.Now(), 2*time.Hour, "a.example.com")
		folder(t, filepath.Join(dir, "..1"), before)
		folder(t, filepath.Join(dir, "..2"), after)
		link := func(to string) {
			next := filepath.Join(dir, "..next")
			if err := os.Symlink(to, next); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(next, filepath.Join(dir, "..data")); err != nil {
				t.Fatal(err)
			}
		}
		link("..1")
		f, _ := watched(t, filepath.Join(dir, "..data", "tls.crt"), filepath.Join(dir, "..data", "tls.key"))
		f.serves(t, before, false)
		link("..2")
		pass(t, filesEvery)
		f.serves(t, after, false)
	})
}

// A pair that has expired does not take the place of one that has not.
func TestExpiredPairIsNotTaken(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		good, bad := made(t, time.Now(), time.Hour, "a.example.com"), made(t, time.Now().Add(-2*time.Hour), time.Hour, "a.example.com")
		dir := t.TempDir()
		cert, key := folder(t, dir, good)
		f, _ := watched(t, cert, key)
		folder(t, dir, bad)
		pass(t, filesEvery)
		f.serves(t, good, true)
	})
}

// A reload to other files is refused where they are no pair; the same files are looked at.
func TestSetOtherFiles(t *testing.T) {
	t.Parallel()
	one, two := made(t, time.Now(), time.Hour, "a.example.com"), made(t, time.Now(), 2*time.Hour, "a.example.com")
	dir := t.TempDir()
	cert, key := folder(t, filepath.Join(dir, "1"), one)
	cert2, key2 := folder(t, filepath.Join(dir, "2"), two)
	f, err := OpenFiles(FilesOptions{Cert: cert, Key: key, Log: zap.NewNop(), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Set(cert2, key); err == nil {
		t.Error("the key of another certificate was taken")
	}
	f.serves(t, one, false)
	if err := f.Set(cert2, key2); err != nil {
		t.Error(err)
	}
	f.serves(t, two, false)
	folder(t, filepath.Join(dir, "2"), one)
	if err := f.Set(cert2, key2); err != nil {
		t.Error(err)
	}
	f.serves(t, one, false)
	for name, path := range map[string]string{"a folder": dir, "nothing": filepath.Join(dir, "none")} {
		if _, err := OpenFiles(FilesOptions{Cert: path, Key: key, Log: zap.NewNop(), Now: time.Now}); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

func TestCheckFiles(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, tc := range map[string]struct {
		c    *tls.Certificate
		host string
		mode os.FileMode
		want []string
	}{
		"good":      {made(t, now, 90*24*time.Hour, "a.example.com"), "a.example.com", 0o640, nil},
		"a day":     {made(t, now.Add(-time.Hour), 24*time.Hour, "a.example.com"), "a.example.com", 0o600, nil},
		"expired":   {made(t, now.Add(-2*time.Hour), time.Hour, "a.example.com"), "a.example.com", 0o600, []string{"has expired"}},
		"soon":      {made(t, now.Add(-80*24*time.Hour), 90*24*time.Hour, "a.example.com"), "a.example.com", 0o600, []string{"expires at"}},
		"not yet":   {made(t, now.Add(time.Hour), 90*24*time.Hour, "a.example.com"), "a.example.com", 0o600, []string{"not valid before"}},
		"wildcard":  {made(t, now, 90*24*time.Hour, "*.example.com"), "a.example.com", 0o600, nil},
		"one label": {made(t, now, 90*24*time.Hour, "*.example.com"), "a.b.example.com", 0o600, []string{"not for the host"}},
		"open":      {made(t, now, 90*24*time.Hour, "a.example.com"), "a.example.com", 0o644, []string{"read by everybody"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cert, key := folder(t, t.TempDir(), tc.c)
			if err := os.Chmod(key, tc.mode); err != nil {
				t.Fatal(err)
			}
			ofCert, ofKey, err := CheckFiles(cert, key, tc.host, now)
			got := append(ofCert, ofKey...)
			if err != nil || len(got) != len(tc.want) {
				t.Fatalf("%q, %v; want %q", got, err, tc.want)
			}
			for i, w := range tc.want {
				if !strings.Contains(got[i], w) {
					t.Errorf("%q, want %q", got[i], w)
				}
			}
		})
	}
}
