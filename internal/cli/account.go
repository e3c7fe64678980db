package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice/internal/apiclient"
	"sluice/internal/tenant"
)

// accountShape is an account as the API gives it.
type accountShape struct {
	ID        string            `json:"id"`
	State     string            `json:"state"`
	Limits    map[string]int64  `json:"limits"`
	Own       map[string]*int64 `json:"own_limits"`
	Declared  bool              `json:"declared"`
	CreatedAt *time.Time        `json:"created_at"`
	Use       *struct {
		OpenTails int `json:"open_tails"`
	} `json:"use"`
	Key *keyShape `json:"api_key"`
}

// is tells whether it is the account of an ID; empty = any.
func (a accountShape) is(id string) bool {
	return a.ID != "" && (id == "" || a.ID == id) && a.State != ""
}

// limitNames are the limits of an account, in the order in which they are shown
// (design §6), and whether they are bytes.
var limitNames = []struct {
	name  string
	bytes bool
}{{"requests_per_second", false}, {"burst", false}, {"open_tails", false}, {"uploads", false}, {"upload_bytes", true}, {"request_bytes", true}}

func newAccount(env Environment) *cobra.Command {
	g := group("account", "Keep accounts, as the operator",
		newAccountCreate(env), newAccountList(env), newAccountShow(env), newAccountUpdate(env), newAccountDelete(env))
	g.Long = `Keep accounts. These commands go to the admin listener: SLUICE_ADMIN_URL says where
it is, and SLUICE_ADMIN_TOKEN holds its token, where it has one. 'account show'
without an ID shows an owner the account of the key in TONBO_API_KEY.`
	return g
}

// operatorCommand is the flags that each of the operator's commands has.
type operatorCommand struct {
	connection
	asJSON bool
}

func (o *operatorCommand) add(cmd *cobra.Command) {
	o.operatorFlags(cmd.Flags())
	jsonFlag(cmd, &o.asJSON)
}

func jsonFlag(cmd *cobra.Command, asJSON *bool) {
	cmd.Flags().BoolVar(asJSON, "json", false, "print what the API answered")
}

// client is the operator's, and the path of an account.
func (o *operatorCommand) client(env Environment, id string) (*apiclient.Client, string, error) {
	if _, err := tenant.ParseAccountID(id); err != nil {
		return nil, "", usagef("ID: %w", err)
	}
	o.account = id
	return o.manage(env)
}

// limitsFlag reads --limit name=number, which may be given several times. "default"
// takes the default again, where that is allowed.
func limitsFlag(limits []string, allowDefault bool) (map[string]any, error) {
	if len(limits) == 0 {
		return nil, nil
	}
	out := map[string]any{}
	for _, l := range limits {
		name, value, _ := strings.Cut(l, "=")
		if !slices.ContainsFunc(limitNames, func(n struct {
			name  string
			bytes bool
		},
		) bool {
			return n.name == name
		}) {
			return nil, usagef("--limit %q: write NAME=NUMBER, as in requests_per_second=200; a name is requests_per_second, burst, open_tails, uploads, upload_bytes or request_bytes", l)
		}
		if value == "default" && allowDefault {
			out[name] = nil
			continue
		}
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < 0 {
			return nil, usagef("--limit %q: write a whole number that is not negative", l)
		}
		out[name] = n
	}
	return out, nil
}

func stateFlag(state string) error {
	if !slices.Contains([]tenant.State{tenant.Active, tenant.Unpaid, tenant.Revoked}, tenant.State(state)) {
		return usagef("--state %q: it is active, unpaid or revoked", state)
	}
	return nil
}

func newAccountCreate(env Environment) *cobra.Command {
	var o operatorCommand
	var limits []string
	cmd := &cobra.Command{
		Use:   "create ID",
		Short: "Create an account, and print its first key",
		Long: `Create an account and its first API key, which is printed here once and kept
nowhere: give it to the account's owner. An ID is 4 to 64 of a-z, 0-9, _ and -; it
is part of the URL of each of the account's streams, and never given out again.`,
		Example: `  export SLUICE_ADMIN_URL=http://127.0.0.1:9090
  sluice account create acme
  sluice account create acme --limit requests_per_second=200 --limit open_tails=64`,
		Args: named("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, _, err := o.client(env, args[0]); err != nil {
				return err
			}
			body := map[string]any{"id": args[0]}
			own, err := limitsFlag(limits, false)
			if err != nil {
				return err
			}
			if own != nil {
				body["limits"] = own
			}
			return o.createAccount(cmd.Context(), env, args[0], body)
		},
	}
	o.add(cmd)
	cmd.Flags().StringArrayVar(&limits, "limit", nil, "a limit of the account's own, NAME=NUMBER; may be given several times")
	return cmd
}

