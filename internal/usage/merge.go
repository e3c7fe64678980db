package usage

// merge adds what next has to b, which has not been delivered. No more principals and
// streams are kept apart than the bounds allow, of those that b has first; what is beyond
// is counted as unattributed.
func (b *Batch) merge(next *Batch, principals, streams int) {
	b.WindowStart, b.WindowEnd = min(b.WindowStart, next.WindowStart), max(b.WindowEnd, next.WindowEnd)
	b.mergeRecords(next.Records, principals)
	b.mergeReads(next.StreamReads, streams)
	b.StreamReadsUnattributed.add(next.StreamReadsUnattributed)
}

func (b *Batch) mergeRecords(more []Record, principals int) {
	at, named := make(map[cell]int, len(b.Records)), 0
	for i, r := range b.Records {
		at[r.cell()] = i
		if r.Principal != nil {
			named++
		}
	}
	for _, r := range more {
		where := r.cell()
		i, ok := at[where]
		if !ok && r.Principal != nil {
			if named++; named > principals {
				where.Key = where.unattributed()
				i, ok = at[where]
			}
		}
		if !ok {
			i = len(b.Records)
			at[where] = i
			b.Records = append(b.Records, where.record(Counts{}))
		}
		b.Records[i].Add(r.Counts)
	}
	sortRecords(b.Records)
}

func (b *Batch) mergeReads(more []StreamReads, streams int) {
	at := make(map[streamCell]int, len(b.StreamReads))
	for i, r := range b.StreamReads {
		at[streamCell{r.Account, r.Stream, r.Class}] = i
	}
	for _, r := range more {
		where := streamCell{r.Account, r.Stream, r.Class}
		i, ok := at[where]
		switch {
		case ok:
			b.StreamReads[i].add(r.ReadCounts)
		case len(b.StreamReads) >= streams:
			b.StreamReadsUnattributed.add(r.ReadCounts)
		default:
			at[where] = len(b.StreamReads)
			b.StreamReads = append(b.StreamReads, r)
		}
	}
	sortReads(b.StreamReads)
}
