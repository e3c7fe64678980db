package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/tenant"
	"sluice/ratelimit"
)

// handClock is a clock that a test moves.
type handClock struct {
	mu sync.Mutex
	at time.Time
}

func newHandClock() *handClock { return &handClock{at: time.Now()} }

func (c *handClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *handClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// counted has the rates counted on a clock of the test's.
func (c *handClock) counted(o *Options) {
	o.Limiter = ratelimit.NewMemory(ratelimit.MemoryOptions{Now: c.now})
}

// rateFields are the headers of a 429 that tell of its rate.
func rateFields(res answer) map[string]string {
	fields := map[string]string{}
	for _, name := range []string{"Retry-After", "RateLimit", "RateLimit-Policy"} {
		fields[name] = res.Header.Get(name)
	}
	return fields
}

// Facts Q1: the burst passes, then 429 with a time of at least a second, and nothing
// is forwarded; the bucket refills at its rate, and only it: a refused request costs
// nothing, and other accounts and strangers have their own.
func TestRateLimit(t *testing.T) {
	clock := newHandClock()
	rg := newRig(t, rigOptions{
		limits: func(l *tenant.Limits) { l.RequestsPerSecond, l.Burst = 2, 5 },
		change: clock.counted,
	})
	ask := func(path, keyName string) int {
		t.Helper()
		return rg.Do(t, http.MethodGet, path, keyName, "").StatusCode
	}
	for i := range 5 {
		if got := ask(privTarget, key); got != http.StatusOK {
			t.Fatalf("request %d of the burst: %d", i, got)
		}
	}
	rg.Cluster.ResetRequests()
	for range 20 {
		res := rg.Do(t, http.MethodGet, privTarget, key, "")
		want := map[string]string{"Retry-After": "1", "RateLimit": `"requests";r=0;t=1`, "RateLimit-Policy": `"requests";q=5;w=3`}
		if diff := cmp.Diff(want, rateFields(res)); res.StatusCode != http.StatusTooManyRequests || res.code() != "RATE_LIMITED" || diff != "" {
			t.Fatalf("over the burst: %d %s, headers (-want +got):\n%s", res.StatusCode, res.Text, diff)
		}
	}
	if seen := rg.reached(); len(seen) != 0 {
		t.Errorf("the node saw %q, want nothing", seen)
	}
	for who, got := range map[string]int{
		"another account":                  ask("/other/s.priv?offset=-1", "other.full"),
		"a stranger":                       ask("/acme/s.pub?offset=-1", ""),
		"another account's key, as anyone": ask("/acme/s.pub?offset=-1", "other.full"),
	} {
		if got != http.StatusOK {
			t.Errorf("%s: %d", who, got)
		}
	}
	for step, want := range []int{429, 200, 429, 200} { // half a second a request
		if clock.advance(250 * time.Millisecond); ask(privTarget, key) != want {
			t.Errorf("after %d steps of 250 ms: not %d", step+1, want)
		}
	}
	// After a pause of any length there is the burst and no more.
	clock.advance(time.Hour)
	admitted := 0
	for range 20 {
		if ask(privTarget, key) == http.StatusOK {
			admitted++
		}
	}
	if admitted != 5 {
		t.Errorf("%d admitted after an hour, want the burst of 5", admitted)
	}
}

// Facts Q2: an account's limit below the others' is the one that is named, and holds
// for it alone.
func TestAccountsOwnBodyLimit(t *testing.T) {
	rg := newRig(t, rigOptions{})
	content := rg.Content
	content.Accounts = append([]tenant.Account(nil), content.Accounts...)
	for i := range content.Accounts {
		if content.Accounts[i].ID == "acme" {
			content.Accounts[i].Limits.RequestBytes = 1000
		}
	}
	if err := rg.Directory.Replace(content); err != nil {
		t.Fatal(err)
	}
	body := `"` + strings.Repeat("x", 999) + `"`
	for _, in := range []io.Reader{strings.NewReader(body), undeclared{strings.NewReader(body)}} {
		res := send(t, http.MethodPost, rg.URL+"/acme/s.priv", rg.Keys[key], in, "Content-Type", rigType)
		if res.StatusCode != http.StatusRequestEntityTooLarge || res.code() != "REQUEST_TOO_LARGE" || res.Header.Get(maxRequestBytesHeader) != "1000" {
			t.Errorf("%T: got %d %s %v", in, res.StatusCode, res.Text, res.Header)
		}
	}
	if seen := rg.reached(); len(seen) != 0 {
		t.Errorf("the node saw %q, want nothing", seen)
	}
	if res := rg.Do(t, http.MethodPost, "/acme/s.priv", key, body[1:len(body)-2]+`"`, "Content-Type", rigType); res.StatusCode == http.StatusRequestEntityTooLarge {
		t.Errorf("up to the limit: %d %s", res.StatusCode, res.Text)
	}
	if res := rg.Do(t, http.MethodPost, "/other/s.priv", "other.full", body, "Content-Type", rigType); res.StatusCode != http.StatusNoContent {
		t.Errorf("another account: %d %s", res.StatusCode, res.Text)
	}
}

// Facts Q3: a second live read at a limit of one is 429 and not forwarded, whichever
// the two are; the slot is free when the first ends. Other reads and HEAD take none.
func TestOpenTailLimit(t *testing.T) {
	const longPoll = "/acme/s.priv?offset=now&live=long-poll&timeout_ms=60000"
	for name, first := range map[string]string{"sse": sseTail, "long-poll": longPoll} {
		for protocol, c := range protocols(t) {
			t.Run(name+" "+protocol, func(t *testing.T) {
				rg := newRig(t, rigOptions{limits: func(l *tenant.Limits) { l.OpenTails = 1 }})
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				left := make(chan error, 1)
				go func() {
					res, err := c.Do(getOf(ctx, t, rg.URL+first, rg.Keys[key]))
					if err == nil {
						_, err = io.Copy(io.Discard, res.Body)
						_ = res.Body.Close()
					}
					left <- err
				}()
				if err := rg.Cluster.WaitTails(ctx, 1); err != nil {
					t.Fatal(err)
				}
				rg.Cluster.ResetRequests()
				for _, second := range []string{sseTail, longPoll} {
					res := rg.Do(t, http.MethodGet, second, key, "")
					if res.StatusCode != http.StatusTooManyRequests || res.code() != "LIVE_READS_EXHAUSTED" || res.Header.Get("Retry-After") != "1" {
						t.Errorf("a second: %d %s %v", res.StatusCode, res.Text, res.Header)
					}
				}
				if seen := rg.reached(); len(seen) != 0 {
					t.Errorf("the node saw %q, want nothing", seen)
				}
				for _, method := range []string{http.MethodGet, http.MethodHead} {
					if res := rg.Do(t, method, privTarget, key, ""); res.StatusCode != http.StatusOK {
						t.Errorf("%s without live: %d", method, res.StatusCode)
					}
				}
				leave()
				if err := <-left; !errors.Is(err, context.Canceled) {
					t.Errorf("the first: %v", err)
				}
				poll(t, "the slot", func() bool { return rg.Limits.OpenTails() == 0 })
				res, cancel := rg.open(t, c, sseTail, key)
				defer cancel()
				if res.StatusCode != http.StatusOK {
					t.Errorf("after the first has ended: %d", res.StatusCode)
				}
			})
		}
	}
}

func getOf(ctx context.Context, t *testing.T, url, bearer string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Error(err)
		return &http.Request{}
	}
	req.Header.Set("Authorization", "Bearer "+bearer)
	return req
}

