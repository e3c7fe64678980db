package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// stopTrial is what is under way when the program is told to stop.
type stopTrial struct {
	secure                bool // over TLS
	tails, reads, appends int
	delay, drain          time.Duration
}

func theStopTrials() []stopTrial {
	if soak() {
		whole := stopTrial{tails: 1000, reads: 200, appends: 50, delay: 3 * time.Second, drain: 30 * time.Second}
		secure := whole
		secure.secure = true
		return []stopTrial{whole, secure}
	}
	return []stopTrial{
		{tails: 200, reads: 20, appends: 10, delay: 2 * time.Second, drain: 8 * time.Second},
		{secure: true, tails: 60, reads: 8, appends: 6, delay: 2 * time.Second, drain: 4 * time.Second},
	}
}

const largeRead = 5 << 20

// G05, O05, O06: a stop cut what was under way, or waited for streams for ever. With tails,
// large reads and half-sent appends under way, and requests that go on coming: it is not
// ready at once but serves on for a while, each answer with "Connection: close"; then all
// reads are whole, or refused before a byte; all appends answered; the tails end one after
// the other, with the hint; and it ends with 0, in time. Both protocols, in clear text and
// over TLS.
func TestStopLosesNothing(t *testing.T) {
	for _, tr := range theStopTrials() {
		t.Run(fmt.Sprintf("TLS=%t", tr.secure), tr.run)
	}
}

