package tls

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"sluice/internal/bubble"
)

func internalOptions(dir string, names ...string) InternalOptions {
	return InternalOptions{Names: names, Dir: dir, Log: zap.NewNop(), Now: time.Now, Random: rand.Reader}
}

func trusts(t *testing.T, i *Internal, name string) bool {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(i.Root()) {
		t.Fatal("the authority's certificate is no PEM")
	}
	c, err := i.Certificate(&tls.ClientHelloInfo{ServerName: name})
	if err != nil {
		t.Fatal(err)
	}
	if c == nil {
		return false
	}
	_, err = c.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: time.Now()})
	return err == nil
}

// C05: names that nobody asked for got some certificate, or none where there was one.
func TestInternalNames(t *testing.T) {
	t.Parallel()
	i, err := OpenInternal(internalOptions("", "streams.example.com", "*.dev.example.com", "192.0.2.7"))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"streams.example.com": true, "STREAMS.example.com": true, "localhost": true, "127.0.0.1": true, "::1": true, "192.0.2.7": true,
		"a.dev.example.com": true, "a.b.dev.example.com": false, "dev.example.com": false, "other.example.com": false, "example.com": false,
	} {
		if trusts(t, i, name) != want {
			t.Errorf("%s: want %t", name, want)
		}
	}
	if c, err := i.Certificate(&tls.ClientHelloInfo{}); c == nil || err != nil {
		t.Errorf("no name: %v", err)
	}
	if err := i.Set([]string{"streams.example.com", "other.example.com"}); err != nil || !trusts(t, i, "other.example.com") || trusts(t, i, "a.dev.example.com") {
		t.Errorf("other names: %v", err)
	}
	if s := i.States(); len(s) != 1 || s[0].Domain != "streams.example.com" {
		t.Errorf("%+v", s)
	}
}

// Several processes that start at once have one authority, and its key is its owner's.
func TestInternalAuthorityIsKept(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "tls")
	all := make([]*Internal, 8)
	var starting sync.WaitGroup
	for n := range all {
		starting.Go(func() {
			var err error
			if all[n], err = OpenInternal(internalOptions(dir, "streams.example.com")); err != nil {
				t.Error(err)
			}
		})
	}
	starting.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for _, i := range all {
		if string(i.Root()) != string(all[0].Root()) {
			t.Fatal("two authorities")
		}
	}
	text, err := os.ReadFile(all[0].RootFile())
	if err != nil || string(text) != string(all[0].Root()) {
		t.Errorf("the file for clients: %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("%v, %v", entries, err)
	}
	info, err := os.Stat(filepath.Join(dir, rootKeyFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	write(t, filepath.Join(dir, rootKeyFile), "half")
	if _, err := OpenInternal(internalOptions(dir, "streams.example.com")); err == nil {
		t.Error("half of an authority was taken, or silently replaced")
	}
}

func TestInternalRenewal(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		i, err := OpenInternal(internalOptions("", "streams.example.com"))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { i.Run(ctx) })
		defer running.Wait()
		defer stop()
		first := i.inUse.Load()
		pass(t, leafLife/2)
		if i.inUse.Load() != first {
			t.Error("renewed too early")
		}
		pass(t, leafLife/3)
		if i.inUse.Load() == first || !trusts(t, i, "streams.example.com") {
			t.Error("not renewed")
		}
		pass(t, 4*leafLife)
		if Missing(i.States(), time.Now()) != "" {
			t.Error("it expired")
		}
	})
}
