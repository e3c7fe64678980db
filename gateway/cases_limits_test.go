package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"sluice/gateway/upstream"
	"sluice/internal/bubble"
	"sluice/internal/tenant"
	"sluice/ratelimit"
)

// askOn makes one request on a connection that is kept, and reads the answer whole.
func askOn(t *testing.T, conn net.Conn, in *bufio.Reader, request string) answer {
	t.Helper()
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = io.WriteString(conn, request)
	}()
	res := readAnswer(t, in, http.MethodGet)
	<-written
	return res
}

// A client that waits as long as a RATE_LIMITED tells it to, in Retry-After or in the
// t of RateLimit, was refused again. On the clock of a bubble, for rates and bursts of
// many relations, at moments of its own choice.
func TestObedientClientIsAdmitted(t *testing.T) {
	for _, rate := range []ratelimit.Rate{{PerSecond: 1, Burst: 1}, {PerSecond: 1, Burst: 100}, {PerSecond: 3, Burst: 2}, {PerSecond: 7, Burst: 1}, {PerSecond: 50, Burst: 100}, {PerSecond: 999, Burst: 10}} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				rg, _, l := newBubbleRig(t, rigOptions{limits: func(l *tenant.Limits) { l.RequestsPerSecond, l.Burst = rate.PerSecond, rate.Burst }})
				conn := l.dial()
				defer func() { _ = conn.Close() }()
				in := bufio.NewReader(conn)
				request := "GET " + privTarget + " HTTP/1.1\r\nHost: x\r\n" + bearer(rg.Keys[key]) + "\r\n"
				window := max(1, (rate.Burst+rate.PerSecond-1)/rate.PerSecond)
				for round := range 10 {
					res, requests := askOn(t, conn, in, request), 1
					for ; res.StatusCode == http.StatusNoContent; requests++ {
						res = askOn(t, conn, in, request)
					}
					want := map[string]string{
						"Retry-After": "1", "RateLimit": `"requests";r=0;t=1`,
						"RateLimit-Policy": fmt.Sprintf(`"requests";q=%d;w=%d`, rate.Burst, window),
					}
					if diff := cmp.Diff(want, rateFields(res)); res.code() != "RATE_LIMITED" || diff != "" {
						t.Fatalf("round %d: %d %s, headers (-want +got):\n%s", round, res.StatusCode, res.Text, diff)
					}
					time.Sleep(time.Second)
					if res := askOn(t, conn, in, request); res.StatusCode != http.StatusNoContent {
						t.Fatalf("round %d: after its wait: %d %s", round, res.StatusCode, res.Text)
					}
					time.Sleep(time.Duration(round) * 77777777 * time.Nanosecond)
				}
			})
		})
	}
}