func (o *operatorCommand) createAccount(ctx context.Context, env Environment, id string, body map[string]any) error {
	client, err := o.operator(env)
	if err != nil {
		return err
	}
	call := apiclient.Call{Method: http.MethodPost, Path: "/v1/accounts", Body: body, Status: http.StatusCreated}
	more := "sluice api-key create NAME --account " + id
	right := func(a accountShape) bool { return a.is(id) && a.Key != nil && a.Key.isNew("") }
	err = callWith(ctx, env, client, call, o.asJSON, right, func(a accountShape) error { return printKey(env, a.Key.Key) })
	return o.explain(unknownOutcome(err, fmt.Sprintf("its key is lost then, so look with 'sluice account show %s', and make another with '%s'", id, more)))
}

// callWith makes a call, and prints its answer as it came, or shows what is in it: once
// it is the right one, since any JSON parses as any shape.
func callWith[T any](ctx context.Context, env Environment, client *apiclient.Client, call apiclient.Call, asJSON bool, right func(T) bool, show func(T) error) error {
	defer client.Close()
	ctx, stop := interruptible(ctx)
	defer stop()
	answer, err := client.Do(ctx, call)
	if err != nil {
		return err
	}
	var got T
	if json.Unmarshal(answer, &got) != nil || !right(got) {
		return client.Strange("its answer to " + call.Method + " " + call.Path + " is not about what was asked for")
	}
	if asJSON {
		return printJSON(env.Out, answer)
	}
	return show(got)
}

func newAccountList(env Environment) *cobra.Command {
	var o operatorCommand
	var prefix string
	cmd := &cobra.Command{
		Use: "list", Short: "List accounts",
		Example: "  sluice account list\n  sluice account list --prefix team- --json",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := o.operator(env)
			if err != nil {
				return err
			}
			o.account = "-" // an operator's command, of no account
			return o.explain(list(cmd.Context(), env, client, "/v1/accounts", "accounts", prefix, o.asJSON,
				[]string{"ID", "STATE", "DECLARED", "CREATED"}, func(a accountShape) bool { return a.is("") },
				func(a accountShape) []string { return []string{a.ID, a.State, yesNo(a.Declared), at(a.CreatedAt)} }))
		},
	}
	o.add(cmd)
	cmd.Flags().StringVar(&prefix, "prefix", "", "only those whose ID begins so")
	return cmd
}

