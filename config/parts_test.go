package config

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestExpand(t *testing.T) {
	env := func(name string) (string, bool) {
		v, ok := map[string]string{"A": "1", "B_2": "${A}", "E": ""}[name]
		return v, ok
	}
	for name, tc := range map[string]struct {
		in, want string
		ok       bool
	}{
		"none":          {"a$b$$c}", "a$b$$c}", true},
		"whole":         {"${A}", "1", true},
		"inside":        {"x${A}y${A}z", "x1y1z", true},
		"not again":     {"${B_2}", "${A}", true},
		"escaped":       {"$${A}", "${A}", true},
		"escaped twice": {"$$${A}", "$${A}", true},
		"both":          {"$${A}${A}", "${A}1", true},
		"unset":         {"${C}", "", false},
		"empty":         {"${E}", "", false},
		"no name":       {"${}", "", false},
		"bad name":      {"${1A}", "", false},
		"default form":  {"${A:-x}", "", false},
		"not closed":    {"${A", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, err := expand(tc.in, env)
			if got != tc.want || (err == nil) != tc.ok {
				t.Errorf("expand(%q) = %q, %v; want %q, ok %v", tc.in, got, err, tc.want, tc.ok)
			}
		})
	}
}

func TestParseBytes(t *testing.T) {
	for in, want := range map[string]Bytes{"0": 0, "1": 1, "8MiB": 8 << 20, "3KiB": 3 << 10, "2GiB": 2 << 30, "8589934591GiB": 8589934591 << 30} {
		got, err := ParseBytes(in)
		if err != nil || got != want {
			t.Errorf("ParseBytes(%q) = %d, %v; want %d", in, got, err, want)
		}
		if back, err := ParseBytes(got.String()); err != nil || back != want {
			t.Errorf("ParseBytes(%q) = %d, %v; want %d", got.String(), back, err, want)
		}
	}
	for _, in := range []string{"", "MiB", "-1", "+1", "1.5MiB", "8MB", "8 MiB", "8mib", "08", "1_000", "8589934592GiB", "9223372036854775808"} {
		if got, err := ParseBytes(in); err == nil {
			t.Errorf("ParseBytes(%q) = %d, want an error", in, got)
		}
	}
}

func TestOverlap(t *testing.T) {
	for name, tc := range map[string]struct {
		a, b string
		want bool
	}{
		"same":            {"127.0.0.1:1", "127.0.0.1:1", true},
		"other port":      {":1", ":2", false},
		"any interface":   {":1", "127.0.0.1:1", true},
		"unspecified":     {"127.0.0.1:1", "[::]:1", true},
		"other interface": {"127.0.0.1:1", "10.0.0.1:1", false},
		"free ports":      {":0", ":0", false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := overlap(tc.a, tc.b); got != tc.want {
				t.Errorf("overlap(%s, %s) = %v, want %v", tc.a, tc.b, got, tc.want)
			}
		})
	}
}

func TestLoopback(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:1": true, "127.9.9.9:1": true, "[::1]:1": true, "localhost:1": true, "[::ffff:127.0.0.1]:1": true,
		":1": false, "0.0.0.0:1": false, "10.0.0.1:1": false, "localhost.example:1": false,
	} {
		if got := loopback(addr); got != want {
			t.Errorf("loopback(%s) = %v, want %v", addr, got, want)
		}
	}
}

func TestDidYouMean(t *testing.T) {
	known := []string{"burst", "open_tails", "request_bytes"}
	for name, want := range map[string]string{
		"bursts": "did you mean burst?", "Burst": "did you mean burst?", "openTails": "did you mean open_tails?", "open-tails": "did you mean open_tails?",
		"rate": "the keys here are: burst, open_tails, request_bytes",
	} {
		if got := didYouMean(name, known); got != want {
			t.Errorf("didYouMean(%s) = %q, want %q", name, got, want)
		}
	}
}

// Every planned key is refused as such, and none of them has been built.
func TestPlannedKeysAreNotKnown(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range Planned() {
		if seen[p.Path] || p.Meanwhile == "" {
			t.Errorf("%s is listed twice or does not say what to do", p.Path)
		}
		seen[p.Path] = true
	}
	want, err := os.ReadFile(filepath.Join("testdata", "bad-not-built.want"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = Load(filepath.Join("testdata", "bad-not-built.yml"), testOptions())
	var invalid *Invalid
	if !errors.As(err, &invalid) {
		t.Fatal(err)
	}
	if got := len(invalid.Problems); got != len(seen) {
		t.Errorf("%d problems for %d planned keys; testdata/bad-not-built.yml has to hold each:\n%s", got, len(seen), want)
	}
}

// FuzzParse holds that no text panics, that a refusal has problems that name
// the file, and that what is accepted passes the checks again and reads the
// same a second time.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob(filepath.Join("testdata", "*.yml"))
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		o := testOptions()
		o.ReadFile = func(string) ([]byte, error) { return nil, os.ErrNotExist }
		c, err := Parse("f", data, o)
		if err != nil {
			var invalid *Invalid
			if !errors.As(err, &invalid) || len(invalid.Problems) == 0 || c != nil {
				t.Fatalf("Parse = %v, %v", c, err)
			}
			for _, p := range invalid.Problems {
				if p.File != "f" || p.Message == "" || p.Line < 0 {
					t.Fatalf("problem %+v", p)
				}
			}
			return
		}
		if found := validate(c, o.Grammar); len(found) > 0 {
			t.Fatalf("accepted, but: %v", found)
		}
		again, err := Parse("f", data, o)
		if err != nil {
			t.Fatalf("second reading: %v", err)
		}
		same(t, again, c)
	})
}
