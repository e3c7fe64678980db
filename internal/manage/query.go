package manage

import (
	"encoding/base64"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"sluice/internal/refusal"
	"sluice/internal/store"
)

// Bounds of a page (design §10).
const (
	defaultPage = 50
	maxPage     = 200
	maxCursor   = 512 // bytes
)

// query is the query of a request, each parameter known and once.
type query map[string]string

// parseQuery reads a query strictly: what is not understood is refused, never ignored.
func parseQuery(raw string, known []string) (query, error) {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return nil, refusal.Because(refusal.InvalidQuery, "The query does not parse: it has a ';' or a bad escape.", err)
	}
	q := make(query, len(values))
	for name, list := range values {
		switch {
		case !slices.Contains(known, name):
			message := "This request takes no query."
			if len(known) > 0 {
				message = "The query may have " + strings.Join(known, ", ") + "; nothing else."
			}
			return nil, badQuery(name, message)
		case len(list) > 1:
			return nil, badQuery(name, "Send "+name+" once.")
		}
		q[name] = list[0]
	}
	return q, nil
}

func badQuery(name, message string) error {
	return refusal.Because(refusal.InvalidQuery, message, nil).About(printable(name))
}

func badCursor() error {
	return badQuery("cursor", "cursor is the next_cursor of the page before, as it is.")
}

// page reads limit, cursor and prefix. kind keeps the cursor of one list from being
// taken for another's. The page asks for one entry more than there is room for, which
// tells whether there is a next one.
func (q query) page(kind string) (store.Page, error) {
	p := store.Page{Limit: defaultPage + 1, Prefix: q["prefix"]}
	if text, ok := q["limit"]; ok {
		limit, err := strconv.Atoi(text)
		if err != nil || limit < 1 || limit > maxPage || strconv.Itoa(limit) != text {
			return p, badQuery("limit", "limit is a whole number from 1 to "+strconv.Itoa(maxPage)+".")
		}
		p.Limit = limit + 1
	}
	if text, ok := q["cursor"]; ok {
		after, ok := openCursor(kind, text)
		if !ok {
			return p, badCursor()
		}
		p.After = after
	}
	return p, nil
}

// openCursor is the last name of the page before. Cursors are opaque to clients.
func openCursor(kind, text string) (string, bool) {
	if len(text) > maxCursor {
		return "", false
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	after, ok := strings.CutPrefix(string(raw), kind+":")
	return after, err == nil && ok && after != "" && utf8.ValidString(after) && !strings.Contains(after, "\x00")
}

// cut takes the entry that is too many off a page, and makes the cursor of the next.
func cut[T any](list []T, p store.Page, kind string, nameOf func(T) string) ([]T, *string) {
	if len(list) < p.Limit {
		return list, nil
	}
	list = list[:p.Limit-1]
	next := cursor(kind, nameOf(list[len(list)-1]))
	return list, &next
}

// cursor is that of the page behind an entry.
func cursor(kind, last string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(kind + ":" + last))
}

// printable keeps a client's text short and plain where it is said back to it.
func printable(text string) string {
	const most = 64
	plain := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
	if len(plain) > most {
		plain = plain[:most]
	}
	return plain
}
