package usage

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

// Options are those of a Meter.
type Options struct {
	// ChunkBytes is the unit of appends; 0 = DefaultChunkBytes.
	ChunkBytes int64
	// Principals bounds how many are counted apart between two drains, over all accounts,
	// classes and hours; the rest goes to their accounts as a whole. 0 = 10,000.
	Principals int
	// StreamReads bounds how many sums of reads of one stream are kept between two drains,
	// one of each class of it; 0 = none.
	StreamReads int
}

// DefaultChunkBytes is the unit of appends where none is given.
const DefaultChunkBytes = 64 << 10

const defaultPrincipals = 10_000

// parts is how many locks share the work: one request holds one of them, for as long as
// it takes to find a key in a map and add to it.
const parts = 16

// Meter adds up what requests use. It is safe for concurrent use. What it keeps between
// two drains is bounded by Principals, StreamReads, and four classes in two hours of each
// account that was used.
type Meter struct {
	o    Options
	seed maphash.Seed

	principals, streams atomic.Int64 // counted apart since the last drain

	parts [parts]part
}

// part is what is kept of some of the accounts. Open answers have a lock of their own,
// which is taken before that of the counts.
type part struct {
	open struct {
		sync.Mutex
		first *Answer
	}
	sync.Mutex
	counts map[cell]*Counts
	reads  map[streamCell]*ReadCounts
	rest   ReadCounts // of the streams that there was no room for
}

// NewMeter makes a meter that has counted nothing.
func NewMeter(o Options) *Meter {
	if o.ChunkBytes <= 0 {
		o.ChunkBytes = DefaultChunkBytes
	}
	if o.Principals <= 0 {
		o.Principals = defaultPrincipals
	}
	m := &Meter{o: o, seed: maphash.MakeSeed()}
	for i := range m.parts {
		m.parts[i].counts, m.parts[i].reads = make(map[cell]*Counts), make(map[streamCell]*ReadCounts)
	}
	return m
}

func (m *Meter) part(account string) *part {
	return &m.parts[maphash.String(m.seed, account)%parts]
}

// Refused counts a request that was refused. It is not billed: of it nothing else is
// counted.
func (m *Meter) Refused(k Key, now time.Time) {
	m.add(cell{bounded(k), HourOf(now)}, Counts{Refused: 1})
}

// bounded leaves out who it was where that is too long to be kept.
func bounded(k Key) Key {
	if p := k.Principal; len(p.KeyID)+len(p.Issuer)+len(p.Subject) > maxPrincipal {
		return k.unattributed()
	}
	return k
}

func (m *Meter) add(at cell, d Counts) {
	p := m.part(at.Account)
	p.Lock()
	defer p.Unlock()
	c := p.counts[at]
	if c == nil && at.Principal != (Principal{}) && m.principals.Add(1) > int64(m.o.Principals) {
		at.Key = at.unattributed()
		c = p.counts[at]
	}
	if c == nil {
		c = new(Counts)
		p.counts[at] = c
	}
	c.Add(d)
}

func (m *Meter) addRead(at streamCell, d ReadCounts) {
	if m.o.StreamReads <= 0 {
		return
	}
	p := m.part(at.account)
	p.Lock()
	defer p.Unlock()
	c := p.reads[at]
	if c == nil {
		if m.streams.Add(1) > int64(m.o.StreamReads) {
			p.rest.add(d)
			return
		}
		c = new(ReadCounts)
		p.reads[at] = c
	}
	c.add(d)
}

// drain takes what was added up, what open answers have used until now with it. The
// batch has no number and no window yet.
func (m *Meter) drain(now time.Time) Batch {
	b := Batch{ChunkBytes: m.o.ChunkBytes, Records: []Record{}}
	for i := range m.parts {
		p := &m.parts[i]
		m.ask(p, now)
		p.Lock()
		counts, reads := p.counts, p.reads
		p.counts, p.reads = make(map[cell]*Counts, len(counts)), make(map[streamCell]*ReadCounts, len(reads))
		b.StreamReadsUnattributed.add(p.rest)
		p.rest = ReadCounts{}
		p.Unlock()
		for at, c := range counts {
			b.Records = append(b.Records, at.record(*c))
		}
		for at, c := range reads {
			b.StreamReads = append(b.StreamReads, StreamReads{at.account, at.stream, at.class, *c})
		}
	}
	// What is added meanwhile was bounded by the interval that ends.
	m.principals.Store(0)
	m.streams.Store(0)
	sortRecords(b.Records)
	sortReads(b.StreamReads)
	return b
}
