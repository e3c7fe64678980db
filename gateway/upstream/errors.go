package upstream

import (
	"errors"
	"fmt"
)

// Kind says what became of a request that no node answered, and with it what
// is known of its effect.
type Kind int

// The kinds. NoUpstream, NoRoom, Unreachable and NoLeader prove that no byte of the
// request reached a node that did not send it away; the others prove nothing.
const (
	NoUpstream  Kind = iota // no node is configured
	NoRoom                  // the gateway itself had no connection to spare
	Unreachable             // no node took a connection
	NoLeader                // every node that was asked redirected
	Failed                  // an exchange broke after it may have begun
	TimedOut                // no response head in time
)

// String names the kind as logs and metrics do.
func (k Kind) String() string {
	switch k {
	case NoUpstream:
		return "no_upstream"
	case NoRoom:
		return "no_room"
	case Unreachable:
		return "unreachable"
	case NoLeader:
		return "no_leader"
	case Failed:
		return "failed"
	case TimedOut:
		return "timed_out"
	default:
		return "unknown"
	}
}

// Error is what Pool.Send returns when no node's answer can be given. Its text
// names nodes, so it is for the log only.
type Error struct {
	Kind Kind
	Node string // address of the last node tried; "" for none
	Err  error
}

// Error implements error.
func (e *Error) Error() string {
	if e.Node == "" {
		return e.Kind.String()
	}
	return fmt.Sprintf("%s: node %s: %v", e.Kind, e.Node, e.Err)
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

var (
	errDiscarded      = errors.New("the answer is not wanted")
	errRedirectStatus = errors.New("node answered with a redirect that Ursula does not send")
	errStatus         = errors.New("node answered with a status that HTTP does not have")
	errRedirects      = errors.New("redirects lead to no node that can be used")
	errRepeatRefused  = errors.New("the repetition was refused, which says nothing of the first")
	// ErrNotIdentified says that no node has told its cluster's id yet.
	ErrNotIdentified = errors.New("no node has answered yet")
	// ErrTwoClusters says that the configured nodes belong to different clusters.
	ErrTwoClusters = errors.New("nodes belong to different clusters")
	// ErrNoneAnswers says that every node is ejected.
	ErrNoneAnswers = errors.New("no node answers")
)
