package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice/internal/apiclient"
	"sluice/internal/tenant"
)

// recordShape is the record of a change as the API gives it.
type recordShape struct {
	ID    int64      `json:"id"`
	At    *time.Time `json:"at"`
	Actor struct {
		Kind  string  `json:"kind"`
		KeyID *string `json:"key_id"`
	} `json:"actor"`
	Account *string              `json:"account"`
	Action  string               `json:"action"`
	Target  *string              `json:"target"`
	From    *string              `json:"from"`
	Details map[string]editShape `json:"details"`
}

// editShape is what became of one thing; nil is what there is not.
type editShape struct {
	From json.RawMessage `json:"from"`
	To   json.RawMessage `json:"to"`
}

func (r recordShape) is() bool {
	return r.ID > 0 && r.At != nil && r.Actor.Kind != "" && r.Action != ""
}

func (r recordShape) actor() string {
	if r.Actor.KeyID != nil {
		return *r.Actor.KeyID
	}
	return r.Actor.Kind
}

// changes are the details in one line.
func (r recordShape) changes() string {
	parts := make([]string, 0, len(r.Details))
	for _, name := range slices.Sorted(maps.Keys(r.Details)) {
		e := r.Details[name]
		switch {
		case e.From != nil && e.To != nil:
			parts = append(parts, name+": "+plainValue(name, e.From)+" -> "+plainValue(name, e.To))
		case e.To != nil:
			parts = append(parts, name+": "+plainValue(name, e.To))
		case e.From != nil:
			parts = append(parts, name+": "+plainValue(name, e.From))
		}
	}
	return strings.Join(parts, "; ")
}

// plainValue is a value as people read it: a text without its quotes, a list with commas,
// null as what it means there.
func plainValue(name string, value json.RawMessage) string {
	var text string
	var list []string
	switch {
	case bytes.Equal(value, []byte("null")) && name == "streams":
		return "all"
	case bytes.Equal(value, []byte("null")) && name == "expires_at":
		return "never"
	case bytes.Equal(value, []byte("null")) && strings.HasPrefix(name, "limits."):
		return "default"
	case bytes.Equal(value, []byte("null")):
		return "none"
	case json.Unmarshal(value, &text) == nil:
		return text
	case json.Unmarshal(value, &list) == nil:
		return "[" + strings.Join(list, ",") + "]"
	default:
		return string(value)
	}
}

// auditCommand is the flags of audit.
type auditCommand struct {
	connection
	all, asJSON, follow   bool
	since, until          string
	action, actor, target string
	limitText             string
	limit                 int
}

// auditActions are what --action takes (openapi.yaml, AuditAction).
func auditActions() []string {
	return []string{
		"account.create", "account.update", "account.delete", "api_key.create", "api_key.update", "api_key.rotate", "api_key.revoke",
		"stream.create", "stream.update", "stream.delete", "stream.expire", "stream.undo", "stream.undeclare", "signing_keys.rotate",
	}
}

// followEvery is how often --follow asks for more.
const followEvery = 2 * time.Second

