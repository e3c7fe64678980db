package cli

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/spf13/cobra"

	"sluice/internal/apiclient"
)

func newKeyNarrow(env Environment) *cobra.Command {
	var o ownerCommand
	var name string
	var rights rightsFlags
	cmd := &cobra.Command{
		Use: "narrow NAME|ID", Short: "Take rights from a key, or rename it",
		Long: `Take rights from a key; what is not named stays. A key never gets rights back: make
another one. Tokens made from it before end at once, and so do tails that it may not
have any more.`,
		Example: `  sluice api-key narrow ci --read-only
  sluice api-key narrow ci --stream events --stream 'logs.*'
  sluice api-key narrow ci --expires-in 2_days --name ci-old`,
		Args: named("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := map[string]any{}
			if cmd.Flags().Changed("name") {
				body["name"] = name
			}
			if err := rights.into(cmd, body); err != nil {
				return err
			}
			if len(body) == 0 {
				return usagef("nothing to change: name what the key is to lose, as --read-only, or a new --name")
			}
			return o.onKey(cmd.Context(), env, args[0], func(ctx context.Context, c *apiclient.Client, path string, old keyShape, _ json.RawMessage) error {
				call := apiclient.Call{Method: http.MethodPatch, Path: path, Body: body}
				return callWith(ctx, env, c, call, o.asJSON, func(k keyShape) bool { return k.is(old.ID) }, func(k keyShape) error {
					return printFields(env.Out, field{"Name", k.Name}, field{"Access", k.Access}, field{"Streams", k.reaches()}, field{"Acts as", k.ActsAs}, field{"Expires", at(k.ExpiresAt)})
				})
			})
		},
	}
	o.add(cmd, env)
	cmd.Flags().StringVar(&name, "name", "", "a new name")
	rights.add(cmd, "when it ends, sooner than it would: N_minutes, N_hours or N_days")
	cmd.ValidArgsFunction = o.keys(env).first
	completeFlag(cmd, "stream", o.streams(env))
	return cmd
}
