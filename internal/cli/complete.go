package cli

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sluice/internal/apiclient"
)

// Bounds of a completion: it is in a person's way.
const (
	completeTime = 2 * time.Second
	completeMost = 200
)

// errEnough ends a list early.
var errEnough = errors.New("enough")

// completion completes what is typed last; without a gateway or a credential that is
// set, and with one that is refused, it offers nothing. It says nothing of what fails: it
// runs while somebody types.
type completion func(ctx context.Context, typed string) []cobra.Completion

// only completes with nothing else, and no files.
func (f completion) only(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
	defer cancel()
	return f(ctx, typed), cobra.ShellCompDirectiveNoFileComp
}

// first is only, of the first argument.
func (f completion) first(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return f.only(cmd, args, typed)
}

// offer lists what a list of the API has under names that begin as typed.
func offer[T any](ctx context.Context, client *apiclient.Client, path, name, typed string, query url.Values, shown func(T) (name, description string)) []cobra.Completion {
	defer client.Close()
	var found []cobra.Completion
	_, _ = pages(ctx, client, path, name, query, false, func(raw json.RawMessage) error {
		var e T
		if json.Unmarshal(raw, &e) == nil {
			if name, description := shown(e); name != "" && strings.HasPrefix(name, typed) {
				found = append(found, cobra.CompletionWithDesc(name, description))
			}
		}
		if len(found) >= completeMost {
			return errEnough
		}
		return nil
	})
	return found
}

// streams completes the names of streams.
func (c *connection) streams(env Environment) completion {
	return func(ctx context.Context, typed string) []cobra.Completion {
		if strings.Contains(typed, "/") {
			return nil
		}
		client, base, err := c.manage(quiet(env))
		if err != nil {
			return nil
		}
		return offer(ctx, client, base+"/streams", "streams", typed, url.Values{"prefix": {typed}},
			func(s streamShape) (string, string) { return s.Name, s.ContentType })
	}
}

// streamsOfAccount completes them as ACCOUNT/NAME, of the key's account.
func (c *connection) streamsOfAccount(env Environment) completion {
	return func(ctx context.Context, typed string) []cobra.Completion {
		client, err := c.owner(quiet(env))
		if err != nil {
			return nil
		}
		defer client.Close()
		answer, err := client.Do(ctx, apiclient.Call{Method: http.MethodGet, Path: "/v1/account"})
		var a accountShape
		if err != nil || json.Unmarshal(answer, &a) != nil || !a.is("") {
			return nil
		}
		prefix := a.ID + "/"
		name, ok := strings.CutPrefix(typed, prefix)
		if !ok && !strings.HasPrefix(prefix, typed) {
			return nil
		}
		if !ok {
			name = ""
		}
		return offer(ctx, client, "/v1/streams", "streams", typed, url.Values{"prefix": {name}},
			func(s streamShape) (string, string) { return prefix + s.Name, s.ContentType })
	}
}

// keys completes the names of keys that are not revoked.
func (c *connection) keys(env Environment) completion {
	return func(ctx context.Context, typed string) []cobra.Completion {
		client, base, err := c.manage(quiet(env))
		if err != nil {
			return nil
		}
		return offer(ctx, client, base+"/api-keys", "api_keys", typed, nil, func(k keyShape) (string, string) {
			if k.RevokedAt != nil {
				return "", ""
			}
			return k.Name, k.Access + " " + k.reaches()
		})
	}
}

// accounts completes the IDs of accounts, as the operator.
func (c *connection) accounts(env Environment) completion {
	return func(ctx context.Context, typed string) []cobra.Completion {
		client, err := c.operator(quiet(env))
		if err != nil {
			return nil
		}
		return offer(ctx, client, "/v1/accounts", "accounts", typed, url.Values{"prefix": {typed}},
			func(a accountShape) (string, string) { return a.ID, a.State })
	}
}

// words completes with some words.
func words(all ...string) completion {
	return func(_ context.Context, typed string) []cobra.Completion {
		var found []cobra.Completion
		for _, w := range all {
			if strings.HasPrefix(w, typed) {
				found = append(found, w)
			}
		}
		return found
	}
}

// completeFlag completes a flag of a command, which must have it.
func completeFlag(cmd *cobra.Command, name string, f completion) {
	if err := cmd.RegisterFlagCompletionFunc(name, f.only); err != nil {
		panic(err) // a flag of another name, or twice: no command line does that
	}
}

// completeNoFiles offers nothing where nothing is known to fit: a shell would offer the
// names of files. Flags that name one keep it.
func completeNoFiles(cmd *cobra.Command) {
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if _, ok := cmd.GetFlagCompletionFunc(f.Name); ok || f.Name == "output" || strings.HasSuffix(f.Name, "-file") {
			return
		}
		completeFlag(cmd, f.Name, words())
	})
}

// quiet is an environment in which nothing is said beside the output.
func quiet(env Environment) Environment {
	env.Err = discard{}
	return env
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
