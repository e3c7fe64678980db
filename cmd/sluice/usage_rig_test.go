package main

import (
	"database/sql"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"sluice/internal/usage"
)

// biller is somebody who bills as docs/usage.md says: by its statements, from lines.
type biller struct {
	db         *sql.DB
	take, bill string
}

func newBiller(t *testing.T) *biller {
	t.Helper()
	page, err := os.ReadFile("../../docs/usage.md")
	if err != nil {
		t.Fatal(err)
	}
	var statements []string
	for i, part := range strings.Split(string(page), "```sql\n") {
		if i > 0 {
			text, _, _ := strings.Cut(part, "```")
			statements = append(statements, text)
		}
	}
	if len(statements) != 3 {
		t.Fatalf("%d statements in docs/usage.md", len(statements))
	}
	db, err := sql.Open("sqlite", "file::memory:") // the driver is the program's own
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1) // each would have a memory of its own
	t.Cleanup(func() { _ = db.Close() })
	b := &biller{db: db, take: statements[1], bill: statements[2]}
	b.run(t, statements[0])
	return b
}

func (b *biller) run(t *testing.T, statement string, args ...any) {
	t.Helper()
	if _, err := b.db.ExecContext(t.Context(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// read takes lines, as often as they come.
func (b *biller) read(t *testing.T, lines string) {
	t.Helper()
	for line := range strings.Lines(lines) {
		b.run(t, `INSERT INTO lines VALUES (?)`, strings.TrimSuffix(line, "\n"))
	}
	b.run(t, b.take)
}

// bills are what each account is billed of each class.
func (b *biller) bills(t *testing.T) map[string]usage.Counts {
	t.Helper()
	rows, err := b.db.QueryContext(t.Context(), b.bill)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	all := map[string]usage.Counts{}
	for rows.Next() {
		var account, month, class string
		var c usage.Counts
		if err := rows.Scan(&account, &month, &class, &c.Requests, &c.RequestBytes, &c.Chunks, &c.ResponseBytes, &c.HeartbeatBytes, &c.Tail, &c.Refused); err != nil {
			t.Fatal(err)
		}
		sum := all[account+" "+class] // of both months, where the test ran over an end
		sum.Add(c)
		all[account+" "+class] = sum
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// exported are the batches of an export file, and its text. Each line of it is whole.
func exported(t *testing.T, path string) (batches []usage.Batch, text string) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// The one that is being written has no end yet.
	text = string(raw[:strings.LastIndexByte(string(raw), '\n')+1])
	for line := range strings.Lines(text) {
		var b usage.Batch
		if err := json.Unmarshal([]byte(line), &b); err != nil {
			t.Fatalf("a line of the export: %v: %q", err, line)
		}
		batches = append(batches, b)
	}
	return batches, text
}

// sumsOf adds up batches by account and class.
func sumsOf(batches []usage.Batch) map[string]usage.Counts {
	all := map[string]usage.Counts{}
	for _, b := range batches {
		for _, r := range b.Records {
			name := r.Account + " " + r.Class.String()
			sum := all[name]
			sum.Add(r.Counts)
			all[name] = sum
		}
	}
	return all
}

// gaugeAt is a sample of a process' metrics.
func gaugeAt(t *testing.T, admin, name string) float64 {
	t.Helper()
	return (&replica{process: &process{edge: &edge{Admin: admin}}}).gauge(t, name)
}
