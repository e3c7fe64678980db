package gateway

import (
	"net/http"
	"slices"
	"testing"

	"sluice/auth"
	"sluice/internal/tenant"
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
	for _, st := range slices.Backward(b.chain.order()) {
		b.chain.serve = st.run(b.chain.serve)
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

// Counting a request allocates nothing. It is what the meter's steps do that is looked at:
// with the race detector, pools of the rest make the whole vary.
func TestMeteringAllocatesNothing(t *testing.T) {
	for _, tc := range chainCases() {
		c := newMeteredBench(t, tc, usage.NewMeter(usage.Options{StreamReads: 100})).chain
		rt, err := parseRoute(tc.method, tc.target)
		if err != nil {
			t.Fatal(err)
		}
		s := &Scope{Route: rt, Account: &tenant.Account{}, Principal: &auth.Principal{KeyID: "k", Account: rt.Account}}
		count := func() {
			s.metered = false
			c.openUse(s)
			s.answered(http.StatusOK)
			s.answer.use.Sent(1)
			c.countUse(s, s.Start)
		}
		count()
		if n := testing.AllocsPerRun(200, count); n > 0 {
			t.Errorf("%s: %v allocations", tc.name, n)
		}
	}
}
