package cli

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"sluice/internal/apiclient"
)

// usageShape is an hour of a class as the API gives it.
type usageShape struct {
	Hour           *time.Time  `json:"hour"`
	Class          string      `json:"class"`
	Requests       int64       `json:"requests"`
	RequestBytes   int64       `json:"request_bytes"`
	ResponseBytes  int64       `json:"response_bytes"`
	HeartbeatBytes int64       `json:"heartbeat_bytes"`
	TailSeconds    json.Number `json:"tail_seconds"`
	Refused        int64       `json:"refused"`
	Chunks         int64       `json:"chunks"`
}

func newUsage(env Environment) *cobra.Command {
	var c connection
	var asJSON bool
	var from, to, class string
	cmd := &cobra.Command{
		Use:   "usage",
		Short: "Show what an account used, by hour",
		Long: `Show what the account of the key in TONBO_API_KEY used, by hour and class: append
(appends, closes), read, live_read (tails) and management. Bytes are those of bodies;
what was refused is counted apart, and in no other column. Without --from and --to it
is the last 24 hours.`,
		Example: `  sluice usage
  sluice usage --from 2027-01-01T00:00:00Z --to 2027-02-01T00:00:00Z --class append
  sluice usage --account acme --json`,
		Annotations: map[string]string{runsItself: "yes"},
		Args:        noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, base, err := c.manage(env)
			if err != nil {
				return err
			}
			defer client.Close()
			query := url.Values{}
			for name, value := range map[string]string{"from": from, "to": to, "class": class} {
				if value != "" {
					query.Set(name, value)
				}
			}
			return listUsage(cmd, env, client, base, query, asJSON)
		},
	}
	c.ownerFlags(cmd.Flags())
	c.accountFlag(cmd.Flags())
	jsonFlag(cmd, &asJSON)
	cmd.Flags().StringVar(&from, "from", "", "the beginning of the first hour, in UTC: 2027-01-01T00:00:00Z")
	cmd.Flags().StringVar(&to, "to", "", "the end of the last hour, at most 31 days behind --from")
	cmd.Flags().StringVar(&class, "class", "", "append, read, live_read or management")
	_ = cmd.RegisterFlagCompletionFunc("class", cobra.FixedCompletions(
		[]cobra.Completion{"append", "read", "live_read", "management"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("account", c.accounts(env).only)
	cmd.AddCommand(newUsageExport(env))
	return cmd
}

func listUsage(cmd *cobra.Command, env Environment, client *apiclient.Client, base string, query url.Values, asJSON bool) error {
	t := newTable(env.Out, "HOUR", "CLASS", "REQUESTS", "BYTES IN", "CHUNKS", "BYTES OUT", "TAIL SECONDS", "REFUSED")
	answer, err := pages(cmd.Context(), client, base+"/usage", "usage", query, asJSON, func(raw json.RawMessage) error {
		var u usageShape
		if err := json.Unmarshal(raw, &u); err != nil || u.Hour == nil {
			return fmt.Errorf("the answer to GET %s/usage is no list of hours; is another program there?", base)
		}
		n := func(i int64) string { return strconv.FormatInt(i, 10) }
		t.row(at(u.Hour), u.Class, n(u.Requests), n(u.RequestBytes), n(u.Chunks), n(u.ResponseBytes), u.TailSeconds.String(), n(u.Refused))
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

func newUsageExport(env Environment) *cobra.Command {
	var o connection
	var after int64
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Print batches of usage to be billed from, as the operator",
		Long: `Print the batches of all replicas that the store has, one line of JSON each, in the
order in which they were written. To go on later, give --after the position of the last
line: batches written later have larger ones. A batch is known by its replica and
sequence; bill each once (docs/usage.md).`,
		Example: `  sluice usage export > usage.jsonl
  sluice usage export --after "$(tail -n 1 usage.jsonl | jq .position)" >> usage.jsonl`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := o.operator(env)
			if err != nil {
				return err
			}
			defer client.Close()
			out := bufio.NewWriter(env.Out)
			for done := false; !done; {
				if after, done, err = exportPage(cmd, client, out, after); err != nil {
					return err
				}
			}
			return nil
		},
	}
	o.operatorFlags(cmd.Flags())
	cmd.Flags().Int64Var(&after, "after", 0, "the position of the last batch that was read already")
	return cmd
}

// exportPage prints the batches of one page, and flushes them: where the next page fails,
// the last line printed is whole.
func exportPage(cmd *cobra.Command, client *apiclient.Client, out *bufio.Writer, after int64) (next int64, done bool, err error) {
	query := url.Values{"after": {strconv.FormatInt(after, 10)}, "limit": {pageSize}}
	answer, err := client.Do(cmd.Context(), apiclient.Call{Method: http.MethodGet, Path: "/v1/usage/batches", Query: query})
	if err != nil {
		return after, false, err
	}
	var page struct {
		Batches []json.RawMessage `json:"batches"`
		Next    *int64            `json:"next_after"`
	}
	if json.Unmarshal(answer, &page) != nil || page.Next == nil || len(page.Batches) > 0 && *page.Next <= after {
		return after, false, fmt.Errorf("the answer to GET /v1/usage/batches is no list of batches; is another program there?")
	}
	for _, b := range page.Batches {
		_, err = fmt.Fprintf(out, "%s\n", b)
	}
	if err == nil {
		err = out.Flush()
	}
	return *page.Next, len(page.Batches) == 0, err
}
