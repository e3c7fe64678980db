package main

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// casesTSV holds one case a line: id, what goes wrong, public sources
// separated by "; ".
//
//go:embed cases.tsv
var casesTSV string

// caseLine is one line of cases.tsv.
type caseLine struct {
	line    string
	sources []string
}

func readCases(tsv string) (map[string]caseLine, error) {
	all := map[string]caseLine{}
	for i, line := range strings.Split(strings.TrimSuffix(tsv, "\n"), "\n") {
		if i == 0 { // the names of the columns
			continue
		}
		cols := strings.Split(line, "\t")
		if len(cols) != 3 || cols[1] == "" || cols[2] == "" || !oneID.MatchString(cols[0]) {
			return nil, fmt.Errorf("cases.tsv:%d: want an id, a line and sources, with tabs between them", i+1)
		}
		if _, ok := all[cols[0]]; ok {
			return nil, fmt.Errorf("cases.tsv:%d: %s is there twice", i+1, cols[0])
		}
		all[cols[0]] = caseLine{cols[1], strings.Split(cols[2], "; ")}
	}
	return all, nil
}

const casesHead = `# Cases

Faults that other gateways and libraries of this kind had in public, each guarded by tests here that name its id. Every id that
a test names is listed, with what goes wrong, where it was reported, and the tests.

| Case | What goes wrong | Reported in public | Guarded by |
| --- | --- | --- | --- |
`

// cases writes docs/cases.md.
func cases(root string) ([]byte, error) {
	known, err := readCases(casesTSV)
	if err != nil {
		return nil, err
	}
	named, err := namedCases(root)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, generatedNote, "the case ids that tests name, and internal/gendoc/cases.tsv")
	b.WriteString(casesHead)
	var unknown []error
	for _, id := range slices.Sorted(maps.Keys(named)) {
		c, ok := known[id]
		if !ok {
			unknown = append(unknown, fmt.Errorf("%s names the case %s, which cases.tsv lacks", named[id][0], id))
			continue
		}
		links := make([]string, len(c.sources))
		for i, s := range c.sources {
			links[i] = link(s)
		}
		tests := make([]string, len(named[id]))
		for i, at := range named[id] {
			tests[i] = "`" + at + "`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", id, cell(c.line), cell(strings.Join(links, ", ")), strings.Join(tests, "<br>"))
	}
	return b.Bytes(), errors.Join(unknown...)
}

// cell keeps a text from ending its table cell.
func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

var thread = regexp.MustCompile(`^([\w.-]+/[\w.-]+)( PR)?#(\d+)`)

// link makes a link of a source that begins with owner/repo#number.
func link(source string) string {
	m := thread.FindStringSubmatch(source)
	if m == nil {
		return source
	}
	kind := "issues"
	if m[2] != "" {
		kind = "pull"
	}
	return fmt.Sprintf("[%s](https://github.com/%s/%s/%s)%s", m[0], m[1], kind, m[3], source[len(m[0]):])
}

// namedCases finds the ids that test files name: id → "file: Test", sorted.
func namedCases(root string) (map[string][]string, error) {
	named := map[string][]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			hidden := strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_")
			if path != root && (hidden || d.Name() == "testdata") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		return scanTests(path, filepath.ToSlash(rel), named)
	})
	for id, at := range named {
		slices.Sort(at)
		named[id] = slices.Compact(at)
	}
	return named, err
}
