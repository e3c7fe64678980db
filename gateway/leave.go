package gateway

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// errLeaving and errTooOld end tails whose readers are to come again.
var (
	errLeaving = errors.New("the gateway is being stopped")
	errTooOld  = errors.New("the tail is older than tails.max_age")
)

// comesAgain reports a reason that has nothing to do with the reader, who resumes
// elsewhere, or here: no event is lost or repeated for it, and there is no event of
// advice (design §5).
func comesAgain(reason error) bool {
	return errors.Is(reason, errLeaving) || errors.Is(reason, errTooOld)
}

// renewal is such a reason, with what the tail's reader is told.
type renewal struct {
	error

	hint []byte
}

func (r *renewal) Unwrap() error { return r.error }

// renew makes a reason for one tail; o.mu is held.
func (o *openTails) renew(why error) *renewal { return &renewal{why, o.retryHint()} }

// hintOf is what a tail ends with that ends for a reason.
func hintOf(reason error) []byte {
	if r, ok := errors.AsType[*renewal](reason); ok {
		return r.hint
	}
	return nil
}

// endingOf is how an answer ended whose tail was ended for a reason.
func endingOf(reason error) ending {
	switch {
	case errors.Is(reason, errLeaving):
		return endDrain
	case errors.Is(reason, errTooOld):
		return endMaxAge
	default:
		return endCredential
	}
}

// Readers of events wait so long before they come again (the HTML standard, "retry");
// each for another time, so that those which are ended together do not come together.
const (
	retryLeast = time.Second
	retryMore  = 2 * time.Second
)

// retryHint is what a tail ends with: no event, but a field that readers of events
// take up. o.mu is held.
func (o *openTails) retryHint() []byte {
	wait := retryLeast + time.Duration(o.random()*float64(retryMore))
	return fmt.Appendf(nil, "retry: %d\n\n", wait.Milliseconds())
}

// fractions are random numbers in [0, 1) of a source that does not fail.
func fractions(random io.Reader) func() float64 {
	return func() float64 {
		var raw [8]byte
		_, _ = io.ReadFull(random, raw[:])
		return float64(binary.BigEndian.Uint64(raw[:])>>11) / (1 << 53)
	}
}

// set puts a clock, a chance and the greatest age in force, for the tails that are
// open too.
func (o *openTails) set(now func() time.Time, random func() float64, maxAge time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.now, o.random = now, random
	if maxAge == o.maxAge {
		return
	}
	o.maxAge = maxAge
	for t := range o.all {
		o.armAge(t)
	}
}

// agePart is the part of tails.max_age that is left to chance.
const agePart = 10

// armAge has the tail ended for its age; o.mu is held. One that is past an age which
// has just come into force has a tenth of it left at most, by chance.
func (o *openTails) armAge(t *openTail) {
	if t.aged != nil {
		t.aged.Stop()
		t.aged = nil
	}
	if o.maxAge <= 0 {
		return
	}
	chance := time.Duration(o.random() * float64(o.maxAge/agePart))
	left := max(o.maxAge-o.maxAge/agePart-o.now().Sub(t.opened), 0)
	t.aged = time.AfterFunc(left+chance, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		t.end(o.renew(errTooOld))
	})
}

// Leave has every answer from now on end its connection, so that clients open another
// one, elsewhere: "Connection: close", and over HTTP/2 a GOAWAY. Requests are served
// as before.
func (g *Gateway) Leave() { g.leaving.Store(true) }

// EndTails ends all live reads, each at a place to resume from, spread evenly over a
// time, and those that begin afterwards at once: streams of events end with a hint
// when to come again, long-polls with what the node has for them at that moment. It
// returns when all were told, or with ctx.
func (g *Gateway) EndTails(ctx context.Context, over time.Duration) { g.open.drain(ctx, over) }

// drainStep is how often some tails are ended.
const drainStep = 10 * time.Millisecond

func (o *openTails) drain(ctx context.Context, over time.Duration) {
	tick := time.NewTicker(drainStep)
	defer tick.Stop()
	begun := time.Now()
	for told := 0; ctx.Err() == nil; {
		part := 1.0
		if over > 0 {
			part = min(float64(time.Since(begun))/float64(over), 1)
		}
		told += o.endSome(part, told)
		if part >= 1 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// endSome ends so many tails that a part of all has been told, those of before included,
// and returns how many. With the last part the door is closed.
func (o *openTails) endSome(part float64, told int) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = part >= 1
	var left []*openTail
	for t := range o.all { // in no order
		if !t.told {
			left = append(left, t)
		}
	}
	n := int(math.Ceil(part*float64(told+len(left)))) - told
	left = left[:max(0, min(n, len(left)))]
	for _, t := range left {
		t.told = true
		t.end(o.renew(errLeaving))
	}
	return len(left)
}

// shortWait is the least that a node waits at a long-poll (facts §2).
const shortWait = time.Millisecond

// askShort makes of a long-poll one that does not wait: its answer is the position to
// go on from, or what has come meanwhile. What "now" is, it is at some moment between
// the client's asking and its answer, as ever.
func askShort(r *http.Request) {
	var kept []string
	for pair := range strings.SplitSeq(r.URL.RawQuery, "&") {
		raw, _, _ := strings.Cut(pair, "=")
		if name, err := url.QueryUnescape(raw); err == nil && name == "timeout_ms" {
			continue
		}
		kept = append(kept, pair)
	}
	r.URL.RawQuery = strings.Join(append(kept, fmt.Sprintf("timeout_ms=%d", shortWait.Milliseconds())), "&")
}
