package store

import (
	"fmt"
	"strings"
	"time"

	"sluice/internal/tenant"
)

// micros is how a time is stored. The zero time is 0.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// moment is the time that micros made a number of.
func moment(stored int64) time.Time {
	if stored == 0 {
		return time.Time{}
	}
	return time.UnixMicro(stored).UTC()
}

// patterns is how a set of streams that is not "all" is stored.
func patterns(s tenant.StreamSet) string { return strings.Join(s.Patterns(), " ") }

// streamSet is the set that was stored. What cannot be read reaches nothing, and is an
// error.
func streamSet(all bool, patterns string) (tenant.StreamSet, error) {
	switch {
	case all:
		return tenant.AllStreams(), nil
	case patterns == "":
		return tenant.StreamSet{}, nil
	}
	set, err := tenant.ParseStreamSet(strings.Fields(patterns))
	if err != nil {
		return tenant.StreamSet{}, fmt.Errorf("a stored key's streams: %w", err)
	}
	return set, nil
}

// bounds are those of a page in the order of bytes: names lie behind after, at or behind
// from, and before to. Names are ASCII without control characters; what no name begins
// with makes a page that is empty, or begins where such a name would stand.
func (p Page) bounds() (after, from, to string) {
	prefix := clean(p.Prefix)
	if prefix != p.Prefix {
		return "", end, "" // nothing begins so
	}
	return clean(p.After), prefix, prefix + end
}

// end lies behind every character of a name.
const end = "\x7f"

// clean cuts a text at the first byte that no name has, since Postgres takes no other,
// and keeps its place in the order of names.
func clean(s string) string {
	for i := range len(s) {
		if s[i] < ' ' {
			return s[:i]
		}
		if s[i] >= end[0] {
			return s[:i] + end
		}
	}
	return s
}
