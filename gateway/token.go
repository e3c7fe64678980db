package gateway

import (
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"

	"sluice/auth"
	"sluice/internal/refusal"
	"sluice/ratelimit"
)

// TokenPath is where a key is exchanged for a token (design §5).
const TokenPath = "/v1/token"

// maxForm bounds the body of a token exchange, in bytes: 256 resources and a
// token of 8 KiB.
const maxForm = 64 << 10

// own answers what is the gateway's own; the rest is about streams, and goes on.
// None of it asks for a credential in the header: that of an exchange is in its
// body, and keys and metadata are public.
func (c *chain) own(next handler) handler {
	return func(s *Scope, w http.ResponseWriter, r *http.Request) error {
		switch s.Route.Operation {
		case ExchangeToken:
			return c.exchangeToken(s, w, r)
		case ReadKeys:
			text, err := c.Authenticator.JWKS(r.Context())
			if err != nil {
				return err
			}
			return answerJSON(s, w, r, text)
		case ReadMetadata:
			text, err := json.Marshal(c.Authenticator.Metadata(c.Origin + TokenPath))
			if err != nil {
				return err
			}
			return answerJSON(s, w, r, text)
		case Manage:
			return c.manage(s, w, r)
		default:
			return next(s, w, r)
		}
	}
}

func answerJSON(s *Scope, w http.ResponseWriter, r *http.Request, text []byte) error {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	h.Set("Cache-Control", "no-store")
	h.Set("Pragma", "no-cache") // RFC 6749 §5.1
	h.Set(requestIDHeader, s.ID)
	refusal.Protect(h)
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	if _, err := w.Write(text); err != nil {
		return errClientGone
	}
	return nil
}

// exchangeToken makes a narrower, shorter token of a key or a token (RFC 8693).
// The exchange has a rate of its own, by key, so that neither it nor the streams
// can use up what the other has (L16).
func (c *chain) exchangeToken(s *Scope, w http.ResponseWriter, r *http.Request) error {
	if c.ExchangesPerSecond == 0 {
		return refusal.Because(refusal.NotFound, "Tokens are not exchanged here: use the API key.", nil)
	}
	form, err := c.readForm(s, w, r)
	if err != nil {
		return err
	}
	request, refused := auth.ParseExchange(form)
	if refused != nil {
		return refused
	}
	step := s.span.Child("authenticate")
	parent, refused := c.Exchanger.Subject(r.Context(), request)
	step.End()
	if refused != nil {
		return c.failed(s, request.SubjectToken.Reveal(), refused)
	}
	s.Principal = parent
	rate := ratelimit.Rate{PerSecond: c.ExchangesPerSecond, Burst: 2 * c.ExchangesPerSecond}
	if d := c.Exchanges.Allow(ratelimit.Subject{Account: parent.KeyID}, rate); !d.Allowed {
		return tooManyExchanges(d)
	}
	step = s.span.Child("issue token")
	response, refused := c.Exchanger.Issue(r.Context(), parent, request)
	step.End()
	if refused != nil {
		return refused
	}
	text, err := response.JSON()
	if err != nil {
		return err
	}
	return answerJSON(s, w, r, text)
}

func tooManyExchanges(d ratelimit.Decision) error {
	ref := refusal.New(refusal.RateLimited, nil).With("Retry-After", strconv.Itoa(refusal.WholeSeconds(d.RetryAfter)))
	ref.OAuth = &refusal.OAuth{
		Status: http.StatusTooManyRequests, Error: auth.CodeTemporarilyUnavailable,
		Description: "this key asks for tokens too often: use each token until it expires, and come back after Retry-After seconds",
	}
	return ref
}

// badForm is a refusal of a body by its size or pace, in OAuth's shape.
func badForm(c refusal.Code, description string, cause error) error {
	ref := refusal.New(c, cause)
	ref.OAuth = &refusal.OAuth{Status: ref.Status(), Error: auth.CodeInvalidRequest, Description: description}
	return ref
}

func largeForm() error {
	return badForm(refusal.RequestTooLarge, "the body is larger than 64 KiB", nil)
}

// readForm reads the body of an exchange. Parameters in the query are refused:
// what stands in a URL is written to logs.
func (c *chain) readForm(s *Scope, w http.ResponseWriter, r *http.Request) (url.Values, error) {
	if s.Route.HasQuery {
		return nil, &auth.ExchangeError{Code: auth.CodeInvalidRequest, Description: "send the parameters in the body, not in the URL"}
	}
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || media != "application/x-www-form-urlencoded" {
		return nil, &auth.ExchangeError{Code: auth.CodeInvalidRequest, Description: "the body must be application/x-www-form-urlencoded"}
	}
	if r.ContentLength > maxForm {
		return nil, largeForm()
	}
	in := &pacedReader{
		body: io.LimitReader(r.Body, maxForm+1), control: http.NewResponseController(w),
		stall: c.Pace.Stall, window: c.Pace.Window, minBytes: c.Pace.MinBytes,
	}
	text, err := io.ReadAll(in)
	s.bytesIn += int64(len(text))
	switch {
	case errors.Is(err, errTooSlow):
		s.bodyDone = true
		return nil, badForm(refusal.BodyTooSlow, "the body came too slowly: send it again", err)
	case err != nil:
		s.bodyDone = true
		return nil, badForm(refusal.BodyUnreadable, "the body broke off or is not framed as declared: send it again", err)
	case len(text) > maxForm:
		return nil, largeForm()
	}
	in.done()
	s.bodyDone = true
	form, err := url.ParseQuery(string(text))
	if err != nil {
		return nil, &auth.ExchangeError{Code: auth.CodeInvalidRequest, Description: "the body is not a form"}
	}
	return form, nil
}
