package ursulatest_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sluice/internal/ursulatest"
)

func TestStopRestartAndDrain(t *testing.T) {
	c := start(t, ursulatest.Options{Nodes: 2})
	cl := client(t, false)
	url := c.URLs()[0]
	must(t, cl, 201, "PUT", url+"/acme/s", "kept")
	c.Node(0).Stop()
	res, err := send(within(t), t, cl, "GET", url+"/acme/s", "")
	if err == nil {
		_ = res.Body.Close()
		t.Fatalf("a stopped node answered %d", res.StatusCode)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v, want connection refused", err)
	}
	must(t, cl, 200, "GET", c.URLs()[1]+"/acme/s", "")
	c.Node(0).Restart()
	if got := c.URLs()[0]; got != url {
		t.Errorf("got URL %s after Restart, want %s", got, url)
	}
	if got := must(t, cl, 200, "GET", url+"/acme/s", ""); got != "kept" {
		t.Errorf("got %q, want what was stored before Stop", got)
	}
	c.Node(0).Drain()
	must(t, cl, 200, "GET", url+"/acme/s", "") // the connection that stands
	if res, err := send(within(t), t, client(t, false), "GET", url+"/acme/s", ""); !errors.Is(err, syscall.ECONNREFUSED) {
		if err == nil {
			_ = res.Body.Close()
		}
		t.Errorf("got %v on a new connection, want connection refused", err)
	}
}

func TestCloseBreaksTailsOff(t *testing.T) {
	eachProtocol(t, func(t *testing.T, cl *http.Client) {
		c := start(t, ursulatest.Options{})
		must(t, cl, 201, "PUT", c.URLs()[0]+"/acme/s", "")
		res, err := send(within(t), t, cl, "GET", c.URLs()[0]+"/acme/s?live=sse&offset=now", "")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if got := c.OpenTails(); got != 0 {
			t.Errorf("got %d tails after Close, want 0", got)
		}
		if _, err := io.ReadAll(res.Body); err == nil {
			t.Error("the tail ended cleanly; a node that stops breaks it off")
		}
		if err := c.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
	})
}

func TestTailsEndWithTheirClient(t *testing.T) {
	eachProtocol(t, func(t *testing.T, cl *http.Client) {
		c := start(t, ursulatest.Options{})
		must(t, cl, 201, "PUT", c.URLs()[0]+"/acme/s", "")
		bodies := make([]io.Closer, 0, 3)
		for range 3 {
			res, err := send(within(t), t, cl, "GET", c.URLs()[0]+"/acme/s?live=sse&offset=now", "") //nolint:bodyclose // closed below, all together
			if err != nil {
				t.Fatal(err)
			}
			bodies = append(bodies, res.Body)
		}
		if err := c.WaitTails(within(t), 3); err != nil {
			t.Fatalf("got %d tails, want 3", c.OpenTails())
		}
		for _, b := range bodies {
			_ = b.Close()
		}
		if err := c.WaitTails(within(t), 0); err != nil {
			t.Errorf("got %d tails after their clients left, want 0", c.OpenTails())
		}
	})
}

func TestLongPollWaitsForTheAppend(t *testing.T) {
	c := start(t, ursulatest.Options{})
	cl := client(t, false)
	url := c.URLs()[0] + "/acme/s"
	must(t, cl, 201, "PUT", url, "")
	got := make(chan string, 1)
	go func() {
		res, err := send(t.Context(), t, cl, "GET", url+"?live=long-poll&offset=now&timeout_ms=60000", "")
		if err != nil {
			got <- err.Error()
			return
		}
		defer func() { _ = res.Body.Close() }()
		body, err := io.ReadAll(res.Body)
		got <- fmt.Sprint(res.StatusCode, " ", string(body), " ", err)
	}()
	if err := c.WaitTails(within(t), 1); err != nil {
		t.Fatal(err)
	}
	must(t, cl, 204, "POST", url, "news")
	if g, want := <-got, "200 news <nil>"; g != want {
		t.Errorf("got %q, want %q", g, want)
	}
}

func TestRequestsAreRecorded(t *testing.T) {
	c := start(t, ursulatest.Options{Nodes: 2})
	h1, h2 := client(t, false), client(t, true)
	must(t, h1, 201, "PUT", c.URLs()[0]+"/acme/s%2e?x=%20&y", "abc")
	must(t, h2, 307, "POST", c.URLs()[1]+"/acme/s.", "def")
	got := c.Requests()
	if len(got) != 2 || c.Node(0).Hits() != 1 || c.Node(1).Hits() != 1 {
		t.Fatalf("got %d requests, hits %d and %d; want 2, 1, 1", len(got), c.Node(0).Hits(), c.Node(1).Hits())
	}
	a, b := got[0], got[1]
	if a.Target != "/acme/s%2e?x=%20&y" || a.Method != "PUT" || a.Proto != "HTTP/1.1" || a.ContentLength != 3 || string(a.Body) != "abc" ||
		a.Header.Get("Content-Type") != "text/plain" || "http://"+a.Host != c.URLs()[0] || a.ConnID == 0 || a.RemoteAddr == "" {
		t.Errorf("the first request was recorded as %+v", a)
	}
	if b.Node != 1 || b.Proto != "HTTP/2.0" {
		t.Errorf("got node %d protocol %s, want 1 and HTTP/2.0", b.Node, b.Proto)
	}
	c.ResetRequests()
	if len(c.Requests()) != 0 || c.Hits() != 0 {
		t.Error("ResetRequests left something")
	}
	must(t, h1, 200, "GET", c.URLs()[0]+"/acme/s.", "")
	must(t, h1, 200, "GET", c.URLs()[0]+"/acme/s.", "")
	if got := c.Requests(); got[0].ConnID != got[1].ConnID {
		t.Error("two requests of one connection have different ids")
	}
}

