package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// What the records of changes say once all replicas have died and live again.

// changeTry is a try of a caller that may have changed something.
type changeTry struct {
	method, path string
	status       int // 0: it was not told
}

// records is how many records there may be of a try: at least and at most.
func (a changeTry) records() (least, most int) {
	switch {
	case a.path == "": // at the stream's own URL
		// What it did may be known by a later try alone, whose record it then is.
		return 0, 1
	case a.status == http.StatusCreated, a.status == http.StatusOK:
		return 1, 1
	case a.status >= 400 && !strings.HasSuffix(a.path, "streams"):
		return 0, 0
	default:
		// It is not known, or an end that had come before; and a stream that was wished for
		// is refused once Ursula says so, or once somebody else has deleted it.
		return 0, 1
	}
}

// recordRow is a record as the store has it.
type recordRow struct{ account, action, target, request, details string }

func recordRows(ctx context.Context, db *sql.DB) ([]recordRow, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	rows, err := db.QueryContext(ctx, `SELECT account, action, target, request_id, details FROM audit ORDER BY id`)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var all []recordRow
	for rows.Next() {
		var r recordRow
		if err := rows.Scan(&r.account, &r.action, &r.target, &r.request, &r.details); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, rows.Err()
}

// checkRecords wants one record of each change that was acknowledged, none of what was
// refused, and that the records lead to what the store holds.
func (tr *crashTrial) checkRecords(ctx context.Context, t *testing.T) {
	t.Helper()
	all, err := recordRows(ctx, tr.rows)
	if err != nil {
		t.Fatal(err)
	}
	of := map[string]int{}
	for _, r := range all {
		of[r.request]++
	}
	tries := 0
	for _, p := range tr.people {
		for id, a := range p.asked {
			tries++
			if least, most := a.records(); of[id] < least || of[id] > most {
				t.Errorf("%s %s, answered %d: %d records, want %d to %d", a.method, a.path, a.status, of[id], least, most)
			}
		}
	}
	t.Logf("%d records, %d tries of a change", len(all), tries)
	streams, keys := replayed(t, all)
	rows, err := storedRows(ctx, tr.rows)
	if err != nil {
		t.Fatal(err)
	}
	held := make([]string, 0, len(rows))
	for _, r := range rows {
		held = append(held, r.account+"/"+r.name)
	}
	slices.Sort(held)
	if !slices.Equal(streams, held) {
		t.Errorf("streams by the records: %q\nin the store: %q", streams, held)
	}
	good, err := tr.rows.QueryContext(ctx, `SELECT account, id FROM api_keys WHERE revoked_at = 0`)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = good.Close() }()
	held = nil
	for good.Next() {
		var account, id string
		if err := good.Scan(&account, &id); err != nil {
			t.Fatal(err)
		}
		held = append(held, account+"/"+id)
	}
	slices.Sort(held)
	if err := good.Err(); err != nil || !slices.Equal(keys, held) {
		t.Errorf("keys by the records: %q\nin the store: %q, %v", keys, held, err)
	}
}

// replayed is what there is after all changes: nothing is made twice, and nothing ends that
// was not made.
func replayed(t *testing.T, all []recordRow) (streams, keys []string) {
	t.Helper()
	have := map[string]map[string]bool{"stream": {}, "api_key": {}}
	for _, r := range all {
		kind, what, _ := strings.Cut(r.action, ".")
		things, one := have[kind], r.account+"/"+r.target
		switch {
		case r.action == "account.create":
			var d map[string]struct{ To string }
			_ = json.Unmarshal([]byte(r.details), &d)
			have["api_key"][r.account+"/"+d["api_key.id"].To] = true
		case r.action == "account.delete":
			for _, things := range have {
				maps.DeleteFunc(things, func(one string, _ bool) bool { return strings.HasPrefix(one, r.account+"/") })
			}
		case things == nil:
		case what == "create" && things[one], what != "create" && !things[one]:
			t.Errorf("%s of %s, which is there: %t", r.action, one, things[one])
		case what == "create":
			things[one] = true
		case what != "rotate":
			delete(things, one)
		}
	}
	return slices.Sorted(maps.Keys(have["stream"])), slices.Sorted(maps.Keys(have["api_key"]))
}
