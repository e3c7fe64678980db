package manage

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"sluice/internal/refusal"
	"sluice/internal/store"
)

// write sends an answer; HEAD gets its head (RFC 9110 §9.3.2).
func (rep reply) write(w http.ResponseWriter, r *http.Request) error {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	refusal.Protect(h)
	if rep.body == nil {
		w.WriteHeader(rep.status)
		return nil
	}
	text, ok := rep.body.([]byte)
	if ok {
		h.Set("Content-Type", "application/yaml")
	} else {
		var err error
		if text, err = json.Marshal(rep.body); err != nil {
			return refusal.From(err)
		}
		h.Set("Content-Type", "application/json")
	}
	h.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(rep.status)
	if r.Method != http.MethodHead {
		// A client that has left is nobody's fault, and what was done is done.
		_, _ = w.Write(text)
	}
	return nil
}

func readReference(*call) (reply, error) { return reply{http.StatusOK, Reference()}, nil }

// timeText is a time as the API writes it; nil for none.
func timeText(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	text := t.UTC().Format(time.RFC3339Nano)
	return &text
}

// orNull is a text of which none is null.
func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// accountError says what a store's error about an account means to the operator.
func accountError(err error) error {
	switch {
	case errors.Is(err, store.ErrNotFound):
		return refusal.New(refusal.AccountNotFound, err)
	case errors.Is(err, store.ErrTaken):
		return refusal.New(refusal.AccountTaken, err)
	case errors.Is(err, store.ErrDeclared):
		return refusal.New(refusal.Declared, err)
	default:
		return err
	}
}

// goneAccount is a call about an account that went while it was answered.
func (a *API) goneAccount(err error) error {
	if a.operator {
		return refusal.New(refusal.AccountNotFound, err)
	}
	return refusal.New(refusal.AccountRevoked, err)
}
