package apiclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Times of a call of the Management API.
const (
	callPatience = 20 * time.Second // how long it is tried
	callQuiet    = 20 * time.Second // how long nothing may move
)

// Call is one call of the Management API.
type Call struct {
	Method string
	Path   string // as /v1/streams; its parts are escaped already
	Query  url.Values
	Body   any // sent as JSON; nil = none
}

// Do makes a call and returns the answer's body, which is empty or JSON. It is tried
// again for a while where that is safe: what surely did nothing always (429, 503), what
// broke or may have been done where the call can be repeated as it was, which is all but
// a POST (openapi.yaml, "Repeating a call").
func (c *Client) Do(ctx context.Context, call Call) (json.RawMessage, error) {
	q := request{method: call.Method, url: c.o.Origin + call.Path, header: http.Header{"Accept": {"application/json"}}}
	if len(call.Query) > 0 {
		q.url += "?" + call.Query.Encode()
	}
	if call.Body != nil {
		var err error
		if q.body, err = json.Marshal(call.Body); err != nil {
			return nil, err
		}
		q.header.Set("Content-Type", "application/json")
	}
	pace := c.pace(callPatience)
	unsure := false // whether one of the tries was done
	for {
		answer, err := c.call(ctx, q)
		if err == nil || unsure && call.Method == http.MethodDelete && gone(err) {
			return answer, nil
		}
		if !provesNothingDone(err) {
			unsure = true
			if call.Method == http.MethodPost {
				return nil, err
			}
		}
		if err := pace.wait(ctx, err); err != nil {
			return nil, err
		}
	}
}

func provesNothingDone(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code != "STORE_UNAVAILABLE" &&
		(e.Status == http.StatusTooManyRequests || e.Status == http.StatusServiceUnavailable)
}

// gone tells that there is none such, in the API's words and not a stranger's.
func gone(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Status == http.StatusNotFound && strings.HasSuffix(e.Code, "_NOT_FOUND")
}

// call makes one exchange, of which the answer is JSON.
func (c *Client) call(ctx context.Context, q request) (json.RawMessage, error) {
	q.quiet = callQuiet
	res, err := c.send(ctx, q)
	if err != nil {
		return nil, err
	}
	defer res.close()
	answer, err := io.ReadAll(io.LimitReader(res, maxAnswer+1))
	answer = bytes.TrimSpace(answer)
	switch {
	case err != nil:
		return nil, c.unanswered(ctx, res.Request.Context(), q, err)
	case len(answer) > maxAnswer:
		return nil, &StrangeError{hostOf(q.url), "its answer is too large"}
	case len(answer) > 0 && !json.Valid(answer):
		return nil, &StrangeError{hostOf(q.url), "its answer is no JSON"}
	}
	return answer, nil
}
