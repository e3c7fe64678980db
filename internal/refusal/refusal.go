package refusal

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
)

// Refusal is an error that is answered to the client: a code of the table, an
// optional sentence in place of the table's, headers, and the cause for the log.
type Refusal struct {
	Code    Code
	Message string      // "" = the table's; never holds anything internal
	Field   string      // the member, parameter or header that is wrong; "" = none is named
	Header  http.Header // further headers of this answer; nil for none
	Cause   error       // for the log only
	At      int         // the status in place of Code's, where HTTP has one that says more; 0 = Code's
	// OAuth, where it is set, is the body and the status in place of Code's, for
	// endpoints whose clients read that shape.
	OAuth *OAuth
}

// OAuth is an error as OAuth clients read it (RFC 6749 §5.2).
type OAuth struct {
	Status      int    `json:"-"`
	Error       string `json:"error"`
	Description string `json:"error_description,omitempty"`
}

// New makes a refusal with the table's message.
func New(c Code, cause error) *Refusal { return &Refusal{Code: c, Cause: cause} }

// Because makes a refusal with a sentence of its own, for the client to read.
func Because(c Code, message string, cause error) *Refusal {
	return &Refusal{Code: c, Message: message, Cause: cause}
}

// With adds a header to the answer and returns the refusal.
func (r *Refusal) With(name, value string) *Refusal {
	if r.Header == nil {
		r.Header = make(http.Header, 2)
	}
	r.Header.Set(name, value)
	return r
}

// About names what is wrong in the request, for forms and scripts, and returns the
// refusal.
func (r *Refusal) About(field string) *Refusal {
	r.Field = field
	return r
}

// Error is for the log: it holds the cause.
func (r *Refusal) Error() string {
	if r.Cause == nil {
		return string(r.Code)
	}
	return string(r.Code) + ": " + r.Cause.Error()
}

// Unwrap gives the cause.
func (r *Refusal) Unwrap() error { return r.Cause }

// Status is the HTTP status of the refusal.
func (r *Refusal) Status() int {
	if r.OAuth != nil {
		return r.OAuth.Status
	}
	if r.At != 0 {
		return r.At
	}
	return lookup(r.Code).Status
}

// From finds the refusal in err; anything else is Internal, with err as its cause.
func From(err error) *Refusal {
	var r *Refusal
	if errors.As(err, &r) {
		return r
	}
	return New(Internal, err)
}

type body struct {
	Error bodyError `json:"error"`
}

type bodyError struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	Field   string `json:"field,omitempty"`
}

// foreign names the headers that never stand on an answer of our own: they say
// "a node answered this" (design §4, facts 0.8).
func foreign() []string {
	return []string{"Ursula-Protocol", "Ursula-Cluster-Id", "Producer-Epoch", "Producer-Seq", "Producer-Outcome", "Stream-Incarnation", "Etag"}
}

// Protect sets the headers that keep an answer under a stream's URL harmless in
// a browser: owners choose content types (design §8).
func Protect(h http.Header) {
	// The names are canonical: Set would find that out with each answer.
	h["X-Content-Type-Options"] = []string{"nosniff"}
	h["Content-Security-Policy"] = []string{"sandbox; default-src 'none'; frame-ancestors 'none'"}
	h["Cross-Origin-Resource-Policy"] = []string{"cross-origin"}
}

// Write answers a request with the refusal. A HEAD request gets the same head,
// Content-Length included, and no body (RFC 9110 §9.3.2). Write is the only
// writer of refusal bodies; nothing may have been written to w before.
func Write(w http.ResponseWriter, method string, r *Refusal) error {
	entry := lookup(r.Code)
	message := r.Message
	if message == "" {
		message = entry.Message
	}
	var shape any = body{bodyError{Code: entry.Code, Message: message, Field: r.Field}}
	if r.OAuth != nil {
		shape = r.OAuth
	}
	// Not for HTML: what it would be escaped for takes it for none (Protect), and people
	// read it as it is.
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(shape); err != nil {
		return err
	}
	text.Truncate(text.Len() - 1) // its line's end
	h := w.Header()
	for _, name := range foreign() {
		h.Del(name)
	}
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(text.Len()))
	Protect(h)
	if slices.Contains(entry.Headers, "Retry-After") {
		h.Set("Retry-After", retryAfterNow)
	}
	for name, values := range r.Header {
		h[name] = values
	}
	w.WriteHeader(r.Status())
	if method == http.MethodHead {
		return nil
	}
	_, err := w.Write(text.Bytes())
	return err
}
