package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReport(t *testing.T) {
	t.Parallel()
	const okay = `{"Action":"output","Package":"p","Output":"-test.shuffle 7\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:3: chatter\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- PASS: TestA (0.00s)\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
`
	const closing = `{"Action":"output","Package":"p","Output":"PASS\n"}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.1s\n"}
{"Action":"pass","Package":"p"}
`
	tests := []struct {
		name    string
		in      string
		verbose bool
		want    string
		missing int
	}{
		{
			name: "a passing package is its closing line", in: okay + closing,
			want: "ok  \tp\t0.1s\ntests: 1 passed, 0 failed, 0 skipped\n",
		},
		{
			name: "verbose prints all", in: okay + closing, verbose: true,
			want: "-test.shuffle 7\n=== RUN   TestA\n    a_test.go:3: chatter\n--- PASS: TestA (0.00s)\nPASS\nok  \tp\t0.1s\n" +
				"tests: 1 passed, 0 failed, 0 skipped\n",
		},
		{
			name: "a skip is named at the end with its reason",
			in: okay + `{"Action":"output","Package":"p","Test":"TestB","Output":"=== RUN   TestB\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:9: looked around\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:12: real part missing: ursula;\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"        get it with make ursula\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestB"}
` + closing,
			want: "ok  \tp\t0.1s\ntests: 1 passed, 0 failed, 1 skipped\n\nLEFT OUT:\n" +
				"  real part missing: ursula; get it with make ursula\n    p TestB\n",
			missing: 1,
		},
		{
			name: "another skip is named but is no missing part",
			in: `{"Action":"output","Package":"p","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestB"}
` + closing,
			want: "ok  \tp\t0.1s\ntests: 0 passed, 0 failed, 1 skipped\n\nLEFT OUT:\n  no reason given\n    p TestB\n",
		},
		{
			name: "a failure is printed whole, the passing test before it is not",
			in: okay + `{"Action":"output","Package":"p","Test":"TestC","Output":"    c_test.go:4: got 1 want 2\n"}
{"Action":"output","Package":"p","Test":"TestC","Output":"--- FAIL: TestC (0.00s)\n"}
{"Action":"fail","Package":"p","Test":"TestC"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.1s\n"}
{"Action":"fail","Package":"p"}
`,
			want: "    c_test.go:4: got 1 want 2\n--- FAIL: TestC (0.00s)\n-test.shuffle 7\nFAIL\tp\t0.1s\n" +
				"tests: 1 passed, 1 failed, 0 skipped\n",
		},
		{
			name: "a test that a timeout left without an end is printed",
			in: `{"Action":"output","Package":"p","Test":"TestD","Output":"panic: test timed out after 1s\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t1s\n"}
{"Action":"fail","Package":"p"}
`,
			want: "panic: test timed out after 1s\nFAIL\tp\t1s\ntests: 0 passed, 1 failed, 0 skipped\n",
		},
		{
			name: "compiler output and lines that are no events are printed as they are",
			in: `{"ImportPath":"p","Action":"build-output","Output":"a.go:1:1: broken\n"}
{"ImportPath":"p","Action":"build-fail"}
warning: not json
`,
			want: "a.go:1:1: broken\nwarning: not json\ntests: 0 passed, 0 failed, 0 skipped\n",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			r := newReport(&out, tt.verbose)
			if err := r.read(strings.NewReader(tt.in)); err != nil {
				t.Fatal(err)
			}
			if got := r.summary(); got != tt.missing {
				t.Errorf("missing = %d, want %d", got, tt.missing)
			}
			if diff := cmp.Diff(tt.want, out.String()); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
}

// A run failed for one test that a slow machine had upset, and the change with it.
func TestUnsteady(t *testing.T) {
	t.Parallel()
	fail := func(pkg, output string) string {
		return `{"Action":"output","Package":"` + pkg + `","Test":"TestC","Output":"` + output + `\n"}
{"Action":"fail","Package":"` + pkg + `","Test":"TestC"}
{"Action":"output","Package":"` + pkg + `","Output":"FAIL\n"}
{"Action":"fail","Package":"` + pkg + `"}
`
	}
	tests := []struct {
		name, in string
		want     []string
	}{
		{"nothing failed", `{"Action":"pass","Package":"p"}`, nil},
		{"one failed", fail("p", "got 1 want 2"), []string{"p"}},
		{"two failed", fail("p", "late") + fail("q", "late"), []string{"p", "q"}},
		{"many failed", fail("p", "late") + fail("q", "late") + fail("r", "late"), nil},
		{"a race", fail("p", "WARNING: DATA RACE"), nil},
		{"a race beside another failure", fail("p", "late") + fail("q", "WARNING: DATA RACE"), nil},
		{"a property test's history", fail("p", "seed 17: lost 3"), nil},
		{"a fuzz target's input", fail("p", "Failing input written to testdata"), nil},
		{"what does not build", `{"Action":"fail","Package":"p","FailedBuild":"p [p.test]"}`, nil},
		{"a race that ends the package", `{"Action":"output","Package":"p","Test":"TestD","Output":"WARNING: DATA RACE\n"}
{"Action":"fail","Package":"p"}
`, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newReport(&strings.Builder{}, false)
			if err := r.read(strings.NewReader(tt.in)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, r.unsteady()); diff != "" {
				t.Errorf("unsteady (-want +got):\n%s", diff)
			}
		})
	}
}
