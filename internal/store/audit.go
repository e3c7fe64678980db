package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"sluice/internal/tenant"
)

// Action is what a change did, and to what kind of thing.
type Action string

// The actions. What the operator's file takes back has the action of what becomes of it.
const (
	AccountCreate Action = "account.create" // with its first key, where it has one
	AccountUpdate Action = "account.update"
	AccountDelete Action = "account.delete" // with its keys and its streams

	KeyCreate Action = "api_key.create"
	KeyUpdate Action = "api_key.update"
	KeyRotate Action = "api_key.rotate"
	KeyRevoke Action = "api_key.revoke"

	StreamCreate    Action = "stream.create"
	StreamUpdate    Action = "stream.update"
	StreamDelete    Action = "stream.delete"
	StreamExpire    Action = "stream.expire"
	StreamUndo      Action = "stream.undo"      // Ursula refused to make what was wished for
	StreamUndeclare Action = "stream.undeclare" // it left the operator's file; Ursula keeps the data

	SigningKeysRotate Action = "signing_keys.rotate"
)

// Actions are all of them.
func Actions() []Action {
	return []Action{
		AccountCreate, AccountUpdate, AccountDelete, KeyCreate, KeyUpdate, KeyRotate, KeyRevoke,
		StreamCreate, StreamUpdate, StreamDelete, StreamExpire, StreamUndo, StreamUndeclare, SigningKeysRotate,
	}
}

// Record is the record of one change.
type Record struct {
	// ID rises in the order of changes. It is about the time in microseconds since 1970,
	// so that it tells nothing of how many changes others make.
	ID        int64
	At        time.Time
	Actor     Actor
	Account   tenant.AccountID // whose thing was changed; empty: nobody's
	Action    Action
	Target    string     // an account's id, a stream's name, a key's id
	Client    netip.Addr // the zero value: nobody asked, or it is not known who
	RequestID string
	// Details is a JSON object of what was changed: a member for each field, with "to" what
	// it became, and "from" what it was before. What was made has no "from", what is gone no
	// "to". nil: there is nothing more to be said.
	Details json.RawMessage
}

// AuditQuery says which records are asked for. What is empty is not looked at.
type AuditQuery struct {
	Before       int64 // records with smaller ids; 0 = all
	Account      tenant.AccountID
	Since, Until time.Time // from Since on, before Until
	Action       Action
	KeyID        string    // of the actor
	Actor        ActorKind // which kind of one
	Target       string
	Limit        int // at least 1
}

// maxLookedAt bounds how many records one call of Audit looks at, so that a filter which
// few pass costs those who look up keys no connection for long.
const maxLookedAt = 10_000

// Audit lists records, newest first. What is added while somebody goes through the pages
// is on none of them that is behind the first. The next page is Before next; 0 says that
// there is none. A page may have fewer than Limit, or none, and a next one all the same.
// The error wraps ErrUnavailable.
func (s *Store) Audit(ctx context.Context, q AuditQuery) (page []Record, next int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	var w where
	w.and("id <", q.Before, q.Before != 0)
	w.and("account =", string(q.Account), q.Account != "")
	// No record has an id that lies before its time.
	w.and("id >=", micros(q.Since), !q.Since.IsZero())
	last, err := s.lastLookedAt(ctx, w)
	if err != nil {
		return nil, 0, failed("audit", err)
	}
	w.and("id >", last, last != 0)
	w.and("at >=", micros(q.Since), !q.Since.IsZero())
	w.and("at <", micros(q.Until), !q.Until.IsZero())
	w.and("action =", string(q.Action), q.Action != "")
	w.and("actor_key =", q.KeyID, q.KeyID != "")
	w.and("actor =", string(q.Actor), q.Actor != "")
	w.and("target =", q.Target, q.Target != "")
	page, err = list(ctx, s.read, scanRecord, `SELECT `+auditColumns+` FROM audit WHERE TRUE`+w.text+` ORDER BY id DESC `+w.limit(q.Limit+1), w.args...)
	switch {
	case err != nil:
		return nil, 0, failed("audit", err)
	case len(page) > q.Limit:
		return page[:q.Limit], page[q.Limit-1].ID, nil
	case last != 0:
		return page, last + 1, nil
	default:
		return page, 0, nil
	}
}

// lastLookedAt is the first record that is not looked at any more; 0 = there is none.
func (s *Store) lastLookedAt(ctx context.Context, w where) (int64, error) {
	beyond, err := list(ctx, s.read, func(r row) (id int64, err error) { return id, r.Scan(&id) },
		`SELECT id FROM audit WHERE TRUE`+w.text+` ORDER BY id DESC LIMIT 1 OFFSET `+strconv.Itoa(s.lookedAt), w.args...)
	if err != nil || len(beyond) == 0 {
		return 0, err
	}
	return beyond[0], nil
}

// where is the conditions of a query and their values.
type where struct {
	text string
	args []any
}

func (w *where) and(column string, value any, asked bool) {
	if asked {
		w.args = append(w.args, value)
		w.text += fmt.Sprintf(" AND %s $%d", column, len(w.args))
	}
}

// limit is the end of the query, whose value is the last.
func (w *where) limit(n int) string {
	w.args = append(w.args, n)
	return fmt.Sprintf("LIMIT $%d", len(w.args))
}

