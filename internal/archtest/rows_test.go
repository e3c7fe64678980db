package archtest

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// rowGroup is a group of the behaviours that the tests of Ursula's own gateway
// check (facts §13): forwarding, nodes, redirects, writes, refused bodies, access,
// tokens, pages of other origins, the ends of credentials, the policy file, limits,
// uploads, usage.
type rowGroup struct {
	letter string
	rows   int
	// from is the first row that needs the word "facts" in its line, because what is
	// named without it may be something else: cases of another list, bytes in hex.
	from int
}

func rowGroups() []rowGroup {
	return []rowGroup{
		{"F", 16, 17},
		{"L", 28, 10},
		{"R", 23, 24},
		{"W", 4, 1},
		{"B", 7, 1},
		{"A", 19, 1},
		{"J", 7, 1},
		{"C", 5, 1},
		{"E", 3, 1},
		{"P", 6, 1},
		{"Q", 6, 7},
		{"U", 14, 1},
		{"M", 5, 1},
	}
}

const (
	rowsPage    = "docs/architecture.md"
	rowsSection = "## Rows of Ursula's own gateway that differ\n"
)

// Every row is named by a test of the gateway, of the limits, of usage or of the program, or
// stands in the list of docs/architecture.md with the reason why it differs. One that differs
// "in part" needs both.
func TestEveryRowIsNamed(t *testing.T) {
	t.Parallel()
	faults, err := rowFaults(os.DirFS("../.."), rowGroups())
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range faults {
		t.Error(fault)
	}
}

// rowFaults lists the rows that nobody names, and those that the list names
// though facts §13 has none of that id.
func rowFaults(fsys fs.FS, groups []rowGroup) ([]string, error) {
	lines, err := testLines(fsys, "gateway", "ratelimit", "internal/usage", "cmd/sluice")
	if err != nil {
		return nil, err
	}
	differ, err := differingRows(fsys)
	if err != nil {
		return nil, err
	}
	var faults []string
	for _, g := range groups {
		for i := range g.rows {
			id := fmt.Sprint(g.letter, i+1)
			word := regexp.MustCompile(`\b` + id + `\b`)
			named := slices.ContainsFunc(lines, func(line string) bool {
				return strings.Contains(line, id) && word.MatchString(line) && (i+1 < g.from || strings.Contains(strings.ToLower(line), "facts"))
			})
			inPart, listed := differ[id]
			delete(differ, id)
			if !named && (!listed || inPart) {
				faults = append(faults, fmt.Sprintf("no test names %s, and it is not among the rows that differ altogether", id))
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(differ)) {
		faults = append(faults, fmt.Sprintf("%s lists %s, which is no row", rowsPage, id))
	}
	return faults, nil
}

// testLines reads the lines of all tests below the folders.
func testLines(fsys fs.FS, folders ...string) ([]string, error) {
	var lines []string
	for _, folder := range folders {
		err := fs.WalkDir(fsys, folder, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(name, "_test.go") {
				return err
			}
			text, err := fs.ReadFile(fsys, name)
			lines = append(lines, strings.Split(string(text), "\n")...)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("reading the tests of %s: %w", folder, err)
		}
	}
	return lines, nil
}

// differingRows reads the ids of the list's first column, and which of them differ
// in part only.
func differingRows(fsys fs.FS) (map[string]bool, error) {
	page, err := fs.ReadFile(fsys, rowsPage)
	if err != nil {
		return nil, err
	}
	_, section, found := strings.Cut(string(page), rowsSection)
	if !found {
		return nil, fmt.Errorf("%s has no section %q", rowsPage, rowsSection)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	inPart := map[string]bool{}
	for _, cell := range regexp.MustCompile(`(?m)^\|[^|]*\|`).FindAllString(section, -1) {
		for _, id := range regexp.MustCompile(`\b[A-Z][0-9]+\b`).FindAllString(cell, -1) {
			inPart[id] = strings.Contains(cell, "in part")
		}
	}
	return inPart, nil
}

// TestRowFaults proves that the check above can fail.
func TestRowFaults(t *testing.T) {
	t.Parallel()
	const head = "# A page\n\n" + rowsSection + "\n| Row | There | Here |\n| --- | --- | --- |\n"
	groups := []rowGroup{{"L", 2, 2}}
	for name, tc := range map[string]struct {
		tests, list string
		want        []string
	}{
		"both named":        {"// L1: x\n// Facts L2: x\n", "", nil},
		"one listed":        {"// L1: x\n", "| L2 | a | b |\n", nil},
		"two listed at one": {"", "| L1, L2 | a | b |\n", nil},
		"one missing":       {"// L1: x\n", "", []string{"no test names L2, and it is not among the rows that differ altogether"}},
		"without facts":     {"// L1: x\n// L2: x\n", "", []string{"no test names L2, and it is not among the rows that differ altogether"}},
		"part of a word":    {"// xL1 L11\n// facts L2\n", "", []string{"no test names L1, and it is not among the rows that differ altogether"}},
		"in another column": {"// L1: x\n", "| x | L2 | b |\n", []string{"no test names L2, and it is not among the rows that differ altogether"}},
		"listed elsewhere":  {"// L1: x\n", "\n## Next\n| L2 | a | b |\n", []string{"no test names L2, and it is not among the rows that differ altogether"}},
		"in part, named":    {"// L1: x\n// facts L2\n", "| L2 in part | a | b |\n", nil},
		"in part, unnamed":  {"// L1: x\n", "| L2 in part | a | b |\n", []string{"no test names L2, and it is not among the rows that differ altogether"}},
		"no such row":       {"// L1: x\n// facts L2: x\n", "| L3 | a | b |\n", []string{"docs/architecture.md lists L3, which is no row"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := rowFaults(fstest.MapFS{
				"gateway/upstream/a_test.go": {Data: []byte(tc.tests)},
				"gateway/a.go":               {Data: []byte("// L1 facts L2")},
				"ratelimit/a_test.go":        {Data: []byte("package ratelimit")},
				"internal/usage/a_test.go":   {Data: []byte("package usage")},
				"cmd/sluice/a_test.go":       {Data: []byte("package main")},
				rowsPage:                     {Data: []byte(head + tc.list)},
			}, groups)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}
