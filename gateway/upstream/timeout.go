package upstream

import "time"

// Numbers of facts §4.3, which are Ursula's own gateway's.
const (
	// ConnectTimeout bounds the wait for one TCP connection.
	ConnectTimeout = 5 * time.Second
	// HeaderTimeout is the wait for a response head of a request without a body.
	HeaderTimeout = 5 * time.Second
	// bytesPerSecond is the pace that a node is sure to take a body at.
	bytesPerSecond = 8 << 20
	// longPollMargin is added to the wait that a long-poll asks for.
	longPollMargin = 2 * time.Second
	// defaultLongPoll and maxLongPoll bound what a node makes of timeout_ms.
	defaultLongPoll = time.Second
	maxLongPoll     = 60 * time.Second
	// partBytes and maxSnapshotBytes size a commit of staged parts.
	partBytes        = 32 << 20
	maxSnapshotBytes = 1 << 30
)

// headerTimeout is how long the head of the answer to such a request may take:
// the base, what its body and the parts it commits need at bytesPerSecond, and
// never less than a long-poll's own wait and its margin (facts F7-F9).
func headerTimeout(m Meta) time.Duration {
	bytes := int64(len(m.Body))
	if m.Parts > 0 {
		bytes += min(int64(m.Parts)*partBytes, maxSnapshotBytes)
	}
	wait := HeaderTimeout + time.Duration(bytes)*time.Second/bytesPerSecond
	if m.LongPoll {
		poll := defaultLongPoll
		if m.Wait > 0 {
			poll = min(m.Wait, maxLongPoll)
		}
		wait = max(wait, poll+longPollMargin)
	}
	return wait
}
