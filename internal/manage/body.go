package manage

import (
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"os"
	"strconv"
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
	media, _, err := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	if err != nil || media != "application/json" {
		return nil, refusal.Because(refusal.InvalidRequest, "The body must be JSON: send it with 'Content-Type: application/json'.", err).About("Content-Type")
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
