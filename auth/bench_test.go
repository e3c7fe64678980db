package auth

import (
	"fmt"
	"strings"
	"testing"

	"sluice/internal/tenant"
)

// BenchmarkAuthenticateMillionKeys is the whole of authentication, header to
// principal, among 1,000,000 keys asked for in no order, so that no record is in
// a cache. Target: under 2 µs.
func BenchmarkAuthenticateMillionKeys(b *testing.B) {
	directory, headers := millionKeys(b)
	a := New(Options{Directory: directory})
	ctx := b.Context()
	at := 0
	b.ReportAllocs()
	for b.Loop() {
		if p, err := a.Authenticate(ctx, headers[at:at+1]); p == nil || err != nil {
			b.Fatal(p, err)
		}
		at = (at + 1) % len(headers)
	}
}

// millionKeys is a directory of 1,000,000 keys and a header for each. The
// headers lie one behind the other, as a header just read from a connection is
// in the cache; the records they lead to lie far apart.
func millionKeys(b *testing.B) (*keyMap, []string) {
	b.Helper()
	const keys, stride = 1_000_000, 611_953 // without a common divisor
	directory := &keyMap{keys: make(map[tenant.Digest]*tenant.Key, keys)}
	headers := make([]string, keys)
	random := seeded()
	for i := range keys {
		key, err := GenerateKey(random)
		if err != nil {
			b.Fatal(err)
		}
		digest := tenant.DigestOf(key.Reveal())
		directory.keys[digest] = &tenant.Key{
			ID: fmt.Sprint("key_", i), Account: "acme", Digest: digest,
			Access: tenant.WriteAccess, Streams: tenant.AllStreams(), ActsAs: tenant.User,
		}
		headers[i*stride%keys] = "Bearer " + key.Reveal()
	}
	all, size := strings.Join(headers, ""), len(headers[0])
	for i := range headers {
		headers[i] = all[i*size : (i+1)*size]
	}
	return directory, headers
}

// BenchmarkAuthenticateRefused is what a scanner costs: no look-up is made.
func BenchmarkAuthenticateRefused(b *testing.B) {
	a := New(Options{Directory: &keyMap{}})
	values := []string{"Bearer tbo_" + strings.Repeat("0123456789", 4)}
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		if p, err := a.Authenticate(ctx, values); p != nil || err == nil {
			b.Fatal(p, err)
		}
	}
}

func BenchmarkBearer(b *testing.B) {
	values := []string{"Bearer " + keyVectors()[0]}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := Bearer(values); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCheckKey(b *testing.B) {
	key := keyVectors()[0]
	b.ReportAllocs()
	for b.Loop() {
		if err := CheckKey(key); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	p := &Principal{Account: "acme", Access: tenant.WriteAccess, Streams: mustStreams(b, "logs", "ev*")}
	s := Resource{Account: "acme", Name: "events"}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decide(p, s, true); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGenerateKey(b *testing.B) {
	random := seeded()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := GenerateKey(random); err != nil {
			b.Fatal(err)
		}
	}
}
