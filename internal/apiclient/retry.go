package apiclient

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Bounds of waiting between two tries.
const (
	firstWait = 250 * time.Millisecond
	maxWait   = 15 * time.Second
	// maxTold is the longest wait that a Retry-After may ask for: a date by a wrong
	// clock would stop a client for good.
	maxTold = 10 * time.Minute
)

// GaveUpError is the last failure of something that was tried for long enough.
type GaveUpError struct {
	After time.Duration
	Err   error
}

func (e *GaveUpError) Error() string {
	return fmt.Sprintf("%v; given up after %v without progress", e.Err, e.After)
}

// Unwrap is the last failure.
func (e *GaveUpError) Unwrap() error { return e.Err }

// pace says when to try again. It is used by one goroutine.
type pace struct {
	c        *Client
	patience time.Duration // without progress; 0 = for ever
	since    time.Time     // of the last progress
	tries    int
	once     bool // only the first failure is told
}

func (c *Client) pace(patience time.Duration) *pace {
	return &pace{c: c, patience: patience, since: c.o.Now()}
}

// progress says that something was done: the next failure is a first one.
func (p *pace) progress() { p.since, p.tries = p.c.o.Now(), 0 }

// wait waits before the next try, or returns an error where there shall be none: err
// itself where it is not temporary, or was hopeless from the start, a *GaveUpError, or
// ctx's. Once something has answered, hope is kept: a network that changes has no names
// for a while.
func (p *pace) wait(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !Temporary(err) || hopeless(err) && !p.c.reached.Load() {
		return err
	}
	delay := p.delay(err)
	if past := p.c.o.Now().Sub(p.since); p.patience > 0 && past+delay > p.patience {
		return &GaveUpError{past.Round(time.Second), err}
	}
	p.tries++
	if !p.once || p.tries == 1 {
		p.c.o.Notice(Notice{err, delay})
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// delay grows by two from firstWait to maxWait, and is half of it to all of it by
// chance. A Retry-After is a wait at least; what comes on top of it by chance keeps
// clients apart that were all told the same.
func (p *pace) delay(err error) time.Duration {
	d := maxWait
	if p.tries < 6 {
		d = min(firstWait<<p.tries, maxWait)
	}
	d = d/2 + time.Duration(p.c.o.Jitter()*float64(d/2))
	var e *Error
	var cut *CutError
	told := time.Duration(0)
	switch {
	case errors.As(err, &e):
		told = min(e.RetryAfter, maxTold)
	case errors.As(err, &cut):
		told = min(cut.Retry, maxWait)
	}
	if told > 0 {
		d = max(d, told+time.Duration(p.c.o.Jitter()*float64(min(told, time.Second))/4))
	}
	return d
}
