package usage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// M1 and M4 of facts §13, and M07: whatever happens to two replicas and to their way to
// the store (writes that fail, writes whose answer is lost, a store that is gone for long,
// kills), each use is counted at most once, and all of what was counted up to the last
// batch that arrived is.
func TestSumsAreExact(t *testing.T) {
	t.Parallel()
	for range 60 {
		seed := rand.Uint64() //nolint:gosec // chance is no secret
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			newHistory(t, seed).run(300)
		})
	}
}

// place is what sums are kept by: what the store keeps.
type place struct {
	account string
	class   Class
	hour    Hour
}

type totals map[place]Counts

func (s totals) add(p place, d Counts) {
	c := s[p]
	c.Add(d)
	s[p] = c
}

func (s totals) plus(t totals) {
	for p, c := range t {
		s.add(p, c)
	}
}

func (s totals) copy() totals {
	c := totals{}
	c.plus(s)
	return c
}

// arrived is a store: a batch counts once.
type arrived struct {
	t     *testing.T
	lines map[string]string // by replica and number
	last  map[string]int64
	sums  map[string]totals // by replica
	reads map[string]ReadCounts
	fault func() (before, after bool)
}

var errWrite = errors.New("write failed")

func (a *arrived) Write(_ context.Context, b *Batch) error {
	before, after := a.fault()
	if before {
		return errWrite
	}
	line, err := json.Marshal(b)
	if err != nil {
		return err
	}
	id := fmt.Sprint(b.Replica, " ", b.Sequence)
	if had, ok := a.lines[id]; ok {
		if had != string(line) {
			a.t.Errorf("batch %s was changed after it may have arrived:\n%s\n%s", id, had, line)
		}
	} else {
		if b.Sequence != a.last[b.Replica]+1 {
			a.t.Errorf("batch %s follows %d", id, a.last[b.Replica])
		}
		a.lines[id], a.last[b.Replica] = string(line), b.Sequence
		a.count(line)
	}
	if after {
		return errWrite
	}
	return nil
}

// count adds what the line says, as a reader of it would.
func (a *arrived) count(line []byte) {
	var b Batch
	if err := json.Unmarshal(line, &b); err != nil {
		a.t.Fatal(err)
	}
	if a.sums[b.Replica] == nil {
		a.sums[b.Replica] = totals{}
	}
	for _, r := range b.Records {
		a.sums[b.Replica].add(place{r.Account, r.Class, r.Hour}, r.Counts)
	}
	reads := a.reads[b.Replica]
	reads.add(b.StreamReadsUnattributed)
	for _, s := range b.StreamReads {
		reads.add(s.ReadCounts)
	}
	a.reads[b.Replica] = reads
}

// living is a replica, and what it has used in truth.
type living struct {
	id      string
	meter   *Meter
	flusher *Flusher
	outbox  *Outbox
	tails   []*livingTail
	truth   totals
	reads   ReadCounts
	flushed map[int64]totals // truth at the last flush that went into a batch
	read    map[int64]ReadCounts
}

type livingTail struct {
	Answer
	use    Use
	told   time.Time // until when its time is in truth
	billed bool
}

type history struct {
	t       *testing.T
	random  *rand.Rand
	now     time.Time
	store   *arrived
	outage  int // deliveries that are left of it
	alive   []*living
	dead    []*living
	started int
}

func newHistory(t *testing.T, seed uint64) *history {
	t.Helper()
	h := &history{t: t, random: rand.New(rand.NewPCG(seed, 1)), now: time.Date(2026, 6, 1, 22, 40, 0, 0, time.UTC)} //nolint:gosec // chance is no secret
	h.store = &arrived{t: t, lines: map[string]string{}, last: map[string]int64{}, sums: map[string]totals{}, reads: map[string]ReadCounts{}}
	h.store.fault = func() (bool, bool) {
		if h.outage > 0 {
			h.outage--
			return h.random.IntN(3) > 0, true
		}
		return h.random.IntN(5) == 0, h.random.IntN(5) == 0
	}
	h.start()
	h.start()
	return h
}

