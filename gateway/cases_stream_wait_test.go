package gateway

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/gateway/upstream"
)

// S17: a header timeout shorter than the wait that a long-poll asked for made
// false 504s. Shown with a wait just over the 5 s that any other read has.
func TestLongPollOutlivesTheHeaderTimeout(t *testing.T) {
	t.Parallel()
	wait := upstream.HeaderTimeout + 300*time.Millisecond
	rg, _ := newUpRig(t, func(c *upConn, _ *upRequest) {
		<-time.After(wait)
		c.say("HTTP/1.1 204 No Content\r\nStream-Next-Offset: 9\r\nStream-Up-To-Date: true\r\nStream-Cursor: 77\r\nStream-Incarnation: 3\r\nCache-Control: public, max-age=60\r\n\r\n")
	}, rigOptions{})
	done := make(chan answer, 1)
	go func() {
		done <- rg.Do(t, http.MethodGet, "/acme/s.priv?offset=now&live=long-poll&timeout_ms=6000", key, "")
	}()
	poll(t, "the slot taken", func() bool { return rg.Limits.OpenTails() == 1 })
	res := <-done
	got := map[string]string{}
	for _, name := range []string{"Stream-Next-Offset", "Stream-Up-To-Date", "Stream-Cursor", "Stream-Incarnation", "Cache-Control"} {
		got[name] = res.Header.Get(name)
	}
	want := map[string]string{"Stream-Next-Offset": "9", "Stream-Up-To-Date": "true", "Stream-Cursor": "77", "Stream-Incarnation": "3", "Cache-Control": "no-store"}
	if diff := cmp.Diff(want, got); diff != "" || res.StatusCode != http.StatusNoContent {
		t.Errorf("status %d, headers (-want +got):\n%s", res.StatusCode, diff)
	}
	poll(t, "the slot given back", func() bool { return rg.Limits.OpenTails() == 0 })
}

// metas notes what the pool is told of each request.
type metas struct {
	Upstream
	seen chan upstream.Meta
}

func (m metas) Send(ctx context.Context, r *http.Request, meta upstream.Meta) (*http.Response, error) {
	m.seen <- meta
	return m.Upstream.Send(ctx, r, meta)
}

// S17, what the wait is reckoned from: timeout_ms as the node reads it, the last
// one that counts, and only where the request is a long-poll.
func TestLongPollTellsItsWait(t *testing.T) {
	seen := make(chan upstream.Meta, 1)
	rg, _ := newUpRig(t, respond(whole("200 OK", "", "")), rigOptions{change: func(o *Options) { o.Upstream = metas{o.Upstream, seen} }})
	for _, tc := range []struct {
		query string
		long  bool
		wait  time.Duration
	}{
		{"live=long-poll&timeout_ms=60000", true, time.Minute},
		{"timeout_ms=5&timeout_ms=60000&live=long%2Dpoll", true, time.Minute},
		{"live=long-poll&timeout%5Fms=700", true, 700 * time.Millisecond},
		{"live=long-poll", true, 0},
		{"live=long-poll&timeout_ms=-1", true, 0},
		{"live=long-poll&timeout_ms=99999999999999999999", true, 0},
		{"live=sse&timeout_ms=60000", false, time.Minute},
		{"offset=-1", false, 0},
	} {
		rg.Do(t, http.MethodGet, "/acme/s.priv?"+tc.query, key, "")
		if got := <-seen; got.LongPoll != tc.long || got.Wait != tc.wait {
			t.Errorf("%s: long-poll %v, wait %v; want %v, %v", tc.query, got.LongPoll, got.Wait, tc.long, tc.wait)
		}
	}
}

// S18: a tail to an HTTP/1.0 client came with chunk framing in its body, or
// hung. It is served, without framing, and the connection's end is its end;
// HTTP/1.0 needs no Host.
func TestTailOverHTTP10(t *testing.T) {
	rg, _ := newUpRig(t, func(c *upConn, _ *upRequest) {
		c.say(sseHead + chunk("data: 1\n\n") + chunk("data: 2\n\n") + "0\r\n\r\n")
	}, rigOptions{})
	for _, headers := range []string{"", "Host: gw\r\n", "Connection: keep-alive\r\n"} {
		raw := rg.raw(t, "GET "+sseTail+" HTTP/1.0\r\n"+headers+"Authorization: Bearer "+rg.Keys[key]+"\r\n\r\n")
		head, body := cutHead(t, raw)
		if !strings.HasPrefix(head, "HTTP/1.0 200 OK\r\n") || strings.Contains(head, "Transfer-Encoding") || body != "data: 1\n\ndata: 2\n\n" {
			t.Errorf("with %q: %q", headers, raw)
		}
	}
}

// Issue 3: a tail delivers an event within 50 ms of its append through the whole
// chain, on both protocols. Measured from before the append is sent; the median
// of 20, and the best of three such rounds, since other tests run beside it.
func TestTailDeliversWithin50ms(t *testing.T) {
	rg := newRig(t, rigOptions{})
	for name, c := range protocols(t) {
		t.Run(name, func(t *testing.T) {
			res, cancel := rg.open(t, c, sseTail, key)
			defer cancel()
			lines := bufio.NewScanner(res.Body)
			if err := rg.Cluster.WaitTails(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			n := 0
			best(t, "median of 20 events", 50*time.Millisecond, func() time.Duration {
				took := make([]time.Duration, 0, 20)
				for range cap(took) {
					n++
					event := fmt.Sprintf(`{"n":%d}`, n)
					start := time.Now()
					if res := rg.Do(t, http.MethodPost, "/acme/s.priv", key, event, "Content-Type", rigType); res.StatusCode >= 300 {
						t.Fatalf("append: %d %s", res.StatusCode, res.Text)
					}
					for !strings.Contains(lines.Text(), event) {
						if !lines.Scan() {
							t.Fatalf("the tail ended: %v", lines.Err())
						}
					}
					took = append(took, time.Since(start))
				}
				slices.Sort(took)
				return took[len(took)/2]
			})
			cancel()
			if err := rg.Cluster.WaitTails(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
		})
	}
}
