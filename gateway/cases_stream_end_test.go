package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/gateway/upstream"
	"sluice/internal/refusal"
	"sluice/internal/tenant"
)

// S11: the client closed and the node went on streaming to nobody. The issue's
// bound is one second, by every way of leaving.
func TestLeavingEndsTheNodesRequest(t *testing.T) {
	head := make(chan struct{}, 1) // a token lets the node answer
	stream := func(c *upConn, r *upRequest) {
		if strings.Contains(r.Target, "hold") {
			c.hold()
			return
		}
		c.say(sseHead + chunk("data: 1\n\n"))
		if !strings.Contains(r.Target, "busy") {
			c.hold()
			return
		}
		for {
			select {
			case <-head:
				return
			case <-time.After(10 * time.Millisecond):
			}
			if _, err := io.WriteString(c.Conn, chunk("data: 2\n\n")); err != nil {
				return
			}
		}
	}
	rg, u := newUpRig(t, stream, rigOptions{})
	clients := protocols(t)
	viaClient := func(c *http.Client) func(string) func() {
		return func(path string) func() {
			res, cancel := rg.open(t, c, path, key)
			readN(t, res.Body, 9)
			return cancel
		}
	}
	unanswered := func(c *http.Client) func(string) func() {
		return func(path string) func() {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, rg.URL+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+rg.Keys[key])
			go func() {
				defer close(done)
				if res, err := c.Do(req); err == nil {
					_ = res.Body.Close()
				}
			}()
			return func() { cancel(); <-done }
		}
	}
	raw := func(behind string) func(string) func() {
		return func(path string) func() {
			conn := rg.dial(t)
			auth := "Host: gw\r\nAuthorization: Bearer " + rg.Keys[key] + "\r\n\r\n"
			text := "GET " + path + " HTTP/1.1\r\n" + auth
			if behind != "" {
				text += "GET " + behind + " HTTP/1.1\r\n" + auth
			}
			if _, err := io.WriteString(conn, text); err != nil {
				t.Fatal(err)
			}
			br := bufio.NewReader(conn)
			readN(t, nextAnswer(t, br, http.MethodGet).Body, 9)
			return func() { _ = conn.Close() }
		}
	}
	for _, tc := range []struct {
		name  string
		path  string
		begin func(path string) (leave func())
	}{
		{"h1, after an event", sseTail, viaClient(clients["h1"])},
		{"h2 RST_STREAM, after an event", sseTail, viaClient(clients["h2"])},
		{"h1, before the head", sseTail + "&hold=1", unanswered(clients["h1"])},
		{"h2 RST_STREAM, before the head", sseTail + "&hold=1", unanswered(clients["h2"])},
		{"h1, a long-poll", "/acme/s.priv?offset=now&live=long-poll&timeout_ms=30000&hold=1", unanswered(clients["h1"])},
		{"h1, raw close", sseTail, raw("")},
		// net/http reads no further than the first byte of a request behind the tail,
		// so the leaving is noticed by the next write: an event here, a heartbeat
		// where the stream is quiet.
		{"h1, pipelined second request", sseTail + "&busy=1", raw("/acme/s.priv?offset=-1&second=1")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			best(t, "the node's connection ends", time.Second, func() time.Duration {
				n := len(u.requests())
				leave := tc.begin(tc.path)
				conn := u.conn(u.await(t, n+1))
				start := time.Now()
				leave()
				select {
				case <-conn.gone:
				case <-time.After(20 * time.Second):
					t.Fatal("the node's request never ended")
				}
				return time.Since(start)
			})
			poll(t, "the tail's slot", func() bool { return rg.Limits.OpenTails() == 0 })
		})
	}
	for _, r := range u.requests() {
		if strings.Contains(r.Target, "second=1") {
			t.Error("the request behind the tail reached the node though its client had left")
		}
	}
}

// S12: a client's leaving was booked as a gateway error, and paged people.
func TestLeavingIsNoFault(t *testing.T) {
	rg, u := newUpRig(t, func(c *upConn, r *upRequest) {
		if strings.Contains(r.Target, "hold") {
			c.hold()
			return
		}
		c.say(whole("200 OK", "", "fine"))
	}, rigOptions{})
	clients := protocols(t)
	for i, name := range []string{"h1", "h2"} {
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, rg.URL+"/acme/s.priv?hold=1", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+rg.Keys[key])
		done := make(chan error)
		go func() {
			res, err := clients[name].Do(req)
			if err == nil {
				_ = res.Body.Close()
			}
			done <- err
		}()
		u.await(t, i+1)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Fatalf("%s: the client saw %v", name, err)
		}
		line := rg.awaitLines(t, i+1)[i]
		if line["end"] != "client_closed" || line["status"] != float64(499) || line["level"] != "info" || line["code"] != nil {
			t.Errorf("%s: access line %v", name, line)
		}
	}
	rg.awaitCount(t, `sluice_requests_total{operation="read",status="499"} 2`)
	for line := range strings.Lines(rg.exposition(t)) {
		if strings.HasPrefix(line, "sluice_requests_total") && strings.Contains(line, `status="5`) || strings.HasPrefix(line, "sluice_refusals_total{") {
			t.Errorf("counted as a fault: %s", line)
		}
	}
	if strings.Contains(rg.Log.String(), `"level":"error"`) || strings.Contains(rg.Log.String(), `"level":"warn"`) {
		t.Errorf("log: %s", rg.Log.String())
	}
	if res := rg.Do(t, http.MethodGet, "/acme/s.priv", key, ""); res.Text != "fine" {
		t.Errorf("the node is blamed: %d %s", res.StatusCode, res.Text)
	}
}

