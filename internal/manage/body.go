package manage

import (
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"sluice/internal/refusal"
)

// maxBody bounds the body of a request, in bytes.
const maxBody = 64 << 10

// object reads the body of a call as a JSON object. Where it may be left out, no body
// is an empty object.
func (a *API) object(c *call, optional bool) (*object, error) {
	if optional && c.r.ContentLength == 0 {
		return &object{}, nil
	}
	if err := checkType(c.r.Header); err != nil {
		return nil, err
	}
	text, err := a.readBody(c)
	if err != nil {
		return nil, err
	}
	if optional && len(text) == 0 {
		return &object{}, nil
	}
	return parseObject(text)
}

// checkType refuses a body that says it is something else than JSON in UTF-8, as it is.
// What would be read in another way by somebody between is none.
func checkType(h http.Header) error {
	types := h["Content-Type"]
	if len(types) > 1 {
		return badField("Content-Type", "Send one Content-Type.")
	}
	media, parameters, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil || media != "application/json" {
		return refusal.Because(refusal.InvalidRequest, "The body must be JSON: send it with 'Content-Type: application/json'.", err).About("Content-Type")
	}
	if charset, ok := parameters["charset"]; ok && !strings.EqualFold(charset, "utf-8") {
		return badField("Content-Type", "JSON is UTF-8 (RFC 8259 §8.1): send no charset, or that one.")
	}
	for _, coding := range h["Content-Encoding"] {
		if !strings.EqualFold(coding, "identity") {
			return badField("Content-Encoding", "Send the body as it is, without a coding.")
		}
	}
	return nil
}

// readBody reads the whole body, as far as it is not too large, within BodyWait.
func (a *API) readBody(c *call) ([]byte, error) {
	if c.r.ContentLength > maxBody {
		return nil, tooLarge()
	}
	control := http.NewResponseController(c.w)
	// Not every connection has deadlines; the servers that this runs behind do.
	_ = control.SetReadDeadline(time.Now().Add(a.o.BodyWait))
	text, err := io.ReadAll(io.LimitReader(c.r.Body, maxBody+1))
	_ = control.SetReadDeadline(time.Time{})
	var timeout net.Error
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return nil, refusal.Because(refusal.BodyTooSlow, "The request body came too slowly; nothing was done. Send it again.", err).
			With("Connection", "close")
	case err != nil:
		return nil, refusal.New(refusal.BodyUnreadable, err)
	case len(text) > maxBody:
		return nil, tooLarge()
	}
	return text, nil
}

func tooLarge() error {
	return refusal.Because(refusal.RequestTooLarge, "The request body is larger than "+strconv.Itoa(maxBody)+" bytes: send less.", nil).
		With("Ursula-Max-Request-Bytes", strconv.Itoa(maxBody))
}
