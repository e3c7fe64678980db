package failover

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// ack is an append that was acknowledged.
type ack struct {
	seq      int
	line     string
	begun    time.Time // of its first attempt
	at       time.Time // of the answer
	from, to int64     // the receipt; from = -1 for a keyless one
}

// failure is an answer, or the lack of one, that made a client try again.
type failure struct {
	at    time.Time
	label string
}

// book is what one client did. It is safe for concurrent use.
type book struct {
	mu       sync.Mutex
	acks     []ack
	failures []failure
	refused  map[string]struct{} // lines that an answer proved not to be applied, and that were given up
	odd      map[string]int      // what the contract forbids, by what it is
	broken   string              // why the client gave up; "" = it did not
}

func newBook() *book {
	return &book{refused: map[string]struct{}{}, odd: map[string]int{}}
}

// maxOdd bounds the kinds of oddities that are told apart.
const maxOdd = 100

func (b *book) note(odd ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, o := range odd {
		if _, ok := b.odd[o]; ok || len(b.odd) < maxOdd {
			b.odd[o]++
		}
	}
}

func (b *book) acked(a ack) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.acks = append(b.acks, a)
}

// knows reports whether a line was acknowledged.
func (b *book) knows(line string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.acks, func(a ack) bool { return a.line == line })
}

func (b *book) failed(label string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures = append(b.failures, failure{time.Now(), label})
}

func (b *book) gaveUp(line string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused[line] = struct{}{}
}

func (b *book) stop(why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.broken = why
}

// begunSince reports whether an append or pass that began after t is done.
func (b *book) begunSince(t time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.acks) > 0 && b.acks[len(b.acks)-1].begun.After(t)
}

// longestGap is the longest time without an acknowledgement that ended, or was
// still going on, between two times.
func (b *book) longestGap(from, to time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	var longest time.Duration
	last := from
	for _, a := range b.acks {
		if a.at.After(to) {
			longest = max(longest, to.Sub(last))
			return longest
		}
		if a.at.After(from) {
			longest = max(longest, a.at.Sub(last))
		}
		last = a.at
	}
	return max(longest, to.Sub(last))
}

// count adds the labels of the failures between two times to into.
func (b *book) count(from, to time.Time, into map[string]int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range b.failures {
		if f.at.After(from) && !f.at.After(to) {
			into[f.label]++
		}
	}
}

func (b *book) ackedBetween(from, to time.Time) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range b.acks {
		if a.at.After(from) && !a.at.After(to) {
			n++
		}
	}
	return n
}

// oddities lists what the contract forbids, with how often it was seen.
func (b *book) oddities(who string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []string
	if b.broken != "" {
		list = append(list, who+" gave up: "+b.broken)
	}
	for _, o := range slices.Sorted(maps.Keys(b.odd)) {
		list = append(list, fmt.Sprintf("%s: %s (%d times)", who, o, b.odd[o]))
	}
	return list
}
