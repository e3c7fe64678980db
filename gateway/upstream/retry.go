package upstream

// What may be sent again is decided by the table below and nowhere else, from
// what may have reached a node (design §8, facts §4.2):
//
//	what happened                              a read   a keyed append   any other
//	no connection came about                   next     next             next
//	the gateway had none to spare              end      end              end
//	a kept connection had ended, unwritten     same     same             same
//	a kept connection ended, unanswered        same     end              end
//	silent, or ejected as silent               once     once             end
//	takes no connections any more              once     wait             wait
//	the exchange broke                         end      end              end
//
// next: another node, since nothing has reached this one. same: this node, on
// another connection. once: another node, one time in all; of a keyed append
// only a 2xx of it counts, since a refusal there says nothing of the first. end:
// the client is told what is known: nothing was sent where no connection was to be
// had, else the outcome is unknown. wait: the node may still answer what it has taken.
//
// Go's own transport would repeat a read on a kept connection by itself; that is
// stopped (exchange.go), so that every repetition is one of this table.

// class is what a request is, as far as repeating it is concerned.
type class int

const (
	classRead  class = iota // GET and HEAD: no effect
	classKeyed              // an append with all three producer headers: stored once
	classOther              // everything else
)

func classOf(m Meta) class {
	switch {
	case m.Read:
		return classRead
	case m.Keyed:
		return classKeyed
	default:
		return classOther
	}
}

// event is what became of an attempt that has no answer.
type event int

const (
	eventUnconnected event = iota
	eventNoRoom
	eventUnwritten
	eventUnanswered
	eventSilent
	eventStopped
	eventBroken
)

// action is what follows.
type action int

const (
	actEnd action = iota
	actNext
	actSame
	actOnce
	actWait
)

// table is the table above, row by row.
var table = [...][3]action{
	eventUnconnected: {actNext, actNext, actNext},
	eventNoRoom:      {actEnd, actEnd, actEnd},
	eventUnwritten:   {actSame, actSame, actSame},
	eventUnanswered:  {actSame, actEnd, actEnd},
	eventSilent:      {actOnce, actOnce, actEnd},
	eventStopped:     {actOnce, actWait, actWait},
	eventBroken:      {actEnd, actEnd, actEnd},
}

// mayMove reports whether an attempt that waits for a node's answer is ended by
// the event.
func mayMove(what event, c class) bool { return table[what][c] == actOnce }

// kindOf is what a client is told when an attempt ends with the event.
func kindOf(what event) Kind {
	switch what {
	case eventUnconnected, eventUnwritten:
		return Unreachable
	case eventNoRoom:
		return NoRoom
	case eventSilent, eventStopped:
		return TimedOut
	case eventUnanswered, eventBroken:
		return Failed
	default:
		return Failed
	}
}
