package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"sluice/auth"
	"sluice/internal/syncbuf"
)

// The exit codes of the program (design §10), as its main gives them.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// asProgram set to 1 makes this test binary a program of these commands, so that tests
// can give it a terminal.
const asProgram = "SLUICE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "1" {
		os.Exit(run(context.Background(), Environment{
			Lookup: os.LookupEnv, In: os.Stdin, Out: os.Stdout, Err: os.Stderr, UserAgent: "sluice test",
		}, os.Args[1:]))
	}
	os.Exit(m.Run())
}

// run is what the program's main does with the commands.
func run(ctx context.Context, env Environment, args []string) int {
	root := &cobra.Command{Use: "sluice", SilenceErrors: true, SilenceUsage: true}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return UsageError{Err: err} })
	root.AddCommand(Commands(env)...)
	root.SetArgs(args)
	root.SetOut(env.Out)
	root.SetErr(env.Err)
	cmd, err := root.ExecuteContextC(ctx)
	var usage UsageError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &usage):
		_, _ = fmt.Fprintf(env.Err, "sluice: %v\nRun '%s --help' for what it takes.\n", err, cmd.CommandPath())
		return exitUsage
	default:
		_, _ = fmt.Fprintf(env.Err, "sluice: %v\n", err)
		return exitFailed
	}
}

// command runs a command in this process and returns its exit code and output.
func command(t *testing.T, env map[string]string, args ...string) (code int, out, errOut string) {
	t.Helper()
	return commandWith(t, env, "", args...)
}

// commandWith runs a command with something on its standard input.
func commandWith(t *testing.T, env map[string]string, in string, args ...string) (code int, out, errOut string) {
	t.Helper()
	var o, e syncbuf.Buffer
	code = run(t.Context(), environment(env, strings.NewReader(in), &o, &e), args)
	return code, o.String(), e.String()
}

func environment(env map[string]string, in io.Reader, out, errOut io.Writer) Environment {
	return Environment{
		Lookup: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		In:     in, Out: out, Err: errOut, UserAgent: "sluice test",
	}
}

func newTestKey(t *testing.T) string {
	t.Helper()
	k, err := auth.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k.Reveal()
}

// freePort is a port that was free a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}
