package manage

import (
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"

	"sluice/internal/refusal"
	"sluice/internal/store"
	"sluice/internal/tenant"
)

// firstKeyName is that of an account's first key where the operator gives none.
const firstKeyName = "first"

// Bounds of an account's own limits.
const (
	maxCount        = 1_000_000
	maxUploadBytes  = 1 << 40
	maxRequestBytes = 32 << 20 // Ursula's own
)

type limitsJSON struct {
	RequestsPerSecond int   `json:"requests_per_second"`
	Burst             int   `json:"burst"`
	OpenTails         int   `json:"open_tails"`
	Uploads           int   `json:"uploads"`
	UploadBytes       int64 `json:"upload_bytes"`
	RequestBytes      int64 `json:"request_bytes"`
}

type ownLimitsJSON struct {
	RequestsPerSecond *int   `json:"requests_per_second"`
	Burst             *int   `json:"burst"`
	OpenTails         *int   `json:"open_tails"`
	Uploads           *int   `json:"uploads"`
	UploadBytes       *int64 `json:"upload_bytes"`
	RequestBytes      *int64 `json:"request_bytes"`
}

// accountJSON is an account as the operator sees it.
type accountJSON struct {
	ID        tenant.AccountID `json:"id"`
	State     tenant.State     `json:"state"`
	Limits    limitsJSON       `json:"limits"`
	OwnLimits ownLimitsJSON    `json:"own_limits"`
	Declared  bool             `json:"declared"`
	CreatedAt *string          `json:"created_at"`
}

func (a *API) accountJSON(s store.Account) accountJSON {
	return accountJSON{
		ID: s.ID, State: s.State, Limits: limitsJSON(over(s.Limits, a.o.DefaultLimits)), OwnLimits: ownLimitsJSON(s.Limits),
		Declared: s.Declared, CreatedAt: timeText(s.CreatedAt),
	}
}

// over puts an account's own limits over the default.
func over(own store.OwnLimits, l tenant.Limits) tenant.Limits {
	put(&l.RequestsPerSecond, own.RequestsPerSecond)
	put(&l.Burst, own.Burst)
	put(&l.OpenTails, own.OpenTails)
	put(&l.Uploads, own.Uploads)
	put(&l.UploadBytes, own.UploadBytes)
	put(&l.RequestBytes, own.RequestBytes)
	return l
}

func put[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}

// showOwnAccount is the account of the key that asks.
func (a *API) showOwnAccount(c *call) (reply, error) {
	ctx := c.r.Context()
	account, err := a.o.Directory.Account(ctx, c.account)
	if err != nil {
		return reply{}, refusal.New(refusal.AuthorizationUnavailable, err)
	}
	type use struct {
		OpenTails int `json:"open_tails"`
	}
	shown := struct {
		ID     tenant.AccountID `json:"id"`
		State  tenant.State     `json:"state"`
		Limits limitsJSON       `json:"limits"`
		Use    *use             `json:"use"`
	}{account.ID, account.State, limitsJSON(account.Limits), nil}
	if a.o.OpenTails != nil {
		n, err := a.o.OpenTails(ctx, c.account)
		if err != nil {
			a.o.Log.Debug("open tails of an account are not known", zap.Error(err))
		} else {
			shown.Use = &use{n}
		}
	}
	return reply{http.StatusOK, shown}, nil
}

func (a *API) listAccounts(c *call) (reply, error) {
	const kind = "account"
	p, err := c.query.page(kind)
	if err != nil {
		return reply{}, err
	}
	if len(p.Prefix) > tenant.MaxAccountID || strings.Trim(p.Prefix, "abcdefghijklmnopqrstuvwxyz0123456789_-") != "" {
		return reply{}, badQuery("prefix", "No account's id begins so: it has a-z, 0-9, _ and -.")
	}
	list, err := a.o.Accounts.Accounts(c.r.Context(), p)
	if err != nil {
		return reply{}, err
	}
	list, next := cut(list, p, kind, func(s store.Account) string { return string(s.ID) })
	page := struct {
		Accounts []accountJSON `json:"accounts"`
		Next     *string       `json:"next_cursor"`
	}{make([]accountJSON, len(list)), next}
	for i, s := range list {
		page.Accounts[i] = a.accountJSON(s)
	}
	return reply{http.StatusOK, page}, nil
}

func (a *API) showAccount(c *call) (reply, error) {
	s, err := a.o.Accounts.Account(c.r.Context(), c.account)
	if err != nil {
		return reply{}, accountError(err)
	}
	return reply{http.StatusOK, a.accountJSON(s)}, nil
}

