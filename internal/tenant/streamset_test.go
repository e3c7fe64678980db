package tenant

import (
	"slices"
	"strings"
	"testing"
)

// universe is every name of up to three characters of a small alphabet, so that
// what a set reaches can be counted.
func universe() []StreamName {
	names := []StreamName{"a", "b"}
	for i := 0; len(names[i]) < 3; i++ {
		names = append(names, names[i]+"a", names[i]+"b", names[i]+".")
	}
	return names
}

func sets(t *testing.T) []StreamSet {
	t.Helper()
	lists := []string{
		"*", "a", "b", "a*", "b*", "ab*", "a.*", "aa", "a b", "a* b", "a* ab*", "a ab*", "a* *", "a ab aba abb*", "b* a.* aa",
	}
	all := make([]StreamSet, 0, len(lists)+2)
	all = append(all, StreamSet{}, AllStreams())
	for _, list := range lists {
		s, err := ParseStreamSet(strings.Fields(list))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

// Every pair is held against the names that the two reach.
func TestStreamSetAlgebra(t *testing.T) {
	names := universe()
	for _, a := range sets(t) {
		for _, b := range sets(t) {
			both := a.Intersect(b)
			subset := true
			for _, n := range names {
				if got, want := both.Covers(n), a.Covers(n) && b.Covers(n); got != want {
					t.Errorf("%v ∩ %v reaches %s: %t, want %t", a, b, n, got, want)
				}
				subset = subset && (!a.Covers(n) || b.Covers(n))
			}
			if within := a.Within(b); within != subset {
				t.Errorf("%v within %v: %t, want %t", a, b, within, subset)
			}
			if !both.Within(a) || !both.Within(b) {
				t.Errorf("%v ∩ %v = %v is not within both", a, b, both)
			}
			if n := len(both.Patterns()); n > len(a.Patterns())+len(b.Patterns()) {
				t.Errorf("%v ∩ %v has %d patterns", a, b, n)
			}
			if slices.ContainsFunc(names, both.Covers) == both.Empty() {
				t.Errorf("%v.Empty() = %t", both, both.Empty())
			}
		}
	}
}

// All streams and "*" reach the same, but only one of them is narrowed.
func TestStreamSetAllAndStar(t *testing.T) {
	star, err := ParseStreamSet([]string{"*"})
	if err != nil {
		t.Fatal(err)
	}
	if !AllStreams().Within(star) || !star.Within(AllStreams()) {
		t.Error("one is not within the other")
	}
	if got := AllStreams().Intersect(star); !got.Narrowed() {
		t.Error("all narrowed to * is not narrowed")
	}
}
