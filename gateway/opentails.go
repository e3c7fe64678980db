package gateway

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"sluice/auth"
	"sluice/internal/refusal"
	"sluice/internal/tenant"
	"sluice/ratelimit"
)

// lookAgain is when a tail is looked at once more of which it could not be told
// whether its credential still stands.
const lookAgain = time.Second

// openTails are the live reads open now. A change of what they stand on (a key,
// an account, a stream's being public) is looked at for each that it may concern,
// under the rules then in force, and ends those that are not allowed any more. It
// is safe for concurrent use; it has a goroutine only while there is something to
// look at.
type openTails struct {
	// check says whether a tail may go on, and what its credential stands for now.
	check func(ctx context.Context, t *openTail) (*auth.Principal, error)

	mu      sync.Mutex
	now     func() time.Time
	all     map[*openTail]struct{}
	due     map[*openTail]struct{} // to be looked at; of open ones only, which bounds it
	looking bool
	idle    chan struct{} // closed when nothing is being looked at

	// What subjects have open, and of how many they may; of those with open tails only.
	use map[ratelimit.Subject]tailUse

	random func() float64 // in [0, 1)
	maxAge time.Duration  // 0 = any
	closed bool           // each is ended as it comes
}

// tailUse is how many tails a subject has open, of how many at most, by what was in
// force when the last of them was opened.
type tailUse struct{ open, limit int }

// openTail is one live read.
type openTail struct {
	route  Route
	whose  ratelimit.Subject       // who has a slot less for it
	limit  int                     // of its tails
	client context.Context         // of the client's request; it outlives the exchange with the node
	cancel context.CancelCauseFunc // of the exchange with the node

	principal *auth.Principal // as it was let in

	expires time.Time   // as its credential stood last, zero = never; guarded by openTails.mu
	again   *time.Timer // looks at it, at its expiry or before; guarded by openTails.mu
	opened  time.Time   // guarded by openTails.mu
	aged    *time.Timer // ends it for its age; nil = nothing does; guarded by openTails.mu
	told    bool        // to end, at the end of the gateway; guarded by openTails.mu

	mu     sync.Mutex
	reason error // that it was ended for
	events *eventBody
	begun  bool // the answer's head is on its way: it is no refusal's place any more
}

// end ends the tail for a reason: before the head as a refusal, a stream of events
// with a last event, at the next boundary. A long-poll whose head has come is let
// go on: its body is there. A tail whose reader may come again is ended as kindly as
// comesAgain says, and may be ended once more for a reason of the other kind.
func (t *openTail) end(reason error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reason != nil && (!comesAgain(t.reason) || comesAgain(reason)) || t.begun && t.events == nil {
		return
	}
	t.reason = reason
	switch {
	case comesAgain(reason) && t.events != nil:
		t.events.endToResume(hintOf(reason))
	case comesAgain(reason) && t.route.Tail == SSE:
		// Its head comes at once, and its end with it.
	case t.events != nil:
		t.events.end([]byte(credentialExpired))
	default:
		t.cancel(reason)
	}
}

// leave makes end do nothing from now on.
func (t *openTail) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begun = true
	if t.events != nil {
		t.events.stop()
	}
}

// ended is the reason for which the tail was ended; nil for none.
func (t *openTail) ended() error {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reason
}

// answered reports whether what a node has said to a long-poll is the answer, which
// nothing ends from then on but its own end. Else it was ended for a reader that comes
// again, and what was said is cut or none.
func (t *openTail) answered(err error) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reason == nil {
		t.begun = err == nil
		return true
	}
	return !comesAgain(t.reason)
}

// begin makes the answer's body end with the tail. Its error is the reason where
// the tail has ended while the head came.
func (t *openTail) begin(events *eventBody) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reason != nil && !comesAgain(t.reason) {
		return t.reason
	}
	t.events, t.begun = events, true
	if t.reason != nil && events != nil {
		events.endToResume(hintOf(t.reason))
	}
	return nil
}

// add opens a tail; remove has to be called when it is over.
func (o *openTails) add(t *openTail) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all, o.due = make(map[*openTail]struct{}), make(map[*openTail]struct{})
	}
	o.all[t] = struct{}{}
	if o.use == nil {
		o.use = make(map[ratelimit.Subject]tailUse)
	}
	o.use[t.whose] = tailUse{o.use[t.whose].open + 1, t.limit}
	t.opened = o.now()
	o.arm(t, t.principal)
	o.armAge(t)
	if o.closed {
		t.end(o.renew(errLeaving))
	}
}

func (o *openTails) remove(t *openTail) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.all, t)
	delete(o.due, t)
	if use := o.use[t.whose]; use.open > 1 {
		o.use[t.whose] = tailUse{use.open - 1, use.limit}
	} else {
		delete(o.use, t.whose)
	}
	if t.again != nil {
		t.again.Stop()
	}
	if t.aged != nil {
		t.aged.Stop()
	}
}

// byKind counts the open tails of each kind.
func (o *openTails) byKind() map[string]float64 {
	kinds := map[string]float64{LongPoll.String(): 0, SSE.String(): 0}
	o.mu.Lock()
	defer o.mu.Unlock()
	for t := range o.all {
		kinds[t.route.Tail.String()]++
	}
	return kinds
}

// largestShare is the greatest part of its limit that a subject has open.
func (o *openTails) largestShare() (share float64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, use := range o.use {
		share = max(share, float64(use.open)/float64(max(use.limit, 1)))
	}
	return share
}

