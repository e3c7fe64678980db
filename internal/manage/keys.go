package manage

import (
	"errors"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"sluice/auth"
	"sluice/internal/refusal"
	"sluice/internal/secret"
	"sluice/internal/store"
	"sluice/internal/tenant"
)

const (
	maxKeyName  = 100 // characters
	maxKeyID    = 256 // bytes
	maxPatterns = 100
	// Overlap of a rotation, in seconds.
	defaultOverlap = 24 * 60 * 60
	maxOverlap     = 30 * 24 * 60 * 60
)

// keyJSON is a key as the API shows it: never its secret.
type keyJSON struct {
	ID         string        `json:"id"`
	Name       string        `json:"name"`
	Hint       string        `json:"hint"`
	Access     tenant.Access `json:"access"`
	Streams    []string      `json:"streams"` // null = all
	ActsAs     tenant.ActsAs `json:"acts_as"`
	Declared   bool          `json:"declared"`
	CreatedAt  *string       `json:"created_at"`
	ExpiresAt  *string       `json:"expires_at"`
	LastUsedAt *string       `json:"last_used_at"`
	RevokedAt  *string       `json:"revoked_at"`
	OldHint    *string       `json:"old_hint"`
	OldUntil   *string       `json:"old_until"`
}

// secretJSON is a key with its secret, which is shown once.
type secretJSON struct {
	keyJSON
	Key string `json:"key"`
}

func (a *API) keyJSON(k store.Key) keyJSON {
	j := keyJSON{
		ID: k.ID, Name: k.Name, Hint: k.Hint, Access: k.Access, Streams: k.Streams.Patterns(), ActsAs: k.ActsAs, Declared: k.Declared,
		CreatedAt: timeText(k.CreatedAt), ExpiresAt: timeText(k.ExpiresAt), LastUsedAt: timeText(k.LastUsedAt), RevokedAt: timeText(k.RevokedAt),
	}
	if k.RevokedAt.IsZero() && k.OldUntil.After(a.o.Now()) {
		j.OldHint, j.OldUntil = &k.OldHint, timeText(k.OldUntil)
	}
	return j
}

func (a *API) secretJSON(k store.Key, text secret.Secret) secretJSON {
	return secretJSON{a.keyJSON(k), text.Reveal()}
}

// keyError says what a store's error about a key means.
func keyError(err error) error {
	switch {
	case errors.Is(err, store.ErrNotFound):
		return refusal.New(refusal.KeyNotFound, err)
	case errors.Is(err, store.ErrTaken):
		return refusal.New(refusal.KeyTaken, err)
	case errors.Is(err, store.ErrGone):
		return refusal.New(refusal.KeyRevoked, err)
	case errors.Is(err, store.ErrDeclared):
		return refusal.New(refusal.Declared, err)
	case errors.Is(err, store.ErrTwoSecrets):
		return refusal.New(refusal.KeyRotation, err)
	case errors.Is(err, store.ErrExpired):
		return refusal.Because(refusal.KeyRotation, "The key has expired, and so would its new secret: create another key.", err)
	case errors.Is(err, store.ErrWider):
		return refusal.Because(refusal.InvalidRequest, "A key can only lose rights: this would give it more than it has by now.", err)
	default:
		return err
	}
}

// keyID reads the id in the path; what is none is no key's.
func (c *call) keyID() (string, error) {
	if len(c.id) > maxKeyID || !utf8.ValidString(c.id) || strings.ContainsRune(c.id, 0) {
		return "", refusal.New(refusal.KeyNotFound, nil)
	}
	return c.id, nil
}

func (a *API) listKeys(c *call) (reply, error) {
	const kind = "key"
	p, err := c.query.page(kind)
	if err != nil {
		return reply{}, err
	}
	list, err := a.o.Keys.Keys(c.r.Context(), c.account, p)
	if err != nil {
		return reply{}, err
	}
	list, next := cut(list, p, kind, func(k store.Key) string { return k.ID })
	page := struct {
		Keys []keyJSON `json:"api_keys"`
		Next *string   `json:"next_cursor"`
	}{make([]keyJSON, len(list)), next}
	for i, k := range list {
		page.Keys[i] = a.keyJSON(k)
	}
	return reply{http.StatusOK, page}, nil
}