func (h *history) start() {
	h.started++
	r := &living{id: fmt.Sprint("r", h.started), truth: totals{}, flushed: map[int64]totals{}, read: map[int64]ReadCounts{}}
	r.meter = NewMeter(Options{ChunkBytes: 10, Principals: 3, StreamReads: 2})
	r.outbox = NewOutbox(OutboxOptions{Sink: h.store, Replica: r.id, Pending: 1 + h.random.IntN(3), Principals: 4, StreamReads: 2})
	r.flusher = NewFlusher(r.meter, time.Minute, h.clock, r.outbox)
	h.alive = append(h.alive, r)
}

func (h *history) clock() time.Time { return h.now }

func (h *history) run(steps int) {
	for range steps {
		h.pass(time.Duration(h.random.IntN(3000)) * time.Millisecond)
		at := h.random.IntN(len(h.alive))
		r := h.alive[at]
		switch n := h.random.IntN(100); {
		case n < 45:
			h.request(r)
		case n < 55:
			h.open(r)
		case n < 65 && len(r.tails) > 0:
			h.close(r, h.random.IntN(len(r.tails)))
		case n < 85:
			h.flush(r)
		case n < 95:
			_ = r.outbox.deliver(h.t.Context(), h.clock)
		case n < 96:
			h.outage = 150
		case n < 97:
			h.dead = append(h.dead, r)
			h.alive = append(h.alive[:at], h.alive[at+1:]...)
			h.start()
		default:
			h.pass(10 * time.Minute)
		}
	}
	h.outage = 0
	for _, r := range h.alive {
		for len(r.tails) > 0 {
			h.close(r, 0)
		}
		h.flush(r)
		for r.outbox.deliver(h.t.Context(), h.clock) != nil {
			continue
		}
	}
	h.check()
}

// pass moves the clock, over no end of an hour without a flush, as a Flusher does.
func (h *history) pass(d time.Duration) {
	end := h.now.Add(d)
	for hour := HourOf(h.now).Time().Add(time.Hour); !hour.After(end); hour = hour.Add(time.Hour) {
		h.now = hour
		for _, r := range h.alive {
			h.flush(r)
		}
	}
	h.now = end
}

func (h *history) one(names ...string) string { return names[h.random.IntN(len(names))] }

func (h *history) key(class Class) Key {
	k := Key{Account: h.one("acme", "beta"), Class: class}
	switch h.random.IntN(3) {
	case 0:
		k.Principal = Principal{KeyID: h.one("k1", "k2", "k3", "k4", "k5")}
	case 1:
		k.Principal = Principal{Issuer: h.one("i1", "i2"), Subject: h.one("s1", "s2")}
	}
	return k
}

func (h *history) request(r *living) {
	k := h.key([]Class{Append, Read, LiveRead, Management}[h.random.IntN(4)])
	at := place{k.Account, k.Class, HourOf(h.now)}
	if h.random.IntN(6) == 0 {
		r.meter.Refused(k, h.now)
		r.truth.add(at, Counts{Refused: 1})
		return
	}
	var a Answer
	use := Use{Key: k, Start: h.now, RequestBytes: int64(h.random.IntN(35)), Stream: h.one("s1", "s2", "s3", "s4")}
	if h.random.IntN(10) == 0 { // never answered: nothing of it counts
		a.Sent(7)
		r.meter.Close(&a, use, h.now)
		return
	}
	d := Counts{Requests: 1, ResponseBytes: int64(h.random.IntN(100))}
	byStream := k.Class == Read && h.random.IntN(2) == 0
	a.Answered(byStream)
	a.Sent(int(d.ResponseBytes))
	switch k.Class {
	case Append:
		d.RequestBytes, d.Chunks = use.RequestBytes, max(1, (use.RequestBytes+9)/10)
	case LiveRead:
	default:
	}
	if byStream {
		r.reads.add(ReadCounts{1, d.ResponseBytes})
	}
	r.meter.Close(&a, use, h.now)
	r.truth.add(at, d)
}

