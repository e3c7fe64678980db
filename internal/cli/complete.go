package cli

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// Bounds of a completion: it is in a person's way.
const (
	completeTime = 2 * time.Second
	completeMost = 200
)

// errEnough ends a list early.
var errEnough = errors.New("enough")

// completeStream completes the names of streams, where a key and a gateway are set. It
// says nothing of what fails: it runs while somebody types.
func (c *connection) completeStream(env Environment) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		const nothing = cobra.ShellCompDirectiveNoFileComp
		if len(args) > 0 || strings.Contains(typed, "/") {
			return nil, nothing
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
		defer cancel()
		client, base, err := c.manage(quiet(env))
		if err != nil {
			return nil, nothing
		}
		defer client.Close()
		var names []cobra.Completion
		_, _ = pages(ctx, client, base+"/streams", "streams", url.Values{"prefix": {typed}}, false, func(raw json.RawMessage) error {
			var s streamShape
			if json.Unmarshal(raw, &s) == nil && strings.HasPrefix(s.Name, typed) {
				names = append(names, cobra.CompletionWithDesc(s.Name, s.ContentType))
			}
			if len(names) >= completeMost {
				return errEnough
			}
			return nil
		})
		return names, nothing
	}
}

// quiet is an environment in which nothing is said beside the output.
func quiet(env Environment) Environment {
	env.Err = discard{}
	return env
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// completeNoFiles offers nothing where nothing is known to fit: a shell would offer
// the names of files.
func completeNoFiles(cmd *cobra.Command) {}
