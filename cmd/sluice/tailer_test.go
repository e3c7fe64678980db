package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// tailer follows a stream of events, each of which says its own number: 1, 2, 3 and so on.
// It goes on from where it was when a tail ends, as a client does, and knows what it was
// told twice or never.
type tailer struct {
	url, key string
	client   *http.Client

	mu     sync.Mutex
	begun  bool
	next   string // to go on from
	last   int    // the number of the last event
	faults []string
	over   bool // it follows no more
	ends   []tailersEnd
}

// tailersEnd is how one tail ended.
type tailersEnd struct {
	status int    // 0: there was no answer
	last   string // the last event, or what came instead
	err    error  // nil: the end was clean
	at     time.Time
}

func (e tailersEnd) String() string {
	return fmt.Sprintf("status %d, last %q, %v, at %s", e.status, e.last, e.err, e.at.Format("15:04:05.000"))
}

var (
	numbered = regexp.MustCompile(`"n":(\d+)`)
	hinted   = regexp.MustCompile(`^retry: \d{4}$`)
	goOn     = regexp.MustCompile(`"streamNextOffset":"([^"]*)"`)
)

// follow reads one tail to its end.
func (tl *tailer) follow(ctx context.Context) tailersEnd {
	tl.mu.Lock()
	offset := tl.next
	tl.mu.Unlock()
	if offset == "" {
		offset = "now"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, tl.url+"?offset="+offset+"&live=sse", nil)
	if err != nil {
		return tailersEnd{err: err, at: time.Now()}
	}
	req.Header.Set("Authorization", "Bearer "+tl.key)
	res, err := tl.client.Do(req)
	if err != nil {
		return tailersEnd{err: err, at: time.Now()}
	}
	defer func() { _ = res.Body.Close() }()
	end := tailersEnd{status: res.StatusCode}
	var event []string
	lines := bufio.NewReader(res.Body)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			if !errors.Is(err, io.EOF) || line != "" || len(event) > 0 {
				end.err = fmt.Errorf("after %q: %w", event, err)
			}
			end.at = time.Now()
			return end
		}
		if line = strings.TrimSuffix(line, "\n"); line != "" {
			event = append(event, line)
			continue
		}
		if text := strings.Join(event, "\n"); len(event) > 0 && text != ":" {
			end.last = text
			tl.take(text)
		}
		event = event[:0]
	}
}

// take takes one event up. A tail that ends between data and the control event with the
// offset behind it has its client told that data again.
func (tl *tailer) take(event string) {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	switch {
	case strings.HasPrefix(event, "event: data"):
		for _, m := range numbered.FindAllStringSubmatch(event, -1) {
			n, _ := strconv.Atoi(m[1])
			if n != tl.last+1 {
				tl.faults = append(tl.faults, fmt.Sprintf("%d came behind %d", n, tl.last))
			}
			tl.last = n
		}
	case strings.HasPrefix(event, "event: control"):
		if m := goOn.FindStringSubmatch(event); m != nil {
			tl.next, tl.begun = m[1], true
		}
	}
}

// crowd are tailers of one stream.
type crowd struct {
	all  []*tailer
	wait sync.WaitGroup
}

// perConnection is how many tails of a crowd share an HTTP/2 connection.
const perConnection = 50

// newCrowd opens n tails with a key, and waits until all have begun. Each goes on until
// its tail has ended, or with again until ctx ends. Every other share of them has
// connections of their own.
func (e *edge) newCrowd(ctx context.Context, t *testing.T, n int, key string, again bool) *crowd {
	t.Helper()
	c := &crowd{}
	var client *http.Client
	for i := range n {
		if i%perConnection == 0 {
			client = http2()
			if i/perConnection%2 == 1 {
				client = http1()
			}
			t.Cleanup(client.CloseIdleConnections)
		}
		tl := &tailer{url: e.URL + e.path("json"), key: key, client: client}
		c.all = append(c.all, tl)
		c.wait.Go(func() {
			for {
				end := tl.follow(ctx)
				if ctx.Err() != nil {
					return
				}
				tl.mu.Lock()
				tl.ends = append(tl.ends, end)
				tl.over = !again || end.err != nil || end.status != http.StatusOK
				over := tl.over
				tl.mu.Unlock()
				if over {
					return
				}
			}
		})
	}
	if !patiently(func() bool { return c.count(func(tl *tailer) bool { return tl.begun || tl.over }) == n }) {
		t.Fatalf("%d of %d tails have begun", c.count(func(tl *tailer) bool { return tl.begun }), n)
	}
	return c
}

// patiently is eventually for what a thousand do, on a machine that has much else to do.
func patiently(ok func() bool) bool {
	tick, late := time.NewTicker(10*time.Millisecond), time.NewTimer(90*time.Second)
	defer tick.Stop()
	defer late.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-late.C:
			return false
		}
	}
	return true
}

// count counts those of whom something holds.
func (c *crowd) count(holds func(tl *tailer) bool) int {
	n := 0
	for _, tl := range c.all {
		tl.mu.Lock()
		if holds(tl) {
			n++
		}
		tl.mu.Unlock()
	}
	return n
}

// told waits until all were told of an event, and fails on what any was told twice or
// never.
func (c *crowd) told(t *testing.T, last int) {
	t.Helper()
	settled := func(tl *tailer) bool { return tl.last >= last || len(tl.faults) > 0 || tl.over }
	if !patiently(func() bool { return c.count(settled) == len(c.all) }) {
		t.Error("not all are told in time")
	}
	faults := 0
	for i, tl := range c.all {
		tl.mu.Lock()
		if (len(tl.faults) > 0 || tl.last != last) && faults < 10 {
			faults++
			t.Errorf("tail %d of %d: the last event is %d of %d, %v, ends %+v", i, len(c.all), tl.last, last, tl.faults, tl.ends)
		}
		tl.mu.Unlock()
	}
}

// counter appends events with their numbers, one after the other, as a producer does whose
// lost answers cost nothing.
type counter struct {
	e      *edge
	client *http.Client
	mu     sync.Mutex
	n      int
}

// add appends the next event.
func (c *counter) add(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	status, err := c.try(ctx)
	if err != nil && ctx.Err() == nil && !refusedConnection(err) {
		status, err = c.try(ctx) // once more: the connection was closed before an answer
	}
	if err != nil {
		return err
	}
	if status != http.StatusOK && status != http.StatusNoContent {
		return fmt.Errorf("append %d: status %d", c.n+1, status)
	}
	c.n++
	return nil
}

func (c *counter) try(ctx context.Context) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.e.URL+c.e.path("json"), strings.NewReader(fmt.Sprintf(`{"n":%d}`, c.n+1)))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+c.e.Key)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Producer-Id", "counter")
	req.Header.Set("Producer-Epoch", "0")
	req.Header.Set("Producer-Seq", strconv.Itoa(c.n))
	res, err := c.client.Do(req)
	if err != nil {
		return 0, err
	}
	_ = res.Body.Close()
	return res.StatusCode, nil
}

// refusedConnection reports that nobody listened.
func refusedConnection(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// oneEach has a client open a connection for each request.
func oneEach(c *http.Client) {
	if tr, ok := c.Transport.(*http.Transport); ok {
		tr.DisableKeepAlives = true
	}
}