// open begins a tail, which may be answered later.
func (h *history) open(r *living) {
	tail := &livingTail{told: h.now}
	tail.use = Use{Key: h.key(LiveRead), Start: h.now, Stream: h.one("s1", "s2", "s3")}
	r.meter.Open(&tail.Answer, tail.use)
	r.tails = append(r.tails, tail)
	if h.random.IntN(3) > 0 {
		tail.billed = true
		tail.Answered(true)
	}
}

// use has the open tails of a replica send something. What they use is in truth when the
// next flush comes, or their end.
func (h *history) use(r *living, tail *livingTail, end bool) {
	if !tail.billed && h.random.IntN(2) == 0 {
		tail.billed = true
		tail.Answered(true)
	}
	if !tail.billed {
		return
	}
	hour := HourOf(h.now.Add(-1))
	if end {
		hour = HourOf(h.now)
	}
	at := place{tail.use.Key.Account, LiveRead, hour}
	sent, beats := h.random.IntN(50), h.random.IntN(3)*3
	tail.Sent(sent)
	tail.Beat(beats)
	d := Counts{ResponseBytes: int64(sent), HeartbeatBytes: int64(beats)}
	if tail.use.Start.Equal(tail.told) && !tail.request {
		d.Requests = 1
	}
	r.reads.add(ReadCounts{d.Requests, d.ResponseBytes})
	r.truth.add(at, d)
	for tail.told.Before(h.now) { // by milliseconds, each into its hour
		next := HourOf(tail.told).Time().Add(time.Hour)
		if next.After(h.now) {
			next = h.now
		}
		r.truth.add(place{at.account, LiveRead, HourOf(tail.told)}, Counts{Tail: Millis(next.Sub(tail.told).Milliseconds())})
		tail.told = next
	}
}

func (h *history) close(r *living, i int) {
	tail := r.tails[i]
	r.tails = append(r.tails[:i], r.tails[i+1:]...)
	h.use(r, tail, true)
	r.meter.Close(&tail.Answer, tail.use, h.now)
}

func (h *history) flush(r *living) {
	for _, tail := range r.tails {
		h.use(r, tail, false)
	}
	r.flusher.Flush()
	r.flushed[r.outbox.last], r.read[r.outbox.last] = r.truth.copy(), r.reads
}

// check wants in the store what was counted until the last batch that arrived of each
// replica; of those that live, that is all.
func (h *history) check() {
	merged := int64(0)
	for _, r := range append(h.dead, h.alive...) {
		merged += r.outbox.Stats().Merged
		last := h.store.last[r.id]
		want, reads := r.flushed[last], r.read[last]
		if last == 0 {
			want, reads = totals{}, ReadCounts{}
		}
		got := h.store.sums[r.id]
		for p, c := range want { // a use of nothing leaves no row
			if c == (Counts{}) {
				delete(want, p)
			}
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(place{}), emptyTotals()); diff != "" {
			h.t.Errorf("%s, %d batches (-want +got):\n%s", r.id, last, diff)
		}
		if got := h.store.reads[r.id]; got != reads {
			h.t.Errorf("%s: reads of streams %v, want %v", r.id, got, reads)
		}
	}
	for _, r := range h.alive {
		if n := r.outbox.Stats().Pending; n > 0 || h.store.last[r.id] != r.outbox.last {
			h.t.Errorf("%s has %d pending at the end", r.id, n)
		}
	}
	h.t.Logf("%d batches of %d replicas, %d merged", len(h.store.lines), h.started, merged)
}

func emptyTotals() cmp.Option {
	return cmp.Transformer("", func(t totals) map[place]Counts {
		m := map[place]Counts{}
		for p, c := range t {
			m[p] = c
		}
		return m
	})
}