// list prints a list of the API, all of it.
func list[T any](ctx context.Context, env Environment, client *apiclient.Client, path, name, prefix string, asJSON bool, heads []string, right func(T) bool, row func(T) []string) error {
	defer client.Close()
	ctx, stop := interruptible(ctx)
	defer stop()
	query := url.Values{}
	if prefix != "" {
		query.Set("prefix", prefix)
	}
	t := newTable(env.Out, heads...)
	answer, err := pages(ctx, client, path, name, query, asJSON, func(raw json.RawMessage) error {
		var e T
		if json.Unmarshal(raw, &e) != nil || !right(e) {
			return client.Strange("an entry of GET " + path + " is none of " + name)
		}
		if !asJSON {
			t.row(row(e)...)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(env.Out, answer)
	}
	return t.end()
}

func newAccountShow(env Environment) *cobra.Command {
	var o operatorCommand
	cmd := &cobra.Command{
		Use: "show [ID]", Short: "Show an account; without an ID, that of the key",
		Example: "  sluice account show acme\n  sluice account show          # the account of TONBO_API_KEY",
		Args:    named("[ID]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, id := "/v1/account", ""
			var client *apiclient.Client
			var err error
			if len(args) == 0 {
				client, err = o.owner(env)
			} else {
				id = args[0]
				client, path, err = o.client(env, id)
			}
			if err != nil {
				return err
			}
			call := apiclient.Call{Method: http.MethodGet, Path: path}
			right := func(a accountShape) bool { return a.is(id) }
			return o.explain(callWith(cmd.Context(), env, client, call, o.asJSON, right, func(a accountShape) error { return showAccount(env, a) }))
		},
	}
	o.ownerFlags(cmd.Flags())
	o.add(cmd)
	cmd.ValidArgsFunction = o.accounts(env).first
	return cmd
}

func showAccount(env Environment, a accountShape) error {
	fields := []field{{"ID", a.ID}, {"State", a.State}, {"Created", at(a.CreatedAt)}}
	if a.Declared {
		fields = append(fields, field{"Declared", "yes, in the operator's file"})
	}
	for _, l := range limitNames {
		n, ok := a.Limits[l.name]
		if !ok {
			continue
		}
		value := strconv.FormatInt(n, 10)
		if l.bytes {
			value = size(n)
		}
		if a.Own[l.name] != nil {
			value += " (its own)"
		}
		fields = append(fields, field{"Limit " + l.name, value})
	}
	if a.Use != nil {
		fields = append(fields, field{"Open tails now", strconv.Itoa(a.Use.OpenTails)})
	}
	return printFields(env.Out, fields...)
}

func newAccountUpdate(env Environment) *cobra.Command {
	var o operatorCommand
	var state string
	var limits []string
	cmd := &cobra.Command{
		Use: "update ID", Short: "Change an account's state or limits",
		Long: `Change the state or the limits of an account. A state is in force within a second,
on open tails too: active; unpaid, where requests are refused with 402; revoked,
with 403. Limits that are not named stay as they are.`,
		Example: `  sluice account update acme --state unpaid
  sluice account update acme --limit requests_per_second=500 --limit burst=default`,
		Args: named("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, path, err := o.client(env, args[0])
			if err != nil {
				return err
			}
			body := map[string]any{}
			if cmd.Flags().Changed("state") {
				if err := stateFlag(state); err != nil {
					return err
				}
				body["state"] = state
			}
			own, err := limitsFlag(limits, true)
			if err != nil {
				return err
			}
			if own != nil {
				body["limits"] = own
			}
			if len(body) == 0 {
				return usagef("there is nothing to change: give --state or --limit")
			}
			call := apiclient.Call{Method: http.MethodPatch, Path: path, Body: body}
			right := func(a accountShape) bool { return a.is(args[0]) }
			return o.explain(callWith(cmd.Context(), env, client, call, o.asJSON, right, func(a accountShape) error { return showAccount(env, a) }))
		},
	}
	o.add(cmd)
	cmd.Flags().StringVar(&state, "state", "", "active, unpaid or revoked")
	cmd.Flags().StringArrayVar(&limits, "limit", nil, "NAME=NUMBER, or NAME=default; may be given several times")
	cmd.ValidArgsFunction = o.accounts(env).first
	completeFlag(cmd, "state", words(string(tenant.Active), string(tenant.Unpaid), string(tenant.Revoked)))
	return cmd
}

func newAccountDelete(env Environment) *cobra.Command {
	var o operatorCommand
	var yes bool
	cmd := &cobra.Command{
		Use: "delete ID", Short: "Delete an account, its keys, its streams and their data",
		Long: `Delete an account with all that it has, for good. It asks for the ID to be typed;
--yes is for scripts. The ID is never given out again.`,
		Example: "  sluice account delete acme\n  sluice account delete acme --yes",
		Args:    named("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, path, err := o.client(env, args[0])
			if err != nil {
				return err
			}
			defer client.Close()
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			if err := confirm(ctx, env, yes, "account "+args[0]+", its keys, its streams and their data", args[0]); err != nil {
				return err
			}
			if _, err := client.Do(ctx, apiclient.Call{Method: http.MethodDelete, Path: path, Status: http.StatusNoContent}); err != nil {
				return o.explain(err)
			}
			if o.asJSON {
				return nil // it answers nothing
			}
			_, err = fmt.Fprintf(env.Out, "Deleted: %s\n", args[0])
			return err
		},
	}
	o.add(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.ValidArgsFunction = o.accounts(env).first
	return cmd
}
