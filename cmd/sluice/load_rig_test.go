package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// clientLoad is requests at a rate, of which each has to be answered well.
type clientLoad struct {
	done   atomic.Int64
	begun  time.Time
	cancel context.CancelFunc
	ctx    context.Context //nolint:containedctx // of the load's own goroutines, which stop ends
	wait   sync.WaitGroup
	going  sync.RWMutex // held by each request, and by who has them all wait

	mu     sync.Mutex
	faults []string
}

func newLoad(ctx context.Context) *clientLoad {
	l := &clientLoad{begun: time.Now()}
	l.ctx, l.cancel = context.WithCancel(ctx)
	return l
}

// each does something so many times a second, one after the other: what comes late is
// caught up with. Nothing is broken off.
func (l *clientLoad) each(name string, perSecond float64, do func() error) {
	l.wait.Go(func() {
		due, every := time.Now(), time.Duration(float64(time.Second)/perSecond)
		timer := time.NewTimer(every)
		defer timer.Stop()
		for {
			select {
			case <-l.ctx.Done():
				return
			case <-timer.C:
			}
			due = due.Add(every)
			timer.Reset(time.Until(due.Add(every)))
			l.going.RLock()
			err := do()
			l.going.RUnlock()
			l.done.Add(1)
			if err != nil {
				l.mu.Lock()
				l.faults = append(l.faults, name+": "+err.Error())
				l.mu.Unlock()
			}
		}
	})
}

// pause waits until no request is under way, and begins none until goOn.
func (l *clientLoad) pause() { l.going.Lock() }

func (l *clientLoad) goOn() { l.going.Unlock() }

// stop ends the load and fails on every request that has failed. It gives how many there
// were, and how many a second.
func (l *clientLoad) stop(t *testing.T) (requests int64, perSecond float64) {
	t.Helper()
	l.cancel()
	took := time.Since(l.begun)
	l.wait.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.faults[:min(10, len(l.faults))] {
		t.Error(f)
	}
	if n := len(l.faults); n > 0 {
		t.Errorf("%d of %d requests failed", n, l.done.Load())
	}
	return l.done.Load(), float64(l.done.Load()) / took.Seconds()
}

// awaitMore waits until so many more requests are done.
func (l *clientLoad) awaitMore(t *testing.T, n int64) {
	t.Helper()
	before := l.done.Load()
	eventually(t, "requests are served", func() bool { return l.done.Load() > before+n })
}

// reader reads one small thing again and again on connections that it keeps, or on one
// each. It is for one goroutine.
type reader struct {
	dial        rawDialer
	target, key string
	eachAnew    bool

	conn *rawConn
}

// errUnanswered is no answer, not a byte of it.
var errUnanswered = errors.New("the connection ended before a byte of the answer")

// read reads once. A request on a kept connection that ended before any byte of an answer
// is sent once more.
func (r *reader) read(ctx context.Context) error {
	kept := r.conn != nil
	err := r.once(ctx)
	if kept && errors.Is(err, errUnanswered) {
		err = r.once(ctx)
	}
	return err
}

func (r *reader) once(ctx context.Context) error {
	if r.conn == nil {
		c, err := r.dial.connect(ctx)
		if err != nil {
			return err
		}
		r.conn = c
	}
	closing, err := r.exchange(r.conn)
	if err != nil || closing || r.eachAnew {
		r.close()
	}
	return err
}

func (r *reader) exchange(c *rawConn) (closing bool, err error) {
	if err := c.SetDeadline(time.Now().Add(rawPatience)); err != nil {
		return true, errUnanswered
	}
	id, err := c.ask(http.MethodGet, r.target, r.key)
	if err != nil {
		return true, errors.Join(errUnanswered, err)
	}
	status, err := c.head(id)
	if err != nil || status == "" {
		return true, errors.Join(errUnanswered, err)
	}
	text, whole, err := c.end(id)
	if err != nil || !whole || status != "200" {
		return true, fmt.Errorf("status %s, whole %t, %q: %w", status, whole, text, err)
	}
	delete(c.streams, id)
	return c.away || c.answer != nil && c.answer.Close, nil
}

func (r *reader) close() {
	if r.conn != nil {
		_ = r.conn.Close()
		r.conn = nil
	}
}

// readers adds so many readers to the load, which close with it.
func (l *clientLoad) readers(n int, perSecond float64, r reader) {
	for range n {
		own := r
		l.each(r.dial.String(), perSecond/float64(n), func() error { return own.read(context.WithoutCancel(l.ctx)) })
		context.AfterFunc(l.ctx, func() { l.wait.Wait(); own.close() })
	}
}

// hostOf is the host and port of a URL.
func hostOf(url string) string { return url[strings.Index(url, "//")+2:] }