// L10: 0 meant "no limit", or a burst of 1 admitted nothing, or the edge of a window
// twice as much. Through the whole chain: 0 is closed and says so, with a long wait;
// exactly the burst and the rate's are admitted, also at 10^9.
func TestLimitsAtTheirEdges(t *testing.T) {
	for name, tc := range map[string]struct {
		rate   ratelimit.Rate
		first  int // admitted of 30 at once
		after  time.Duration
		second int // admitted of 30 then
	}{
		"0 a second":    {ratelimit.Rate{PerSecond: 0, Burst: 100}, 0, time.Hour, 0},
		"burst of 0":    {ratelimit.Rate{PerSecond: 100, Burst: 0}, 0, time.Hour, 0},
		"burst of 1":    {ratelimit.Rate{PerSecond: 100, Burst: 1}, 1, 19 * time.Millisecond, 1},
		"1 a second":    {ratelimit.Rate{PerSecond: 1, Burst: 3}, 3, 2999 * time.Millisecond, 2},
		"the same, due": {ratelimit.Rate{PerSecond: 1, Burst: 3}, 3, 3 * time.Second, 3},
		"a billion":     {ratelimit.Rate{PerSecond: 1_000_000_000, Burst: 1_000_000_000}, 30, 0, 30},
		"a large burst": {ratelimit.Rate{PerSecond: 1, Burst: 1_000_000_000}, 30, 0, 30},
		"a large rate":  {ratelimit.Rate{PerSecond: 1_000_000_000, Burst: 20}, 20, time.Microsecond, 20},
	} {
		t.Run(name, func(t *testing.T) {
			clock := newHandClock()
			rg := newRig(t, rigOptions{change: clock.counted, limits: func(l *tenant.Limits) {
				l.RequestsPerSecond, l.Burst = tc.rate.PerSecond, tc.rate.Burst
			}})
			for step, want := range []int{tc.first, tc.second} {
				admitted := 0
				for range 30 {
					res := rg.Do(t, http.MethodHead, "/acme/s.priv", key, "")
					switch res.StatusCode {
					case http.StatusOK:
						admitted++
					case http.StatusTooManyRequests:
						closed := tc.rate.PerSecond == 0 || tc.rate.Burst == 0
						if closed && res.Header.Get("Retry-After") != "60" || !closed && res.Header.Get("Retry-After") != "1" {
							t.Fatalf("Retry-After: %s", res.Header.Get("Retry-After"))
						}
					default:
						t.Fatalf("status %d", res.StatusCode)
					}
				}
				if admitted != want {
					t.Errorf("step %d: %d admitted, want %d", step, admitted, want)
				}
				clock.advance(tc.after)
			}
		})
	}
}

// L10, of what is not a rate: 0 tails and 0 uploads are closed, and say so.
func TestClosedTailsAndUploads(t *testing.T) {
	rg := newRig(t, rigOptions{limits: func(l *tenant.Limits) { l.OpenTails, l.Uploads, l.UploadBytes = 0, 0, 0 }})
	tail := rg.Do(t, http.MethodGet, sseTail, key, "")
	if tail.code() != "LIVE_READS_EXHAUSTED" || tail.Header.Get("Retry-After") != "60" || !strings.Contains(tail.Text, "no tails") {
		t.Errorf("a tail: %d %s %v", tail.StatusCode, tail.Text, tail.Header)
	}
	if res := rg.postSize(t, "/acme/s.priv", key, mebibyte+1, false); res.code() != "UPLOADS_EXHAUSTED" {
		t.Errorf("an upload: %d %s", res.StatusCode, res.Text)
	}
	if res := rg.postSize(t, "/acme/s.priv", key, mebibyte, false); res.StatusCode == http.StatusTooManyRequests {
		t.Errorf("a small body: %d %s", res.StatusCode, res.Text)
	}
}

