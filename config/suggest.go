package config

import (
	"slices"
	"strings"
)

// didYouMean says what to write instead of an unknown key.
func didYouMean(name string, known []string) string {
	best, bestAt := "", 3 // at most two slips
	if len(name) <= 4 {
		bestAt = 2
	}
	plain := strings.ToLower(strings.NewReplacer("-", "_", " ", "_").Replace(name))
	for _, k := range known {
		at := distance(plain, k)
		if strings.ReplaceAll(plain, "_", "") == strings.ReplaceAll(k, "_", "") {
			at = 0
		}
		if at < bestAt {
			best, bestAt = k, at
		}
	}
	if best != "" {
		return "did you mean " + best + "?"
	}
	sorted := slices.Clone(known)
	slices.Sort(sorted)
	return "the keys here are: " + strings.Join(sorted, ", ")
}

// maxDistance bounds the work for a key of any length.
const maxDistance = 64

// distance is the number of bytes to insert, remove or change to get from a to
// b (Levenshtein).
func distance(a, b string) int {
	if len(a) > maxDistance {
		return maxDistance
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
