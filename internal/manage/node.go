package manage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"sluice/internal/store"
	"sluice/internal/tenant"
)

// ErrNotApplied is wrapped by an error of Nodes.Do that proves that nothing of the
// request was or will be applied, as when no node takes a connection.
var ErrNotApplied = errors.New("nothing reached a node")

const (
	incarnationHeader = "Stream-Incarnation"
	// maxNodeAnswer bounds what is read of a node's answer, in bytes.
	maxNodeAnswer = 4 << 10
)

// nodeAnswer is what a node said of a stream.
type nodeAnswer struct {
	status int
	header http.Header
	code   string // of its error body; "" where there is none
}

func (a nodeAnswer) incarnation() string { return a.header.Get(incarnationHeader) }

// gone reports whether a HEAD or DELETE was told that there is no such stream.
func (a nodeAnswer) gone() bool {
	return a.status == http.StatusNotFound || a.status == http.StatusGone
}

// refused reports whether the node will not have the request, however often it comes.
func (a nodeAnswer) refused() bool {
	return a.status >= 400 && a.status < 500 && a.status != http.StatusTooManyRequests && a.status != http.StatusRequestTimeout
}

// provesNothingApplied says that a request that was not refused for good has not
// been applied, nor will be (facts §5.3).
func (a nodeAnswer) provesNothingApplied() bool {
	switch a.status {
	case http.StatusTooManyRequests:
		return true
	case http.StatusServiceUnavailable:
		return slices.Contains([]string{
			"NO_LEADER", "WAL_DISK_PRESSURE", "RAFT_LOG_PRESSURE", "INGRESS_BODY_BYTES_LIMIT_REACHED", "COLD_BACKPRESSURE",
			"RAFT_UNCOMMITTED_BACKPRESSURE", "APPLY_STOPPED", "GROUP_RESTARTING", "HISTORY_PENDING",
		}, a.code)
	default:
		return false
	}
}

// askNode sends one request about a stream, within the deadline of a request.
func (r *Reconciler) askNode(ctx context.Context, method string, s *store.Stream, header http.Header) (nodeAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, r.o.Request)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, tenant.StreamPath(s.Account, s.Name), nil)
	if err != nil {
		return nodeAnswer{}, err
	}
	for name, values := range header {
		req.Header[name] = values
	}
	res, err := r.o.Nodes.Do(req)
	if err != nil {
		return nodeAnswer{}, fmt.Errorf("%s: %w", method, err)
	}
	text, _ := io.ReadAll(io.LimitReader(res.Body, maxNodeAnswer))
	_ = res.Body.Close()
	a := nodeAnswer{status: res.StatusCode, header: res.Header}
	var body struct {
		Error struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	if json.Unmarshal(text, &body) == nil {
		a.code = body.Error.Code
	}
	return a, nil
}

func unexpected(method string, a nodeAnswer) error {
	return fmt.Errorf("%s: node answered %d %s", method, a.status, a.code)
}
