package apiclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"time"
)

// How long a call of the Management API is tried.
const callPatience = 20 * time.Second

// Call is one call of the Management API.
type Call struct {
	Method string
	Path   string // as /v1/streams; its parts are escaped already
	Query  url.Values
	Body   any // sent as JSON; nil = none
}

// Do makes a call and returns the answer's body, which is empty or JSON. What surely
// did nothing (429, 503), and a read that broke, is tried again for a while; a write
// that broke is not, since it may have been done.
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
	for {
		answer, err := c.call(ctx, q)
		if err == nil {
			return answer, nil
		}
		if call.Method != http.MethodGet && !provesNothingDone(err) {
			return nil, err
		}
		if err := pace.wait(ctx, err); err != nil {
			return nil, err
		}
	}
}

func provesNothingDone(err error) bool {
	var e *Error
	return errors.As(err, &e) && (e.Status == http.StatusTooManyRequests || e.Status == http.StatusServiceUnavailable)
}

// call makes one exchange, of which the answer is JSON.
func (c *Client) call(ctx context.Context, q request) (json.RawMessage, error) {
	q.quiet = callPatience
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
