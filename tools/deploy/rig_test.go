package deploy

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice/internal/realpart"
)

// root is the repository's, from this folder.
const root = "../.."

// TestMain keeps Helm from telling of each link that it follows.
func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

// file is one of the repository, read whole.
func file(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(path)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// write makes a file, and its folder.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // read by another user
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil { //nolint:gosec // the same
		t.Fatal(err)
	}
}

// run runs a program, for a few minutes at the most, and returns all that it says.
func run(t *testing.T, dir string, env []string, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// missing ends a test that cannot run without a real part.
func missing(t *testing.T, part, how string) {
	t.Helper()
	realpart.Missing(t, part, how)
}

// program builds Sluice by what the Dockerfile runs, and returns where it is.
func program(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sluice")
	for _, line := range imageOf(t).builds {
		if !strings.Contains(line, "go build") {
			continue
		}
		line = strings.ReplaceAll(line, "/out/sluice", path)
		// The commit is of no matter here, and Git may not want to read another's tree.
		if out, err := run(t, root, []string{"GOFLAGS=-buildvcs=false", "TARGETOS=linux", "TARGETARCH="}, "sh", "-c", line); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
		return path
	}
	t.Fatal("the Dockerfile builds nothing")
	return ""
}

// wantGood has the program check a file, offline, and wants no word of complaint but
// those warnings that hold one of the texts.
func wantGood(t *testing.T, binary, path string, env []string, but ...string) {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	out, err := run(t, filepath.Dir(path), env, binary, "check", "--offline", "--config", path)
	if err != nil {
		t.Errorf("%s: %v\n%s", path, err, out)
		return
	}
	for line := range strings.Lines(out) {
		known := strings.Contains(line, ": good: ")
		for _, text := range but {
			known = known || strings.Contains(line, text)
		}
		if !known {
			t.Errorf("check says %s", line)
		}
	}
}
