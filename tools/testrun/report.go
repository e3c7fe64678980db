package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// event is one line of `go test -json` (go doc test2json, go help buildjson).
type event struct {
	Action      string
	Package     string
	Test        string
	Output      string
	FailedBuild string // of a package's end: what did not compile
}

// key names a test, or with an empty test its package.
type key struct{ pkg, test string }

// report turns the events of go test into what go test prints without -json,
// and remembers which tests were skipped and why. It is used by one goroutine.
type report struct {
	out     io.Writer
	verbose bool // print every line at once, as go test -v does

	pending map[key][]string // output of what has not ended yet
	skipped map[string][]key // reason → tests
	passed  int
	failed  map[string]int  // package → tests
	finding map[string]bool // packages whose failure says what was found, not only that something was
}

func newReport(out io.Writer, verbose bool) *report {
	return &report{
		out: out, verbose: verbose,
		pending: map[key][]string{}, skipped: map[string][]key{}, failed: map[string]int{}, finding: map[string]bool{},
	}
}

// read consumes events until the end of in. A line that is no event is printed
// as it is.
func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			r.line(line)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading go test's events: %w", err)
		}
	}
}

func (r *report) line(line string) {
	var e event
	if err := json.Unmarshal([]byte(line), &e); err != nil || e.Action == "" {
		r.print(line)
		return
	}
	k := key{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		r.print(e.Output)
	case "output":
		if r.verbose {
			r.print(e.Output)
		}
		r.pending[k] = append(r.pending[k], e.Output)
	case "pass", "fail", "skip":
		r.finding[e.Package] = r.finding[e.Package] || e.FailedBuild != ""
		r.end(e.Action, k)
	}
}

// end settles a test or a package.
func (r *report) end(action string, k key) {
	if k.test == "" {
		r.endPackage(action == "fail", k)
		return
	}
	lines := r.pending[k]
	delete(r.pending, k)
	switch action {
	case "pass":
		r.passed++
	case "skip":
		why := reason(lines)
		r.skipped[why] = append(r.skipped[why], k)
	case "fail":
		r.failed[k.pkg]++
		r.look(k.pkg, lines)
		r.replay(lines)
	}
}

// endPackage prints the closing line of a package; of a failed one everything
// that has not been printed, so that a panic or a timeout, which leave tests
// without an end, lose nothing.
func (r *report) endPackage(failed bool, k key) {
	if failed {
		// One that did not compile or did not end counts as a failure too.
		r.failed[k.pkg] = max(r.failed[k.pkg], 1)
		var open []key
		for other := range r.pending {
			if other.pkg == k.pkg && other.test != "" {
				open = append(open, other)
			}
		}
		slices.SortFunc(open, func(a, b key) int { return cmp.Compare(a.test, b.test) })
		for _, other := range open {
			r.look(k.pkg, r.pending[other])
			r.replay(r.pending[other])
			delete(r.pending, other)
		}
		r.look(k.pkg, r.pending[k])
		r.replay(r.pending[k])
	} else {
		r.replay(slices.DeleteFunc(r.pending[k], func(l string) bool {
			return !strings.HasPrefix(l, "ok  \t") && !strings.HasPrefix(l, "?   \t")
		}))
	}
	delete(r.pending, k)
}

// found matches what a failure says that is one however seldom it comes: a race, or
// the history that a property test found to break the rule.
var found = regexp.MustCompile(`(?i)DATA RACE|\bseed\b|counter-?example|failing input`)

func (r *report) look(pkg string, lines []string) {
	r.finding[pkg] = r.finding[pkg] || slices.ContainsFunc(lines, found.MatchString)
}

// mostUnsteady is how many packages may fail of something that does not come again.
const mostUnsteady = 2

// unsteady are the packages that failed where running them again can tell something:
// none where one did not build, where a failure is a finding, or where many failed.
func (r *report) unsteady() []string {
	pkgs := slices.Sorted(maps.Keys(r.failed))
	if len(pkgs) > mostUnsteady || slices.ContainsFunc(pkgs, func(pkg string) bool { return r.finding[pkg] }) {
		return nil
	}
	return pkgs
}

// replay prints the lines that were held back, without test2json's framing.
func (r *report) replay(lines []string) {
	if r.verbose {
		return
	}
	for _, l := range lines {
		if !strings.HasPrefix(l, "=== ") {
			r.print(l)
		}
	}
}

// print writes to the terminal; if that is gone there is nobody to tell.
func (r *report) print(s string) { _, _ = io.WriteString(r.out, s) }

// logged matches the start of what t.Skip wrote: "    file_test.go:12: ".
var logged = regexp.MustCompile(`^\s+[^\s:]+\.go:\d+: `)

// reason is the text that a skipped test gave, on one line.
func reason(lines []string) string {
	var words []string
	for _, l := range lines {
		switch at := logged.FindStringIndex(l); {
		case at != nil:
			words = strings.Fields(l[at[1]:]) // the last text is t.Skip's
		case words != nil && strings.HasPrefix(l, "        "):
			words = append(words, strings.Fields(l)...)
		}
	}
	if words == nil {
		return "no reason given"
	}
	return strings.Join(words, " ")
}

// summary prints the count of tests and what was skipped, and returns how many
// tests lacked a part.
func (r *report) summary() int {
	failed, total, missing := 0, 0, 0
	for _, n := range r.failed {
		failed += n
	}
	for why, tests := range r.skipped {
		total += len(tests)
		if strings.Contains(strings.ToLower(why), "part missing") {
			missing += len(tests)
		}
	}
	_, _ = fmt.Fprintf(r.out, "tests: %d passed, %d failed, %d skipped\n", r.passed, failed, total)
	if total == 0 {
		return 0
	}
	_, _ = fmt.Fprintln(r.out, "\nLEFT OUT:")
	for _, why := range slices.Sorted(maps.Keys(r.skipped)) {
		tests := r.skipped[why]
		_, _ = fmt.Fprintf(r.out, "  %s\n", why)
		for _, k := range tests[:min(len(tests), 5)] {
			_, _ = fmt.Fprintf(r.out, "    %s %s\n", k.pkg, k.test)
		}
		if more := len(tests) - 5; more > 0 {
			_, _ = fmt.Fprintf(r.out, "    and %d more\n", more)
		}
	}
	return missing
}
