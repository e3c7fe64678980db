package upstream

import (
	"context"
	"net/http"
	"time"
)

// attempt is one node that the request is sent to, and how it came to be chosen.
type attempt struct {
	node  *node
	named bool // as the leader, by another node
}

// walk is the way of one request over the nodes.
type walk struct {
	pool  *Pool
	nodes []*node
	meta  Meta
	class class
	key   string // of the leader cache
	query string // as the client sent it

	tried  []*node
	hops   int
	since  time.Time // of the first redirect or refused connection; zero before
	hopped bool      // this attempt is where a redirect led to
	moved  bool      // the request left a node that may have it: this is its one repetition
	sent   bool      // by a node, to another: what succeeds now is done by the leader

	confirm bool // a leader that seemed sure was none: catch-up reads are confirmed
	plain   bool // this attempt asks a sure leader, and not for a confirmation
}

func (w *walk) run(ctx context.Context, req *http.Request) (*http.Response, error) {
	at := attempt{node: w.pool.first(w.nodes, w.key, w.meta)}
	for {
		w.tried = append(w.tried, at.node)
		res, what, err := w.pool.exchange(ctx, req, w, at.node)
		if ctxErr := ctx.Err(); err != nil && ctxErr != nil {
			return nil, ctxErr
		}
		w.hopped = false
		switch {
		case err != nil:
			at, err = w.afterError(at, what, err)
		case isRedirect(res):
			w.hopped = true
			at, err = w.afterRedirect(at, res)
		case w.unsure(res):
			discardAnswer(res)
			w.pool.leads.forget(w.key, at.node)
			w.confirm = true
		default:
			return w.answer(at, res)
		}
		if err != nil {
			return nil, err
		}
	}
}

// maxUnsure is how large an answer may be that is thrown away to be asked for
// again, in bytes. A larger one has more behind it, and the client asks again.
const maxUnsure = 64 << 10

// unsure reports an answer of a node that was taken for the leader and is none: a
// follower leaves Stream-Up-To-Date out, and so does a leader that has more to
// give, of which only the first may be stale.
func (w *walk) unsure(res *http.Response) bool {
	return w.plain && res.StatusCode == http.StatusOK && res.Header.Get("Stream-Up-To-Date") == "" &&
		res.ContentLength >= 0 && res.ContentLength <= maxUnsure
}

// answer passes an answer on, unless it cannot be the client's.
func (w *walk) answer(at attempt, res *http.Response) (*http.Response, error) {
	switch {
	case res.StatusCode < 200 || res.StatusCode > 599:
		discardAnswer(res)
		return nil, w.failed(Failed, at.node, errStatus)
	case isForeignRedirect(res):
		discardAnswer(res)
		return nil, w.failed(Failed, at.node, errRedirectStatus)
	case w.moved && w.class == classKeyed && res.StatusCode/100 != 2:
		// The first node may have applied what the second refuses (facts L22).
		discardAnswer(res)
		return nil, w.failed(TimedOut, at.node, errRepeatRefused)
	}
	w.settle(at.node, res)
	return res, nil
}

// settle learns from an answer: a success after a redirect names the leader, and
// nodes that do not lead; a 503 that asks to come back says that it leads no more.
func (w *walk) settle(n *node, res *http.Response) {
	switch {
	case res.StatusCode < 300 && w.sent:
		w.pool.leaders.learn(w.key, n)
		for _, not := range w.tried {
			if not != n {
				not.cutTails(w.key)
			}
		}
	case res.StatusCode == http.StatusServiceUnavailable && res.Header.Get("Retry-After") != "":
		w.pool.leaders.drop(w.key, n)
	}
}

// failed is the error that the walk ends with. Once a request has left a node
// that may have it, nothing that another says of it proves anything.
func (w *walk) failed(k Kind, n *node, cause error) error {
	if w.moved {
		k = TimedOut
	}
	return &Error{Kind: k, Node: n.base, Err: cause}
}

func (w *walk) afterError(at attempt, what event, cause error) (attempt, error) {
	if what != eventNoRoom {
		w.pool.leaders.drop(w.key, at.node)
	}
	ended := w.failed(kindOf(what), at.node, cause)
	switch table[what][w.class] {
	case actNext:
		// The leader that the others name is the only one that could take it;
		// asking them again would only lead back (facts R17).
		if at.named || w.moved {
			return attempt{}, ended
		}
		return w.toNext(at, ended)
	case actOnce:
		if w.moved {
			return attempt{}, ended
		}
		w.moved, w.sent, w.hops, w.since = true, false, 0, time.Time{}
		if n := w.another(at.node); n != nil {
			return attempt{node: n}, nil
		}
		return attempt{}, ended
	case actSame, actWait, actEnd:
		return attempt{}, ended
	default:
		return attempt{}, ended
	}
}

// another is the node that a request moves to when it leaves n: one that answers
// and was not asked; nil where there is none.
func (w *walk) another(n *node) *node {
	if next := nextUntried(alive(w.nodes), w.nodes, n, w.tried); next != nil && next.up() {
		return next
	}
	return nil
}

func (w *walk) afterRedirect(at attempt, res *http.Response) (attempt, error) {
	w.sent = true
	location, named := res.Header.Get("Location"), namesLeader(res)
	discardAnswer(res)
	w.pool.leaders.drop(w.key, at.node)
	ended := w.failed(NoLeader, at.node, errRedirects)
	n := locate(w.nodes, location)
	switch {
	case w.moved && n != nil && contains(w.tried, n):
		return attempt{}, ended // back to the node that was silent (facts L23)
	case n == nil || contains(w.tried, n) || !n.up() && len(alive(w.nodes)) < len(w.nodes):
		// Unknown, asked already, or ejected while others are not: search.
		return w.toNext(at, ended)
	case !w.mayHop():
		return attempt{}, ended
	}
	w.hops++
	return attempt{node: n, named: named}, nil
}

// toNext goes on in the search order; the walk ends with ended where no node is
// left or no hop may begin any more.
func (w *walk) toNext(at attempt, ended error) (attempt, error) {
	if !w.mayHop() {
		return attempt{}, ended
	}
	n := nextUntried(alive(w.nodes), w.nodes, at.node, w.tried)
	if n == nil {
		return attempt{}, ended
	}
	w.hops++
	return attempt{node: n}, nil
}

// mayHop holds the bounds on hops, and starts their clock.
func (w *walk) mayHop() bool {
	if w.since.IsZero() {
		w.since = time.Now()
	}
	return w.hops < maxHops && time.Since(w.since) < redirectDeadline
}
