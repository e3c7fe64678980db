package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

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

With --output it goes to FILE.part first, which becomes FILE when it is whole. Where
it has to give up, FILE.part stays, and it says how to go on.

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
	cmd.ValidArgsFunction = o.completeStream(env)
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
	out, part := env.Out, ""
	if o.output != "" {
		part = o.output + ".part"
		f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666) //nolint:gosec // as any file that a shell makes; the umask narrows it
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		out = f
	}
	bar := newProgress(env, "read", 0)
	options := apiclient.ReadOptions{Stream: target.url, Offset: o.offset}
	if o.output != "" { // else it would stand among what is read
		options.Progress = func(so apiclient.ReadSoFar) { bar.tell(so.Bytes) }
	}
	so, err := target.Read(ctx, options, out)
	bar.end()
	if f, ok := out.(*os.File); ok && part != "" && err == nil {
		err = o.finish(f, part)
	}
	if err != nil {
		return o.failed(name, part, so, err)
	}
	if o.showOffset {
		_, err = fmt.Fprintf(env.Err, "Next offset: %s\n", apiclient.Printable(so.Next))
	}
	return err
}

// finish makes the part the file, when it is on the disk.
func (o *readCommand) finish(f *os.File, part string) error {
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(part, o.output)
}

// failed says what there is of a read that could not be finished. A part without
// anything in it is taken away.
func (o *readCommand) failed(name, part string, so apiclient.ReadSoFar, err error) error {
	err = o.explain(err)
	switch {
	case part == "" && so.Bytes == 0:
		return err
	case part == "":
		return fmt.Errorf("%w\nPrinted: %s. To go on: sluice stream read %s --offset %s", err, size(so.Bytes), name, so.Next)
	case so.Bytes == 0:
		return errors.Join(err, ignoreMissing(os.Remove(part)))
	default:
		return fmt.Errorf("%w\n%s is not whole: %s has the first %s. To go on: sluice stream read %s --offset %s >> %s",
			err, o.output, part, size(so.Bytes), name, so.Next, part)
	}
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