const auditColumns = `id, at, actor, actor_key, actor_account, account, action, target, client, request_id, details`

func scanRecord(r row) (Record, error) {
	var one Record
	var at int64
	var client, details string
	err := r.Scan(&one.ID, &at, &one.Actor.Kind, &one.Actor.KeyID, &one.Actor.Account, &one.Account, &one.Action, &one.Target, &client, &one.RequestID, &details)
	one.At = moment(at)
	if details != "" {
		one.Details = json.RawMessage(details)
	}
	if client != "" && err == nil {
		one.Client, err = netip.ParseAddr(client)
	}
	return one, err
}

// ForgetAudit takes out the oldest records, of those made before a time up to limit, and
// returns how many. The error wraps ErrUnavailable.
func (s *Store) ForgetAudit(ctx context.Context, before time.Time, limit int) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	var due bool
	err := s.read.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM audit WHERE at < $1)`, micros(before)).Scan(&due)
	if err != nil || !due {
		return 0, failed("forget records", err) // where there are none, nothing is written
	}
	result, err := s.write.ExecContext(ctx, `DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE at < $1 ORDER BY at LIMIT $2)`, micros(before), limit)
	if err != nil {
		return 0, failed("forget records", err)
	}
	n, err := result.RowsAffected()
	return int(n), failed("forget records", err)
}

// errUnrecorded says that a change would be made without a record.
var errUnrecorded = errors.New("a change without a record")

// record notes what the change does to one thing, to be written with it.
func (c *change) record(action Action, account tenant.AccountID, target string, details json.RawMessage) {
	c.recordBy(c.by, action, account, target, details)
}

// recordBy is record of what somebody else did, and only shows now.
func (c *change) recordBy(by Author, action Action, account tenant.AccountID, target string, details json.RawMessage) {
	c.records = append(c.records, Record{
		Actor: by.actor, Client: by.client, RequestID: by.requestID,
		Account: account, Action: action, Target: target, Details: details,
	})
}

// nothingNew says that what the change tells was recorded before, when it was wished for, or
// is nothing yet that a record could be of.
func (c *change) nothingNew() { c.known = true }

// writeRecords puts down what the change recorded; the id of the last is for writeLog to
// keep. A change that others are told of and that has no record is none.
func (c *change) writeRecords(ctx context.Context) error {
	if len(c.records) == 0 {
		if len(c.told) > 0 && !c.known {
			return errUnrecorded
		}
		return nil
	}
	for _, r := range c.records {
		client := ""
		if r.Client.IsValid() {
			client = r.Client.String()
		}
		c.auditID = max(c.auditID+1, micros(c.now))
		err := run(ctx, c.tx, `INSERT INTO audit (`+auditColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
			c.auditID, micros(c.now), string(r.Actor.Kind), r.Actor.KeyID, string(r.Actor.Account),
			string(r.Account), string(r.Action), r.Target, client, r.RequestID, string(r.Details))
		if err != nil {
			return err
		}
	}
	return nil
}

// facts are what there is to know of a thing, by the names that the API gives them; nil is
// the API's null.
type facts map[string]any

// edit is what became of one fact. Absent is another thing than null.
type edit struct {
	From json.RawMessage `json:"from,omitempty"`
	To   json.RawMessage `json:"to,omitempty"`
}

// made are the details of a thing that there was not before.
func made(is facts) json.RawMessage {
	return details(is, func(v json.RawMessage) edit { return edit{To: v} })
}

// lost are the details of a thing that is gone.
func lost(was facts) json.RawMessage {
	return details(was, func(v json.RawMessage) edit { return edit{From: v} })
}

// details has nothing of what is null, nor of where a thing is stated: the actor says so.
func details(all facts, as func(json.RawMessage) edit) json.RawMessage {
	edits := map[string]edit{}
	for name, value := range all {
		if v := factJSON(value); name != declaredFact && !bytes.Equal(v, null()) {
			edits[name] = as(v)
		}
	}
	return detailsJSON(edits)
}

// became are the details of a thing that is another now. nil: it is the same.
func became(was, is facts) json.RawMessage {
	edits := map[string]edit{}
	for name := range is {
		from, to := factJSON(was[name]), factJSON(is[name])
		if !bytes.Equal(from, to) {
			edits[name] = edit{from, to}
		}
	}
	return detailsJSON(edits)
}

const declaredFact = "declared"

// maxListed bounds how much of a list a record has. The API takes none that is longer, but
// the operator's file may have one.
const maxListed = 100

func null() json.RawMessage { return json.RawMessage("null") }

func factJSON(value any) json.RawMessage {
	if texts, ok := value.([]string); ok && len(texts) > maxListed {
		more := fmt.Sprintf("… and %d more", len(texts)-maxListed)
		value = append(append(make([]string, 0, maxListed+1), texts[:maxListed]...), more)
	}
	text, err := json.Marshal(value)
	if err != nil { // nothing of what facts are made of
		return null()
	}
	return text
}

func detailsJSON(edits map[string]edit) json.RawMessage {
	if len(edits) == 0 {
		return nil
	}
	text, err := json.Marshal(edits)
	if err != nil { // nothing of what edits are made of
		return nil
	}
	return text
}
