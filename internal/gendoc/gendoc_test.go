package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const root = "../.."

func TestDocumentsAreFresh(t *testing.T) {
	for _, p := range pages() {
		t.Run(p.path, func(t *testing.T) {
			diff, err := p.bring(root, true)
			if err != nil {
				t.Fatal(err)
			}
			if diff != "" {
				t.Errorf("stale; run: go run ./internal/gendoc\n%s", diff)
			}
		})
	}
}

func TestPagesAreWholeAndTheSameEachTime(t *testing.T) {
	for _, p := range pages() {
		t.Run(p.path, func(t *testing.T) {
			first, err := p.make(root)
			if err != nil {
				t.Fatal(err)
			}
			second, err := p.make(root)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(first, second) {
				t.Error("two runs differ")
			}
			if !bytes.HasSuffix(first, []byte("\n")) || bytes.HasSuffix(first, []byte("\n\n")) || bytes.Contains(first, []byte("\r")) {
				t.Error("want one line break at the end, and no carriage returns")
			}
		})
	}
}

func TestConfigurationHoldsEveryKey(t *testing.T) {
	got, err := configuration(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"### `origin`\n", "#### `limits.default.burst`\n", "#### `accounts[].keys[].streams`\n", "#### `accounts[].limits.request_bytes`\n",
		"*duration* · default `30s` · `0s` to `24h`", "one of `read`, `write`", "a change needs a restart", "| `management` |",
	} {
		if !strings.Contains(string(got), want) {
			t.Errorf("no %q", want)
		}
	}
}

func TestKeyWithoutCommentIsAnError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.go")
	write(t, file, "package config\n\ntype Config struct {\n\tA string `yaml:\"a\"`\n}\n")
	if err := structsOf(file, map[string]structType{}); err == nil || !strings.Contains(err.Error(), "the key a of Config has no doc comment") {
		t.Errorf("got %v", err)
	}
}

func TestRun(t *testing.T) {
	// A tree of its own, as the command writes into it.
	dir := t.TempDir()
	for _, file := range append(configFiles(), "deploy/example.yaml") {
		data, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, file), string(data))
	}
	write(t, filepath.Join(dir, "docs", "errors.md"), "old\n")
	steps := []struct {
		name, arg string
		code      int
		out       string
	}{
		{"stale", "-check", 1, "docs/errors.md is stale"},
		{"written", "-check=false", 0, ""},
		{"fresh", "-check", 0, ""},
		{"wrong use", "-nonsense", 2, ""},
	}
	for _, s := range steps {
		var stdout, stderr bytes.Buffer
		code := run([]string{s.arg, "-root", dir}, &stdout, &stderr)
		if code != s.code || !strings.Contains(stdout.String(), s.out) || (s.out == "" && stdout.Len() > 0) {
			t.Errorf("%s: exit %d, want %d; printed %s%s", s.name, code, s.code, stdout.String(), stderr.String())
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestNamedCases(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a", "x_test.go"), `package a

// S01, S02: heads came late.
//
// P08 is guarded too; M02 in the middle is not named.
func TestOne(t *testing.T) {
	// H03 (framing): in the body.
	t.Run("A01 none", nil)
	for name, tc := range map[string]int{"A02 hmac": 1} {
		_ = struct{ name string }{name: "K05/K06 range"}
		_ = "O04 is no subtest's name"
	}
}

// G01 stands beside no function.
var x = 1

// A020 and X01 are no ids.
func TestTwo(t *testing.T) {}
`)
	for _, ignored := range []string{"a/x.go", "a/testdata/y_test.go", ".hidden/z_test.go"} {
		write(t, filepath.Join(dir, ignored), "package a\n\n// C01: not looked at.\nfunc f() {}\n")
	}
	got, err := namedCases(dir)
	if err != nil {
		t.Fatal(err)
	}
	// Not a map with the ids as keys: those would count as subtests of this test.
	want := map[string][]string{}
	for _, id := range strings.Fields("S01 S02 P08 H03 A01 A02 K05 K06") {
		want[id] = []string{"a/x_test.go: TestOne"}
	}
	want["G"+"01"] = []string{"a/x_test.go"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestUnknownCaseIsAnError(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "x_test.go"), "package a\n\n// S99: there is none.\nfunc TestX() {}\n")
	if _, err := cases(dir); err == nil || err.Error() != "x_test.go: TestX names the case S99, which cases.tsv lacks" {
		t.Errorf("got %v", err)
	}
}

func TestReadCases(t *testing.T) {
	if all, err := readCases(casesTSV); err != nil || len(all) < 100 {
		t.Errorf("cases.tsv: %d cases, %v", len(all), err)
	}
	for name, tsv := range map[string]string{
		"columns":  "h\nS01\tx\n",
		"id":       "h\nS1\tx\ty\n",
		"no line":  "h\nS01\t\ty\n",
		"repeated": "h\nS01\tx\ty\nS01\tx\ty\n",
	} {
		if _, err := readCases(tsv); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestLink(t *testing.T) {
	for in, want := range map[string]string{
		"golang/go#1":              "[golang/go#1](https://github.com/golang/go/issues/1)",
		"golang/go PR#1 (CVE-1-2)": "[golang/go PR#1](https://github.com/golang/go/pull/1) (CVE-1-2)",
		"RFC 6750 §3":              "RFC 6750 §3",
	} {
		if got := link(in); got != want {
			t.Errorf("link(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestDifference(t *testing.T) {
	got := difference("a\nb\nc\n", "a\nx\ny\nc\n")
	if want := "@@ line 2 @@\n-b\n+x\n+y\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
