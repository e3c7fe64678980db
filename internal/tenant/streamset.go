package tenant

import (
	"slices"
	"strings"
)

// Within reports whether every stream that s reaches is reached by wider too.
// It may say false of a set that is covered only by several patterns together,
// never true of one that is not covered. The zero value is within everything.
func (s StreamSet) Within(wider StreamSet) bool {
	if wider.all {
		return true
	}
	if s.all {
		return slices.Contains(wider.patterns, "*")
	}
	for _, p := range s.patterns {
		if !slices.ContainsFunc(wider.patterns, func(w string) bool { return patternWithin(p, w) }) {
			return false
		}
	}
	return true
}

// Intersect is the set of the streams that both reach; it may be the zero
// value, which reaches none. It has at most as many patterns as the two
// together: of two patterns that overlap, one lies within the other.
func (s StreamSet) Intersect(other StreamSet) StreamSet {
	switch {
	case s.all:
		return other
	case other.all:
		return s
	}
	var both []string
	for _, a := range s.patterns {
		for _, b := range other.patterns {
			switch {
			case patternWithin(a, b):
				both = append(both, a)
			case patternWithin(b, a):
				both = append(both, b)
			}
		}
	}
	slices.Sort(both)
	return StreamSet{patterns: slices.Compact(both)}
}

// Empty reports whether the set reaches no stream at all.
func (s StreamSet) Empty() bool { return !s.all && len(s.patterns) == 0 }

// patternWithin reports whether whatever narrow covers, wide covers too.
func patternWithin(narrow, wide string) bool {
	prefix, star := strings.CutSuffix(wide, "*")
	if !star {
		return narrow == wide
	}
	// A star in narrow stands at its end, behind all that prefix can have.
	return strings.HasPrefix(narrow, prefix)
}