func TestRecordIsBounded(t *testing.T) {
	c := ursulatest.New(ursulatest.Options{})
	for i := range 4100 {
		serve(t, c, "GET", fmt.Sprintf("/acme/s%d", i), "")
	}
	got := c.Requests()
	if len(got) != 4096 || got[0].Target != "/acme/s4" || c.Hits() != 4100 {
		t.Errorf("got %d requests from %s, %d hits; want the last 4096 of 4100", len(got), got[0].Target, c.Hits())
	}
}

func TestExpiry(t *testing.T) {
	var now atomic.Int64
	now.Store(1_700_000_000)
	c := ursulatest.New(ursulatest.Options{Now: func() time.Time { return time.Unix(now.Load(), 0) }})
	if got := serve(t, c, "PUT", "/acme/ttl", "", "Stream-Ttl", "100").Code; got != 201 {
		t.Fatalf("got %d, want 201", got)
	}
	at := time.Unix(now.Load()+50, 0).UTC().Format(time.RFC3339)
	serve(t, c, "PUT", "/acme/at", "", "Stream-Expires-At", at)
	now.Add(49)
	for _, target := range []string{"/acme/ttl", "/acme/at"} {
		if got := serve(t, c, "GET", target, "").Code; got != 200 {
			t.Errorf("%s before its expiry: got %d, want 200", target, got)
		}
	}
	now.Add(60) // the read renewed the TTL, not the fixed time
	if got := serve(t, c, "GET", "/acme/ttl", "").Code; got != 200 {
		t.Errorf("renewed stream: got %d, want 200", got)
	}
	if got := serve(t, c, "GET", "/acme/at", "").Code; got != 404 {
		t.Errorf("expired stream: got %d, want 404", got)
	}
	now.Add(100)
	if got := serve(t, c, "HEAD", "/acme/ttl", "").Code; got != 404 {
		t.Errorf("stream past its TTL: got %d, want 404", got)
	}
}

func TestProducersAreForgotten(t *testing.T) {
	var now atomic.Int64
	now.Store(1_700_000_000)
	c := ursulatest.New(ursulatest.Options{Now: func() time.Time { return time.Unix(now.Load(), 0) }})
	res := serve(t, c, "PUT", "/acme/s", "")
	token := res.Header().Get("Stream-Incarnation")
	key := []string{"Content-Type", "application/octet-stream", "Producer-Id", "p", "Producer-Epoch", "0", "Producer-Seq", "0"}
	tokened := slices.Concat(key, []string{"Stream-Incarnation", token})
	if got := serve(t, c, "POST", "/acme/s", "x", key...).Code; got != 200 {
		t.Fatalf("claim: got %d, want 200", got)
	}
	now.Add(int64(8 * 24 * time.Hour / time.Second))
	res = serve(t, c, "POST", "/acme/s", "x", tokened...)
	if res.Code != 403 || res.Header().Get("Producer-Outcome") != "producer-expired" || res.Header().Get("Producer-Epoch") != "0" {
		t.Errorf("tokened write of a forgotten producer: got %d %v, want 403 producer-expired", res.Code, res.Header())
	}
	if got := serve(t, c, "POST", "/acme/s", "x", key...).Code; got != 200 {
		t.Errorf("a forgotten producer is new without a token: got %d, want 200", got)
	}
}

func TestProducersAreBounded(t *testing.T) {
	c := ursulatest.New(ursulatest.Options{})
	serve(t, c, "PUT", "/acme/s", "")
	status := 0
	for i := range 4097 {
		status = serve(t, c, "POST", "/acme/s", "x", "Content-Type", "application/octet-stream",
			"Producer-Id", fmt.Sprint("p", i), "Producer-Epoch", "0", "Producer-Seq", "0").Code
	}
	if status != 429 {
		t.Errorf("producer 4097: got %d, want 429", status)
	}
}

// An appended slice must not show through to a reader that still sends the
// older bytes: run with -race.
func TestReadersKeepTheirBytes(t *testing.T) {
	c := start(t, ursulatest.Options{})
	cl := client(t, true)
	url := c.URLs()[0] + "/acme/s"
	must(t, cl, 201, "PUT", url, strings.Repeat("a", 1<<16))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 50 {
			res, err := send(t.Context(), t, cl, "POST", url, "b")
			if err != nil {
				t.Error(err)
				return
			}
			_ = res.Body.Close()
		}
	}()
	for range 50 {
		if got := must(t, cl, 200, "GET", url, ""); !strings.HasPrefix(got, strings.Repeat("a", 1<<16)) {
			t.Fatal("a reader saw other bytes than were stored")
		}
	}
	<-done
}
