package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"sluice/internal/apiclient"
	"sluice/internal/tenant"
)

// streamShape is a stream as the API gives it.
type streamShape struct {
	Name        string     `json:"name"`
	URL         string     `json:"url"`
	ContentType string     `json:"content_type"`
	Region      string     `json:"region"`
	Public      bool       `json:"public"`
	State       string     `json:"state"`
	Incarnation *string    `json:"incarnation"`
	Declared    bool       `json:"declared"`
	CreatedAt   *time.Time `json:"created_at"`
	ExpiresAt   *time.Time `json:"expires_at"`
	TTLSeconds  *int64     `json:"ttl_seconds"`
}

// expires says when the stream goes.
func (s streamShape) expires() string {
	if s.TTLSeconds != nil {
		return fmt.Sprintf("%d s after its last use", *s.TTLSeconds)
	}
	return at(s.ExpiresAt)
}

// is tells whether it is the stream of a name; empty = any.
func (s streamShape) is(name string) bool {
	return s.Name != "" && (name == "" || s.Name == name) && s.URL != "" && s.State != ""
}

// How long a creation and a deletion are waited for. What they need of the storage is
// done in the background after that too.
const (
	settleTime = 30 * time.Second
	settleStep = 500 * time.Millisecond
)

func newStream(env Environment) *cobra.Command {
	g := group("stream", "Create streams, append to them, read and follow them",
		newStreamCreate(env), newStreamList(env), newStreamShow(env), newStreamUpdate(env), newStreamDelete(env),
		newAppend(env), newRead(env), newTail(env), newClose(env))
	g.Long = `Create streams, append to them, read and follow them. These commands take
TONBO_API_KEY, the account's key, and SLUICE_URL, the gateway's origin.

  export SLUICE_URL=https://streams.example.com TONBO_API_KEY=tbo_…
  sluice stream create orders --content-type application/json
  echo '{"n":1}' | sluice stream append orders -
  sluice stream read orders
  sluice stream tail orders

NAME is a stream of the key's account. A key that is narrowed or reads only cannot ask
where that is, and a public stream's reader has none: to append, read, tail and close
a stream may be named ACCOUNT/NAME, or by its URL, as well.`
	return g
}

// streamPath is the path of a stream in the Management API. Names never need
// escaping.
func streamPath(base, name string) (string, error) {
	n, err := tenant.ParseStreamName(name)
	if err != nil {
		return "", usagef("NAME: %w", err)
	}
	return base + "/streams/" + string(n), nil
}

func showStream(env Environment, s streamShape) error {
	fields := []field{
		{"Name", s.Name},
		{"State", s.State},
		{"URL", s.URL},
		{"Incarnation", text(s.Incarnation)},
		{"Content type", s.ContentType},
		{"Public", yesNo(s.Public)},
		{"Region", s.Region},
		{"Created", at(s.CreatedAt)},
		{"Expires", s.expires()},
	}
	if s.Declared {
		fields = append(fields, field{"Declared", "yes, in the operator's file"})
	}
	return printFields(env.Out, fields...)
}

func newStreamCreate(env Environment) *cobra.Command {
	var o ownerCommand
	var contentType, expiresIn, region string
	var public bool
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a stream",
		Long: `Create a stream of the account, and wait until it can be used. Of a public stream
anybody may read; it is written with a key all the same. A NAME is 1 to 100 letters,
digits and . _ ~ -, and is free again when the stream is deleted.`,
		Example: `  sluice stream create orders --content-type application/json
  sluice stream create news --content-type text/plain --public --expires-in 30_days`,
		Args: named("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if contentType == "" {
				return usagef("--content-type is missing: what the stream holds, as application/json, text/plain or application/octet-stream")
			}
			until, err := expiry(cmd, expiresIn, time.Now())
			if err != nil {
				return err
			}
			if _, err := streamPath("", args[0]); err != nil {
				return err
			}
			body := map[string]any{"name": args[0], "content_type": contentType}
			if public {
				body["public"] = true
			}
			if until != nil {
				body["expires_at"] = until
			}
			if region != "" {
				body["region"] = region
			}
			return o.createStream(cmd.Context(), env, args[0], body)
		},
	}
	o.add(cmd, env)
	flags := cmd.Flags()
	flags.StringVar(&contentType, "content-type", "", "what the stream holds, as application/json or text/plain")
	flags.BoolVar(&public, "public", false, "anybody may read it")
	flags.StringVar(&expiresIn, "expires-in", "", "when it is deleted: N_minutes, N_hours or N_days; left out: never")
	flags.StringVar(&region, "region", "", "where it is stored; left out: where the gateway is")
	completeFlag(cmd, "content-type", words("application/json", "application/octet-stream", "text/plain"))
	return cmd
}

