package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log" //nolint:depguard // to turn it off
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// Environment is what a command may use of the process around it.
type Environment struct {
	Lookup   func(string) (string, bool) // of an environment variable
	In       io.Reader
	Out, Err io.Writer
	// UserAgent is what the program calls itself.
	UserAgent string
	// Explain has the operator's file at path decide on a request; question and answer are
	// JSON, as of POST /explain of the admin listener.
	Explain func(ctx context.Context, path string, question []byte) ([]byte, error)
	// Terminal tells whether a stream is a person's terminal; nil = by its file.
	Terminal func(stream any) bool
}

// UsageError is a command line that cannot be understood; nothing was sent.
type UsageError struct{ Err error }

func (e UsageError) Error() string { return e.Err.Error() }

// Unwrap is what is wrong with it.
func (e UsageError) Unwrap() error { return e.Err }

func usagef(format string, args ...any) error { return UsageError{Err: fmt.Errorf(format, args...)} }

// Commands are the commands of this package, most of them groups. A caller may add
// commands of its own to a group.
func Commands(env Environment) []*cobra.Command {
	all := []*cobra.Command{newAccount(env), newAPIKey(env), newStream(env), newToken(env), newAudit(env), newUsage(env), newExplain(env)}
	for _, g := range all {
		commands := g.Commands()
		if len(commands) == 0 || g.Annotations[runsItself] != "" {
			commands = append(commands, g)
		}
		for _, c := range commands {
			run := c.RunE
			c.RunE = func(cmd *cobra.Command, args []string) error {
				muteNetHTTP()
				return run(cmd, args)
			}
			completeNoFiles(c)
		}
	}
	return all
}

// runsItself marks a group that is a command as well.
const runsItself = "runs itself"

// muteNetHTTP keeps net/http from writing to standard error, for as long as the process
// lives: what a server sends unasked it prints there, raw. It has no switch for that but
// the standard logger, which nothing of this program uses.
func muteNetHTTP() { log.SetOutput(io.Discard) }

// group is a command that has nothing but others.
func group(name, short string, commands ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{
		Use: name, Short: short,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			var names []string
			for _, c := range cmd.Commands() {
				if c.IsAvailableCommand() {
					names = append(names, name+" "+c.Name())
				}
			}
			return usagef("unknown command %q; there is: %s", args[0], strings.Join(names, ", "))
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	g.AddCommand(commands...)
	return g
}

// noArguments refuses arguments as a wrong use.
func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("unexpected argument %q", args[0])
	}
	return nil
}

// named wants the arguments of these names, of which the last may be left out where
// it stands in brackets.
func named(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > len(names) {
			return usagef("unexpected argument %q", args[len(names)])
		}
		for i, name := range names {
			if i >= len(args) && !strings.HasPrefix(name, "[") {
				return usagef("%s is missing", name)
			}
			if i < len(args) && args[i] == "" {
				return usagef("%s is empty", strings.Trim(name, "[]"))
			}
		}
		return nil
	}
}

// errInterrupted is the cause of an end by Ctrl-C.
var errInterrupted = errors.New("stopped")

// interruptible ends with the first SIGINT or SIGTERM, with errInterrupted as its
// cause; a second one ends the process as ever.
func interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	signalled, release := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	within, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(signalled, func() {
		release()
		cancel(errInterrupted)
	})
	return within, func() {
		stop()
		release()
		cancel(nil)
	}
}

// isTerminal tells whether a stream of the process is a person's terminal.
func (e Environment) isTerminal(stream any) bool {
	if e.Terminal != nil {
		return e.Terminal(stream)
	}
	file, ok := stream.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(file.Fd()))
}
