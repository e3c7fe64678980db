package store

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"sluice/internal/usage"
)

// aBatch is one of two accounts.
func (r *rig) aBatch(replica string, sequence int64) *usage.Batch {
	hour := usage.HourOf(r.clock.read())
	counts := usage.Counts{Requests: 1, RequestBytes: 10, ResponseBytes: 100, HeartbeatBytes: 3, Tail: 1500, Refused: 2, Chunks: 4}
	record := func(account string, class usage.Class, key string) usage.Record {
		return usage.Record{Account: account, Class: class, Hour: hour, Principal: &usage.Principal{KeyID: key}, Counts: counts}
	}
	return &usage.Batch{Replica: replica, Sequence: sequence, Records: []usage.Record{
		record("acme", usage.Append, "one"), record("acme", usage.Append, "two"), record("acme", usage.LiveRead, "one"), record("other", usage.Read, "x"),
	}}
}

func times(c usage.Counts, n int64) usage.Counts {
	return usage.Counts{
		Requests: n * c.Requests, RequestBytes: n * c.RequestBytes, ResponseBytes: n * c.ResponseBytes,
		HeartbeatBytes: n * c.HeartbeatBytes, Tail: c.Tail * usage.Millis(n), Refused: n * c.Refused, Chunks: n * c.Chunks,
	}
}

// M4 of facts §13: a batch that is written again, since its answer was lost, is counted
// once; the same number of another replica is another batch.
func TestUsageIsAddedOnce(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		for _, b := range []*usage.Batch{r.aBatch("a", 1), r.aBatch("b", 1), r.aBatch("a", 1), r.aBatch("a", 2), r.aBatch("b", 1)} {
			must(t, r.WriteUsage(t.Context(), b))
		}
		one := r.aBatch("", 0).Records[0].Counts
		hour := usage.HourOf(r.clock.read())
		got, err := r.Usage(t.Context(), "acme", UsageQuery{From: hour, To: hour + 1, Limit: 10})
		must(t, err)
		equal(t, "hours", got, []UsageHour{{hour, usage.Append, times(one, 6)}, {hour, usage.LiveRead, times(one, 3)}})
		batches, err := r.UsageBatches(t.Context(), 0, 10, 1<<20)
		must(t, err)
		names := make([]string, 0, len(batches))
		last := int64(0)
		for _, b := range batches {
			var read usage.Batch
			must(t, json.Unmarshal(b.Content, &read))
			names = append(names, fmt.Sprint(read.Replica, read.Sequence))
			if b.Position <= last {
				t.Errorf("position %d follows %d", b.Position, last)
			}
			last = b.Position
			equal(t, "records", read.Records, r.aBatch("", 0).Records)
		}
		equal(t, "batches", names, []string{"a1", "b1", "a2"})
	})
}

// Each hour is on one page, whatever the size of a page; a class is listed alone.
func TestUsagePages(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		start := usage.HourOf(r.clock.read())
		for i := range 5 {
			must(t, r.WriteUsage(t.Context(), r.aBatch("a", int64(i+1))))
			r.clock.pass(time.Hour)
		}
		all := UsageQuery{From: start + 3600, To: start + 4*3600, Limit: 100}
		whole, err := r.Usage(t.Context(), "acme", all)
		must(t, err)
		if len(whole) != 6 {
			t.Fatalf("%d rows of three hours and two classes", len(whole))
		}
		for limit := 1; limit < 8; limit++ {
			var paged []UsageHour
			for q := all; ; {
				q.Limit = limit
				page, err := r.Usage(t.Context(), "acme", q)
				must(t, err)
				if len(page) == 0 {
					break
				}
				paged = append(paged, page...)
				q.After = &page[len(page)-1]
			}
			equal(t, fmt.Sprint("by ", limit), paged, whole)
		}
		all.Class = usage.LiveRead
		tails, err := r.Usage(t.Context(), "acme", all)
		must(t, err)
		if len(tails) != 3 || tails[0].Class != usage.LiveRead {
			t.Errorf("live reads: %v", tails)
		}
		for after, want := range map[int64]int{0: 2, 1: 2, 3: 2, 4: 1, 5: 0} {
			page, err := r.UsageBatches(t.Context(), after, 2, 1<<20)
			must(t, err)
			if len(page) != want {
				t.Errorf("%d batches behind %d, want %d", len(page), after, want)
			}
		}
		// A page is bounded by its bytes, and never empty for that.
		page, err := r.UsageBatches(t.Context(), 0, 5, 1)
		must(t, err)
		if len(page) != 1 {
			t.Errorf("%d batches in one byte", len(page))
		}
	})
}

// What is old goes in steps; a number is given to no two batches, also when the older one
// is gone.
func TestUsageIsForgotten(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		start := r.clock.read()
		for i := range 6 {
			must(t, r.WriteUsage(t.Context(), r.aBatch("a", int64(i+1))))
			r.clock.pass(time.Hour)
		}
		dropped := 0
		for range 20 {
			n, err := r.DropUsage(t.Context(), start.Add(2*time.Hour), start.Add(4*time.Hour), 2)
			must(t, err)
			if dropped += n; n == 0 {
				break
			}
		}
		if want := 2 + 4*3; dropped != want {
			t.Errorf("%d dropped, want %d", dropped, want)
		}
		left, err := r.UsageBatches(t.Context(), 0, 10, 1<<20)
		must(t, err)
		if len(left) != 4 || left[0].Position != 3 {
			t.Errorf("batches left: %d from %v", len(left), left[0].Position)
		}
		hours, err := r.Usage(t.Context(), "acme", UsageQuery{From: 0, To: usage.HourOf(start) + 10*3600, Limit: 100})
		must(t, err)
		if len(hours) != 4 {
			t.Errorf("%d rows left of two hours and two classes", len(hours))
		}
	})
}