func (o *ownerCommand) createStream(ctx context.Context, env Environment, name string, body map[string]any) error {
	client, base, err := o.manage(env)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, stop := interruptible(ctx)
	defer stop()
	answer, err := client.Do(ctx, apiclient.Call{Method: http.MethodPost, Path: base + "/streams", Body: body, Status: http.StatusCreated})
	if err != nil {
		return o.explain(unknownOutcome(err, "see 'sluice stream show "+name+o.asOperator()+"'"))
	}
	s, answer, err := settle(ctx, client, base, name, answer, func(s streamShape) bool { return s.State != "creating" })
	if err != nil {
		return o.explain(err)
	}
	if s.State == "creating" {
		_, _ = fmt.Fprintf(env.Err, "sluice: it is still being created, and will be; 'sluice stream show %s%s' says when it is active\n", name, o.asOperator())
	}
	if o.asJSON {
		return printJSON(env.Out, answer)
	}
	return showStream(env, s)
}

// unknownOutcome says what to do about a change that may have been made.
func unknownOutcome(err error, look string) error {
	if apiclient.Unsure(err) || errors.Is(err, errInterrupted) {
		return fmt.Errorf("%w; it may have been done all the same: %s", err, look)
	}
	return err
}

// settle asks for the stream of a name until it is as it shall be, for settleTime at most, and
// returns the last answer. That there is none any more is an error.
func settle(ctx context.Context, c *apiclient.Client, base, name string, answer json.RawMessage, done func(streamShape) bool) (streamShape, json.RawMessage, error) {
	end := time.NewTimer(settleTime)
	defer end.Stop()
	tick := time.NewTicker(settleStep)
	defer tick.Stop()
	for {
		var s streamShape
		if json.Unmarshal(answer, &s) != nil || !s.is(name) {
			return s, answer, c.Strange("its answer is not about the stream " + name)
		}
		if done(s) {
			return s, answer, nil
		}
		select {
		case <-end.C:
			return s, answer, nil
		case <-ctx.Done():
			return s, answer, context.Cause(ctx)
		case <-tick.C:
		}
		next, err := c.Do(ctx, apiclient.Call{Method: http.MethodGet, Path: base + "/streams/" + name})
		if err != nil {
			return s, answer, err
		}
		answer = next
	}
}

func newStreamList(env Environment) *cobra.Command {
	var o ownerCommand
	var prefix string
	cmd := &cobra.Command{
		Use: "list", Short: "List the account's streams",
		Example: "  sluice stream list\n  sluice stream list --prefix team-a. --json",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, base, err := o.manage(env)
			if err != nil {
				return err
			}
			return o.explain(list(cmd.Context(), env, client, base+"/streams", "streams", prefix, o.asJSON,
				[]string{"NAME", "STATE", "PUBLIC", "CONTENT TYPE", "CREATED", "EXPIRES"}, func(s streamShape) bool { return s.is("") },
				func(s streamShape) []string {
					return []string{s.Name, s.State, yesNo(s.Public), s.ContentType, at(s.CreatedAt), s.expires()}
				}))
		},
	}
	o.add(cmd, env)
	cmd.Flags().StringVar(&prefix, "prefix", "", "only those whose names begin so")
	return cmd
}