// concerns reports whether a change may concern the tail: it is about the stream's
// account, or the credential's, or everybody.
func (t *openTail) concerns(c tenant.Change) bool {
	switch c.Kind {
	case tenant.KeyChanged, tenant.AccountChanged, tenant.StreamChanged:
		return c.Account == t.route.Account || t.principal != nil && c.Account == t.principal.Account
	case tenant.SigningKeysChanged, tenant.Everything:
		return true
	default:
		return true
	}
}

// arm has the tail looked at when its credential expires; o.mu is held.
func (o *openTails) arm(t *openTail, p *auth.Principal) {
	t.expires = time.Time{}
	if p != nil {
		t.expires = p.ExpiresAt
	}
	if !t.expires.IsZero() {
		o.armFor(t, t.expires.Sub(o.now()))
	} else if t.again != nil {
		t.again.Stop()
		t.again = nil
	}
}

// armFor has the tail looked at after a time, in place of what was to be; o.mu is
// held.
func (o *openTails) armFor(t *openTail, after time.Duration) {
	if t.again != nil {
		t.again.Stop()
	}
	t.again = time.AfterFunc(after, func() { o.lookAt(t) })
}

// changed is for tenant.Directory's Watch: it does not block.
func (o *openTails) changed(c tenant.Change) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for t := range o.all {
		if t.concerns(c) {
			o.due[t] = struct{}{}
		}
	}
	o.start()
}

func (o *openTails) lookAt(t *openTail) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, open := o.all[t]; open {
		o.due[t] = struct{}{}
		o.start()
	}
}

// start begins to look at what is due, if nobody does; o.mu is held.
func (o *openTails) start() {
	if o.looking || len(o.due) == 0 {
		return
	}
	o.looking, o.idle = true, make(chan struct{})
	go o.look()
}

// look looks at the tails that are due until none is.
func (o *openTails) look() {
	for {
		o.mu.Lock()
		var next *openTail
		for t := range o.due {
			next = t
			break
		}
		if next == nil {
			o.looking = false
			close(o.idle)
			o.mu.Unlock()
			return
		}
		delete(o.due, next)
		o.mu.Unlock()
		o.lookOnce(next)
	}
}

func (o *openTails) lookOnce(t *openTail) {
	ctx, cancel := context.WithTimeout(context.Background(), lookAgain)
	defer cancel()
	p, err := o.check(ctx, t)
	// A tail of which it cannot be told whether it is allowed goes on, but not for longer
	// than what was known of it may be used (store.stale_for).
	if err == nil || unsure(err) && !errors.Is(err, tenant.ErrStale) {
		err = o.goOn(t, p, err)
	}
	if err != nil {
		t.end(err)
	}
}

// goOn has a tail looked at again when it has to be: one that is allowed when its
// credential expires, one of which that could not be told soon. The error is
// ErrCredentialExpired where a credential of which nothing is told has come to
// the expiry that it had: that needs nobody's word.
func (o *openTails) goOn(t *openTail, p *auth.Principal, unsure error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, open := o.all[t]; !open {
		return nil
	}
	if unsure == nil {
		// Its rights may be others now; whose they are never changes, nor where it is
		// found by.
		o.arm(t, p)
		return nil
	}
	wait := lookAgain
	if !t.expires.IsZero() {
		left := t.expires.Sub(o.now())
		if left <= 0 {
			return auth.ErrCredentialExpired
		}
		wait = min(wait, left)
	}
	o.armFor(t, wait)
	return nil
}

// unsure reports an error that does not say that the tail is not allowed, but
// that it could not be told.
func unsure(err error) bool {
	var ref *refusal.Refusal
	return errors.Is(err, auth.ErrUnavailable) || errors.Is(err, tenant.ErrUnavailable) ||
		errors.As(err, &ref) && (ref.Code == refusal.AuthenticationUnavailable || ref.Code == refusal.AuthorizationUnavailable)
}

// close waits until nothing is being looked at.
func (o *openTails) close() {
	o.mu.Lock()
	idle := o.idle
	o.mu.Unlock()
	if idle != nil {
		<-idle
	}
}

// live makes a live read end with what it stands on.
func (c *chain) live(next handler) handler {
	return func(s *Scope, w http.ResponseWriter, r *http.Request) error {
		if s.Route.Tail == NoTail {
			return next(s, w, r)
		}
		ctx, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		t := &openTail{route: s.Route, whose: s.subject(), limit: s.Account.Limits.OpenTails, client: r.Context(), cancel: cancel, principal: s.Principal}
		c.open.add(t)
		defer t.leave()
		defer c.open.remove(t)
		// What has changed since it was looked at was announced to others, and another
		// chain may be in force.
		if _, err := c.open.check(ctx, t); err != nil {
			return err
		}
		s.tail, s.answer.stall = t, c.Pace.TailWrite
		err := next(s, w, r.WithContext(ctx))
		if reason := t.ended(); reason != nil {
			if err != nil && !comesAgain(reason) {
				return reason
			}
			s.end = endingOf(reason)
		}
		return err
	}
}

// recheck says whether a tail may still be read, under the rules of this chain.
func (c *chain) recheck(ctx context.Context, t *openTail) (*auth.Principal, error) {
	p, err := c.Authenticator.Recheck(ctx, t.principal)
	if err != nil {
		return nil, err
	}
	if _, _, err := c.access(ctx, p, t.route); err != nil {
		return nil, err
	}
	_, err = c.accountOf(ctx, t.route.Account)
	return p, err
}