// S13: tails that end drew stack traces and unstructured lines on stderr. The
// short form: 100 closed by clients and 100 cut by the node.
func TestEndsMakeNoNoise(t *testing.T) {
	const n = 100
	rg, _ := newUpRig(t, func(c *upConn, r *upRequest) {
		c.say(sseHead + chunk("data: 1\n\n"))
		if strings.Contains(r.Target, "cut=1") {
			c.reset()
			return
		}
		c.hold()
	}, rigOptions{limits: func(l *tenant.Limits) { l.OpenTails = 2 * n }})
	clients := protocols(t)
	for i := range n {
		c := clients[[]string{"h1", "h2"}[i%2]]
		res, cancel := rg.open(t, c, sseTail, key)
		readN(t, res.Body, 9)
		cancel()
		cut, _ := rg.open(t, c, sseTail+"&cut=1", key)
		if body, err := io.ReadAll(cut.Body); err == nil {
			t.Fatalf("a cut tail ended cleanly after %q", body)
		}
	}
	ends := map[string]int{}
	for _, line := range rg.awaitLines(t, 2*n) {
		ends[fmt.Sprint(line["end"], " ", line["status"])]++
	}
	if diff := cmp.Diff(map[string]int{"client_closed 200": n, "cut 200": n}, ends); diff != "" {
		t.Errorf("access lines (-want +got):\n%s", diff)
	}
	for _, sample := range []string{`sluice_answers_ended_total{end="client_closed"} 100`, `sluice_answers_ended_total{end="cut"} 100`} {
		rg.awaitCount(t, sample)
	}
	for line := range strings.Lines(rg.Log.String()) {
		if !strings.HasPrefix(line, "{") || strings.Contains(line, "goroutine ") || strings.Contains(line, `"level":"error"`) {
			t.Errorf("noise: %s", line)
		}
	}
}

// panicking is a way to the nodes that breaks in the middle of the chain.
type panicking struct{ Upstream }

func (panicking) Send(context.Context, *http.Request, upstream.Meta) (*http.Response, error) {
	panic("broken part")
}

// endsItsWay is a node that ends each tail as the tail's own query says.
func endsItsWay(c *upConn, r *upRequest) {
	switch _, way, _ := strings.Cut(r.Target, "way="); way {
	case "404", "500":
		c.say(whole(way+" X", "Content-Type: application/json\r\n", "{}"))
	case "101":
		c.say("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")
	case "early": // the client leaves first
		c.hold()
	case "reset":
		c.reset()
	case "cut":
		c.say(sseHead + chunk("data: 1\n\n"))
		c.reset()
	case "clean":
		c.say(sseHead + chunk("data: 1\n\n") + "0\r\n\r\n")
	default:
		c.say(sseHead + chunk("data: 1\n\n"))
		c.hold()
	}
}

// L14: a tail's slot was lost on one of its ways out, and the account was
// locked out for ever. Each way is seen to hold a slot where it can be seen.
func TestEveryWayOutGivesTheSlotBack(t *testing.T) {
	rg, u := newUpRig(t, endsItsWay, rigOptions{limits: func(l *tenant.Limits) { l.OpenTails = 1 }})
	for name, c := range protocols(t) {
		for _, way := range []struct {
			name   string
			status int
		}{{"404", 404}, {"500", 500}, {"101", 502}, {"reset", 502}, {"cut", 200}, {"clean", 200}, {"leave", 200}} {
			t.Run(name+" "+way.name, func(t *testing.T) {
				res, cancel := rg.open(t, c, sseTail+"&way="+way.name, key)
				if res.StatusCode != way.status {
					t.Errorf("status %d, want %d", res.StatusCode, way.status)
				}
				if way.name == "leave" {
					readN(t, res.Body, 9)
					if got := rg.Limits.OpenTails(); got != 1 {
						t.Errorf("%d slots taken while the tail is open, want 1", got)
					}
					before := len(u.requests())
					if other, _ := rg.open(t, c, sseTail, key); other.StatusCode != http.StatusTooManyRequests || len(u.requests()) != before {
						t.Errorf("a second tail: %d, want 429 and nothing at the node", other.StatusCode)
					}
				} else {
					_, _ = io.Copy(io.Discard, res.Body)
				}
				cancel()
				poll(t, "the slot", func() bool { return rg.Limits.OpenTails() == 0 })
			})
		}
	}
	t.Run("panic", func(t *testing.T) {
		broken := rg.Options
		broken.Upstream = panicking{rg.Pool}
		rg.Gateway.Swap(broken)
		if res := rg.Do(t, http.MethodGet, sseTail, key, ""); res.StatusCode != http.StatusInternalServerError || res.code() != string(refusal.Internal) {
			t.Errorf("answer %d %s", res.StatusCode, res.Text)
		}
		poll(t, "the slot", func() bool { return rg.Limits.OpenTails() == 0 })
		if !strings.Contains(rg.Log.String(), "broken part") || !rg.counts(t, "sluice_panics_total 1") {
			t.Error("the panic is neither logged nor counted")
		}
	})
}