func (a *API) showKey(c *call) (reply, error) {
	id, err := c.keyID()
	if err != nil {
		return reply{}, err
	}
	k, err := a.o.Keys.Key(c.r.Context(), c.account, id)
	if err != nil {
		return reply{}, keyError(err)
	}
	return reply{http.StatusOK, a.keyJSON(k)}, nil
}

// readKey reads the members of a key; nil is what the body does not say.
func (a *API) readKey(o *object) store.KeyChange {
	var w store.KeyChange
	o.only("name", "access", "streams", "acts_as", "expires_at")
	if w.Name = o.text("name"); w.Name != nil && !validKeyName(*w.Name) {
		o.fault("name", "This has 1 to 100 printable characters, and no space at either end.")
	}
	if text := o.text("access"); text != nil {
		access := tenant.Access(*text)
		if access != tenant.ReadAccess && access != tenant.WriteAccess {
			o.fault("access", "This is read or write.")
		}
		w.Access = &access
	}
	if text := o.text("acts_as"); text != nil {
		actsAs := tenant.ActsAs(*text)
		if actsAs != tenant.User && actsAs != tenant.Agent {
			o.fault("acts_as", "This is user or agent.")
		}
		w.ActsAs = &actsAs
	}
	if o.has("streams") {
		set := tenant.AllStreams()
		if patterns, ok := o.texts("streams", maxPatterns); ok {
			var err error
			if set, err = tenant.ParseStreamSet(patterns); err != nil {
				o.fault("streams", "This is a list of streams: "+sentence(err))
			}
		}
		w.Streams = &set
	}
	if t := o.time("expires_at"); t != nil {
		if !t.After(a.o.Now()) {
			o.fault("expires_at", "This is in the future.")
		}
		w.ExpiresAt = t
	} else if o.has("expires_at") {
		w.ExpiresAt = &time.Time{} // never
	}
	return w
}

func validKeyName(name string) bool {
	if n := utf8.RuneCountInString(name); n == 0 || n > maxKeyName || name[0] == ' ' || name[len(name)-1] == ' ' {
		return false
	}
	for _, r := range name {
		if !unicode.IsPrint(r) { // of the spaces, only the plain one is
			return false
		}
	}
	return true
}

// newKey makes the record of a new key and its secret.
func (a *API) newKey(account tenant.AccountID, w store.KeyChange) (store.Key, secret.Secret, error) {
	text, err := auth.GenerateKey(a.o.Random)
	if err != nil {
		return store.Key{}, text, err
	}
	id, err := newID(a.o.Random, keyIDPrefix)
	if err != nil {
		return store.Key{}, text, err
	}
	k := store.Key{Key: tenant.Key{
		ID: id, Account: account, Name: *w.Name, Hint: auth.Hint(text.Reveal()), Digest: tenant.DigestOf(text.Reveal()),
		Access: tenant.WriteAccess, Streams: tenant.AllStreams(), ActsAs: tenant.User,
		CreatedAt: a.o.Now().UTC().Truncate(time.Microsecond),
	}}
	if w.Access != nil {
		k.Access = *w.Access
	}
	if w.ActsAs != nil {
		k.ActsAs = *w.ActsAs
	}
	if w.Streams != nil {
		k.Streams = *w.Streams
	}
	if w.ExpiresAt != nil {
		k.ExpiresAt = *w.ExpiresAt
	}
	return k, text, nil
}

func (a *API) createKey(c *call) (reply, error) {
	o, err := a.object(c, false)
	if err != nil {
		return reply{}, err
	}
	want := a.readKey(o)
	o.need("name")
	if o.err != nil {
		return reply{}, o.err
	}
	k, text, err := a.newKey(c.account, want)
	if err != nil {
		return reply{}, err
	}
	// It is kept before it is shown.
	switch err := a.o.Keys.CreateKey(c.r.Context(), a.author(c), k); {
	case errors.Is(err, store.ErrNotFound):
		return reply{}, a.goneAccount(err)
	case errors.Is(err, store.ErrTaken):
		return reply{}, refusal.New(refusal.KeyTaken, err)
	case err != nil:
		return reply{}, err
	}
	return reply{http.StatusCreated, a.secretJSON(k, text)}, nil
}