func (a *API) createAccount(c *call) (reply, error) {
	o, err := a.object(c, false)
	if err != nil {
		return reply{}, err
	}
	o.only("id", "state", "limits", "api_key")
	s := store.Account{State: tenant.Active, CreatedAt: a.o.Now().UTC().Truncate(time.Microsecond)}
	id, err := tenant.ParseAccountID(o.need("id"))
	if err != nil {
		o.fault("id", "This is no account's id: "+sentence(err))
	}
	s.ID = id
	if state := readState(o); state != nil {
		s.State = *state
	}
	if edit := readLimits(o); edit != nil {
		edit(&s.Limits)
	}
	name := firstKeyName
	want := store.KeyChange{Name: &name}
	if inner := o.object("api_key"); inner != nil {
		want = a.readKey(inner)
		inner.need("name")
		o.err = inner.err
	}
	if o.err != nil {
		return reply{}, o.err
	}
	first, text, err := a.newKey(s.ID, want)
	if err != nil {
		return reply{}, err
	}
	if err := a.o.Accounts.CreateAccount(c.r.Context(), a.author(c), s, &first); err != nil {
		return reply{}, accountError(err)
	}
	return reply{http.StatusCreated, struct {
		accountJSON
		Key secretJSON `json:"api_key"`
	}{a.accountJSON(s), a.secretJSON(first, text)}}, nil
}

func readState(o *object) *tenant.State {
	text := o.text("state")
	if text == nil {
		return nil
	}
	state := tenant.State(*text)
	if state != tenant.Active && state != tenant.Unpaid && state != tenant.Revoked {
		o.fault("state", "This is active, unpaid or revoked.")
	}
	return &state
}

// readLimits reads the limits of a body: what they make of others, where null is the
// default again and what is not named stays. nil = there are none.
func readLimits(o *object) func(*store.OwnLimits) {
	inner := o.object("limits")
	if inner == nil {
		return nil
	}
	inner.only("requests_per_second", "burst", "open_tails", "uploads", "upload_bytes", "request_bytes")
	edits := []func(*store.OwnLimits){
		limit(inner, "requests_per_second", maxCount, func(l *store.OwnLimits) **int { return &l.RequestsPerSecond }),
		limit(inner, "burst", maxCount, func(l *store.OwnLimits) **int { return &l.Burst }),
		limit(inner, "open_tails", maxCount, func(l *store.OwnLimits) **int { return &l.OpenTails }),
		limit(inner, "uploads", maxCount, func(l *store.OwnLimits) **int { return &l.Uploads }),
		limit(inner, "upload_bytes", maxUploadBytes, func(l *store.OwnLimits) **int64 { return &l.UploadBytes }),
		limit(inner, "request_bytes", maxRequestBytes, func(l *store.OwnLimits) **int64 { return &l.RequestBytes }),
	}
	if o.err == nil {
		o.err = inner.err
	}
	return func(l *store.OwnLimits) {
		for _, edit := range edits {
			edit(l)
		}
	}
}

// limit reads one limit, and gives what it makes of the field that it is for.
func limit[T int | int64](o *object, name string, most int64, field func(*store.OwnLimits) **T) func(*store.OwnLimits) {
	if !o.has(name) {
		return func(*store.OwnLimits) {}
	}
	var own *T
	if n := o.integer(name, 0, most, true); n != nil {
		value := T(*n)
		own = &value
	}
	return func(l *store.OwnLimits) { *field(l) = own }
}

func (a *API) updateAccount(c *call) (reply, error) {
	o, err := a.object(c, false)
	if err != nil {
		return reply{}, err
	}
	o.only("state", "limits")
	change := store.AccountChange{State: readState(o), Limits: readLimits(o)}
	if len(o.members) == 0 {
		o.err = refusal.Because(refusal.InvalidRequest, "Say what is to be changed: state or limits.", nil)
	}
	if o.err != nil {
		return reply{}, o.err
	}
	s, err := a.o.Accounts.ChangeAccount(c.r.Context(), a.author(c), c.account, change)
	if err != nil {
		return reply{}, accountError(err)
	}
	return reply{http.StatusOK, a.accountJSON(s)}, nil
}

func (a *API) deleteAccount(c *call) (reply, error) {
	if err := a.o.Accounts.DeleteAccount(c.r.Context(), a.author(c), c.account); err != nil {
		return reply{}, accountError(err)
	}
	a.o.Reconciler.Wake() // its streams go now
	return reply{status: http.StatusNoContent}, nil
}
