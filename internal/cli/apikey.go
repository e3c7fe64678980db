package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice/auth"
	"sluice/internal/apiclient"
	"sluice/internal/tenant"
)

// keyShape is an API key as the API gives it.
type keyShape struct {
	ID         string     `json:"id"`
	Name       string     `json:"name"`
	Key        string     `json:"key"` // at its creation and rotation only
	Hint       string     `json:"hint"`
	Access     string     `json:"access"`
	Streams    []string   `json:"streams"`
	ActsAs     string     `json:"acts_as"`
	Declared   bool       `json:"declared"`
	CreatedAt  *time.Time `json:"created_at"`
	ExpiresAt  *time.Time `json:"expires_at"`
	LastUsedAt *time.Time `json:"last_used_at"`
	RevokedAt  *time.Time `json:"revoked_at"`
	OldHint    *string    `json:"old_hint"`
	OldUntil   *time.Time `json:"old_until"`
}

// is tells whether it is the key of a name or ID; empty = any.
func (k keyShape) is(name string) bool {
	return k.ID != "" && k.Name != "" && (name == "" || k.Name == name || k.ID == name)
}

// isNew tells whether it is such a key with its secret.
func (k keyShape) isNew(name string) bool { return k.is(name) && auth.CheckKey(k.Key) == nil }

func (k keyShape) state(now time.Time) string {
	switch {
	case k.RevokedAt != nil:
		return "revoked"
	case k.ExpiresAt != nil && !k.ExpiresAt.After(now):
		return "expired"
	default:
		return "active"
	}
}

func (k keyShape) reaches() string {
	if k.Streams == nil {
		return "all"
	}
	return strings.Join(k.Streams, ",")
}

// printKey prints a key, the only time that it is, in the form that a shell and an
// environment file take. What is no key is not printed: it could be anything.
func printKey(env Environment, key string) error {
	if auth.CheckKey(key) != nil {
		return errors.New("the answer holds no API key; is another program there?")
	}
	if _, err := fmt.Fprintln(env.Err, "This key is shown here once: keep it."); err != nil {
		return err
	}
	_, err := fmt.Fprintf(env.Out, "TONBO_API_KEY=%s\n", key)
	return err
}

func newAPIKey(env Environment) *cobra.Command {
	g := group("api-key", "Make and manage API keys",
		newKeyCreate(env), newKeyList(env), newKeyShow(env), newKeyNarrow(env), newKeyRotate(env), newKeyRevoke(env))
	g.Long = `Make and manage the API keys of an account. They take TONBO_API_KEY, a key that acts as
a user, writes, and is not narrowed, and SLUICE_URL, the gateway's origin. With
--account an operator does it for an account, through the admin listener.`
	return g
}

// ownerCommand is the flags that each command has which an owner runs, or an operator
// for an account.
type ownerCommand struct {
	connection
	asJSON bool
}

func (o *ownerCommand) add(cmd *cobra.Command, env Environment) {
	o.ownerFlags(cmd.Flags())
	o.accountFlag(cmd.Flags())
	jsonFlag(cmd, &o.asJSON)
	completeFlag(cmd, "account", o.accounts(env))
}

// expiry is the time that --expires-in means; nil where it is not given.
func expiry(cmd *cobra.Command, text string, now time.Time) (*time.Time, error) {
	if !cmd.Flags().Changed("expires-in") {
		return nil, nil
	}
	d, err := parseExpiresIn(text)
	if err != nil {
		return nil, usagef("--expires-in: %w", err)
	}
	t := now.Add(d).UTC().Truncate(time.Second)
	return &t, nil
}

// rightsFlags are the flags by which a key has less than it could.
type rightsFlags struct {
	expiresIn       string
	readOnly, agent bool
	streams         []string
}

// add adds the flags; expires is the help of --expires-in.
func (f *rightsFlags) add(cmd *cobra.Command, expires string) {
	flags := cmd.Flags()
	flags.StringVar(&f.expiresIn, "expires-in", "", expires)
	flags.BoolVar(&f.readOnly, "read-only", false, "the key reads only")
	flags.StringArrayVar(&f.streams, "stream", nil, "the key reaches this stream only, or those whose names begin so: PREFIX*;\nmay be given several times")
	flags.BoolVar(&f.agent, "agent", false, "the key is an agent's: good for making tokens only")
}

