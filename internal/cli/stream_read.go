package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"sluice/internal/apiclient"
)

// readCommand is the flags of stream read.
type readCommand struct {
	connection
	offset, output string
	showOffset     bool
}

func newRead(env Environment) *cobra.Command {
	var o readCommand
	cmd := &cobra.Command{
		Use: "read NAME", Short: "Read a stream, to its present end",
		Long: `Read a stream from its start, or from an offset, to its present end, and print it as
it is; of a JSON stream that is one message a line. A connection that breaks costs
nothing: the read goes on from its offset, and repeats nothing.

With --output it goes to a part beside FILE first, which becomes FILE when it is whole.
Where it has to give up, the part stays, and it says how to go on. A pipe or a device
is written as it is.

A public stream is read without a key: name it ACCOUNT/NAME.`,
		Example: `  sluice stream read orders
  sluice stream read orders --output orders.ndjson
  sluice stream read orders --offset 00000000000000004096
  sluice stream read acme/news --url https://streams.example.com`,
		Args: named("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.offset == "" {
				return usagef("--offset is empty: -1 is the start")
			}
			return o.run(cmd.Context(), env, args[0])
		},
	}
	flags := cmd.Flags()
	o.ownerFlags(flags)
	flags.StringVar(&o.offset, "offset", "-1", "where to begin: -1 is the start, now the end, else an offset that an answer gave")
	flags.StringVarP(&o.output, "output", "o", "", "the file to write, in place of standard output")
	flags.BoolVar(&o.showOffset, "show-offset", false, "say at the end on standard error where to go on")
	cmd.ValidArgsFunction = o.streams(env).first
	completeFlag(cmd, "offset", words("-1", "now"))
	return cmd
}

func (o *readCommand) run(ctx context.Context, env Environment, name string) error {
	ctx, stop := interruptible(ctx)
	defer stop()
	target, err := o.data(ctx, env, name, true)
	if err != nil {
		return err
	}
	defer target.Close()
	out := env.Out
	var file *output
	options := apiclient.ReadOptions{Stream: target.url, Offset: o.offset}
	bar := newProgress(env, "read", 0)
	if o.output != "" {
		if file, err = openOutput(ctx, o.output); err != nil {
			return err
		}
		out = file.f
		options.Progress = func(so apiclient.ReadSoFar) { bar.tell(so.Bytes) } // else it would stand among what is read
	}
	so, err := target.Read(ctx, options, out)
	bar.end()
	if file != nil && err == nil {
		err = file.done()
	}
	if err != nil {
		return o.failed(name, file, so, err)
	}
	if o.showOffset {
		_, err = fmt.Fprintf(env.Err, "Next offset: %s\n", apiclient.Printable(so.Next))
	}
	return err
}

// failed says what there is of a read that could not be finished, and how to go on.
func (o *readCommand) failed(name string, file *output, so apiclient.ReadSoFar, err error) error {
	err = o.explain(err)
	again := o.again("stream", "read", name, "--offset", apiclient.Printable(so.Next))
	if file != nil {
		err = errors.Join(err, file.leave(so.Bytes == 0))
	}
	switch {
	case so.Bytes == 0:
		return err
	case file == nil:
		return fmt.Errorf("%w\nPrinted: %s. To go on: %s", err, size(so.Bytes), again)
	case file.part == "":
		return fmt.Errorf("%w\n%s was given the first %s. To go on: %s >> %s", err, o.output, size(so.Bytes), again, shellWord(o.output))
	default:
		return fmt.Errorf("%w\n%s is not whole: %s has the first %s. To go on: %s >> %s && mv %[6]s %s",
			err, o.output, file.part, size(so.Bytes), again, shellWord(file.part), shellWord(file.to))
	}
}
