package realursula

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Version is the Ursula release the gateway is built against.
const Version = "0.11.5"

// Environment variables of this package.
const (
	// EnvBinary names the binary to run, before PATH and the cache are looked at.
	EnvBinary = "SLUICE_URSULA_BIN"
	// EnvRequire set to 1 makes a missing binary fail the test instead of skipping it.
	EnvRequire = "SLUICE_REQUIRE_PARTS"
)

// Binary returns the path of an Ursula binary that runs and is of Version. When
// there is none it skips the test and says how to get one, or fails it where
// SLUICE_REQUIRE_PARTS=1.
func Binary(tb testing.TB) string {
	tb.Helper()
	path, problem := locate(tb.Context())
	if problem == "" {
		return path
	}
	text := "PART MISSING: the real Ursula " + Version + " is not here (" + problem + ").\n" +
		"This test did not run against it. `make ursula` installs it (about 15 minutes, once), " +
		"or name a binary in " + EnvBinary + "."
	if os.Getenv(EnvRequire) == "1" {
		tb.Fatal(text)
	}
	tb.Skip(text)
	return ""
}

// locate finds the binary; problem says why there is none.
func locate(ctx context.Context) (path, problem string) {
	candidate := os.Getenv(EnvBinary)
	switch {
	case candidate != "":
	case lookPath() != "":
		candidate = lookPath()
	default:
		cache := os.Getenv("XDG_CACHE_HOME")
		if cache == "" {
			home, err := os.UserHomeDir()
			if err != nil {
				return "", "no home directory: " + err.Error()
			}
			cache = filepath.Join(home, ".cache")
		}
		candidate = filepath.Join(cache, "sluice", "ursula-"+Version, "bin", "ursula")
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, candidate, "--version").Output() //nolint:gosec // the developer names the binary
	if err != nil {
		return "", candidate + ": " + err.Error()
	}
	if got := strings.TrimSpace(string(out)); got != "ursula "+Version {
		return "", candidate + " is " + got
	}
	return candidate, ""
}

func lookPath() string {
	path, err := exec.LookPath("ursula")
	if err != nil {
		return ""
	}
	return path
}