// into puts what is given into the body of a call.
func (f *rightsFlags) into(cmd *cobra.Command, body map[string]any) error {
	until, err := expiry(cmd, f.expiresIn, time.Now())
	if err != nil {
		return err
	}
	if until != nil {
		body["expires_at"] = until
	}
	if f.readOnly {
		body["access"] = tenant.ReadAccess
	}
	if f.agent {
		body["acts_as"] = tenant.Agent
	}
	if cmd.Flags().Changed("stream") {
		if _, err := tenant.ParseStreamSet(f.streams); err != nil {
			return usagef("--stream: %w", err)
		}
		body["streams"] = f.streams
	}
	return nil
}

func newKeyCreate(env Environment) *cobra.Command {
	var o ownerCommand
	var rights rightsFlags
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create an API key, and print it once",
		Long: `Create an API key of the account and print it, as TONBO_API_KEY=tbo_…, once: it is
kept nowhere. Unless the flags narrow it, it reaches all streams of the account,
writes, and manages streams and keys.`,
		Example: `  sluice api-key create ci --expires-in 15_days
  sluice api-key create dashboard --read-only --stream events --stream 'logs.*'
  sluice api-key create first --account acme      # as the operator
  sluice api-key create ci >> .env                # for a program that reads it there`,
		Args: named("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := map[string]any{"name": args[0]}
			if err := rights.into(cmd, body); err != nil {
				return err
			}
			client, base, err := o.manage(env)
			if err != nil {
				return err
			}
			call := apiclient.Call{Method: http.MethodPost, Path: base + "/api-keys", Body: body, Status: http.StatusCreated}
			right := func(k keyShape) bool { return k.isNew(args[0]) }
			err = callWith(cmd.Context(), env, client, call, o.asJSON, right, func(k keyShape) error { return printKey(env, k.Key) })
			return o.explain(unknownOutcome(err, "its secret is lost then, so look with 'sluice api-key list"+o.asOperator()+"', revoke it, and create another"))
		},
	}
	o.add(cmd, env)
	rights.add(cmd, "when it ends: N_minutes, N_hours or N_days; left out: never")
	completeFlag(cmd, "stream", o.streams(env))
	return cmd
}

func newKeyList(env Environment) *cobra.Command {
	var o ownerCommand
	cmd := &cobra.Command{
		Use: "list", Short: "List API keys, revoked ones too",
		Example: "  sluice api-key list\n  sluice api-key list --account acme --json",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, base, err := o.manage(env)
			if err != nil {
				return err
			}
			now := time.Now()
			return o.explain(list(cmd.Context(), env, client, base+"/api-keys", "api_keys", "", o.asJSON,
				[]string{"NAME", "ID", "HINT", "STATE", "ACCESS", "STREAMS", "ACTS AS", "LAST USED", "EXPIRES"}, func(k keyShape) bool { return k.is("") },
				func(k keyShape) []string {
					return []string{k.Name, k.ID, "…" + k.Hint, k.state(now), k.Access, k.reaches(), k.ActsAs, at(k.LastUsedAt), at(k.ExpiresAt)}
				}))
		},
	}
	o.add(cmd, env)
	return cmd
}

func newKeyShow(env Environment) *cobra.Command {
	var o ownerCommand
	cmd := &cobra.Command{
		Use: "show NAME|ID", Short: "Show an API key, without its secret",
		Example: "  sluice api-key show ci",
		Args:    named("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.onKey(cmd.Context(), env, args[0], func(_ context.Context, _ *apiclient.Client, _ string, k keyShape, raw json.RawMessage) error {
				if o.asJSON {
					return printJSON(env.Out, raw)
				}
				fields := []field{
					{"Name", k.Name},
					{"ID", k.ID},
					{"State", k.state(time.Now())},
					{"Hint", "…" + k.Hint},
					{"Access", k.Access},
					{"Streams", k.reaches()},
					{"Acts as", k.ActsAs},
					{"Created", at(k.CreatedAt)},
					{"Expires", at(k.ExpiresAt)},
					{"Last used", at(k.LastUsedAt)},
					{"Revoked", at(k.RevokedAt)},
				}
				if k.OldUntil != nil {
					fields = append(fields, field{"Old secret", "…" + text(k.OldHint) + ", good until " + at(k.OldUntil)})
				}
				if k.Declared {
					fields = append(fields, field{"Declared", "yes, in the operator's file"})
				}
				return printFields(env.Out, fields...)
			})
		},
	}
	o.add(cmd, env)
	cmd.ValidArgsFunction = o.keys(env).first
	return cmd
}

