package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"sluice/internal/apiclient"
)

// printJSON prints what the API answered, in one line.
func printJSON(out io.Writer, answer json.RawMessage) error {
	_, err := fmt.Fprintf(out, "%s\n", answer)
	return err
}

// field is a line of what is shown of one thing.
type field struct{ name, value string }

// printFields prints a thing; a field that is empty is left out.
func printFields(out io.Writer, fields ...field) error {
	var b strings.Builder
	for _, f := range fields {
		if f.value != "" {
			b.WriteString(f.name + ": " + apiclient.Printable(f.value) + "\n")
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// table prints things below each other; empty cells are a dash.
type table struct{ w *tabwriter.Writer }

func newTable(out io.Writer, heads ...string) table {
	t := table{tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)}
	if len(heads) > 0 {
		_, _ = fmt.Fprintln(t.w, strings.Join(heads, "\t"))
	}
	return t
}

func (t table) row(cells ...string) {
	for i, c := range cells {
		if c = apiclient.Printable(c); c == "" {
			c = "-"
		}
		cells[i] = c
	}
	_, _ = fmt.Fprintln(t.w, strings.Join(cells, "\t"))
}

// end writes it out; its error is that of any row.
func (t table) end() error { return t.w.Flush() }

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// at is a time of the API, or nothing.
func at(t *time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// text is a string of the API that may be null.
func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// plural is a count with its noun.
func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// size is a count of bytes as people read it.
func size(n int64) string {
	for _, u := range []struct {
		bytes int64
		name  string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.bytes {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(n)/float64(u.bytes)), ".0") + " " + u.name
		}
	}
	return plural(int(n), "byte")
}
