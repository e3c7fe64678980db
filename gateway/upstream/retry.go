package upstream

// What may be sent again is decided here and nowhere else, from what may have
// reached a node:
//
//	what happened                            may go out again
//	no connection came about                 any request, to another node
//	a kept connection had ended, and not a   any request, to the same node
//	  byte of the request was written
//	the node redirected                      any request, while its body is held
//	anything after a connection stood        nothing
//
// One thing goes again inside net/http: a GET or HEAD whose kept connection
// ended before a byte of the answer goes to the same node on another one (U01).
// A write never does, since GetBody is nil and it has no idempotency key.
//
// "A connection stood" is told by the transport itself (attempt.connected), not
// guessed from an error's text.
type attempt struct {
	node      *node
	connected bool // the request may have reached the node with an effect
	named     bool // the node was named as the leader by another
}

// verdict says how a broken attempt goes on.
type verdict int

const (
	tryNext verdict = iota // another node may take it
	giveUp                 // its outcome is settled, or unknown
)

// judge reads the table for an attempt that ended without an answer.
func judge(a attempt) (verdict, Kind) {
	switch {
	case a.connected:
		return giveUp, Failed
	case a.named:
		// The leader that the others name is the only one that could take it;
		// asking them again would only lead back (facts R17).
		return giveUp, Unreachable
	default:
		return tryNext, Unreachable
	}
}