// onKey finds a key by its ID, or by its name among those that are not revoked, and
// does something with it. path is the key's.
func (o *ownerCommand) onKey(ctx context.Context, env Environment, name string, do func(ctx context.Context, c *apiclient.Client, path string, k keyShape, raw json.RawMessage) error) error {
	client, base, err := o.manage(env)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, stop := interruptible(ctx)
	defer stop()
	var found keyShape
	var answer json.RawMessage
	_, err = pages(ctx, client, base+"/api-keys", "api_keys", nil, false, func(raw json.RawMessage) error {
		var k keyShape
		if json.Unmarshal(raw, &k) != nil || !k.is("") {
			return client.Strange("an entry of its list of keys is none")
		}
		if k.ID == name || k.Name == name && k.RevokedAt == nil && found.ID != name {
			found, answer = k, raw
		}
		return nil
	})
	if err != nil {
		return o.explain(err)
	}
	if answer == nil {
		return fmt.Errorf("there is no key of the name or ID %q that is not revoked; 'sluice api-key list' shows what there is", name)
	}
	return o.explain(do(ctx, client, base+"/api-keys/"+url.PathEscape(found.ID), found, answer))
}

func newKeyRotate(env Environment) *cobra.Command {
	var o ownerCommand
	var overlap string
	var now, endOlder bool
	cmd := &cobra.Command{
		Use: "rotate NAME|ID", Short: "Give a key a new secret, and print it once",
		Long: `Give a key a new secret and print it, as TONBO_API_KEY=tbo_…, once. The old secret is
good for one more day, or for --overlap, so that it can be replaced everywhere
without a gap. While two are good, a further rotation is refused, unless
--end-older ends the older one at once. --now ends both: only the new one is good.`,
		Example: `  sluice api-key rotate ci
  sluice api-key rotate ci --overlap 2_hours
  sluice api-key rotate ci --now                  # somebody has got hold of it`,
		Args: named("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := map[string]any{}
			if cmd.Flags().Changed("overlap") {
				d, err := parseExpiresIn(overlap)
				if err != nil {
					return usagef("--overlap: %w", err)
				}
				if now {
					return usagef("--now and --overlap contradict each other")
				}
				body["overlap_seconds"] = int64(d / time.Second)
			}
			if now {
				body["overlap_seconds"] = 0
			}
			if endOlder || now { // an older one that lives on may be the one that somebody has
				body["end_older"] = true
			}
			return o.onKey(cmd.Context(), env, args[0], func(ctx context.Context, c *apiclient.Client, path string, old keyShape, _ json.RawMessage) error {
				call := apiclient.Call{Method: http.MethodPost, Path: path + "/rotate", Body: body}
				right := func(k keyShape) bool { return k.isNew(old.ID) }
				err := callWith(ctx, env, c, call, o.asJSON, right, func(k keyShape) error { return printKey(env, k.Key) })
				return unknownOutcome(err, "its new secret is lost then, so look with 'sluice api-key show "+shellWord(args[0])+o.asOperator()+"', and rotate again with --end-older")
			})
		},
	}
	o.add(cmd, env)
	cmd.Flags().StringVar(&overlap, "overlap", "", "how long the old secret is still good: N_minutes, N_hours or N_days")
	cmd.Flags().BoolVar(&now, "now", false, "all older secrets end at once")
	cmd.Flags().BoolVar(&endOlder, "end-older", false, "where two secrets are good already, end the older one at once")
	cmd.ValidArgsFunction = o.keys(env).first
	return cmd
}

func newKeyRevoke(env Environment) *cobra.Command {
	var o ownerCommand
	cmd := &cobra.Command{
		Use: "revoke NAME|ID", Short: "Revoke a key, its tokens and the tails opened with it",
		Long: `Revoke a key, at once and for good, with the tokens made from it and the tails opened
with it. A key of an account may revoke itself.`,
		Example: "  sluice api-key revoke ci",
		Args:    named("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.onKey(cmd.Context(), env, args[0], func(ctx context.Context, c *apiclient.Client, path string, k keyShape, _ json.RawMessage) error {
				if _, err := c.Do(ctx, apiclient.Call{Method: http.MethodDelete, Path: path, Status: http.StatusNoContent}); err != nil || o.asJSON {
					return err // with --json nothing: it answers nothing
				}
				_, err := fmt.Fprintf(env.Out, "Revoked: %s\n", apiclient.Printable(k.Name+" ("+k.ID+")"))
				return err
			})
		},
	}
	o.add(cmd, env)
	cmd.ValidArgsFunction = o.keys(env).first
	return cmd
}
