package upstream

// What may be sent again is decided here and nowhere else, from what may have
// reached a node:
//
//	what happened                          may go to another node
//	no connection came about               any request
//	the node redirected                    any request, while its body is held
//	anything after a connection stood      nothing
//
// "A connection stood" is told by the transport itself (attempt.connected), not
// guessed from an error's text.
type attempt struct {
	node      *node
	connected bool // the request may have reached the node
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
