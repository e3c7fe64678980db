package main

import (
	"context"
	cryptorand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A client of the Management API that goes on while replicas die: it asks any of them, and
// repeats as the answers say.

// callerPatience bounds one wish of a caller, with all its repeats.
const callerPatience = 3 * time.Minute

// caller is such a client. One goroutine uses it.
type caller struct {
	t        *testing.T
	client   *http.Client
	replicas []*mortal
	random   *rand.Rand
	told     int                  // of answers, by all tries
	lost     int                  // of tries whose outcome was not known
	asked    map[string]changeTry // tries that may have changed something, by their request id; nil: nobody asks
}

// answer is what became of a call.
type answer struct {
	status int    // 0: it is not known whether the call was done
	code   string // of a refusal
	field  string
	retry  time.Duration // Retry-After; 0 = none
	text   []byte
}

func (a answer) String() string { return fmt.Sprintf("%d %s", a.status, a.text) }

// unknown says that the call may have been done, or not.
func (a answer) unknown() bool { return a.status == 0 }

// read decodes the body.
func (a answer) read(to any) error { return json.Unmarshal(a.text, to) }

// pause waits, or ends with ctx.
func (c *caller) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// owner calls the Management API of an account's owner. What surely did nothing is tried
// again until it is answered; the outcome is unknown where a connection broke, or where
// the answer says so.
func (c *caller) owner(ctx context.Context, key, method, path, body string) answer {
	return c.settle(ctx, func(m *mortal) string { return m.URL + path }, key, method, body)
}

// operator calls the Management API of the admin listener.
func (c *caller) operator(ctx context.Context, method, path, body string) answer {
	return c.settle(ctx, func(m *mortal) string { return m.Admin + path }, "", method, body)
}

func (c *caller) settle(ctx context.Context, url func(*mortal) string, key, method, body string) answer {
	for ctx.Err() == nil {
		a, err := c.try(ctx, url(c.replicas[c.random.IntN(len(c.replicas))]), key, method, body)
		var op *net.OpError
		switch {
		case errors.As(err, &op) && op.Op == "dial":
			c.pause(ctx, 20*time.Millisecond) // nobody was there to hear it
		case err != nil:
			c.lost++
			return answer{}
		case a.status == http.StatusServiceUnavailable && a.code == "STORE_UNAVAILABLE":
			c.checkRetry(a)
			c.lost++
			c.pause(ctx, a.retry)
			return answer{}
		case a.status == http.StatusServiceUnavailable, a.status == http.StatusTooManyRequests:
			c.checkRetry(a)
			c.pause(ctx, a.retry)
		default:
			c.told++
			return a
		}
	}
	c.t.Errorf("%s %s: never answered: %v", method, url(c.replicas[0]), ctx.Err())
	return answer{status: -1}
}

func (c *caller) checkRetry(a answer) {
	if a.retry < time.Second {
		c.t.Errorf("%v: Retry-After is %v", a, a.retry)
	}
}

// try makes one exchange, and remembers one that may change something.
func (c *caller) try(ctx context.Context, url, key, method, body string) (answer, error) {
	if method == http.MethodGet || c.asked == nil {
		return c.exchange(ctx, url, key, method, body, "")
	}
	id := cryptorand.Text()
	a, err := c.exchange(ctx, url, key, method, body, id)
	_, path, _ := strings.Cut(url, "/v1/")
	c.asked[id] = changeTry{method, path, a.status}
	if a.code == "STORE_UNAVAILABLE" {
		c.asked[id] = changeTry{method, path, 0}
	}
	return a, err
}

func (c *caller) exchange(ctx context.Context, url, key, method, body, id string) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	if id != "" {
		req.Header.Set("X-Request-Id", id)
	}
	res, err := c.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	a := answer{status: res.StatusCode}
	if a.text, err = io.ReadAll(io.LimitReader(res.Body, 1<<20)); err != nil {
		return answer{}, err
	}
	if seconds, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil {
		a.retry = time.Duration(seconds) * time.Second
	}
	if a.status >= 400 {
		var refused struct {
			Error struct{ Code, Field string } `json:"error"`
		}
		// A node's own refusal may have no body.
		_ = a.read(&refused)
		a.code, a.field = refused.Error.Code, refused.Error.Field
	}
	return a, nil
}

// takes reports whether a key is one on the data path, of all replicas in turn or of any.
func (c *caller) takes(ctx context.Context, account, key string, of ...*mortal) bool {
	if len(of) == 0 {
		of = c.replicas
	}
	one := *c
	one.replicas = of
	a := one.settleRead(ctx, account, "any", key)
	switch a.status {
	case http.StatusUnauthorized:
		return false
	case http.StatusOK, http.StatusNotFound:
		return true
	default:
		c.t.Errorf("read with a key of %s: %v", account, a)
		return false
	}
}

// settleRead reads a stream until it is answered.
func (c *caller) settleRead(ctx context.Context, account, name, key string) answer {
	for ctx.Err() == nil {
		path := "/" + account + "/s." + name + "?offset=-1"
		if a := c.settle(ctx, func(m *mortal) string { return m.URL + path }, key, http.MethodGet, ""); !a.unknown() {
			return a
		}
		c.pause(ctx, 20*time.Millisecond)
	}
	return answer{}
}
