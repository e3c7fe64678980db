package manage

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"sluice/internal/store"
	"sluice/internal/telemetry"
	"sluice/internal/tenant"
)

// author is who makes the change of a call.
func (a *API) author(c *call) store.Author {
	id := c.w.Header().Get(requestIDHeader)
	if a.operator {
		return store.ByOperator(c.client, telemetry.Foreign(id))
	}
	return keyAuthor(c.principal.Account, c.principal.KeyID, c.client, id)
}

// keyAuthor is who makes a change that a good credential asks for. client is who asks as
// the gateway understood it. The request id may be the client's own text.
func keyAuthor(account tenant.AccountID, keyID string, client netip.Addr, requestID string) store.Author {
	return store.ByKey(account, keyID, client, telemetry.Foreign(requestID))
}

// peer is whom a request of the admin listener comes from. No proxy is believed there.
func peer(r *http.Request) netip.Addr {
	ap, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr().Unmap().WithZone("")
}

type actorJSON struct {
	Kind    store.ActorKind `json:"kind"`
	KeyID   *string         `json:"key_id"`
	Account *string         `json:"account"`
}

// recordJSON is the record of a change as the API shows it.
type recordJSON struct {
	ID        int64           `json:"id"`
	At        *string         `json:"at"`
	Actor     actorJSON       `json:"actor"`
	Account   *string         `json:"account"`
	Action    store.Action    `json:"action"`
	Target    *string         `json:"target"`
	From      *string         `json:"from"`
	RequestID *string         `json:"request_id"`
	Details   json.RawMessage `json:"details"`
}

// recordJSON leaves the operator's machine and what it called its request out of what an
// owner sees.
func (a *API) recordJSON(r store.Record) recordJSON {
	j := recordJSON{
		ID: r.ID, At: timeText(r.At), Account: orNull(string(r.Account)), Action: r.Action, Target: orNull(r.Target),
		Actor:   actorJSON{r.Actor.Kind, orNull(r.Actor.KeyID), orNull(string(r.Actor.Account))},
		Details: r.Details,
	}
	if j.Details == nil {
		j.Details = json.RawMessage("{}")
	}
	if a.operator || r.Actor.Kind == store.ActorKey {
		j.RequestID = orNull(r.RequestID)
		if r.Client.IsValid() {
			j.From = orNull(r.Client.String())
		}
	}
	return j
}

func (a *API) listAudit(c *call) (reply, error) {
	const kind = "audit"
	p, err := c.query.page(kind)
	if err != nil {
		return reply{}, err
	}
	q, err := c.auditQuery(p)
	if err != nil {
		return reply{}, err
	}
	list, next, err := a.o.Audit.Audit(c.r.Context(), q)
	if err == nil && len(list) == 0 && next == 0 {
		err = a.heardOf(c, q.Account)
	}
	if err != nil {
		return reply{}, err
	}
	page := struct {
		Records []recordJSON `json:"records"`
		Next    *string      `json:"next_cursor"`
	}{Records: make([]recordJSON, len(list))}
	if next != 0 {
		text := cursor(kind, strconv.FormatInt(next, 10))
		page.Next = &text
	}
	for i, r := range list {
		page.Records[i] = a.recordJSON(r)
	}
	return reply{http.StatusOK, page}, nil
}

// heardOf is a refusal where the operator asks for records of an account that there never
// was. One that is deleted has records, for as long as they are kept.
func (a *API) heardOf(c *call, account tenant.AccountID) error {
	if _, asked := c.query["account"]; !asked {
		return nil
	}
	_, err := a.o.Accounts.Account(c.r.Context(), account)
	if !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if list, next, auditErr := a.o.Audit.Audit(c.r.Context(), store.AuditQuery{Account: account, Limit: 1}); auditErr != nil || len(list) > 0 || next != 0 {
		return auditErr
	}
	return accountError(err)
}

// auditQuery reads which records are asked for: of an owner's call always those of the
// account alone.
func (c *call) auditQuery(p store.Page) (store.AuditQuery, error) {
	q := store.AuditQuery{Account: c.account, Limit: p.Limit - 1} // the store says whether there are more
	var err error
	if p.After != "" {
		if q.Before, err = strconv.ParseInt(p.After, 10, 64); err != nil || q.Before < 1 {
			return q, badCursor()
		}
	}
	if text, ok := c.query["account"]; ok { // the operator's alone
		if q.Account, err = tenant.ParseAccountID(text); err != nil {
			return q, badQuery("account", "This is no account's id: "+sentence(err))
		}
	}
	if text, ok := c.query["action"]; ok {
		if q.Action = store.Action(text); !slices.Contains(store.Actions(), q.Action) {
			return q, badQuery("action", "There is no such action: see "+Prefix+"openapi.yaml.")
		}
	}
	for name, to := range map[string]*string{"actor": &q.KeyID, "target": &q.Target} {
		text, ok := c.query[name]
		if ok && (text == "" || len(text) > maxKeyID || !utf8.ValidString(text) || strings.ContainsRune(text, 0)) {
			return q, badQuery(name, name+" is an id or a name, of 1 to "+strconv.Itoa(maxKeyID)+" bytes.")
		}
		*to = text
	}
	for name, to := range map[string]*time.Time{"since": &q.Since, "until": &q.Until} {
		if text, ok := c.query[name]; ok {
			t, fault := readTime(text)
			if fault != "" {
				return q, badQuery(name, fault)
			}
			*to = t
		}
	}
	if !q.Since.IsZero() && !q.Until.IsZero() && !q.Until.After(q.Since) {
		return q, badQuery("until", "until is not after since.")
	}
	switch kind := store.ActorKind(q.KeyID); kind {
	case store.ActorOperator, store.ActorSystem, store.ActorFile: // which no key is called
		q.KeyID, q.Actor = "", kind
	default:
	}
	return q, nil
}
