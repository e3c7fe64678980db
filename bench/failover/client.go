package failover

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
)

// How a client of the trial behaves where no answer says it.
const (
	answerWithin = 15 * time.Second       // a client's own timeout for one request
	pause        = 100 * time.Millisecond // before a repeat that no Retry-After asks for
	maxAnswer    = 9 << 20                // bytes of an answer that are read
)

// client calls one of several gateways, and the next one after a failure.
type client struct {
	gateways []string // origins
	key      string   // API key; "" = none
	http     *http.Client
	now      int // index of the gateway in use
}

func newClient(gateways []string, key string, http2 bool, first int) *client {
	var p http.Protocols
	p.SetHTTP1(!http2)
	p.SetUnencryptedHTTP2(http2)
	return &client{
		gateways: gateways, key: key, now: first % len(gateways),
		http: &http.Client{
			Transport:     &http.Transport{Protocols: &p, DisableCompression: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

func (c *client) switchGateway() { c.now = (c.now + 1) % len(c.gateways) }

// close ends the client's idle connections.
func (c *client) close() { c.http.CloseIdleConnections() }

// open sends one request and returns with the answer's head. header is pairs.
func (c *client) open(ctx context.Context, method, path, body string, header ...string) (*http.Response, error) {
	var in io.Reader
	if body != "" {
		// A reader that net/http cannot rewind, so that it never sends a write
		// again on its own: what is repeated is counted here.
		in = io.LimitReader(strings.NewReader(body), int64(len(body)))
	}
	req, err := http.NewRequestWithContext(ctx, method, c.gateways[c.now]+path, in)
	if err != nil {
		return nil, err
	}
	if body != "" {
		req.ContentLength = int64(len(body))
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return c.http.Do(req)
}

// reply is an answer that was read whole.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// call sends one request and reads its answer whole.
func (c *client) call(ctx context.Context, method, path, body string, header ...string) (reply, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	res, err := c.open(ctx, method, path, body, header...)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	return reply{res.StatusCode, res.Header, text}, err
}

// none is the answer of a request that got none.
func none(err error) answer {
	a := answer{outcome: Unknown, from: -1, to: -1, code: "broken off"}
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		a.code = "connection refused"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		a.code = "client's timeout"
	}
	return a
}

// wait ends after d, or false with ctx.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