func (tr stopTrial) run(t *testing.T) {
	sections := "watch: false\nlog: {level: warn}\n"
	if tr.secure {
		sections += "tls: {mode: internal}\n"
	}
	p := startRoomy(t, nodeApart(t), "drain_delay: 0s", "drain_delay: "+tr.delay.String(), "drain_timeout: 2s", "drain_timeout: "+tr.drain.String(),
		"streams:\n", "streams:\n      - {name: large, content_type: application/octet-stream}\n", "watch: false\n", sections)
	ctx, cancel := context.WithTimeout(t.Context(), tr.delay+tr.drain+time.Minute)
	defer cancel()
	content := make([]byte, largeRead)
	for i := range content {
		content[i] = byte(rand.Uint32()) //nolint:gosec // any bytes
	}
	want(t, p.do(t, http.MethodPost, p.edge.path("large"), content, "Content-Type", "application/octet-stream"), http.StatusNoContent)
	crowd := p.newCrowd(ctx, t, tr.tails, p.Key, false)
	reads := make([]*slowRead, 0, tr.reads)
	for i := range tr.reads {
		reads = append(reads, p.beginRead(t, i))
	}
	appends := make([]*halfAppend, 0, tr.appends)
	for i := range tr.appends {
		appends = append(appends, p.beginAppend(t, i))
	}
	writer := &counter{e: p.edge, client: http1()}
	must(t, writer.add(ctx))
	crowd.told(t, 1)

	stopped := time.Now()
	must(t, p.cmd.Process.Signal(syscall.SIGTERM))
	visitors := p.visit(ctx, content)
	eventually(t, "it is not ready", func() bool { return answersWith(t, p.Admin+"/readyz", http.StatusServiceUnavailable, 5*time.Second) })
	if res := p.do(t, http.MethodGet, p.edge.path("json"), nil); res.StatusCode != http.StatusOK || !res.Close {
		t.Errorf("within drain_delay: %d, closing %t", res.StatusCode, res.Close)
	}
	must(t, writer.add(ctx)) // the tails are told as before
	crowd.told(t, 2)
	var wait sync.WaitGroup
	few := make(chan struct{}, 4) // all at one time would leave the node no time to answer
	for _, r := range reads {
		wait.Go(func() {
			few <- struct{}{}
			r.finish(t, content)
			<-few
		})
	}
	eventually(t, "no connection is taken", func() bool {
		c, err := net.Dial("tcp", hostOf(p.URL)) //nolint:noctx // on this machine
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	for _, a := range appends { // the rest of each comes when nobody listens any more
		wait.Go(func() { a.finish(t) })
	}
	wait.Wait()
	crowd.wait.Wait()
	select {
	case err := <-p.exited:
		if took := time.Since(stopped); err != nil || took > tr.delay+tr.drain+30*time.Second {
			t.Errorf("exit after %v: %v", took, err)
		}
	case <-ctx.Done():
		t.Fatal("it did not end")
	}
	crowd.endedByDrain(t, stopped, tr)
	if whole, refused := visitors(t); whole == 0 || refused == 0 {
		t.Errorf("of those that came meanwhile %d were served whole and %d refused; want some of both", whole, refused)
	}
}

// endedByDrain checks the tails' ends: with a hint, clean, and spread.
func (c *crowd) endedByDrain(t *testing.T, stopped time.Time, tr stopTrial) {
	t.Helper()
	ends := make([]time.Duration, 0, len(c.all))
	for i, tl := range c.all {
		end := tl.ends[0]
		if end.err != nil || !hinted.MatchString(end.last) || tl.last != 2 {
			t.Fatalf("tail %d: told %d, %+v", i, tl.last, end)
		}
		ends = append(ends, end.at.Sub(stopped))
	}
	slices.Sort(ends)
	n := len(ends)
	t.Logf("tails ended %v to %v after the signal, half of them by %v", ends[0].Round(time.Millisecond), ends[n-1].Round(time.Millisecond), ends[n/2].Round(time.Millisecond))
	if spread := ends[n*9/10] - ends[n/10]; ends[0] < tr.delay || spread < tr.drain/3 {
		t.Errorf("the first tail ended %v after the signal, and four fifths of them within %v", ends[0], spread)
	}
}

// slowRead is a large read whose client has taken a part of it.
type slowRead struct {
	conn *rawConn
	id   uint32
}

// beginRead takes a part of the i-th large read: every other one is over HTTP/2.
func (r *replica) beginRead(t *testing.T, i int) *slowRead {
	t.Helper()
	read := &slowRead{conn: r.slow(t, i)}
	var err error
	read.id, err = read.conn.ask(http.MethodGet, r.edge.path("large")+"?offset=-1", r.Key)
	must(t, err)
	if status, err := read.conn.head(read.id); err != nil || status != "200" {
		t.Fatalf("%s %v", status, err)
	}
	must(t, read.conn.take(read.id, 64<<10))
	return read
}

// slow is a connection whose client keeps little of what it does not read.
func (r *replica) slow(t *testing.T, i int) *rawConn {
	t.Helper()
	conn, err := rawDialer{address: hostOf(r.URL), secure: strings.HasPrefix(r.URL, "https:"), h2: i%2 == 1, buffer: 64 << 10}.connect(t.Context())
	must(t, err)
	must(t, conn.SetDeadline(time.Time{})) // the test has one
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (r *slowRead) finish(t *testing.T, content []byte) {
	got, whole, err := r.conn.end(r.id)
	if err != nil || !whole || got != string(content) {
		t.Errorf("a read that was under way: %d bytes of %d, whole %t, %v", len(got), len(content), whole, err)
	}
}

// halfAppend is an append of which the half was sent.
type halfAppend struct {
	conn *rawConn
	id   uint32
	rest string
}

func (r *replica) beginAppend(t *testing.T, i int) *halfAppend {
	t.Helper()
	a := &halfAppend{conn: r.slow(t, i)}
	body := fmt.Sprintf("append %d %s\n", i, strings.Repeat("x", 2000))
	var err error
	a.id, err = a.conn.begin(http.MethodPost, r.edge.path("text"), r.Key, false, "content-type", "text/plain", "content-length", strconv.Itoa(len(body)))
	must(t, err, a.conn.send(a.id, body[:1000], false))
	a.rest = body[1000:]
	return a
}

func (a *halfAppend) finish(t *testing.T) {
	if err := a.conn.send(a.id, a.rest, true); err != nil {
		t.Errorf("the rest of an append: %v", err)
		return
	}
	status, err := a.conn.head(a.id)
	if err != nil || status != "204" && status != "200" {
		t.Errorf("an append was not answered: %q, %v", status, err)
	}
	if answer := a.conn.answer; answer != nil && !answer.Close {
		t.Error("the answer to an append does not end its connection")
	}
}

// visit makes large reads, one after the other, on new connections and on kept ones of both
// protocols, until
// one finds nobody. What it returns waits for that, and tells how many were served.
func (r *replica) visit(ctx context.Context, content []byte) func(t *testing.T) (whole, refused int) {
	type result struct {
		whole, refused int
		faults         []string
	}
	done := make(chan result, 4)
	for i := range cap(done) {
		c := http1()
		if i == 3 {
			c = http2()
		}
		if i == 0 {
			oneEach(c)
		}
		go func() {
			var got result
			pause := time.NewTicker(100 * time.Millisecond)
			defer pause.Stop()
			for got.refused == 0 && ctx.Err() == nil {
				<-pause.C
				n, err := r.readOnce(ctx, c, content)
				switch {
				case err == nil:
					got.whole++
				case n == 0: // not a byte of an answer
					got.refused++
				default:
					got.faults = append(got.faults, err.Error())
					got.refused++
				}
			}
			c.CloseIdleConnections()
			done <- got
		}()
	}
	return func(t *testing.T) (whole, refused int) {
		t.Helper()
		for range cap(done) {
			got := <-done
			whole, refused = whole+got.whole, refused+got.refused
			for _, f := range got.faults {
				t.Errorf("a read that came meanwhile: %s", f)
			}
		}
		return whole, refused
	}
}

// readOnce reads the large stream; n is how much of an answer came.
func (r *replica) readOnce(ctx context.Context, c *http.Client, content []byte) (n int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL+r.edge.path("large")+"?offset=-1", nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+r.Key)
	res, err := c.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }()
	got, err := io.ReadAll(res.Body)
	if err == nil && (res.StatusCode != http.StatusOK || !bytes.Equal(got, content)) {
		err = errors.New("another answer")
	}
	if err != nil {
		return 1, fmt.Errorf("%d, %d bytes: %w", res.StatusCode, len(got), err)
	}
	return len(got), nil
}
