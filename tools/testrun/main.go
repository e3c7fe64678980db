// Testrun is `go test` for this repository: it runs the tests with the race
// detector, prints what go test prints, and names at its end, where nobody
// overlooks it, every test that was left out and how to get it.
//
// Its arguments are go test's own. It refuses to know what the parts are: a
// test that lacks one skips itself with a text that holds "part missing" and
// says what to do. With SLUICE_REQUIRE_PARTS=1 such a skip, or the lack of the
// race detector, is a failure.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is main without the process: it returns the exit code, which is go
// test's own unless a required part was missing.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	required := os.Getenv("SLUICE_REQUIRE_PARTS") == "1"
	compiler, race := findCompiler(ctx)
	if !race && required {
		_, _ = fmt.Fprintf(stderr, "testrun: %s\n", noRace(compiler))
		return 1
	}

	rep := newReport(stdout, slices.Contains(args, "-v"))
	code, err := goTest(ctx, args, race, rep, stderr)
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "testrun: %v\n", err)
		return 1
	}
	missing := rep.summary()
	if !race {
		_, _ = fmt.Fprintf(stdout, "\nLEFT OUT: %s\n", noRace(compiler))
	}
	if missing > 0 && required && code == 0 {
		_, _ = fmt.Fprintln(stdout, "\nFAIL: SLUICE_REQUIRE_PARTS=1 allows no part to be missing")
		return 1
	}
	return code
}

// findCompiler names the C compiler that Go would use and reports whether it
// is there: the race detector is linked with it. The product itself has no C.
func findCompiler(ctx context.Context) (string, bool) {
	out, err := exec.CommandContext(ctx, "go", "env", "CC").Output()
	fields := strings.Fields(string(out))
	if err != nil || len(fields) == 0 {
		return "cc", false
	}
	_, err = exec.LookPath(fields[0])
	return fields[0], err == nil
}

func noRace(compiler string) string {
	return fmt.Sprintf("the race detector, for there is no C compiler %q. Install gcc to have it "+
		"(Debian: apt-get install gcc libc6-dev).", compiler)
}

// goTest runs go test and feeds its events to rep. The code is go test's; the
// error says that it could not be run at all.
func goTest(ctx context.Context, args []string, race bool, rep *report, stderr io.Writer) (int, error) {
	full := []string{"test", "-json"}
	env := os.Environ()
	if race {
		full = append(full, "-race")
		env = append(env, "CGO_ENABLED=1")
	}
	cmd := exec.CommandContext(ctx, "go", append(full, args...)...) //nolint:gosec // G204: the arguments are the developer's own go test flags
	cmd.Env = env
	cmd.Stderr = stderr
	// An interrupt lets go test end its test binaries itself.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second

	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return 0, fmt.Errorf("go test: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("go test: %w", err)
	}
	readErr := rep.read(pipe)
	err = cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(exit.ExitCode(), 1), nil
	}
	if err != nil {
		return 0, fmt.Errorf("go test: %w", err)
	}
	return 0, readErr
}
