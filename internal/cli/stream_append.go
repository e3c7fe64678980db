package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sluice/internal/apiclient"
)

// appendCommand is the flags of stream append.
type appendCommand struct {
	connection
	producer  string
	pieceSize int64
	asJSON    bool
}

func newAppend(env Environment) *cobra.Command {
	var o appendCommand
	cmd := &cobra.Command{
		Use: "append NAME [FILE|-]", Short: "Append a file, or standard input, to a stream",
		Long: `Append a file, or standard input where it is '-' or left out, to a stream. It goes in
pieces within the gateway's limit: of JSON, whole values, each one a message, and
each element of an array one too; of text, whole lines; of anything else, bytes. A
pipe is appended when a piece is full, and at its end.

It is stored once, whatever happens on the way: an answer that is lost is asked for
again under the same producer key, and 429 and 503 are waited out. Where it has to
give up it says how to go on: the same file with the same --producer-id and
--piece-size is stored once, and what is stored already is not sent again.`,
		Example: `  echo '{"n":1}' | sluice stream append orders
  sluice stream append orders orders.ndjson
  sluice stream append acme/logs app.log --producer-id app.log-2027-06-01`,
		Args: named("NAME", "[FILE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			return o.run(cmd.Context(), env, args)
		},
	}
	flags := cmd.Flags()
	o.ownerFlags(flags)
	flags.StringVar(&o.producer, "producer-id", "", "the name of this append, under which it is stored once; left out: a new one")
	flags.Int64Var(&o.pieceSize, "piece-size", 0, "bytes of one request; left out: 1 MiB, or what the gateway takes")
	flags.BoolVar(&o.asJSON, "json", false, "print what was appended as JSON")
	cmd.ValidArgsFunction = completeFirst(o.streams(env).first)
	return cmd
}

// completeFirst completes the first argument; further ones are files.
func completeFirst(first cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) == 1 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return first(cmd, args, typed)
	}
}

func (o *appendCommand) check(cmd *cobra.Command) error {
	if cmd.Flags().Changed("producer-id") && (o.producer == "" || len(o.producer) > 256 || strings.ContainsFunc(o.producer, func(r rune) bool { return r <= ' ' || r >= 0x7f })) {
		return usagef("--producer-id: 1 to 256 visible ASCII characters")
	}
	if cmd.Flags().Changed("piece-size") && o.pieceSize <= 0 {
		return usagef("--piece-size: a number of bytes above 0")
	}
	return nil
}

func (o *appendCommand) run(ctx context.Context, env Environment, args []string) error {
	source, total, file := env.In, int64(0), "-"
	if len(args) > 1 && args[1] != "-" {
		file = args[1]
		f, err := os.Open(file) //nolint:gosec // the user's own file
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			total = info.Size()
		}
		source = f
	} else if env.isTerminal(env.In) {
		_, _ = fmt.Fprintln(env.Err, "sluice: reading from the terminal; end it with Ctrl-D")
	}
	ctx, stop := interruptible(ctx)
	defer stop()
	target, err := o.data(ctx, env, args[0], false)
	if err != nil {
		return err
	}
	defer target.Close()
	if o.producer == "" {
		o.producer = "sluice-" + rand.Text()
	}
	bar := newProgress(env, "appended", total)
	done, err := target.Append(ctx, apiclient.AppendOptions{
		Stream: target.url, Source: interruptedReader{ctx, source}, ProducerID: o.producer, PieceSize: o.pieceSize,
		Progress: func(a apiclient.Appended) { bar.tell(a.Bytes) },
	})
	bar.end()
	if errors.Is(err, apiclient.ErrNothing) {
		return fmt.Errorf("%w in %s", err, map[bool]string{true: "standard input", false: file}[file == "-"])
	}
	if err != nil {
		return o.failed(args[0], file, done, err)
	}
	return o.print(env.Out, done)
}

// failed says what is stored of an append that could not be finished, and how to go
// on.
func (o *appendCommand) failed(name, file string, done apiclient.Appended, err error) error {
	var gave *apiclient.GaveUpError
	unsure := errors.As(err, &gave) || errors.Is(err, errInterrupted) // what was sent last may be stored
	final := cannotGoOn(err)
	conflict := final && producerConflict(err)
	err = o.explain(err)
	switch {
	case conflict:
		return fmt.Errorf("%w\nStored of this text for sure: %s. The same command cannot go on: see with '%s' what the stream holds, and append what is missing, alone, under another --producer-id",
			err, amount(done), o.again("stream", "read", name))
	case done.Pieces == 0 && !unsure:
		return fmt.Errorf("%w; nothing is stored", err)
	case final:
		return fmt.Errorf("%w\nStored before that: %s", err, amount(done))
	}
	return fmt.Errorf("%w\nStored for sure: %s. To go on, without storing anything twice:\n  %s", err, amount(done), o.goesOn(name, file, done.PieceSize))
}

