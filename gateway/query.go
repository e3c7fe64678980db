package gateway

import (
	"net/url"
	"strconv"
	"strings"
	"time"

	"sluice/internal/refusal"
)

// readQuery decides on the query's parameters as the node will read them: cut
// at '&', each name and value form-decoded once. Parameters that are not known
// here go on unchanged and in order (design §3). For every route alike, since
// what is refused here must not depend on who reads the path.
func (rt *Route) readQuery(op Operation) error {
	if err := checkQueryBytes(rt.Query); err != nil {
		return err
	}
	var offsets, lives int
	for pair := range strings.SplitSeq(rt.Query, "&") {
		rawName, rawValue, _ := strings.Cut(pair, "=")
		name, err := url.QueryUnescape(rawName)
		if err != nil {
			return refusal.New(refusal.InvalidQuery, err)
		}
		value, err := url.QueryUnescape(rawValue)
		if err != nil {
			return refusal.New(refusal.InvalidQuery, err)
		}
		switch name {
		case "offset":
			offsets++
		case "live":
			lives++
			if err := rt.readLive(op, value); err != nil {
				return err
			}
		case "timeout_ms":
			rt.readWait(value)
		case "consistency":
			rt.Leader = true
		}
	}
	if offsets > 1 || lives > 1 {
		return refusal.New(refusal.InvalidQuery, nil)
	}
	return nil
}

func checkQueryBytes(query string) error {
	for i := range len(query) {
		if c := query[i]; c <= ' ' || c >= 0x7f || c == ';' || c == '#' {
			return refusal.New(refusal.InvalidQuery, nil)
		}
	}
	return nil
}

// readLive makes a tail of a GET of the stream only: on HEAD, or elsewhere, the
// parameter is checked and means nothing (H20).
func (rt *Route) readLive(op Operation, value string) error {
	var kind Tail
	switch value {
	case "sse":
		kind = SSE
	case "long-poll":
		kind = LongPoll
	default:
		return refusal.New(refusal.InvalidQuery, nil)
	}
	if op == Read {
		rt.Tail = kind
	}
	return nil
}

// readWait takes the last value, as the node does; a bad one counts as absent.
func (rt *Route) readWait(value string) {
	rt.Wait = 0
	if ms, err := strconv.ParseUint(value, 10, 31); err == nil {
		rt.Wait = time.Duration(ms) * time.Millisecond
	}
}
