package auth

import (
	"testing"
	"time"
)

// BenchmarkTokenSeen is authentication by a token that was verified before,
// header to principal: hashing it, and all that can have ended it since.
// Target: under 2 µs.
func BenchmarkTokenSeen(b *testing.B) {
	r := newTokenRig(b, nil)
	token := r.token(b, r.secrets["acme/full"], "resource", rigOrigin+"/acme/s.events", "resource", rigOrigin+"/acme/s.logs.*")
	values := bearer(token)
	ctx := b.Context()
	b.ReportAllocs()
	b.SetBytes(int64(len(token)))
	for b.Loop() {
		if p, err := r.Authenticate(ctx, values); p == nil || err != nil {
			b.Fatal(p, err)
		}
	}
}

// BenchmarkTokenSeenParallel is the same from all processors at one time: the
// memory of tokens has one lock.
func BenchmarkTokenSeenParallel(b *testing.B) {
	r := newTokenRig(b, nil)
	values := bearer(r.token(b, r.secrets["acme/full"]))
	ctx := b.Context()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if p, err := r.Authenticate(ctx, values); p == nil || err != nil {
				b.Fatal(p, err)
			}
		}
	})
}

// BenchmarkTokenFirst is a token that was not seen before. Target: under 150 µs.
func BenchmarkTokenFirst(b *testing.B) {
	r := newTokenRig(b, nil)
	values := bearer(r.token(b, r.secrets["acme/full"], "resource", rigOrigin+"/acme/s.events", "resource", rigOrigin+"/acme/s.logs.*"))
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		r.tokens.list.Purge()
		if p, err := r.Authenticate(ctx, values); p == nil || err != nil {
			b.Fatal(p, err)
		}
	}
}

// BenchmarkTokenBad is what a loader of bad tokens costs, by how far they come.
func BenchmarkTokenBad(b *testing.B) {
	r := newTokenRig(b, nil)
	stranger := newOtherKey(b, "x", "ES256")
	for _, tc := range []struct{ name, token string }{
		{"malformed", "abc.def.ghi"},
		{"algorithm", mint(b, r.header().with("alg", "HS256"), r.claims(), []byte("x"))},
		{"key", mint(b, r.header().with("kid", "x"), r.claims(), stranger.private)},
		{"signature", mint(b, r.header(), r.claims(), stranger.private)},
	} {
		b.Run(tc.name, func(b *testing.B) {
			values := bearer(tc.token)
			ctx := b.Context()
			b.ReportAllocs()
			for b.Loop() {
				if p, err := r.Authenticate(ctx, values); p != nil || err == nil {
					b.Fatal(p, err)
				}
			}
		})
	}
}

// BenchmarkOtherToken is another issuer's token, first and seen.
func BenchmarkOtherToken(b *testing.B) {
	for _, alg := range []string{"RS256", "ES256", "ES384"} {
		key := newOtherKey(b, "k1", alg)
		provider := newIDP()
		provider.serve(idpKeys, keysOK(b, key))
		issuers := NewIssuers(IssuersOptions{Transport: provider})
		if err := issuers.Set([]IssuerOptions{idpOptions()}); err != nil {
			b.Fatal(err)
		}
		a := New(Options{Directory: newTokenRig(b, nil).directory, Issuers: issuers})
		values := bearer(otherToken(b, key, time.Now()))
		ctx := b.Context()
		for _, first := range []bool{true, false} {
			b.Run(alg+map[bool]string{true: "/first", false: "/seen"}[first], func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if first {
						a.tokens.list.Purge()
					}
					if p, err := a.Authenticate(ctx, values); p == nil || err != nil {
						b.Fatal(p, err)
					}
				}
			})
		}
		issuers.Close()
	}
}

// BenchmarkExchange is a token made from a key.
func BenchmarkExchange(b *testing.B) {
	r := newTokenRig(b, nil)
	form := exchangeForm(r.secrets["acme/full"], "scope", "streams:read", "resource", rigOrigin+"/acme/s.events")
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		req, err := ParseExchange(form)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := r.x.Exchange(ctx, req); err != nil {
			b.Fatal(err)
		}
	}
}