func newStreamShow(env Environment) *cobra.Command {
	var o ownerCommand
	cmd := &cobra.Command{
		Use: "show NAME", Short: "Show a stream: its state, URL and incarnation",
		Example: "  sluice stream show orders\n  STREAM=$(sluice stream show orders --json | jq -r .url)",
		Args:    named("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.onStream(cmd.Context(), env, args[0], apiclient.Call{Method: http.MethodGet})
		},
	}
	o.add(cmd, env)
	cmd.ValidArgsFunction = o.streams(env).first
	return cmd
}

// onStream makes a call of which the answer is the stream, and prints it.
func (o *ownerCommand) onStream(ctx context.Context, env Environment, name string, call apiclient.Call) error {
	if _, err := streamPath("", name); err != nil {
		return err
	}
	client, base, err := o.manage(env)
	if err != nil {
		return err
	}
	if call.Path, err = streamPath(base, name); err != nil {
		return err
	}
	right := func(s streamShape) bool { return s.is(name) }
	return o.explain(callWith(ctx, env, client, call, o.asJSON, right, func(s streamShape) error { return showStream(env, s) }))
}

func newStreamUpdate(env Environment) *cobra.Command {
	var o ownerCommand
	var public string
	cmd := &cobra.Command{
		Use: "update NAME", Short: "Make a stream public or private",
		Long: `Make a stream public, so that anybody may read it, or private. A stream that is made
private ends the tails of those who have no key for it within a second.`,
		Example: "  sluice stream update news --public=true\n  sluice stream update news --public=false",
		Args:    named("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("public") {
				return usagef("there is nothing to change: give --public=true or --public=false")
			}
			want, err := strconv.ParseBool(public)
			if err != nil {
				return usagef("--public %q: it is true or false", public)
			}
			return o.onStream(cmd.Context(), env, args[0], apiclient.Call{Method: http.MethodPatch, Body: map[string]any{"public": want}})
		},
	}
	o.add(cmd, env)
	cmd.Flags().StringVar(&public, "public", "", "true: anybody may read it; false: those with a key")
	cmd.Flags().Lookup("public").NoOptDefVal = "true"
	cmd.ValidArgsFunction = o.streams(env).first
	completeFlag(cmd, "public", words("true", "false"))
	return cmd
}

func newStreamDelete(env Environment) *cobra.Command {
	var o ownerCommand
	var yes bool
	cmd := &cobra.Command{
		Use: "delete NAME", Short: "Delete a stream and its data",
		Long: `Delete a stream with its data, for good, and wait until its name is free again. Its
open tails end. It asks for the name to be typed; --yes is for scripts.`,
		Example: "  sluice stream delete orders\n  sluice stream delete orders --yes",
		Args:    named("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.deleteStream(cmd.Context(), env, args[0], yes)
		},
	}
	o.add(cmd, env)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.ValidArgsFunction = o.streams(env).first
	return cmd
}

func (o *ownerCommand) deleteStream(ctx context.Context, env Environment, name string, yes bool) error {
	if _, err := streamPath("", name); err != nil {
		return err
	}
	client, base, err := o.manage(env)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, stop := interruptible(ctx)
	defer stop()
	if err := confirm(ctx, env, yes, "the stream "+name+" and its data", name); err != nil {
		return err
	}
	answer, err := client.Do(ctx, apiclient.Call{Method: http.MethodDelete, Path: base + "/streams/" + name, Status: http.StatusAccepted})
	if err != nil {
		return o.explain(err)
	}
	if len(answer) > 0 { // else it was gone at the second try
		_, _, err = settle(ctx, client, base, name, answer, func(streamShape) bool { return false })
	}
	switch {
	case len(answer) == 0 && err == nil, apiclient.Gone(err):
	case err != nil:
		return o.explain(err)
	default:
		_, _ = fmt.Fprintf(env.Err, "sluice: it is still being deleted, and will be; the name is free when 'sluice stream show %s%s' says STREAM_NOT_FOUND\n", name, o.asOperator())
	}
	if o.asJSON && len(answer) > 0 {
		return printJSON(env.Out, answer)
	}
	_, err = fmt.Fprintf(env.Out, "Deleted: %s\n", name)
	return err
}