func newAudit(env Environment) *cobra.Command {
	var o auditCommand
	cmd := &cobra.Command{
		Use: "audit", Short: "Show what was changed, by whom and from where",
		Long: `Show the records of changes of an account, its streams and its keys, the newest first:
when, by whom (the ID of a key, or operator, file, system), what, and from which
address. They take TONBO_API_KEY and SLUICE_URL, and are those of the key's account;
with --account or --all-accounts an operator sees them through the admin listener.

With --json each record is a line, as the API gives it. With --follow the newest --limit
come first, the oldest of them at the top, and then what is changed as it comes, until
Ctrl-C. With --follow --since 1_minutes it begins with what is about new.`,
		Example: `  sluice audit --since 7_days
  sluice audit --action api_key.create --limit 0 --json
  sluice audit --all-accounts --follow           # as the operator
  sluice audit --account acme --actor key_5d0c`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	flags := cmd.Flags()
	o.ownerFlags(flags)
	o.accountFlag(flags)
	flags.BoolVar(&o.all, "all-accounts", false, "as the operator, the records of all accounts: goes to the admin listener")
	flags.StringVar(&o.since, "since", "", "from then on: N_minutes, N_hours or N_days ago, a date or a time of RFC 3339")
	flags.StringVar(&o.until, "until", "", "before then, written in the same ways")
	flags.StringVar(&o.action, "action", "", "only this one, as in stream.delete")
	flags.StringVar(&o.actor, "actor", "", "only what was done with the key of this ID, or by operator, file or system")
	flags.StringVar(&o.target, "target", "", "only what was done to this account's ID, stream's name or key's ID")
	flags.StringVar(&o.limitText, "limit", "50", "the most records; 0: all")
	flags.BoolVar(&o.follow, "follow", false, "go on with what is changed from now on")
	flags.BoolVar(&o.asJSON, "json", false, "print each record as a line of JSON")
	completeFlag(cmd, "account", o.accounts(env))
	completeFlag(cmd, "action", words(auditActions()...))
	completeFlag(cmd, "actor", words("operator", "file", "system"))
	completeFlag(cmd, "target", o.streams(env))
	return cmd
}

func (o *auditCommand) run(ctx context.Context, env Environment) error {
	query, err := o.query(time.Now())
	if err != nil {
		return err
	}
	var client *apiclient.Client
	if o.all {
		o.account = "-" // an operator's command, of no account
	}
	if o.operates() {
		client, err = o.operator(env)
	} else {
		client, err = o.owner(env)
	}
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, stop := interruptible(ctx)
	defer stop()
	err = o.show(ctx, env, client, query)
	if o.follow && errors.Is(context.Cause(ctx), errInterrupted) {
		return nil
	}
	return o.explain(err)
}

// query is what is asked of the API.
func (o *auditCommand) query(now time.Time) (url.Values, error) {
	query := url.Values{}
	limit, err := strconv.ParseUint(o.limitText, 10, 31)
	o.limit = int(limit)
	switch {
	case err != nil:
		return nil, usagef("--limit %q: write a whole number that is not negative", o.limitText)
	case o.all && o.account != "":
		return nil, usagef("--account is one account and --all-accounts are all: leave one out")
	case o.follow && o.until != "":
		return nil, usagef("--follow goes on for ever: leave --until out")
	case o.action != "" && !slices.Contains(auditActions(), o.action):
		return nil, usagef("--action %q: it is one of %s", o.action, strings.Join(auditActions(), ", "))
	}
	var times []time.Time
	for _, one := range [][2]string{{"since", o.since}, {"until", o.until}} {
		name, text := one[0], one[1]
		if text == "" {
			continue
		}
		t, err := parsePast(text, now)
		if err != nil {
			return nil, usagef("--%s: %w", name, err)
		}
		times = append(times, t)
		query.Set(name, t.UTC().Format(time.RFC3339Nano))
	}
	if len(times) == 2 && !times[1].After(times[0]) {
		return nil, usagef("--until is not after --since")
	}
	if o.account != "" {
		if _, err := tenant.ParseAccountID(o.account); err != nil {
			return nil, usagef("--account: %w", err)
		}
	}
	for name, text := range map[string]string{"account": o.account, "action": o.action, "actor": o.actor, "target": o.target} {
		if text != "" {
			query.Set(name, text)
		}
	}
	return query, nil
}

// parsePast reads a time: so long ago, a date in UTC, or a time of RFC 3339.
func parsePast(text string, now time.Time) (time.Time, error) {
	if strings.Contains(text, "_") {
		ago, err := parseExpiresIn(text)
		return now.Add(-ago), err
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return now, errors.New("write how long ago, as in 7_days, a date as in 2027-06-01, or a time as in 2027-06-01T12:00:00Z")
}

// record is one as it came and as it was read.
type record struct {
	recordShape
	raw json.RawMessage
}

func (o *auditCommand) show(ctx context.Context, env Environment, client *apiclient.Client, query url.Values) error {
	found, err := o.newer(ctx, client, query, 0, o.limit)
	if err != nil {
		return err
	}
	if !o.follow {
		return o.print(env, found, true)
	}
	var last int64
	for first := true; ; first = false {
		if len(found) > 0 {
			last = found[0].ID
		}
		slices.Reverse(found)
		if err := o.print(env, found, first); err != nil {
			return err
		}
		timer := time.NewTimer(followEvery)
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
		if found, err = o.newer(ctx, client, query, last, 0); err != nil {
			return err
		}
	}
}

// newer are the records that come after one, the newest first: at most so many, where
// that is not 0.
func (o *auditCommand) newer(ctx context.Context, client *apiclient.Client, query url.Values, after int64, most int) ([]record, error) {
	const path = "/v1/audit"
	ask := maps.Clone(query)
	if size, _ := strconv.Atoi(pageSize); most > 0 && most < size {
		ask.Set("limit", strconv.Itoa(most))
	}
	var found []record
	_, err := pages(ctx, client, path, "records", ask, false, func(raw json.RawMessage) error {
		r := record{raw: raw}
		if json.Unmarshal(raw, &r.recordShape) != nil || !r.is() {
			return client.Strange("an entry of GET " + path + " is no record")
		}
		if r.ID <= after {
			return errEnough
		}
		found = append(found, r)
		if len(found) == most {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return found, err
}

func (o *auditCommand) print(env Environment, found []record, heads bool) error {
	if o.asJSON {
		for _, r := range found {
			var line bytes.Buffer
			if err := json.Compact(&line, r.raw); err != nil {
				return fmt.Errorf("a record is not JSON: %w", err)
			}
			if err := printJSON(env.Out, line.Bytes()); err != nil {
				return err
			}
		}
		return nil
	}
	account := func(text string) []string {
		if o.operates() {
			return []string{text}
		}
		return nil // it is the key's own
	}
	t := newTable(env.Out)
	if heads {
		t.row(slices.Concat([]string{"TIME"}, account("ACCOUNT"), []string{"ACTOR", "ACTION", "TARGET", "FROM", "DETAILS"})...)
	}
	for _, r := range found {
		t.row(slices.Concat([]string{at(r.At)}, account(text(r.Account)), []string{r.actor(), r.Action, text(r.Target), text(r.From), r.changes()})...)
	}
	return t.end()
}
