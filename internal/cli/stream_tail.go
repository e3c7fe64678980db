package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"sluice/internal/apiclient"
)

// tailCommand is the flags of stream tail.
type tailCommand struct {
	connection
	offset           string
	longPoll, asJSON bool
}

func newTail(env Environment) *cobra.Command {
	var o tailCommand
	cmd := &cobra.Command{
		Use: "tail NAME", Short: "Follow a stream: print what comes, as it comes",
		Long: `Follow a stream from now on, or from an offset, until it is closed, which is exit code
0, or until Ctrl-C, which is too. A tail that is cut, by a bad network, a restart or
a limit, goes on from where it was: it repeats nothing and loses nothing. A key that
is not good any more, and a stream that is gone, end it with exit code 1.

With --json each event is a line: {"next_offset":"…","messages":[…]} of a JSON stream,
"text" or "base64" in the place of messages of any other, and "closed":true at the
end. An event's next_offset is the --offset to go on from.`,
		Example: `  sluice stream tail orders
  sluice stream tail orders --offset -1          # all of it first
  sluice stream tail orders --json | jq -c .messages[]`,
		Args: named("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.offset == "" {
				return usagef("--offset is empty: -1 is the start, now the end")
			}
			if o.asJSON && o.longPoll {
				return usagef("--json takes events, which hold whole messages: leave --long-poll out")
			}
			return o.run(cmd.Context(), env, args[0])
		},
	}
	flags := cmd.Flags()
	o.ownerFlags(flags)
	flags.StringVar(&o.offset, "offset", "now", "where to begin: now is the end, -1 the start, else an offset that an answer gave")
	flags.BoolVar(&o.longPoll, "long-poll", false, "ask again and again, where the way to the gateway holds answers back")
	flags.BoolVar(&o.asJSON, "json", false, "print each event as a line of JSON")
	cmd.ValidArgsFunction = o.streams(env).first
	completeFlag(cmd, "offset", words("-1", "now"))
	return cmd
}

func (o *tailCommand) run(ctx context.Context, env Environment, name string) error {
	ctx, stop := interruptible(ctx)
	defer stop()
	target, err := o.data(ctx, env, name, true)
	if err != nil {
		return err
	}
	defer target.Close()
	show := printData
	if o.asJSON {
		show = printEvent
	}
	last := o.offset
	err = target.Tail(ctx, apiclient.TailOptions{Stream: target.url, Offset: o.offset, LongPoll: o.longPoll}, func(e apiclient.Event) error {
		if err := show(env.Out, e); err != nil {
			return err
		}
		last = e.Next
		return nil
	})
	if err == nil || errors.Is(err, errInterrupted) {
		return nil
	}
	var refused *apiclient.Error
	if errors.As(err, &refused) && refused.Status == http.StatusBadRequest {
		return o.explain(err) // the same again is refused again
	}
	words := []string{"stream", "tail", name, "--offset", apiclient.Printable(last)}
	if o.longPoll {
		words = append(words, "--long-poll")
	}
	if o.asJSON {
		words = append(words, "--json")
	}
	return fmt.Errorf("%w\nTo go on: %s", o.explain(err), o.again(words...))
}

// printData prints what came, as it is, in one write.
func printData(out io.Writer, e apiclient.Event) error {
	if len(e.Data) == 0 {
		return nil
	}
	_, err := out.Write(e.Data)
	return err
}

// printEvent prints an event as a line of JSON.
func printEvent(out io.Writer, e apiclient.Event) error {
	if len(e.Data) == 0 && !e.Closed {
		return nil
	}
	line := struct {
		Next     string            `json:"next_offset"`
		Messages []json.RawMessage `json:"messages,omitempty"`
		Text     string            `json:"text,omitempty"`
		Bytes    []byte            `json:"base64,omitempty"`
		Closed   bool              `json:"closed,omitempty"`
	}{Next: e.Next, Closed: e.Closed}
	kind, _, err := mime.ParseMediaType(e.ContentType)
	switch {
	case err == nil && kind == "application/json":
		for message := range bytes.Lines(e.Data) {
			line.Messages = append(line.Messages, bytes.TrimSuffix(message, []byte{'\n'}))
		}
	case utf8.Valid(e.Data):
		line.Text = string(e.Data)
	default:
		line.Bytes = e.Data
	}
	text, err := json.Marshal(line)
	if err != nil {
		return fmt.Errorf("an event of the stream is not JSON, as its content type says: %w", err)
	}
	_, err = out.Write(append(text, '\n'))
	return err
}
