package usage

import (
	"sync"
	"sync/atomic"
	"time"
)

// Use is what is known of a request before it is answered.
type Use struct {
	Key   Key
	Start time.Time
	// RequestBytes are those of an append's body; 0 of everything else.
	RequestBytes int64
	// Stream is the one that is read, to be counted by stream; "" = none.
	Stream string
}

// Answer is what a request uses while it is answered. Its zero value is ready. Sent, Beat
// and Answered are called by whoever answers; the Meter may ask at any time.
type Answer struct {
	sent, beats atomic.Int64
	// answered publishes by, and that it is billed from now on.
	answered atomic.Bool
	byStream bool // its read is counted by stream

	next, before *Answer // among the open ones of its part; guarded by the part's lock
	open         bool

	mu      sync.Mutex // guards what has been counted
	use     Use
	request bool // the request itself has been
	counted struct {
		sent, beats int64
		tail        Millis
	}
}

// Sent counts bytes of the answer's body that were sent.
func (a *Answer) Sent(n int) { a.sent.Add(int64(n)) }

// Beat counts bytes of heartbeats, which are no data.
func (a *Answer) Beat(n int) { a.beats.Add(int64(n)) }

// Bytes are what was sent, without heartbeats.
func (a *Answer) Bytes() int64 { return a.sent.Load() }

// Answered says that there is an answer to be billed: one of a node, or of the
// Management API. Until it is called nothing of the request is counted, for it may still
// be refused, and a client whose gateway is killed before that has had nothing. The first
// call counts.
func (a *Answer) Answered(byStream bool) {
	if !a.answered.Load() {
		a.byStream = byStream
		a.answered.Store(true)
	}
}

// Billed reports whether Answered has been called.
func (a *Answer) Billed() bool { return a.answered.Load() }

// Open has an answer asked for what it has used so far, until Close. It is for answers
// that may go on for longer than an interval; others need only Close.
func (m *Meter) Open(a *Answer, u Use) {
	u.Key = bounded(u.Key)
	a.use = u
	p := m.part(u.Key.Account)
	p.open.Lock()
	defer p.open.Unlock()
	a.open, a.next = true, p.open.first
	if a.next != nil {
		a.next.before = a
	}
	p.open.first = a
}

// Close ends an answer, however it went, and counts what is left of it. One that was
// never Answered is not counted.
func (m *Meter) Close(a *Answer, u Use, now time.Time) {
	if a.open {
		m.leave(a)
	} else {
		u.Key = bounded(u.Key)
		a.use = u
	}
	m.settle(a, now, HourOf(now))
}

// leave takes an answer out of the open ones.
func (m *Meter) leave(a *Answer) {
	p := m.part(a.use.Key.Account)
	p.open.Lock()
	defer p.open.Unlock()
	if a.before != nil {
		a.before.next = a.next
	} else {
		p.open.first = a.next
	}
	if a.next != nil {
		a.next.before = a.before
	}
	a.open, a.next, a.before = false, nil, nil
}

// ask settles the open answers of a part. Bytes are counted in the hour that ends now,
// where one does.
func (m *Meter) ask(p *part, now time.Time) {
	hour := HourOf(now.Add(-1))
	p.open.Lock()
	defer p.open.Unlock()
	for a := p.open.first; a != nil; a = a.next {
		m.settle(a, now, hour)
	}
}

// settle counts what an answer has used since it was settled last. The request, and
// bytes, are of the given hour; time is of the hours in which it passed.
func (m *Meter) settle(a *Answer, now time.Time, hour Hour) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.answered.Load() {
		return
	}
	var d Counts
	if !a.request {
		a.request, d.Requests = true, 1
		if a.use.Key.Class == Append {
			d.RequestBytes = a.use.RequestBytes
			d.Chunks = max(1, (d.RequestBytes+m.o.ChunkBytes-1)/m.o.ChunkBytes)
		}
	}
	sent, beats := a.sent.Load(), a.beats.Load()
	d.ResponseBytes, d.HeartbeatBytes = sent-a.counted.sent, beats-a.counted.beats
	a.counted.sent, a.counted.beats = sent, beats
	if a.use.Key.Class == LiveRead {
		d.Tail = m.settleTime(a, now, hour)
	}
	if d != (Counts{}) {
		m.add(cell{a.use.Key, hour}, d)
	}
	if r := (ReadCounts{d.Requests, d.ResponseBytes}); a.byStream && a.use.Stream != "" && r != (ReadCounts{}) {
		m.addRead(streamCell{a.use.Key.Account, a.use.Stream, a.use.Key.Class}, r)
	}
}

// settleTime counts the time for which a tail was open, as far as it passed in other
// hours than the given one, and returns the rest; a.mu is held.
func (m *Meter) settleTime(a *Answer, now time.Time, hour Hour) Millis {
	left := Millis(now.Sub(a.use.Start).Milliseconds()) - a.counted.tail
	if left <= 0 {
		return 0
	}
	a.counted.tail += left
	var own Millis
	for at := now; left > 0; {
		h := HourOf(at.Add(-1))
		part := min(left, Millis(at.Sub(h.Time()).Milliseconds()))
		if h == hour {
			own += part
		} else {
			m.add(cell{a.use.Key, h}, Counts{Tail: part})
		}
		left -= part
		at = h.Time()
	}
	return own
}
