package cli

import (
	"bufio"
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
	var since, until, class string
	cmd := &cobra.Command{
		Use:   "usage",
		Short: "Show what an account used, by hour",
		Long: `Show what the account of the key in TONBO_API_KEY used, by hour and class: append
(appends, closes, creates), read, live_read (tails) and management. Bytes are those of
bodies; what was refused is counted apart, and in no other column. Without --since and
--until it is the last 24 hours. The last half a minute or so is not there yet: each
replica writes what it counted every 30 seconds, or as the operator has set.`,
		Example: `  sluice usage
  sluice usage --since 7_days
  sluice usage --since 2027-01-01 --until 2027-02-01 --class append
  sluice usage --account acme --json`,
		Annotations: map[string]string{runsItself: "yes"},
		Args:        noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			query, err := hours(since, until, time.Now())
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("class") {
				if !slices.Contains(usageClasses(), class) {
					return usagef("--class %q: it is one of %s", class, strings.Join(usageClasses(), ", "))
				}
				query.Set("class", class)
			}
			client, base, err := c.manage(env)
			if err != nil {
				return err
			}
			defer client.Close()
			return c.explain(listUsage(cmd, env, client, base, query, asJSON))
		},
	}
	c.ownerFlags(cmd.Flags())
	c.accountFlag(cmd.Flags())
	jsonFlag(cmd, &asJSON)
	cmd.Flags().StringVar(&since, "since", "", "from the hour of then on: N_minutes, N_hours or N_days ago, a date or a\ntime of RFC 3339")
	cmd.Flags().StringVar(&until, "until", "", "before the hour of then, written in the same ways; at most 31 days after\n--since")
	cmd.Flags().StringVar(&class, "class", "", "append, read, live_read or management")
	_ = cmd.RegisterFlagCompletionFunc("class", cobra.FixedCompletions(usageClasses(), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("account", c.accounts(env).only)
	cmd.AddCommand(newUsageExport(env))
	return cmd
}

// usageClasses are what --class takes (openapi.yaml, UsageClass).
func usageClasses() []string { return []string{"append", "read", "live_read", "management"} }

// hours are the API's from and to. It counts by whole hours of UTC.
func hours(since, until string, now time.Time) (url.Values, error) {
	query := url.Values{}
	begin, err := hourFlag(query, "from", "since", since, now)
	if err != nil {
		return nil, err
	}
	end, err := hourFlag(query, "to", "until", until, now)
	if err != nil {
		return nil, err
	}
	if since != "" && until != "" && !end.After(begin) {
		return nil, usagef("--until: it lies in no later hour than --since")
	}
	return query, nil
}

func hourFlag(query url.Values, name, flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return now, nil
	}
	t, err := parsePast(text, now)
	if err != nil {
		return now, usagef("--%s: %w", flag, err)
	}
	t = t.UTC().Truncate(time.Hour)
	query.Set(name, t.Format(time.RFC3339))
	return t, nil
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
	var text string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Print batches of usage to be billed from, as the operator",
		Long: `Print the batches of all replicas that the store has, one line of JSON each, in the
order in which they were written. To go on later, give --after the position of the last
line: batches written later have larger ones. An empty --after is the beginning. A batch
is known by its replica and sequence; bill each once (docs/usage.md).`,
		Example: `  sluice usage export > usage.jsonl
  sluice usage export --after "$(tail -n 1 usage.jsonl | jq .position)" >> usage.jsonl`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var after int64
			if text != "" {
				n, err := strconv.ParseUint(text, 10, 63)
				if err != nil {
					return usagef("--after %q: it is the position of a batch, a whole number, or empty for the beginning", text)
				}
				after = int64(n)
			}
			client, err := o.operator(env)
			if err != nil {
				return err
			}
			defer client.Close()
			o.account = "-" // an operator's command, of no account
			out := bufio.NewWriter(env.Out)
			for done := false; !done; {
				if after, done, err = exportPage(cmd, client, out, after); err != nil {
					return o.explain(err)
				}
			}
			return nil
		},
	}
	o.operatorFlags(cmd.Flags())
	cmd.Flags().StringVar(&text, "after", "", "the position of the last batch that was read already")
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
