package ratelimit_test

import (
	"testing"

	"sluice/ratelimit"
)

func BenchmarkAllow(b *testing.B) {
	m := ratelimit.NewMemory(ratelimit.MemoryOptions{})
	s, r := account(1), ratelimit.Rate{PerSecond: 1_000_000_000, Burst: 1_000_000_000}
	b.ReportAllocs()
	for b.Loop() {
		if !m.Allow(s, r).Allowed {
			b.Fatal("refused")
		}
	}
}

func BenchmarkAllowRefused(b *testing.B) {
	m, _ := newMemory()
	s, r := account(1), ratelimit.Rate{PerSecond: 1, Burst: 1}
	m.Allow(s, r)
	b.ReportAllocs()
	for b.Loop() {
		if m.Allow(s, r).Allowed {
			b.Fatal("admitted")
		}
	}
}

// BenchmarkAllowAmongMany has 100,000 accounts in use, asked for in no order.
func BenchmarkAllowAmongMany(b *testing.B) {
	m := ratelimit.NewMemory(ratelimit.MemoryOptions{})
	r := ratelimit.Rate{PerSecond: 1, Burst: 1_000_000_000}
	subjects := make([]ratelimit.Subject, 100_000)
	for i := range subjects {
		subjects[i] = account(i)
		m.Allow(subjects[i], r)
	}
	at := 0
	b.ReportAllocs()
	for b.Loop() {
		m.Allow(subjects[at], r)
		at = (at + 61_001) % len(subjects)
	}
}

// BenchmarkAllowNewSubjects is a flood of subjects never seen before, sweeps
// included.
func BenchmarkAllowNewSubjects(b *testing.B) {
	m := ratelimit.NewMemory(ratelimit.MemoryOptions{})
	r := ratelimit.Rate{PerSecond: 50, Burst: 100}
	var name [8]byte
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		for i, v := 0, n; i < len(name); i, v = i+1, v/26 {
			name[i] = "abcdefghijklmnopqrstuvwxyz"[v%26]
		}
		n++
		m.Allow(ratelimit.Subject{Account: string(name[:])}, r)
	}
	b.ReportMetric(float64(m.Subjects()), "subjects")
}

func BenchmarkAllowParallel(b *testing.B) {
	m := ratelimit.NewMemory(ratelimit.MemoryOptions{})
	r := ratelimit.Rate{PerSecond: 1_000_000_000, Burst: 1_000_000_000}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			m.Allow(ratelimit.Subject{Account: "acme", Public: i%2 == 0}, r)
		}
	})
}

func BenchmarkTails(b *testing.B) {
	m := ratelimit.NewMemory(ratelimit.MemoryOptions{})
	ctx := b.Context()
	s := account(1)
	b.ReportAllocs()
	for b.Loop() {
		lease, err := m.Acquire(ctx, s, 16)
		if err != nil {
			b.Fatal(err)
		}
		lease.Release()
	}
}
