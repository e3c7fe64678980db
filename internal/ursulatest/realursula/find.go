package realursula

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice/internal/realpart"
)

// Version is the Ursula release the gateway is built against.
const Version = "0.11.5"

// EnvBinary names the binary to run, before PATH and the cache are looked at.
const EnvBinary = "SLUICE_URSULA_BIN"

// Binary returns the path of an Ursula binary that runs and is of Version. When
// there is none it skips the test and says how to get one, or fails it where
// SLUICE_REQUIRE_PARTS=1.
func Binary(tb testing.TB) string {
	tb.Helper()
	path, problem := locate(tb.Context())
	if problem == "" {
		return path
	}
	realpart.Missing(tb, "the real Ursula "+Version, problem+"; `make ursula` installs it (about 15 minutes, once), "+
		"or name a binary in "+EnvBinary)
	return ""
}

// locate finds the binary; problem says why there is none. A binary that is
// named must be the right one; of PATH and the cache the first right one is taken.
func locate(ctx context.Context) (path, problem string) {
	candidates := candidates()
	problems := make([]string, 0, len(candidates))
	for _, candidate := range candidates {
		problem := check(ctx, candidate)
		if problem == "" {
			return candidate, ""
		}
		problems = append(problems, problem)
	}
	return "", strings.Join(problems, "; ")
}

func candidates() []string {
	if named := os.Getenv(EnvBinary); named != "" {
		return []string{named}
	}
	var list []string
	if path, err := exec.LookPath("ursula"); err == nil {
		list = append(list, path)
	}
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		// Without a home there is no cache; the path that is left names what lacks.
		home, _ := os.UserHomeDir()
		cache = filepath.Join(home, ".cache")
	}
	return append(list, filepath.Join(cache, "sluice", "ursula-"+Version, "bin", "ursula"))
}

// check says why the candidate is not the binary; "" = it is.
func check(ctx context.Context, candidate string) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, candidate, "--version").Output()
	if err != nil {
		return candidate + ": " + err.Error()
	}
	if got := strings.TrimSpace(string(out)); got != "ursula "+Version {
		return candidate + " is " + got
	}
	return ""
}