// cannotGoOn tells a refusal of what was sent, which the same command gets again: all
// but one of who sent it, and one that may pass.
func cannotGoOn(err error) bool {
	var refused *apiclient.Error
	if !errors.As(err, &refused) {
		return false
	}
	switch refused.Status {
	case http.StatusUnauthorized, http.StatusPaymentRequired:
		return false
	case http.StatusForbidden:
		return strings.HasPrefix(refused.Code, "PRODUCER_")
	default:
		return refused.Status < 500 && !apiclient.Temporary(err)
	}
}

// producerConflict tells that the stream holds another text under the producer id.
func producerConflict(err error) bool {
	var refused *apiclient.Error
	return errors.As(err, &refused) && refused.Code == "PRODUCER_KEY_CONFLICT"
}

// goesOn is the command that goes on with an append. Where it failed before the size of
// its pieces was known, any will do, since none was sent.
func (o *appendCommand) goesOn(name, file string, pieceSize int64) string {
	words := []string{"stream", "append", name}
	if file != "-" {
		file = fileWord(file)
	}
	words = append(words, file, "--producer-id", o.producer)
	if size := cmp.Or(pieceSize, o.pieceSize); size > 0 {
		words = append(words, "--piece-size", strconv.FormatInt(size, 10))
	}
	if o.asJSON {
		words = append(words, "--json")
	}
	line := o.again(words...)
	if file == "-" {
		line += "  # with the same input"
	}
	return line
}

func amount(a apiclient.Appended) string {
	if a.Messages > 0 {
		return fmt.Sprintf("%s, %s", plural(a.Messages, "message"), size(a.Bytes))
	}
	return size(a.Bytes)
}

func (o *appendCommand) print(out io.Writer, a apiclient.Appended) error {
	if !o.asJSON {
		return printFields(out, field{"Appended", amount(a)}, field{"Next offset", a.Next})
	}
	return json.NewEncoder(out).Encode(struct {
		Messages int    `json:"messages,omitempty"` // of JSON
		Bytes    int64  `json:"bytes"`
		Next     string `json:"next_offset"`
		Producer string `json:"producer_id"`
		Piece    int64  `json:"piece_size"`
	}{a.Messages, a.Bytes, a.Next, o.producer, a.PieceSize})
}

// interruptedReader ends with its context: a read under way of a terminal or a pipe
// cannot be ended, but is not waited for.
type interruptedReader struct {
	ctx context.Context
	in  io.Reader
}

func (r interruptedReader) Read(p []byte) (int, error) {
	type result struct {
		n   int
		err error
	}
	// The bytes go into a buffer of their own: a read that comes back late must not
	// write into p.
	own := make([]byte, min(len(p), 256<<10))
	done := make(chan result, 1)
	go func() {
		n, err := r.in.Read(own)
		done <- result{n, err}
	}()
	select {
	case got := <-done:
		return copy(p, own[:got.n]), got.err
	case <-r.ctx.Done():
		return 0, context.Cause(r.ctx)
	}
}

func newClose(env Environment) *cobra.Command {
	var o connection
	var asJSON bool
	cmd := &cobra.Command{
		Use: "close NAME", Short: "Close a stream: nothing can be appended any more",
		Long: `Close a stream, for good. What it holds stays and can be read; tails end when they
have told all of it. Closing a closed stream is no error.`,
		Example: "  sluice stream close orders",
		Args:    named("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			target, err := o.data(ctx, env, args[0], false)
			if err != nil {
				return err
			}
			defer target.Close()
			next, err := target.CloseStream(ctx, target.url)
			if err != nil {
				return o.explain(err)
			}
			if asJSON {
				return json.NewEncoder(env.Out).Encode(map[string]any{"closed": true, "next_offset": next})
			}
			return printFields(env.Out, field{"Closed", args[0]}, field{"End offset", next})
		},
	}
	o.ownerFlags(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	cmd.ValidArgsFunction = o.streams(env).first
	return cmd
}
