package ursulatest_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice/internal/ursulatest"
)

// client speaks one protocol and keeps no connection beyond the test.
func client(t *testing.T, h2 bool) *http.Client {
	t.Helper()
	p := new(http.Protocols)
	p.SetHTTP1(!h2)
	p.SetUnencryptedHTTP2(h2)
	tr := &http.Transport{Protocols: p, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func send(ctx context.Context, t *testing.T, c *http.Client, method, url, body string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "text/plain")
	return c.Do(req)
}

// must sends a request that has to be answered with that status.
func must(t *testing.T, c *http.Client, status int, method, url, body string) string {
	t.Helper()
	res, err := send(within(t), t, c, method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	got, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != status {
		t.Fatalf("%s %s: got status %d %s, want %d", method, url, res.StatusCode, got, status)
	}
	return string(got)
}

func eachProtocol(t *testing.T, f func(t *testing.T, c *http.Client)) {
	t.Helper()
	for name, h2 := range map[string]bool{"h1": false, "h2": true} {
		t.Run(name, func(t *testing.T) { f(t, client(t, h2)) })
	}
}

func TestFaultStatusAndTimes(t *testing.T) {
	c := start(t, ursulatest.Options{})
	cl := client(t, false)
	url := c.URLs()[0] + "/acme/s"
	c.Node(0).SetFault(ursulatest.Times(2, ursulatest.Status(503, http.Header{"Retry-After": {"7"}}, []byte("busy"))))
	for range 2 {
		if got := must(t, cl, 503, "PUT", url, "x"); got != "busy" {
			t.Errorf("got body %q, want busy", got)
		}
	}
	must(t, cl, 201, "PUT", url, "")
	if got := c.Hits(); got != 3 {
		t.Errorf("got %d hits, want 3", got)
	}
}

func TestFaultMatchChainDelay(t *testing.T) {
	c := start(t, ursulatest.Options{})
	cl := client(t, false)
	isGet := func(r *http.Request) bool { return r.Method == http.MethodGet }
	c.Node(0).SetFault(ursulatest.Chain(ursulatest.Delay(time.Millisecond), ursulatest.Match(isGet, ursulatest.Status(418, nil, nil))))
	must(t, cl, 201, "PUT", c.URLs()[0]+"/acme/s", "")
	must(t, cl, 418, "GET", c.URLs()[0]+"/acme/s", "")
	c.Node(0).SetFault(nil)
	must(t, cl, 200, "GET", c.URLs()[0]+"/acme/s", "")
}

func TestFaultReset(t *testing.T) {
	eachProtocol(t, func(t *testing.T, cl *http.Client) {
		c := start(t, ursulatest.Options{})
		c.Node(0).SetFault(ursulatest.ReadThen(ursulatest.Reset))
		res, err := send(within(t), t, cl, "POST", c.URLs()[0]+"/acme/s", "body of the write")
		if err == nil {
			_ = res.Body.Close()
			t.Fatalf("got status %d, want a broken connection", res.StatusCode)
		}
		if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !strings.Contains(err.Error(), "connection") {
			t.Errorf("got error %v, want a broken connection", err)
		}
		if got := string(c.Requests()[0].Body); got != "body of the write" {
			t.Errorf("got recorded body %q, want the whole body", got)
		}
	})
}

func TestFaultCutAfter(t *testing.T) {
	eachProtocol(t, func(t *testing.T, cl *http.Client) {
		c := start(t, ursulatest.Options{})
		url := c.URLs()[0] + "/acme/s"
		must(t, cl, 201, "PUT", url, "0123456789")
		c.Node(0).SetFault(ursulatest.CutAfter(4))
		res, err := send(within(t), t, cl, "GET", url, "")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		got, err := io.ReadAll(res.Body)
		if err == nil {
			t.Error("the cut body ended cleanly")
		}
		if res.StatusCode != 200 || string(got) != "0123" {
			t.Errorf("got status %d body %q, want 200 and 0123", res.StatusCode, got)
		}
		c.Node(0).SetFault(ursulatest.CutAfter(10))
		if got := must(t, cl, 200, "GET", url, ""); got != "0123456789" {
			t.Errorf("got %q, want the whole body", got)
		}
	})
}

func TestFaultHangEndsWithTheClient(t *testing.T) {
	eachProtocol(t, func(t *testing.T, cl *http.Client) {
		c := start(t, ursulatest.Options{})
		left := make(chan struct{})
		c.Node(0).SetFault(func(w http.ResponseWriter, r *http.Request) bool {
			defer close(left)
			return ursulatest.Hang(w, r)
		})
		ctx, cancel := context.WithCancel(within(t))
		done := make(chan error, 1)
		go func() {
			res, err := send(ctx, t, cl, "POST", c.URLs()[0]+"/acme/s", "x")
			if err == nil {
				_ = res.Body.Close()
			}
			done <- err
		}()
		if err := c.WaitHits(within(t), 1); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want a cancelled request", err)
		}
		select {
		case <-left:
		case <-within(t).Done():
			t.Error("the hung request outlives its client")
		}
	})
}

func TestFaultSilentHead(t *testing.T) {
	eachProtocol(t, func(t *testing.T, cl *http.Client) {
		c := start(t, ursulatest.Options{})
		url := c.URLs()[0] + "/acme/s"
		must(t, cl, 201, "PUT", url, "data")
		c.Node(0).SetFault(ursulatest.SilentHead)
		res, err := send(within(t), t, cl, "GET", url+"?live=sse&offset=0", "")
		if err != nil {
			t.Fatal(err)
		}
		if got := res.Header.Get("Content-Type"); got != "text/event-stream" {
			t.Errorf("got type %q, want text/event-stream", got)
		}
		if got := c.OpenTails(); got != 1 {
			t.Errorf("got %d tails, want 1", got)
		}
		_ = res.Body.Close()
		if err := c.WaitTails(within(t), 0); err != nil {
			t.Error("the silent tail outlives its client")
		}
	})
}

func TestProbeFault(t *testing.T) {
	c := start(t, ursulatest.Options{})
	cl := client(t, false)
	c.Node(0).SetFault(ursulatest.Status(500, nil, nil))
	must(t, cl, 204, "GET", c.URLs()[0]+"/__ursula/live", "")
	c.Node(0).SetProbeFault(ursulatest.Status(503, nil, nil))
	must(t, cl, 503, "GET", c.URLs()[0]+"/__ursula/live", "")
	if got := c.Hits(); got != 0 {
		t.Errorf("got %d hits, want 0: operator paths do not count", got)
	}
}

func TestFaultsOnABareHandler(t *testing.T) {
	c := ursulatest.New(ursulatest.Options{})
	srv := httptest.NewServer(c.Node(0).Handler())
	defer srv.Close()
	cl := client(t, false)
	must(t, cl, 201, "PUT", srv.URL+"/acme/s", "")
	c.Node(0).SetFault(ursulatest.Reset)
	if res, err := send(within(t), t, cl, "GET", srv.URL+"/acme/s", ""); err == nil {
		_ = res.Body.Close()
		t.Errorf("got status %d, want a broken connection", res.StatusCode)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
