package gateway

import (
	"net/http"
	"slices"
	"testing"

	"sluice/internal/usage"
)

// newMeteredBench is a chainBench whose innermost handler answers as a node does.
func newMeteredBench(tb testing.TB, tc chainCase, meter Meter) *chainBench {
	tb.Helper()
	b := newChainBench(tb, tc.method, tc.target, tc.key)
	b.chain.Meter = meter
	body := make([]byte, 100)
	b.chain.serve = func(s *Scope, w http.ResponseWriter, _ *http.Request) error {
		b.chain.openUse(s)
		s.answered(http.StatusOK)
		_, err := w.Write(body)
		return err
	}
	for _, step := range slices.Backward(b.chain.order()) {
		b.chain.serve = step(b.chain.serve)
	}
	return b
}

// BenchmarkMetered is BenchmarkServe with an answer, without a meter and with one.
func BenchmarkMetered(b *testing.B) {
	for name, meter := range map[string]Meter{"unmetered": nil, "metered": usage.NewMeter(usage.Options{StreamReads: 100})} {
		for _, tc := range chainCases()[:4] {
			b.Run(name+"/"+tc.name, func(b *testing.B) {
				c := newMeteredBench(b, tc, meter)
				b.ReportAllocs()
				for b.Loop() {
					c.whole()
				}
			})
		}
	}
}

// Counting a request allocates nothing.
func TestMeteringAllocatesNothing(t *testing.T) {
	for _, tc := range chainCases() {
		allocations := func(meter Meter) float64 {
			c := newMeteredBench(t, tc, meter)
			c.whole()
			return testing.AllocsPerRun(200, c.whole)
		}
		if without, with := allocations(nil), allocations(usage.NewMeter(usage.Options{StreamReads: 100})); with > without {
			t.Errorf("%s: %v allocations with a meter, %v without", tc.name, with, without)
		}
	}
}
