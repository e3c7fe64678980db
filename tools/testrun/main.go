// Testrun is `go test` for this repository: it runs the tests with the race
// detector, prints what go test prints, and names at its end, where nobody
// overlooks it, every test that was left out and how to get it.
//
// Its arguments are go test's own. It refuses to know what the parts are: a
// test that lacks one skips itself with a text that holds "part missing" and
// says what to do. With SLUICE_REQUIRE_PARTS=1 such a skip, or the lack of the
// race detector, is a failure.
//
// With SLUICE_HEAR_AGAIN=1, as in CI, a package that failed is run once more,
// whole. What passes then is named UNSTEADY with its first output kept above: a
// fault to be mended, in the test or in what it tests, but not one that this
// change is known to have brought. A data race, the counter-example of a
// property test, what does not build, and failures of more than two packages
// are not heard again.
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
	if again := rep.unsteady(); code != 0 && len(again) > 0 && ctx.Err() == nil && os.Getenv("SLUICE_HEAR_AGAIN") == "1" {
		if code, err = hearAgain(ctx, args, again, race, stdout, stderr); err != nil {
			_, _ = fmt.Fprintf(stderr, "testrun: %v\n", err)
			return 1
		}
	}
	if !race {
		_, _ = fmt.Fprintf(stdout, "\nLEFT OUT: %s\n", noRace(compiler))
	}
	if missing > 0 && required && code == 0 {
		_, _ = fmt.Fprintln(stdout, "\nFAIL: SLUICE_REQUIRE_PARTS=1 allows no part to be missing")
		return 1
	}
	return code
}

// hearAgain runs packages that failed once more, and says what came of it. The code is
// that of the second run.
func hearAgain(ctx context.Context, args, packages []string, race bool, stdout, stderr io.Writer) (int, error) {
	_, _ = fmt.Fprintf(stdout, "\nonce more: %s\n", strings.Join(packages, " "))
	flags := slices.DeleteFunc(slices.Clone(args), func(arg string) bool {
		return strings.HasPrefix(arg, ".") || strings.HasPrefix(arg, "sluice/") // what to test
	})
	rep := newReport(stdout, slices.Contains(args, "-v"))
	code, err := goTest(ctx, append(append(flags, "-count=1"), packages...), race, rep, stderr)
	if err != nil {
		return 0, err
	}
	rep.summary()
	if code == 0 {
		_, _ = fmt.Fprintf(stdout, "\nUNSTEADY: %s failed above and passed now: mend it\n", strings.Join(packages, " "))
	}
	return code, nil
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
