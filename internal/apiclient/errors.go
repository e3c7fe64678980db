package apiclient

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// maxMessage is how many characters of what a gateway says are kept.
const maxMessage = 300

// Error is an answer that is no success (design §4). Its texts are printable, of one
// line, and never repeat the key.
type Error struct {
	Status    int
	Code      string // as NOT_FOUND; empty where the answer has none
	Message   string
	Field     string // of the request, where one is wrong
	RequestID string
	// RetryAfter is how long to wait before the next try; 0 = it does not say.
	RetryAfter time.Duration
	// Resume is the offset to go on from, where a part of the stream is gone (410).
	Resume string
	// Foreign says that it is not as the Management API refuses a call (openapi.yaml):
	// without a code or a request id, or from a storage node.
	Foreign bool
	header  http.Header
}

func (e *Error) Error() string {
	text := e.Code
	if text == "" {
		text = fmt.Sprintf("status %d, %s", e.Status, http.StatusText(e.Status))
	}
	if e.Message != "" {
		text += ": " + e.Message
	}
	if e.Field != "" {
		text += fmt.Sprintf(" (field %s)", e.Field)
	}
	if e.RequestID != "" {
		text += " (request id " + e.RequestID + ")"
	}
	return text
}

// UnansweredError is an exchange that broke. Where it was Sent, what became of the
// request is unknown; else there was no connection, and nothing became of it.
type UnansweredError struct {
	Host string
	Sent bool
	Err  error
}

func (e *UnansweredError) Error() string { return fmt.Sprintf("%s cannot be asked: %v", e.Host, e.Err) }

// Unwrap is what broke it.
func (e *UnansweredError) Unwrap() error { return e.Err }

// StrangeError is an answer that no gateway gives.
type StrangeError struct{ Host, What string }

func (e *StrangeError) Error() string {
	return fmt.Sprintf("%s does not answer as a gateway does: %s", e.Host, e.What)
}

// CutError is the end of a tail that is not the stream's: by a restart, an age limit,
// or because the credential ended, which the next try tells.
type CutError struct {
	Retry time.Duration // how long to wait, as the gateway says; 0 = it does not
	Err   error         // nil where the answer ended in order
}

func (e *CutError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("the tail was cut: %v", e.Err)
	}
	return "the gateway ended the tail"
}

// Unwrap is what cut it.
func (e *CutError) Unwrap() error { return e.Err }

// refused reads the error of an answer.
func (c *Client) refused(res *http.Response, body io.Reader) error {
	host := res.Request.URL.Scheme + "://" + res.Request.URL.Host
	if res.StatusCode < 400 {
		return &StrangeError{host, fmt.Sprintf("it redirects (status %d), and the key goes to no other place", res.StatusCode)}
	}
	e := &Error{
		Status: res.StatusCode, RequestID: c.clean(res.Header.Get("X-Request-Id")),
		RetryAfter: retryAfter(res.Header.Get("Retry-After"), c.o.Now()), header: res.Header,
	}
	if res.StatusCode == http.StatusGone {
		e.Resume = c.clean(res.Header.Get(hNextOffset))
	}
	if text, err := io.ReadAll(io.LimitReader(body, maxRefusal)); err == nil {
		e.read(c, text)
	}
	return e
}

// read takes what the body of a refusal says (design §4); one that is none says nothing.
func (e *Error) read(c *Client, body []byte) {
	var content struct {
		Error struct{ Code, Message, Field string }
	}
	if json.Unmarshal(body, &content) == nil {
		e.Code, e.Message, e.Field = c.clean(content.Error.Code), c.clean(content.Error.Message), c.clean(content.Error.Field)
	}
}

// clean keeps what somebody else wrote from doing anything to a terminal, and from
// repeating the key.
func (c *Client) clean(text string) string {
	if !c.o.Key.IsZero() {
		text = strings.ReplaceAll(text, c.o.Key.Reveal(), "<key>")
	}
	return Printable(text)
}

// Printable is text in one printable line of bounded length.
func Printable(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, text)
	if all := []rune(text); len(all) > maxMessage {
		text = string(all[:maxMessage]) + "…"
	}
	return text
}

// retryAfter reads RFC 9110 §10.2.3: seconds, or a date.
func retryAfter(text string, now time.Time) time.Duration {
	if n, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil && at.After(now) {
		return at.Sub(now)
	}
	return 0
}

// hopeless tells that a way cannot get better by itself: no such host or port, a
// certificate that is refused, another protocol than the URL says.
func hopeless(err error) bool {
	var broken *UnansweredError
	if !errors.As(err, &broken) {
		return false
	}
	var name *net.DNSError
	var address *net.AddrError
	var record tls.RecordHeaderError
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &name):
		return name.IsNotFound && !name.IsTemporary && !name.IsTimeout
	case errors.As(err, &address), errors.As(err, &record), errors.As(err, &certificate), errors.Is(err, http.ErrSchemeMismatch):
		return true
	default: // also "malformed HTTP response", which an answer that is cut gives too
		return false
	}
}

// Temporary tells whether the same request may succeed later: it was not answered,
// or the answer says so by its status.
func Temporary(err error) bool {
	var broken *UnansweredError
	var cut *CutError
	if errors.As(err, &broken) || errors.As(err, &cut) {
		return true
	}
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	switch e.Status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	default:
		return false
	}
}