// wider names the first right that a key would gain; "" = none.
func wider(k store.Key, w store.KeyChange) string {
	switch {
	case w.Access != nil && *w.Access == tenant.WriteAccess && k.Access != tenant.WriteAccess:
		return "access"
	case w.ActsAs != nil && *w.ActsAs == tenant.User && k.ActsAs != tenant.User:
		return "acts_as"
	case w.Streams != nil && !w.Streams.Within(k.Streams), w.Streams != nil && !w.Streams.Narrowed() && k.Streams.Narrowed():
		return "streams"
	case !k.ExpiresAt.IsZero() && w.ExpiresAt != nil && (w.ExpiresAt.IsZero() || w.ExpiresAt.After(k.ExpiresAt)):
		return "expires_at"
	}
	return ""
}

func (a *API) narrowKey(c *call) (reply, error) {
	id, err := c.keyID()
	if err != nil {
		return reply{}, err
	}
	o, err := a.object(c, false)
	if err != nil {
		return reply{}, err
	}
	want := a.readKey(o)
	if len(o.members) == 0 {
		o.err = refusal.Because(refusal.InvalidRequest, "Say what is to be changed.", nil)
	}
	if o.err != nil {
		return reply{}, o.err
	}
	k, err := a.o.Keys.ChangeKey(c.r.Context(), a.author(c), c.account, id, want)
	switch {
	case errors.Is(err, store.ErrWider):
		return reply{}, a.tooWide(c, id, want, err)
	case err != nil:
		return reply{}, keyError(err)
	}
	return reply{http.StatusOK, a.keyJSON(k)}, nil
}

// tooWide says of a change that the store refused which member it was. A key only narrows,
// so that one is still too wide.
func (a *API) tooWide(c *call, id string, want store.KeyChange, cause error) error {
	k, err := a.o.Keys.Key(c.r.Context(), c.account, id)
	if err != nil {
		return keyError(err)
	}
	refused := keyError(cause)
	if field := wider(k, want); field != "" {
		refused = badField(field, "A key can only lose rights, and this would give it more: create another key.")
	}
	return refused
}

func (a *API) rotateKey(c *call) (reply, error) {
	id, err := c.keyID()
	if err != nil {
		return reply{}, err
	}
	o, err := a.object(c, true)
	if err != nil {
		return reply{}, err
	}
	o.only("overlap_seconds", "end_older")
	overlap, endOlder := int64(defaultOverlap), false
	if n := o.integer("overlap_seconds", 0, maxOverlap, false); n != nil {
		overlap = *n
	}
	if is := o.flag("end_older"); is != nil {
		endOlder = *is
	}
	if o.err != nil {
		return reply{}, o.err
	}
	text, err := auth.GenerateKey(a.o.Random)
	if err != nil {
		return reply{}, err
	}
	k, err := a.o.Keys.RotateKey(c.r.Context(), a.author(c), c.account, id, store.NewSecret{
		Digest: tenant.DigestOf(text.Reveal()), Hint: auth.Hint(text.Reveal()),
		OldUntil: a.o.Now().UTC().Truncate(time.Microsecond).Add(time.Duration(overlap) * time.Second), EndOlder: endOlder,
	})
	if err != nil {
		return reply{}, keyError(err)
	}
	return reply{http.StatusOK, a.secretJSON(k, text)}, nil
}

func (a *API) revokeKey(c *call) (reply, error) {
	id, err := c.keyID()
	if err != nil {
		return reply{}, err
	}
	if err := a.o.Keys.RevokeKey(c.r.Context(), a.author(c), c.account, id); err != nil {
		return reply{}, keyError(err)
	}
	return reply{status: http.StatusNoContent}, nil
}
