package apiclient

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Times of a call of the Management API.
const (
	callPatience = 20 * time.Second // how long it is tried
	dialPatience = 4 * time.Second  // the same while nobody takes a connection
	callQuiet    = 20 * time.Second // how long nothing may move
)

// Call is one call of the Management API.
type Call struct {
	Method string
	Path   string // as /v1/streams; its parts are escaped already
	Query  url.Values
	Body   any // sent as JSON; nil = none
	// Status is that of the answer which says that it is done; 0 = 200. Another success
	// is an answer that no Management API gives.
	Status int
}

// Do makes a call and returns the answer's body, which is empty or JSON. It is tried
// again for a while where that is safe: what surely did nothing always (429, 503, no
// connection), what broke or may have been done where the call can be repeated as it was,
// which is all but a POST (openapi.yaml, "Repeating a call"). Where nobody takes a
// connection it is tried for dialPatience, and told once.
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
		answer, err := c.call(ctx, q, cmp.Or(call.Status, http.StatusOK))
		if err == nil || unsure && call.Method == http.MethodDelete && Gone(err) {
			return answer, nil
		}
		if Unsure(err) {
			unsure = true
			if call.Method == http.MethodPost {
				return nil, err
			}
		}
		pace.patience, pace.once = callPatience, false
		if unsent(err) {
			pace.patience, pace.once = dialPatience, true
		}
		if err := pace.wait(ctx, err); err != nil {
			return nil, err
		}
	}
}

// Unsure tells whether a change may have been made all the same: its answer was lost, or
// is one that proves nothing. A 503 proves it by its code only, since one of a proxy's
// has none (docs/errors.md).
func Unsure(err error) bool {
	var broken *UnansweredError
	if errors.As(err, &broken) {
		return broken.Sent
	}
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	switch e.Status {
	case http.StatusRequestTimeout:
		return e.Code == ""
	case http.StatusServiceUnavailable:
		return e.Code == "" || e.Code == "STORE_UNAVAILABLE"
	default:
		return e.Status >= 500
	}
}

// unsent tells that there was no connection to send anything on.
func unsent(err error) bool {
	var broken *UnansweredError
	return errors.As(err, &broken) && !broken.Sent
}

// Gone tells that there is none such, in the API's words and not a stranger's.
func Gone(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Status == http.StatusNotFound && strings.HasSuffix(e.Code, "_NOT_FOUND")
}

// call makes one exchange, of which the answer is of a status, and JSON.
func (c *Client) call(ctx context.Context, q request, status int) (json.RawMessage, error) {
	q.quiet = callQuiet
	res, err := c.send(ctx, q)
	if err != nil {
		var e *Error
		if errors.As(err, &e) {
			e.Foreign = e.Code == "" || e.RequestID == "" || e.header.Get(hCluster) != ""
		}
		return nil, err
	}
	defer res.close()
	if res.StatusCode != status {
		return nil, &StrangeError{hostOf(q.url), fmt.Sprintf("status %d to %s %s, which is answered with %d", res.StatusCode, q.method, res.Request.URL.Path, status)}
	}
	answer, err := io.ReadAll(io.LimitReader(res, maxAnswer+1))
	answer = bytes.TrimSpace(answer)
	switch {
	case err != nil:
		return nil, c.unanswered(ctx, res.Request.Context(), q, true, err)
	case len(answer) > maxAnswer:
		return nil, &StrangeError{hostOf(q.url), "its answer is too large"}
	case len(answer) == 0 && status != http.StatusNoContent:
		return nil, &StrangeError{hostOf(q.url), "its answer is empty"}
	case len(answer) > 0 && !json.Valid(answer):
		return nil, &StrangeError{hostOf(q.url), "its answer is no JSON"}
	}
	return answer, nil
}
