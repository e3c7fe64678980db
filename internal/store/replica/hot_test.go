package replica

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"sluice/internal/store"
	"sluice/internal/tenant"
)

// hot is a replica on the machine's clock that knows many things.
func hot(tb testing.TB, many int) *Replica {
	tb.Helper()
	s := newScript()
	for i := range many {
		k := key(fmt.Sprint("acme/", i), fmt.Sprint("k", i))
		s.keys[k.Digest] = k
		name := tenant.StreamName(fmt.Sprint("s", i))
		s.streams[streamID{"acme", name}] = stream(name)
	}
	s.accounts["acme"] = store.Account{ID: "acme", State: tenant.Active}
	s.cutoffs["acme/0"] = store.Cutoff{KeyID: "acme/0", At: time.Unix(1, 0)}
	r := New(tb.Context(), Options{Source: s, StaleFor: time.Hour, Defaults: tenant.DefaultLimits()})
	tb.Cleanup(func() { _ = r.Close() })
	eventually(tb, "the first reading", func() bool { return r.Ready() == nil })
	for i := range many {
		if _, err := r.Key(tb.Context(), tenant.DigestOf(fmt.Sprint("k", i))); err != nil {
			tb.Fatal(err)
		}
		if _, err := r.Stream(tb.Context(), "acme", tenant.StreamName(fmt.Sprint("s", i))); err != nil {
			tb.Fatal(err)
		}
	}
	return r
}

// questions are what one request asks.
func questions(tb testing.TB, r *Replica) map[string]func() {
	tb.Helper()
	ctx, digest := tb.Context(), tenant.DigestOf("k1")
	fail := func(err error) {
		if err != nil {
			tb.Fatal(err)
		}
	}
	return map[string]func(){
		"Key":         func() { _, err := r.Key(ctx, digest); fail(err) },
		"Account":     func() { _, err := r.Account(ctx, "acme"); fail(err) },
		"Stream":      func() { _, err := r.Stream(ctx, "acme", "s1"); fail(err) },
		"Cutoff":      func() { r.Cutoff("acme/0") },
		"SigningKeys": func() { _, err := r.SigningKeys(ctx); fail(err) },
		"Used":        func() { r.Used("acme/1") },
	}
}

// The request path allocates nothing for what is known.
func TestHotLookUpsAllocateNothing(t *testing.T) {
	r := hot(t, 100)
	for name, ask := range questions(t, r) {
		if n := testing.AllocsPerRun(1000, ask); n >= 1 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

// Whoever asks, what changes and what looks at the state do not disturb one another, on
// as many processors as there are.
func TestAllAtOnce(t *testing.T) {
	const many, rounds = 50, 2000
	s := newScript()
	for i := range many {
		k := key(fmt.Sprint("acme/", i), fmt.Sprint("k", i))
		s.keys[k.Digest] = k
	}
	s.accounts["acme"] = store.Account{ID: "acme", State: tenant.Active}
	r := New(t.Context(), Options{Source: s, StaleFor: time.Hour, Keys: many / 2})
	defer func() { _ = r.Close() }()
	eventually(t, "the first reading", func() bool { return r.Ready() == nil })
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := range rounds {
				id := fmt.Sprint("acme/", i%many)
				if k, err := r.Key(t.Context(), tenant.DigestOf(fmt.Sprint("k", i%many))); err != nil || k.ID != id {
					t.Errorf("%s: %v, %v", id, k, err)
				}
				if a, err := r.Account(t.Context(), "acme"); err != nil || a.Limits.Burst > rounds {
					t.Errorf("account: %v, %v", a, err)
				}
				r.Used(id)
				r.Cutoff(id)
			}
		})
	}
	all.Go(func() {
		for i := range rounds {
			id := fmt.Sprint("acme/", i%many)
			s.change(func(s *script) { s.cutoffs[id] = store.Cutoff{KeyID: id, At: time.Unix(int64(i), 0)} }, keyChanged(id), accountChanged())
			r.SetDefaults(tenant.Limits{Burst: i})
			if n := r.Stats().Keys; n > many/2 {
				t.Errorf("%d keys are known", n)
			}
		}
	})
	all.Wait()
	eventually(t, "the last change", func() bool { return r.Stats().Revision == 2*rounds })
	if at := r.Cutoff("acme/0"); at.Unix() != rounds-many {
		t.Errorf("cutoff %v", at)
	}
}

// A full cache takes no more than is stated: about 600 bytes for each thing.
func TestMemoryOfAThing(t *testing.T) {
	const many = 20_000
	u := newTable[tenant.Digest](t.Context(), newReach(time.Now, 0), many, func(k *tenant.Key) string { return k.ID }, nil)
	before := heap()
	for i := range 2 * many {
		k := key(fmt.Sprintf("acme/%032d", i), fmt.Sprint(i))
		u.good.put(k.Digest, &k)
	}
	each := (heap() - before) / many
	if each > 700 {
		t.Errorf("a key takes %d bytes", each)
	}
	t.Logf("a key takes %d bytes", each)
	runtime.KeepAlive(u)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func BenchmarkHot(b *testing.B) {
	r := hot(b, 50_000)
	for name, ask := range questions(b, r) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					ask()
				}
			})
		})
		b.Run(name+"/alone", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				ask()
			}
		})
	}
}
