package failover

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Verdict counts what a trial must not have. The zero Verdict is a pass.
type Verdict struct {
	Lost       int // acknowledged, and not in the stream
	Doubled    int // more than once in the stream
	OutOfOrder int // in the stream before a line that its producer wrote earlier
	Refused    int // in the stream though an answer had proved that it was not applied
	Foreign    int // in the stream though nobody wrote it
	Misplaced  int // acknowledged with other offsets than it has
	Examples   []string
}

// maxExamples bounds Verdict.Examples.
const maxExamples = 20

func (v *Verdict) example(format string, args ...any) {
	if len(v.Examples) < maxExamples {
		v.Examples = append(v.Examples, fmt.Sprintf(format, args...))
	}
}

// Clean reports that nothing was counted.
func (v *Verdict) Clean() bool {
	return v.Lost+v.Doubled+v.OutOfOrder+v.Refused+v.Foreign+v.Misplaced == 0
}

func (v *Verdict) add(o Verdict) {
	v.Lost += o.Lost
	v.Doubled += o.Doubled
	v.OutOfOrder += o.OutOfOrder
	v.Refused += o.Refused
	v.Foreign += o.Foreign
	v.Misplaced += o.Misplaced
	v.Examples = append(v.Examples, o.Examples...)
	v.Examples = v.Examples[:min(len(v.Examples), maxExamples)]
}

// place is where a line stands in its stream.
type place struct{ from, to int64 }

// verify holds what a stream holds against the books of those who wrote to it.
// writers are the producers by id.
func verify(content string, writers map[string]*book) Verdict {
	var v Verdict
	places := map[string][]place{}
	latest := map[string]int{}
	var at int64
	for line := range strings.Lines(content) {
		here := place{at, at + int64(len(line))}
		at = here.to
		id, seq, ok := parseLine(line)
		b := writers[id]
		if !ok || b == nil {
			v.Foreign++
			v.example("%q at %d was written by nobody", line, here.from)
			continue
		}
		// A line whose outcome its producer never learned may come late: the producer
		// has gone on.
		if last, seen := latest[id]; seen && seq < last && b.knows(line) {
			v.OutOfOrder++
			v.example("%q at %d stands after sequence %d", line, here.from, last)
		}
		latest[id] = max(latest[id], seq)
		if _, refused := b.refused[line]; refused {
			v.Refused++
			v.example("%q at %d was answered as not applied", line, here.from)
		}
		places[line] = append(places[line], here)
	}
	v.doubles(places)
	for _, b := range writers {
		v.acknowledged(b, places)
	}
	slices.Sort(v.Examples)
	return v
}

// doubles counts sequence numbers that stand in the stream more than once, with
// whatever payload.
func (v *Verdict) doubles(places map[string][]place) {
	type key struct {
		id  string
		seq int
	}
	times := map[key]int{}
	for line, all := range places {
		id, seq, _ := parseLine(line)
		times[key{id, seq}] += len(all)
	}
	for k, n := range times {
		if n > 1 {
			v.Doubled += n - 1
			v.example("sequence %d of %s stands %d times", k.seq, k.id, n)
		}
	}
}

func (v *Verdict) acknowledged(b *book, places map[string][]place) {
	for _, a := range b.acks {
		all := places[a.line]
		if len(all) == 0 {
			v.Lost++
			v.example("%q, acknowledged at %s for %d, is not there", a.line, a.at.Format("15:04:05.000"), a.from)
			continue
		}
		if !slices.ContainsFunc(all, func(p place) bool { return p.to == a.to && (a.from < 0 || p.from == a.from) }) {
			v.Misplaced++
			v.example("%q was acknowledged for %d to %d and stands at %v", a.line, a.from, a.to, all)
		}
	}
}

func parseLine(line string) (id string, seq int, ok bool) {
	fields := strings.Fields(line)
	if len(fields) != 3 || !strings.HasSuffix(line, "\n") {
		return "", 0, false
	}
	seq, err := strconv.Atoi(fields[1])
	return fields[0], seq, err == nil
}
