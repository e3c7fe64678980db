// Command sluice is the edge gateway for Ursula durable streams: server, checks
// of its configuration, and tools for keys. It builds every part of the program
// and is the only importer of all of them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"sluice/internal/cli"
)

// Exit codes (design §10).
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
	exitRefuse = 3 // of explain: it was explained, and is refused
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], environment{
		lookup: os.LookupEnv, in: os.Stdin, out: os.Stdout, err: os.Stderr,
	}))
}

// environment is what a command may use of the process around it.
type environment struct {
	lookup   func(string) (string, bool)
	in       io.Reader // nil where a command reads nothing
	out, err io.Writer
}

// usageError is a command line that cannot be understood.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// silentError is a failure that has been told already.
type silentError struct{ error }

func run(ctx context.Context, args []string, env environment) int {
	root := newRoot(env)
	root.SetArgs(args)
	root.SetOut(env.out)
	root.SetErr(env.err)
	cmd, err := root.ExecuteContextC(ctx)
	var usage usageError
	var clientUsage cli.UsageError
	var silent silentError
	var refused cli.RefusedError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &usage), errors.As(err, &clientUsage):
		_, _ = fmt.Fprintf(env.err, "sluice: %v\nRun '%s --help' for what it takes.\n", err, cmd.CommandPath())
		return exitUsage
	case errors.As(err, &refused):
		return exitRefuse
	case errors.As(err, &silent):
		return exitFailed
	default:
		_, _ = fmt.Fprintf(env.err, "sluice: %v\n", err)
		return exitFailed
	}
}

func newRoot(env environment) *cobra.Command {
	root := &cobra.Command{
		Use:   "sluice",
		Short: "The edge gateway for Ursula durable streams",
		Long: `Sluice is what an operator puts in front of an Ursula cluster to offer streams
to customers: it checks API keys, holds each account to its limits, and follows
the cluster's leaders.

Start with 'sluice dev': the whole thing in one process, with nothing to install.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			hint := ""
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				hint = fmt.Sprintf("; did you mean %q?", near[0])
			}
			return usageError{fmt.Errorf("unknown command %q%s", args[0], hint)}
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SuggestionsMinimumDistance = 2
	root.Version = version()
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(newServe(env), newCheck(env), newDev(env), newStore(env), newVersion(env))
	for _, c := range cli.Commands(cli.Environment{
		Lookup: env.lookup, In: env.in, Out: env.out, Err: env.err, UserAgent: version(),
		Explain: func(ctx context.Context, path string, question []byte) ([]byte, error) {
			return explainByFile(ctx, path, question, env)
		},
	}) {
		if c.Name() == "api-key" {
			c.AddCommand(newGenerate(env)) // it knows the operator's file, which cli does not
		}
		root.AddCommand(c)
	}
	return root
}

// noArguments refuses arguments as a wrong use.
func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("unexpected argument %q", args[0])}
	}
	return nil
}
