package usage

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/bubble"
)

var noon = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// done is a request that was answered, and is over.
func (m *Meter) done(k Key, u Use, sent int, now time.Time) {
	var a Answer
	u.Key = k
	a.Answered(u.Stream != "")
	a.Sent(sent)
	m.Close(&a, u, now)
}

func keyOf(account, id string, class Class) Key {
	return Key{Account: account, Class: class, Principal: Principal{KeyID: id}}
}

// records are those of a batch by what they are of.
func recordsOf(b Batch) map[string]Counts {
	all := map[string]Counts{}
	for _, r := range b.Records {
		name := fmt.Sprint(r.Account, " ", r.Class, " ", r.Hour.Time().Hour())
		switch {
		case r.Unattributed:
			name += " unattributed"
		case r.Principal == nil:
			name += " nobody"
		default:
			name += " " + r.Principal.KeyID + r.Principal.Issuer + r.Principal.Subject
		}
		all[name] = r.Counts
	}
	return all
}

func wantRecords(t *testing.T, b Batch, want map[string]Counts) {
	t.Helper()
	if diff := cmp.Diff(want, recordsOf(b)); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

// M1 of facts §13: by principal, what appends bring in and reads take out; only appends
// have units. A refused request has nothing else.
func TestUseByPrincipal(t *testing.T) {
	t.Parallel()
	m := NewMeter(Options{ChunkBytes: 100})
	for range 3 {
		m.done(keyOf("acme", "ci", Append), Use{RequestBytes: 50}, 7, noon)
	}
	m.done(keyOf("acme", "ci", Read), Use{RequestBytes: 999}, 1000, noon)
	m.done(Key{Account: "acme", Class: Read}, Use{}, 20, noon)
	m.done(Key{Account: "acme", Class: Read, Principal: Principal{Issuer: "https://a/", Subject: "x"}}, Use{}, 30, noon)
	m.done(keyOf("beta", "ci", Management), Use{RequestBytes: 4}, 5, noon.Add(time.Hour))
	m.Refused(keyOf("acme", "ci", Append), noon)
	wantRecords(t, m.drain(noon), map[string]Counts{
		"acme append 12 ci":        {Requests: 3, RequestBytes: 150, ResponseBytes: 21, Refused: 1, Chunks: 3},
		"acme read 12 ci":          {Requests: 1, ResponseBytes: 1000},
		"acme read 12 nobody":      {Requests: 1, ResponseBytes: 20},
		"acme read 12 https://a/x": {Requests: 1, ResponseBytes: 30},
		"beta management 13 ci":    {Requests: 1, ResponseBytes: 5},
	})
	if b := m.drain(noon); !b.empty() {
		t.Errorf("counted twice: %v", b)
	}
}

// M3 of facts §13: units are rounded up for each append, never 0, and so do not follow
// from the sums; they add up.
func TestChunks(t *testing.T) {
	t.Parallel()
	for bytes, want := range map[int64]int64{0: 1, 1: 1, 100: 1, 101: 2, 200: 2, 1000: 10, 1001: 11} {
		m := NewMeter(Options{ChunkBytes: 100})
		for range 2 {
			m.done(keyOf("acme", "ci", Append), Use{RequestBytes: bytes}, 0, noon)
		}
		if got := m.drain(noon).Records[0].Chunks; got != 2*want {
			t.Errorf("two appends of %d bytes: %d chunks, want %d", bytes, got, 2*want)
		}
	}
}

// M2 of facts §13: only answered reads are counted by stream, of so many streams, and the
// rest is one sum; all of it stays when batches are merged.
func TestStreamReads(t *testing.T) {
	t.Parallel()
	m := NewMeter(Options{StreamReads: 2})
	read := func(stream string, sent int) { m.done(keyOf("acme", "ci", Read), Use{Stream: stream}, sent, noon) }
	read("a", 1)
	read("a", 2)
	read("b", 10)
	read("c", 100)
	read("", 1000) // a node's 404
	x := NewOutbox(OutboxOptions{Sink: SinkFunc(func(context.Context, *Batch) error { return errWrite }), Replica: "r", Pending: 1, StreamReads: 2})
	x.put(m.drain(noon))
	read("b", 20)
	read("d", 200)
	read("c", 400)
	x.put(m.drain(noon))
	if len(x.pending) != 1 {
		t.Fatalf("%d pending", len(x.pending))
	}
	got := *x.pending[0]
	want := []StreamReads{{"acme", "a", Read, ReadCounts{2, 3}}, {"acme", "b", Read, ReadCounts{2, 30}}}
	if diff := cmp.Diff(want, got.StreamReads); diff != "" {
		t.Errorf("by stream (-want +got):\n%s", diff)
	}
	if rest := (ReadCounts{3, 700}); got.StreamReadsUnattributed != rest {
		t.Errorf("the rest: %v, want %v", got.StreamReadsUnattributed, rest)
	}
	wantRecords(t, got, map[string]Counts{"acme read 12 ci": {Requests: 8, ResponseBytes: 1733}})
}

// The map of whom is counted had no bound, and anybody who can make tokens could fill the
// memory: beyond it, and of a name that is too long, what they use is their account's.
func TestPrincipalsAreBounded(t *testing.T) {
	t.Parallel()
	m := NewMeter(Options{Principals: 2})
	for i := range 5 {
		for range 2 {
			m.done(keyOf("acme", fmt.Sprint("k", i), Read), Use{}, 10, noon)
		}
	}
	m.Refused(keyOf("beta", "k9", Read), noon)
	wantRecords(t, m.drain(noon), map[string]Counts{
		"acme read 12 k0":           {Requests: 2, ResponseBytes: 20},
		"acme read 12 k1":           {Requests: 2, ResponseBytes: 20},
		"acme read 12 unattributed": {Requests: 6, ResponseBytes: 60},
		"beta read 12 unattributed": {Refused: 1},
	})
	m.done(Key{Account: "acme", Class: Read, Principal: Principal{Issuer: "i", Subject: strings.Repeat("x", 2000)}}, Use{}, 1, noon)
	m.done(keyOf("acme", "k7", Read), Use{}, 1, noon)
	wantRecords(t, m.drain(noon), map[string]Counts{
		"acme read 12 k7":           {Requests: 1, ResponseBytes: 1},
		"acme read 12 unattributed": {Requests: 1, ResponseBytes: 1},
	})
}

// M07: of a tail that goes on, each batch has what it used since the one before, each hour
// what passed in it, and heartbeats are apart; of one that has had no answer nothing.
func TestOpenTails(t *testing.T) {
	t.Parallel()
	m := NewMeter(Options{})
	begun := noon.Add(-30 * time.Second)
	var tail, waiting Answer
	use := Use{Key: keyOf("acme", "ci", LiveRead), Start: begun}
	m.Open(&tail, use)
	m.Open(&waiting, use)
	tail.Answered(false)
	tail.Sent(100)
	tail.Beat(3)
	wantRecords(t, m.drain(noon.Add(-10*time.Second)), map[string]Counts{
		"acme live_read 11 ci": {Requests: 1, ResponseBytes: 100, HeartbeatBytes: 3, Tail: 20_000},
	})
	tail.Sent(5)
	wantRecords(t, m.drain(noon), map[string]Counts{"acme live_read 11 ci": {ResponseBytes: 5, Tail: 10_000}})
	tail.Beat(6)
	m.Close(&tail, use, noon.Add(1500*time.Millisecond+999))
	// The long-poll waited over the hour's end.
	waiting.Answered(false)
	m.Close(&waiting, use, noon.Add(2*time.Second))
	wantRecords(t, m.drain(noon.Add(time.Minute)), map[string]Counts{
		"acme live_read 11 ci": {Tail: 30_000},
		"acme live_read 12 ci": {Requests: 1, HeartbeatBytes: 6, Tail: 3_500},
	})
	for i := range m.parts {
		if m.parts[i].open.first != nil {
			t.Error("an answer is open still")
		}
	}
}

// What was flushed for an hour's end a moment after it had the requests in it that had begun
// in that moment, and a clock that was set forward over the end billed tails for the time
// that never was: the end was told by the clock on the wall alone.
func TestHoursEndIsLate(t *testing.T) {
	t.Parallel()
	m := NewMeter(Options{})
	var before, behind Answer
	for a, start := range map[*Answer]time.Time{&before: noon.Add(-time.Minute), &behind: noon.Add(time.Second)} {
		m.Open(a, Use{Key: keyOf("acme", "ci", LiveRead), Start: start})
		a.Answered(false)
		a.Sent(5)
	}
	wantRecords(t, m.drain(noon), map[string]Counts{"acme live_read 11 ci": {Requests: 1, ResponseBytes: 5, Tail: 60_000}})
	wantRecords(t, m.drain(noon.Add(3*time.Second)), map[string]Counts{
		"acme live_read 12 ci": {Requests: 1, ResponseBytes: 5, Tail: 5000},
	})
	now := time.Now()
	f := NewFlusher(m, 0, func() time.Time { return now.Add(-2 * time.Hour) })
	if at := f.due(now); !at.Equal(HourOf(now).Time()) || at == at.Round(0) { //nolint:staticcheck // Equal looks past the monotonic reading, which this asks for
		t.Errorf("the hour's end is %v", at)
	}
}

// M4 of facts §13: the outbox holds so many, numbers them, and what is too much is a part of
// the last; the first, which may have been delivered, stays as it was.
func TestOverflowMerges(t *testing.T) {
	t.Parallel()
	down := true
	var got []Batch
	x := NewOutbox(OutboxOptions{Replica: "r", Sink: SinkFunc(func(_ context.Context, b *Batch) error {
		if down {
			return errWrite
		}
		got = append(got, *b)
		return nil
	})})
	now := noon
	m := NewMeter(Options{})
	f := NewFlusher(m, time.Minute, func() time.Time { return now }, x)
	for i := range 200 {
		now = now.Add(time.Second)
		m.done(keyOf("acme", "ci", Read), Use{}, i, now)
		f.Flush()
		if i == 0 || i == 100 {
			_ = x.deliver(t.Context(), f.now)
		}
	}
	if s := x.Stats(); s.Pending != 64 || s.Merged != 200-64 || s.Failures != 2 {
		t.Fatalf("%+v", s)
	}
	down = false
	if err := x.deliver(t.Context(), f.now); err != nil {
		t.Fatal(err)
	}
	requests, end := int64(0), noon.UnixMilli()
	for i, b := range got {
		if b.Sequence != int64(i+1) || b.Replica != "r" || b.WindowStart != end {
			t.Errorf("batch %d of %s, from %d, stands at %d, behind %d", b.Sequence, b.Replica, b.WindowStart, i, end)
		}
		end = b.WindowEnd
		requests += b.Records[0].Requests
	}
	if requests != 200 || got[0].Records[0].Requests != 1 || len(got) != 64 || end != now.UnixMilli() {
		t.Errorf("%d requests in %d batches to %d", requests, len(got), end)
	}
}

// A flush comes with each interval and at each hour's end, and the last with the end of
// the program.
func TestFlusher(t *testing.T) {
	bubble.Test(t, func(t *testing.T) { // it begins at midnight
		type line struct {
			end      string
			requests int64
		}
		var got []line
		x := NewOutbox(OutboxOptions{Replica: "r", Sink: SinkFunc(func(_ context.Context, b *Batch) error {
			n := int64(0)
			for _, r := range b.Records {
				n += r.Requests
			}
			got = append(got, line{time.UnixMilli(b.WindowEnd).UTC().Format("15:04:05"), n})
			return nil
		})})
		m := NewMeter(Options{})
		time.Sleep(58*time.Minute + 10*time.Second)
		f := NewFlusher(m, time.Minute, time.Now, x)
		f.Start()
		for range 4 {
			m.done(keyOf("acme", "ci", Read), Use{}, 1, time.Now())
			time.Sleep(45 * time.Second)
		}
		if err := f.Close(t.Context()); err != nil {
			t.Error(err)
		}
		want := []line{{"00:59:10", 2}, {"01:00:00", 1}, {"01:01:00", 1}}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(line{})); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// What cannot be written at the end is told, and the end is not held up for longer than
// allowed.
func TestCloseTellsWhatIsLost(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := NewMeter(Options{})
		x := NewOutbox(OutboxOptions{Replica: "r", Sink: SinkFunc(func(ctx context.Context, _ *Batch) error {
			<-ctx.Done()
			return ctx.Err()
		})})
		f := NewFlusher(m, time.Minute, time.Now, x)
		f.Start()
		m.done(keyOf("acme", "ci", Read), Use{}, 1, time.Now())
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		begun := time.Now()
		if err := f.Close(ctx); err == nil || !strings.Contains(err.Error(), "1 of r") || time.Since(begun) != 5*time.Second {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
	})
}

// Seconds are exact, whatever they are.
func TestMillis(t *testing.T) {
	t.Parallel()
	for n, want := range map[Millis]string{0: "0", 1: "0.001", 1500: "1.5", 60_000: "60", 59_250: "59.25", -1: "-0.001", 9007199254740993: "9007199254740.993"} {
		text, err := json.Marshal(n)
		if err != nil || string(text) != want {
			t.Errorf("%d: %s, %v", n, text, err)
		}
		var back Millis
		if err := json.Unmarshal(text, &back); err != nil || back != n {
			t.Errorf("%s is %d, %v", text, back, err)
		}
	}
	for _, bad := range []string{`1.0001`, `"1"`, `1e3`, `null`, `1.-1`} {
		var m Millis
		if err := m.UnmarshalJSON([]byte(bad)); err == nil {
			t.Errorf("%s is %d", bad, m)
		}
	}
}

// BenchmarkCount is what a request costs that is followed and counted.
func BenchmarkCount(b *testing.B) {
	m := NewMeter(Options{StreamReads: 100})
	use := Use{Key: keyOf("acme", "0192f7c2-7d3b-7000-8000-000000000000", Read), Start: noon, Stream: "orders"}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		var a Answer
		for pb.Next() {
			a = Answer{}
			m.Open(&a, use)
			a.Answered(true)
			a.Sent(100)
			m.Close(&a, use, noon)
		}
	})
}