// L16: one account's refused requests used up what another has, or another limit of
// its own. An account is hammered with requests, tails and uploads at a limit of one
// each, and so is its exchange; the other has all of its own, and so has the first of
// what was not asked for.
func TestRefusalsSpendNothingElse(t *testing.T) {
	clock := newHandClock()
	rg := newRig(t, rigOptions{
		change: func(o *Options) {
			clock.counted(o)
			o.Exchanges, o.ExchangesPerSecond = ratelimit.NewMemory(ratelimit.MemoryOptions{Now: clock.now}), 1
		},
		limits: func(l *tenant.Limits) { l.RequestsPerSecond, l.Burst, l.OpenTails, l.Uploads = 1, 20, 1, 1 },
	})
	exchange := func(keyName string) answer {
		t.Helper()
		form := "grant_type=urn:ietf:params:oauth:grant-type:token-exchange&subject_token_type=urn:ietf:params:oauth:token-type:access_token&subject_token=" + rg.Keys[keyName]
		return send(t, http.MethodPost, rg.URL+"/v1/token", "", strings.NewReader(form), "Content-Type", "application/x-www-form-urlencoded")
	}
	// The exchange, until long after it refuses.
	refused := 0
	for range 50 {
		if exchange(key).StatusCode == http.StatusTooManyRequests {
			refused++
		}
	}
	if refused != 48 {
		t.Errorf("%d exchanges of 50 were refused, want all but twice the rate of 1", refused)
	}
	// Its tails and uploads, of which each costs a request.
	tail, cancel := rg.open(t, client(), sseTail, key)
	defer cancel()
	upload := rg.beginBody(t, key, 2*mebibyte, 10, true)
	rg.awaitUploads(t, 1, 2*mebibyte)
	for range 4 {
		if res := rg.Do(t, http.MethodGet, sseTail, key, ""); res.code() != "LIVE_READS_EXHAUSTED" {
			t.Errorf("a second tail: %d %s", res.StatusCode, res.Text)
		}
		if res := rg.postSize(t, "/acme/s.priv", key, 2*mebibyte, true); res.code() != "UPLOADS_EXHAUSTED" {
			t.Errorf("a second upload: %d %s", res.StatusCode, res.Text)
		}
	}
	// Then what is left of its rate, and far more.
	admitted := 0
	for range 100 {
		if rg.Do(t, http.MethodGet, privTarget, key, "").StatusCode == http.StatusOK {
			admitted++
		}
	}
	if tail.StatusCode != http.StatusOK || admitted != 20-10 {
		t.Errorf("a tail %d, and %d reads after 10 other requests of a burst of 20, want 10", tail.StatusCode, admitted)
	}
	// Strangers, and the other account, as if nothing had been.
	for path, keyName := range map[string]string{"/acme/s.pub": "", "/other/s.priv": "other.full"} {
		other, cancel := rg.open(t, client(), path+"?offset=now&live=sse", keyName)
		defer cancel()
		if other.StatusCode != http.StatusOK {
			t.Errorf("tail of %s: %d", path, other.StatusCode)
		}
		for i := range 19 {
			if res := rg.Do(t, http.MethodGet, path+"?offset=-1", keyName, ""); res.StatusCode != http.StatusOK {
				t.Fatalf("read %d of %s: %d %s", i, path, res.StatusCode, res.Text)
			}
		}
		if res := rg.Do(t, http.MethodGet, path+"?offset=-1", keyName, ""); res.code() != "RATE_LIMITED" {
			t.Errorf("%s: over its own burst: %d %s", path, res.StatusCode, res.Text)
		}
	}
	for range 2 {
		if res := exchange("other.full"); res.StatusCode != http.StatusOK {
			t.Errorf("the other's exchange: %d %s", res.StatusCode, res.Text)
		}
	}
	clock.advance(time.Second)
	if res := rg.postSize(t, "/other/s.priv", "other.full", 2*mebibyte, true); res.StatusCode == http.StatusTooManyRequests {
		t.Errorf("the other's upload: %d %s", res.StatusCode, res.Text)
	}
	_ = upload.Close()
	rg.awaitUploads(t, 0, 0)
}

// leases counts what is taken and given back, each lease once.
type leases struct {
	ratelimit.Tails
	taken, given atomic.Int64
}

type countedLease struct {
	ratelimit.Lease
	of    *leases
	given atomic.Bool
}

// Acquire implements ratelimit.Tails.
func (l *leases) Acquire(ctx context.Context, s ratelimit.Subject, limit int) (ratelimit.Lease, error) {
	lease, err := l.Tails.Acquire(ctx, s, limit)
	if err != nil {
		return nil, err
	}
	l.taken.Add(1)
	return &countedLease{Lease: lease, of: l}, nil
}

// Release implements ratelimit.Lease.
func (l *countedLease) Release() {
	if !l.given.Swap(true) {
		l.of.given.Add(1)
	}
	l.Lease.Release()
}

// sometimesPanicking breaks where the request asks for it.
type sometimesPanicking struct{ Upstream }

// Send implements Upstream.
func (p sometimesPanicking) Send(ctx context.Context, r *http.Request, m upstream.Meta) (*http.Response, error) {
	if strings.HasSuffix(r.URL.RawQuery, "way=panic") {
		panic("broken part")
	}
	return p.Upstream.Send(ctx, r, m)
}

