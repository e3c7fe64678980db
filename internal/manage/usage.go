package manage

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"sluice/internal/store"
	"sluice/internal/usage"
)

// Bounds of what is listed of usage.
const (
	usageRange   = 31 * 24 * time.Hour
	usageDefault = 24 * time.Hour
	batchBytes   = 2 << 20 // of a page
)

type usageJSON struct {
	Hour  usage.Hour  `json:"hour"`
	Class usage.Class `json:"class"`
	usage.Counts
}

// listUsage is what an account used, by hour and class. An hour of which nothing is
// listed had none.
func (a *API) listUsage(c *call) (reply, error) {
	const kind = "usage"
	p, err := c.query.page(kind)
	if err != nil {
		return reply{}, err
	}
	q := store.UsageQuery{Limit: p.Limit}
	if q.From, q.To, err = a.hours(c.query); err != nil {
		return reply{}, err
	}
	if name, ok := c.query["class"]; ok {
		if q.Class, err = usage.ParseClass(name); err != nil {
			return reply{}, badQuery("class", "class is "+strings.Join(usage.Classes(), ", ")+".")
		}
	}
	if p.After != "" {
		var after store.UsageHour
		if n, err := fmt.Sscanf(p.After, "%d %d", &after.Hour, &after.Class); n != 2 || err != nil || cursorOf(after) != p.After {
			return reply{}, badQuery("cursor", "cursor is the next_cursor of the page before, as it is.")
		}
		q.After = &after
	}
	list, err := a.o.Usage.Usage(c.r.Context(), c.account, q)
	if err != nil {
		return reply{}, err
	}
	list, next := cut(list, p, kind, cursorOf)
	page := struct {
		From  usage.Hour  `json:"from"`
		To    usage.Hour  `json:"to"`
		Usage []usageJSON `json:"usage"`
		Next  *string     `json:"next_cursor"`
	}{q.From, q.To, make([]usageJSON, len(list)), next}
	for i, u := range list {
		page.Usage[i] = usageJSON{u.Hour, u.Class, u.Counts}
	}
	return reply{http.StatusOK, page}, nil
}

func cursorOf(u store.UsageHour) string { return fmt.Sprintf("%d %d", int64(u.Hour), uint8(u.Class)) }

// hours reads from and to. Without them it is the 24 hours that end with this one.
func (a *API) hours(q query) (from, to usage.Hour, err error) {
	end := usage.HourOf(a.o.Now()).Time().Add(time.Hour)
	if text, ok := q["to"]; ok {
		if end, err = wholeHour("to", text); err != nil {
			return 0, 0, err
		}
	}
	begin := end.Add(-usageDefault)
	if text, ok := q["from"]; ok {
		if begin, err = wholeHour("from", text); err != nil {
			return 0, 0, err
		}
		if _, ok := q["to"]; !ok && !begin.Before(end) {
			end = begin.Add(time.Hour) // of the future there is nothing
		}
	}
	switch {
	case !begin.Before(end):
		return 0, 0, badQuery("to", "to is not after from.")
	case end.Sub(begin) > usageRange:
		return 0, 0, badQuery("from", "from is at most 31 days before to: ask for less at once.")
	}
	return usage.HourOf(begin), usage.HourOf(end), nil
}

func wholeHour(name, text string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil || t.Year() < 1970 || t.Year() > 9999 || !t.Equal(usage.HourOf(t).Time()) {
		return t, badQuery(name, name+" is the beginning of an hour of UTC, in RFC 3339: 2027-01-01T00:00:00Z.")
	}
	return t.UTC(), nil
}

// listUsageBatches is what there is to bill from, of all accounts and replicas, behind a
// position.
func (a *API) listUsageBatches(c *call) (reply, error) {
	p, err := c.query.page("")
	if err != nil {
		return reply{}, err
	}
	const maxPosition = 1<<53 - 1 // the largest whole number that every reader of JSON has
	after := int64(0)
	if text, ok := c.query["after"]; ok {
		after, err = strconv.ParseInt(text, 10, 64)
		if err != nil || after < 0 || after > maxPosition || strconv.FormatInt(after, 10) != text {
			return reply{}, badQuery("after", "after is the next_after of the page before, or the position of the last batch that was read.")
		}
	}
	list, err := a.o.Usage.UsageBatches(c.r.Context(), after, p.Limit, batchBytes)
	if err != nil {
		return reply{}, err
	}
	list = list[:min(len(list), p.Limit-1)]
	page := struct {
		Batches []json.RawMessage `json:"batches"`
		Next    int64             `json:"next_after"`
	}{make([]json.RawMessage, len(list)), after}
	for i, b := range list {
		page.Batches[i] = fmt.Appendf(nil, `{"position":%d,%s`, b.Position, b.Content[1:])
		page.Next = b.Position
	}
	return reply{http.StatusOK, page}, nil
}
