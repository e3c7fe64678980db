package upstream

import (
	"net/http"
	"time"
)

// Trail is what became of one request on its way over the nodes, for a log. It is
// written by the goroutine that calls Send, and read when that has returned.
type Trail struct {
	// Node is the host and port of the node that was asked last; "" = none was.
	Node string
	// Attempts counts the nodes' turns, one that is asked twice twice.
	Attempts int
	// Redirects counts the attempts that a node's redirect led to, Retries the others
	// beyond the first: another node took what one did not, or a leader was asked again.
	Redirects, Retries int
	// Took is how long the heads of the answers took, those of all attempts together.
	Took time.Duration
	// Attempt, where not nil, is told of each attempt before it begins; it may set
	// headers of it. What it returns is told how it ended: the status, 0 for none, and
	// the outcome, as Observer.Exchanged has it.
	Attempt func(a Attempt, header http.Header) (ended func(status int, outcome string))
}

// Attempt is one node's turn.
type Attempt struct {
	Node string // its host and port
	// Number counts from 1.
	Number int
	// Redirected says that a node's redirect led to it.
	Redirected bool
}

// begin notes an attempt. A nil trail notes nothing.
func (t *Trail) begin(n *node, w *walk, h http.Header) func(int, string) {
	if t == nil {
		return nil
	}
	t.Node = n.host
	t.Attempts++
	switch {
	case w.hopped:
		t.Redirects++
	case len(w.tried) > 1:
		t.Retries++
	}
	if t.Attempt == nil {
		return nil
	}
	return t.Attempt(Attempt{Node: n.host, Number: t.Attempts, Redirected: w.hopped}, h)
}
