package upstream

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every row F, L and R of facts §13 is named by a test of the gateway, or stands in
// the list of docs/architecture.md with the reason why it differs. Two-digit
// L-rows look like cases of another list, so their line must say "facts" too.
func TestEveryRowIsNamed(t *testing.T) {
	var lines []string
	for _, pattern := range []string{"*_test.go", "../*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if file == "rows_test.go" {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			lines = append(lines, strings.Split(string(text), "\n")...)
		}
	}
	page, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "## Rows of Ursula's own gateway that differ\n")
	if !found {
		t.Fatal("docs/architecture.md has no section on rows that differ")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	differs := regexp.MustCompile(`(?m)^\| [^|]*\|`).FindAllString(section, -1)
	for _, group := range []struct {
		letter string
		rows   int
	}{{"F", 16}, {"L", 28}, {"R", 23}} {
		for i := range group.rows {
			id := fmt.Sprint(group.letter, i+1)
			word := regexp.MustCompile(`\b` + id + `\b`)
			named := false
			for _, line := range lines {
				if word.MatchString(line) && (group.letter != "L" || i < 9 || strings.Contains(strings.ToLower(line), "facts")) {
					named = true
					break
				}
			}
			if !named && !word.MatchString(strings.Join(differs, "\n")) {
				t.Errorf("no test names %s, and it is not among the rows that differ", id)
			}
		}
	}
}
