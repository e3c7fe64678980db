package config

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/secret"
)

var update = flag.Bool("update", false, "write the golden files anew")

// testGrammar stands in for the domain's: it refuses what has a space or "bad".
func testGrammar() Grammar {
	refuse := func(s string) error {
		if strings.ContainsAny(s, " ") || strings.Contains(s, "bad") {
			return errors.New("bad word: it has no space")
		}
		return nil
	}
	return Grammar{
		AccountID:  refuse,
		StreamName: func(_, name string) error { return refuse(name) },
		StreamSet:  func(p []string) error { return refuse(strings.Join(p, "")) },
		Digest:     refuse,
		IssuerURL:  refuse,
		JWKSURL:    refuse,
		Redis:      func(r Redis) error { return refuse(r.URL.Reveal() + strings.Join(r.Addrs, "")) },
		Store:      func(s Store) error { return refuse(s.URL.Reveal()) },
		// One key may be written in several ways.
		SigningKey: func(s secret.Secret) (string, error) {
			if strings.Contains(s.Reveal(), "bad") {
				return "", errors.New("bad key: it is not one")
			}
			return strings.TrimSpace(s.Reveal()), nil
		},
	}
}

// twoLines is what a private key is to this package: a text of several lines.
const twoLines = "-----BEGIN SOMETHING-----\nof several words\n"

// leak is a value that must never be printed.
const leak = "leaked-value-0123456789"

func testOptions() Options {
	vars := map[string]string{
		"SLUICE_ADMIN_TOKEN": "from-env-0123456789", "SECOND_ACCOUNT": "beta", "BURST": "7", "EMPTY": "", "LEAK": leak,
		"SIGNING_KEY":      twoLines,
		"FILE_IN_VARIABLE": "file:secrets/admin-token", "DIR": "secrets",
	}
	return Options{
		Env:     func(name string) (string, bool) { v, ok := vars[name]; return v, ok },
		Grammar: testGrammar(),
	}
}

func testFiles(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("no %s: %v", pattern, err)
	}
	return files
}

// O04, M02: a file with broken syntax, an unknown field, a duplicate id, a limit
// of "ten", or only half of it, named neither file nor line in other gateways,
// or only the first fault; and printed secrets along with it.
func TestBadFiles(t *testing.T) {
	for _, file := range testFiles(t, "bad-*.yml") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			c, err := Load(file, testOptions())
			var invalid *Invalid
			if !errors.As(err, &invalid) || c != nil {
				t.Fatalf("Load = %v, %v; want *Invalid", c, err)
			}
			got := strings.ReplaceAll(err.Error(), "testdata"+string(filepath.Separator), "") + "\n"
			golden := strings.TrimSuffix(file, ".yml") + ".want"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("problems differ (-want +got; -update writes them anew):\n%s", diff)
			}
			for _, secret := range []string{leak, "hunter2", "two words"} {
				if strings.Contains(got, secret) {
					t.Errorf("the problems print %q", secret)
				}
			}
			for i, p := range invalid.Problems {
				if p.File != file || p.Message == "" || (i > 0 && p.Line < invalid.Problems[i-1].Line) {
					t.Errorf("problem %d is out of order or says too little: %+v", i, p)
				}
			}
		})
	}
}
