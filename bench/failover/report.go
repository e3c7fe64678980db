package failover

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Row is one line of the comparison: what the producers of a load saw between
// two times.
type Row struct {
	Fault, Gateway string
	Acked          int
	Failures       map[string]int // by status and code
	Longest        time.Duration  // the longest gap between two acknowledgements of any producer
	Median         time.Duration  // over producers, of their longest gaps
	Verdict        Verdict
}

// Row sums up a time of the load. The verdict is the caller's to fill in: it is
// of the whole load.
func (l *Load) Row(fault, gateway string, from, to time.Time) Row {
	row := Row{Fault: fault, Gateway: gateway, Failures: map[string]int{}}
	gaps := make([]time.Duration, 0, len(l.producers))
	for _, p := range l.producers {
		row.Acked += p.book.ackedBetween(from, to)
		p.book.count(from, to, row.Failures)
		gaps = append(gaps, p.book.longestGap(from, to))
	}
	if slices.Sort(gaps); len(gaps) > 0 {
		row.Longest, row.Median = gaps[len(gaps)-1], gaps[len(gaps)/2]
	}
	return row
}

// Gap is the longest time that a producer or reader was without success between
// two times, and whose it was.
func (l *Load) Gap(from, to time.Time) (longest time.Duration, who string) {
	for _, c := range l.clients() {
		if gap := c.book.longestGap(from, to); gap > longest {
			longest, who = gap, c.name
		}
	}
	return longest, who
}

// Failures counts the failures of everyone but the producers, by label.
func (l *Load) Failures(from, to time.Time) (readers, tails map[string]int) {
	readers, tails = map[string]int{}, map[string]int{}
	for _, r := range l.readers {
		r.book.count(from, to, readers)
	}
	for _, t := range l.tails {
		t.book.count(from, to, tails)
	}
	return readers, tails
}

// TailEnds sums up how tails ended. To be called after Stop. A clean end of an
// open stream's tail is none of these: it is among the Oddities.
func (l *Load) TailEnds() (sum TailEnds) {
	for _, t := range l.tails {
		sum.Cut += t.ends.Cut
		sum.Told += t.ends.Told
		sum.Silent += t.ends.Silent
	}
	return sum
}

// Sum adds up the rows of each fault and gateway, in the order in which they
// first come. The longest gap is the longest of all, the median gap the median
// of the rows' medians.
func Sum(rows []Row) []Row {
	var sums []Row
	medians := map[[2]string][]time.Duration{}
	for _, r := range rows {
		i := slices.IndexFunc(sums, func(s Row) bool { return s.Fault == r.Fault && s.Gateway == r.Gateway })
		if i < 0 {
			i = len(sums)
			sums = append(sums, Row{Fault: r.Fault, Gateway: r.Gateway, Failures: map[string]int{}})
		}
		s := &sums[i]
		s.Acked += r.Acked
		for label, n := range r.Failures {
			s.Failures[label] += n
		}
		s.Longest = max(s.Longest, r.Longest)
		s.Verdict.add(r.Verdict)
		key := [2]string{r.Fault, r.Gateway}
		medians[key] = append(medians[key], r.Median)
		slices.Sort(medians[key])
		s.Median = medians[key][len(medians[key])/2]
	}
	return sums
}

// Table writes rows as a table in Markdown.
func Table(rows []Row) string {
	var b strings.Builder
	b.WriteString("| Fault | Gateway | Appends | Error answers | Longest gap | Median gap | Lost | Doubled | Out of order | Refused, yet stored |\n")
	b.WriteString("| --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s | %s | %d | %s | %s | %s | %d | %d | %d | %d |\n", r.Fault, r.Gateway, r.Acked, Counts(r.Failures),
			seconds(r.Longest), seconds(r.Median), r.Verdict.Lost, r.Verdict.Doubled, r.Verdict.OutOfOrder, r.Verdict.Refused)
	}
	return b.String()
}

// Counts writes counts by label, the most frequent first; "none" where there are none.
func Counts(counts map[string]int) string {
	if len(counts) == 0 {
		return "none"
	}
	labels := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	for i, label := range labels {
		labels[i] = fmt.Sprintf("%d × %s", counts[label], label)
	}
	return strings.Join(labels, ", ")
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