// endedTails is how many tails end in all: 10,000 in the long form.
func endedTails() int {
	if os.Getenv("SLUICE_SOAK") == "1" {
		return 10_000
	}
	return 600
}

// L14: of many tails that ended in all ways, at one time, some slots were lost. Both
// protocols, eight ways: the client leaves, before the head (HTTP/2: a reset) or after
// it; the node answers an error, resets before the head or after it, or ends cleanly;
// a part of the gateway panics. A key is revoked under those that are still open.
func TestThousandsOfTailsEndAtZero(t *testing.T) {
	counted := &leases{}
	rg, _ := newUpRig(t, endsItsWay, rigOptions{
		limits: func(l *tenant.Limits) { l.OpenTails = endedTails() },
		change: func(o *Options) {
			counted.Tails, o.Tails = o.Tails, counted
			o.Upstream = sometimesPanicking{o.Upstream}
		},
	})
	clients := []*http.Client{protocols(t)["h1"], protocols(t)["h2"]}
	var ending, staying errgroup.Group
	ending.SetLimit(64)
	stay := 0
	for i := range endedTails() {
		c, way := clients[i%2], tailWays()[i/2%len(tailWays())]
		if way.name == "stay" {
			stay++
			staying.Go(func() error { return rg.endTail(t, c, way) })
			continue
		}
		ending.Go(func() error { return rg.endTail(t, c, way) })
	}
	if err := ending.Wait(); err != nil {
		t.Error(err)
	}
	poll(t, "the slots of all but those that stay", func() bool { return rg.Limits.OpenTails() == stay })
	if err := rg.Directory.RevokeKey("acme/read"); err != nil {
		t.Fatal(err)
	}
	if err := staying.Wait(); err != nil {
		t.Error(err)
	}
	poll(t, "all slots", func() bool { return rg.Limits.OpenTails() == 0 && counted.taken.Load() == counted.given.Load() })
	if taken, all := counted.taken.Load(), int64(endedTails()); taken > all || taken < all*9/10 {
		t.Errorf("%d slots were taken by %d tails", taken, all) // who leaves early may leave before it has one
	}
	if n := rg.Limits.TailsOf(ratelimit.Subject{Account: "acme"}); n != 0 {
		t.Errorf("%d slots of the account are left", n)
	}
}

// tailWay is a way in which a tail ends.
type tailWay struct {
	name   string
	status int // 0: the client does not wait for it
}

func tailWays() []tailWay {
	return []tailWay{
		{"leave", 200},
		{"early", 0},
		{"404", 404},
		{"500", 500},
		{"reset", 502},
		{"cut", 200},
		{"clean", 200},
		{"panic", 500},
		{"stay", 200},
	}
}

// endTail opens a tail that ends in that way. Those that stay have a key of their own.
func (rg *rig) endTail(t *testing.T, c *http.Client, way tailWay) error {
	keyName := key
	if way.name == "stay" {
		keyName = "read"
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	if way.status == 0 {
		defer time.AfterFunc(20*time.Millisecond, cancel).Stop()
	}
	res, err := c.Do(getOf(ctx, t, rg.URL+sseTail+"&way="+way.name, rg.Keys[keyName]))
	switch {
	case way.status == 0 && errors.Is(err, context.Canceled):
		return nil
	case err != nil:
		return fmt.Errorf("%s: %w", way.name, err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != way.status {
		return fmt.Errorf("%s: status %d, want %d", way.name, res.StatusCode, way.status)
	}
	if way.name == "leave" {
		_, err = io.ReadFull(res.Body, make([]byte, 1))
		return err
	}
	text, err := io.ReadAll(res.Body)
	if clean := way.name != "cut"; clean != (err == nil) {
		return fmt.Errorf("%s: ended with %w after %q", way.name, err, text)
	}
	if way.name == "stay" && !strings.Contains(string(text), "credential-expired") {
		return fmt.Errorf("%s: ended with %q", way.name, text)
	}
	return nil
}