// Facts U7, U8: an upload waits for the budget, and passes when there is room within
// its time; one whose client leaves meanwhile gives its claim and its slot up, and is
// booked as one that left, not as refused (S12).
func TestUploadThatWaitsForTheBudget(t *testing.T) {
	rg, nodes := newUploadRig(t, 2, 1<<40, func(o *Options) {
		o.Budget, o.Pace.BudgetWait = NewBodyBudget(8*mebibyte), 20*time.Second
	})
	budget := rg.Options.Budget
	other := &reservation{budget: budget}
	if !tryResize(t, other, 7*mebibyte) {
		t.Fatal("no room for the first")
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	// Over HTTP/2, where leaving is seen while the body has not been read.
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, rg.URL+"/acme/s.priv", strings.NewReader(strings.Repeat("1", 3*mebibyte)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+rg.Keys[key])
	left := make(chan error, 1)
	go func() {
		res, err := protocols(t)["h2"].Do(req)
		if err == nil {
			err = fmt.Errorf("answered %d", res.StatusCode)
			_ = res.Body.Close()
		}
		left <- err
	}()
	poll(t, "the upload waits", func() bool { return waiting(budget) })
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	rg.awaitUploads(t, 0, 0)
	poll(t, "its claim given up", func() bool { return budget.Used() == 7*mebibyte && !waiting(budget) })
	if line := rg.awaitLines(t, 1)[0]; line["status"] != float64(499) || line["end"] != string(endClientClosed) || line["code"] != nil {
		t.Errorf("the access line: %v", line)
	}
	nodes.none(t)

	h := rg.beginBody(t, key, 3*mebibyte, mebibyte+1, true)
	poll(t, "the upload waits", func() bool { return waiting(budget) })
	rg.awaitUploads(t, 1, 3*mebibyte)
	other.release()
	h.finish(t, rg)
	<-nodes.came
	nodes.leave <- struct{}{}
	if res := h.answer(t); res.StatusCode != http.StatusNoContent {
		t.Errorf("after room was made: %d %s", res.StatusCode, res.Text)
	}
}

// Facts U9: a body over the account's limit reserves nothing and takes no slot where
// it says so itself; where it is found out, both are back before what is left of it
// has been read to its end.
func TestTooLargeAnUploadHoldsNothing(t *testing.T) {
	taken := &takenUploads{}
	rg := newRig(t, rigOptions{
		limits: func(l *tenant.Limits) { l.RequestBytes = 2 * mebibyte },
		change: func(o *Options) {
			o.MaxRequestBytes = 8 * mebibyte
			taken.Uploads, o.Uploads = o.Uploads, taken
		},
	})
	declared := rg.beginBody(t, key, 2*mebibyte+1, 2*mebibyte+1, true)
	if res := declared.answer(t); res.code() != "REQUEST_TOO_LARGE" {
		t.Errorf("declared: %d %s", res.StatusCode, res.Text)
	}
	if n := taken.taken.Load(); n != 0 {
		t.Errorf("a body that is declared too large took %d slots", n)
	}
	found := rg.beginBody(t, key, 4*mebibyte, 2*mebibyte+1, false)
	poll(t, "its slot taken", func() bool { return taken.taken.Load() == 1 })
	rg.awaitUploads(t, 0, 0)
	poll(t, "the budget given back", func() bool { return rg.Budget.Used() == 0 })
	found.finish(t, rg)
	if res := found.answer(t); res.code() != "REQUEST_TOO_LARGE" || res.Close {
		t.Errorf("found out: %d %s, close %t", res.StatusCode, res.Text, res.Close)
	}
	if got := drained(t, rg, "read"); got != 2 {
		t.Errorf("%v bodies counted as read, want both", got)
	}
	if seen := rg.reached(); len(seen) != 0 {
		t.Errorf("the node saw %q, want nothing", seen)
	}
}
