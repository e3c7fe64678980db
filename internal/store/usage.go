package store

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sluice/internal/tenant"
	"sluice/internal/usage"
)

// UsageHour is what an account used of a class in an hour, over all replicas.
type UsageHour struct {
	Hour  usage.Hour
	Class usage.Class
	usage.Counts
}

// UsageQuery says which hours are listed: from From on and before To, of Class or, where
// that is NoClass, of all, behind After, at most Limit.
type UsageQuery struct {
	From, To usage.Hour
	Class    usage.Class
	After    *UsageHour // whose Hour and Class count; nil = from the first
	Limit    int
}

// UsageBatch is a batch as it was written.
type UsageBatch struct {
	// Position is larger than that of each batch that was written before.
	Position int64
	Content  []byte // JSON
}

// sumOf is what batches are added up by.
type sumOf struct {
	account string
	hour    usage.Hour
	class   usage.Class
}

// sumsAtOnce is how many sums one statement changes.
const sumsAtOnce = 50

// WriteUsage keeps a batch and adds it to the hours' sums, both or neither; one that is
// kept already changes nothing. The error wraps ErrUnavailable: it is not known whether
// it was kept, and it can be written again.
func (s *Store) WriteUsage(ctx context.Context, b *usage.Batch) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	return failed("write usage", s.writeUsage(ctx, b))
}

func (s *Store) writeUsage(ctx context.Context, b *usage.Batch) error {
	line, err := b.Line()
	if err != nil {
		return err
	}
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // nothing where it is committed
	var position int64
	if err := tx.QueryRowContext(ctx, `UPDATE usage_positions SET position = position + 1 WHERE id = 1 RETURNING position`).Scan(&position); err != nil {
		return err
	}
	added, err := affects(ctx, tx, `INSERT INTO usage_batches (position, replica, sequence, written_at, content) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (replica, sequence) DO NOTHING`, position, b.Replica, b.Sequence, micros(s.now()), string(line[:len(line)-1]))
	if err != nil || !added {
		return err
	}
	sums := make(map[sumOf]usage.Counts, len(b.Records))
	for _, r := range b.Records {
		at := sumOf{r.Account, r.Hour, r.Class}
		sum := sums[at]
		sum.Add(r.Counts)
		sums[at] = sum
	}
	for some := range slices.Chunk(slices.SortedFunc(maps.Keys(sums), sumOf.compare), sumsAtOnce) {
		if err := addUsage(ctx, tx, some, sums); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func (s sumOf) compare(t sumOf) int {
	return cmp.Or(cmp.Compare(s.account, t.account), cmp.Compare(s.hour, t.hour), cmp.Compare(s.class, t.class))
}

const usageColumns = `hour, class, requests, request_bytes, response_bytes, heartbeat_bytes, tail_ms, refused, chunks`

// addUsage adds some of the sums to those of the hours.
func addUsage(ctx context.Context, q querier, some []sumOf, sums map[sumOf]usage.Counts) error {
	var text strings.Builder
	args := make([]any, 0, 10*len(some))
	text.WriteString(`INSERT INTO usage_hours (account, ` + usageColumns + `) VALUES `)
	for i, at := range some {
		c := sums[at]
		if i > 0 {
			text.WriteByte(',')
		}
		n := len(args)
		fmt.Fprintf(&text, "($%d,$%d,$%d,$%d,$%d,$%d,$%d,$%d,$%d,$%d)", n+1, n+2, n+3, n+4, n+5, n+6, n+7, n+8, n+9, n+10)
		args = append(args, at.account, int64(at.hour), int(at.class),
			c.Requests, c.RequestBytes, c.ResponseBytes, c.HeartbeatBytes, int64(c.Tail), c.Refused, c.Chunks)
	}
	text.WriteString(` ON CONFLICT (account, hour, class) DO UPDATE SET `)
	for i, name := range strings.Split(usageColumns, ", ")[2:] {
		if i > 0 {
			text.WriteByte(',')
		}
		fmt.Fprintf(&text, "%s = usage_hours.%s + excluded.%s", name, name, name)
	}
	return run(ctx, q, text.String(), args...)
}

// Usage lists what an account used, by hour and class. The error wraps ErrUnavailable.
func (s *Store) Usage(ctx context.Context, account tenant.AccountID, q UsageQuery) ([]UsageHour, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	after := UsageHour{Hour: q.From - 1}
	if q.After != nil {
		after = *q.After
	}
	all, err := list(ctx, s.read, scanUsage, `SELECT `+usageColumns+` FROM usage_hours
		WHERE account = $1 AND hour >= $2 AND hour < $3 AND (hour > $4 OR hour = $4 AND class > $5) AND ($6 = 0 OR class = $6)
		ORDER BY hour, class LIMIT $7`,
		string(account), int64(q.From), int64(q.To), int64(after.Hour), int(after.Class), int(q.Class), q.Limit)
	return all, failed("usage", err)
}

func scanUsage(r row) (u UsageHour, err error) {
	err = r.Scan(&u.Hour, &u.Class, &u.Requests, &u.RequestBytes, &u.ResponseBytes, &u.HeartbeatBytes, &u.Tail, &u.Refused, &u.Chunks)
	return u, err
}

// UsageBatches lists the batches of all replicas behind a position, in the order in which
// they were written: at most so many, and no more once they have so many bytes. What is
// written later lies behind. The error wraps ErrUnavailable.
func (s *Store) UsageBatches(ctx context.Context, after int64, most, bytes int) ([]UsageBatch, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	rows, err := s.read.QueryContext(ctx, `SELECT position, content FROM usage_batches WHERE position > $1 ORDER BY position LIMIT $2`, after, most)
	if err != nil {
		return nil, failed("batches of usage", err)
	}
	defer func() { _ = rows.Close() }() // what went wrong is in Err
	var all []UsageBatch
	for bytes > 0 && rows.Next() {
		var b UsageBatch
		if err := rows.Scan(&b.Position, &b.Content); err != nil {
			return nil, failed("batches of usage", err)
		}
		bytes -= len(b.Content)
		all = append(all, b)
	}
	return all, failed("batches of usage", rows.Err())
}

// DropUsage forgets batches that were written before one time, and hours before another,
// at most so many of each, and returns how many that were. The error wraps ErrUnavailable.
func (s *Store) DropUsage(ctx context.Context, batches, hours time.Time, most int) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	total := 0
	for _, d := range []struct {
		statement string
		before    int64
	}{
		{`DELETE FROM usage_batches WHERE position IN (SELECT position FROM usage_batches WHERE written_at < $1 ORDER BY written_at LIMIT $2)`, micros(batches)},
		{`DELETE FROM usage_hours WHERE (account, hour, class) IN (SELECT account, hour, class FROM usage_hours WHERE hour < $1 ORDER BY hour LIMIT $2)`, int64(usage.HourOf(hours))},
	} {
		result, err := s.write.ExecContext(ctx, d.statement, d.before, most)
		if err != nil {
			return total, failed("drop usage", err)
		}
		n, err := result.RowsAffected()
		if err != nil {
			return total, failed("drop usage", err)
		}
		total += int(n)
	}
	return total, nil
}
