package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"time"
)

// credentialExpired is the last event of a tail whose credential has ended, byte
// for byte as Ursula's own gateway sends it (facts §6).
const credentialExpired = "event: credential-expired\ndata: {\"reason\":\"credential_expired\"}\n\n" //nolint:gosec // an event, no credential

// eventTime is how long the rest of an event may take once its tail has to end.
const eventTime = 5 * time.Second

// errEnded ends the exchange with the node of a tail that is ended, errEventLate
// that of one whose last event does not become whole.
var (
	errEnded     = errors.New("the tail is ended")
	errEventLate = errors.New("the event under way did not end in time")
)

// eventBody is the body of server-sent events on its way from the node to the
// client. It knows where an event ends, and whether the offset of its data is told, so
// that it can be ended there. Read and Close belong to one goroutine; end may be called
// by any.
type eventBody struct {
	body   io.ReadCloser
	cancel context.CancelCauseFunc // of the exchange: it makes a Read return
	until  func(time.Time)         // bounds the writing to the client, which may not be reading

	mu      sync.Mutex
	at      eventBoundary // after what was handed on
	last    []byte        // that it is to end with; nil while it goes on
	yields  bool          // and what has to end goes before that
	over    bool          // the node's part is over: what is left of last, then the end
	stopped bool          // the client's side is not ours any more
	timer   *time.Timer
}

// end lets the event under way come to its end, with the control event that data is
// owed, and then ends the body, cleanly, with last. What is not whole in time is cut,
// with no clean end.
func (b *eventBody) end(last []byte) { b.endWith(last, false) }

// endToResume is end for a tail whose reader may go on elsewhere. What has to end goes
// before it, until the last byte is on its way.
func (b *eventBody) endToResume(last []byte) { b.endWith(last, true) }

func (b *eventBody) endWith(last []byte, yields bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped || b.over || b.last != nil && (yields || !b.yields) {
		return
	}
	again := b.last != nil
	b.last, b.yields = last, yields
	if !again {
		b.timer = time.AfterFunc(eventTime, func() { b.cancel(errEventLate) })
		b.until(time.Now().Add(eventTime))
	}
	if b.at.boundary() {
		b.cancel(errEnded)
	}
}

// between reports whether the client stands between two events of a tail that goes
// on.
func (b *eventBody) between() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last == nil && !b.at.inEvent
}

// Read implements io.Reader.
func (b *eventBody) Read(p []byte) (int, error) {
	if n, ok := b.readLast(p); ok {
		if n == 0 {
			return 0, io.EOF
		}
		return n, nil
	}
	n, err := b.body.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last == nil {
		b.at.pass(p[:n])
		return n, err
	}
	// What was not handed on may be left out: the client resumes before it.
	passed, whole := 0, b.at.boundary()
	if !whole {
		passed, whole = b.at.passToBoundary(p[:n])
	}
	if !whole {
		return n, err
	}
	b.over = true
	b.cancel(errEnded)
	more := copy(p[passed:], b.last)
	b.last = b.last[more:]
	return passed + more, nil
}

// readLast reads on in the last event; ok tells that the node's part is over.
func (b *eventBody) readLast(p []byte) (n int, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.over {
		return 0, false
	}
	n = copy(p, b.last)
	b.last = b.last[n:]
	return n, true
}

// Close implements io.Closer.
func (b *eventBody) Close() error {
	b.stop()
	return b.body.Close()
}

// stop makes end do nothing from now on: what answers the client must not be
// touched once the request's handler has returned.
func (b *eventBody) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	if b.timer != nil {
		b.timer.Stop()
	}
}

var _ io.ReadCloser = (*eventBody)(nil)

// eventBoundary follows a stream of events and knows whether it may be ended here: at
// the start, and behind each empty line (the HTML standard, "Parsing an event stream"),
// but for a data event whose offset is still to come, in the control event that follows
// it (facts §10). A client that is given such data and a clean end has to ask for it
// again, and has it twice. A line ends with LF, CR, or both.
type eventBoundary struct {
	inEvent bool // something of an event has come
	inLine  bool // something of a line has
	cr      bool // the last byte was a CR, so that an LF belongs to it
	owed    bool // the last named event was data
	named   bool // the event under way has a name
	data    bool // which is data

	line [16]byte // how the line under way begins, enough to tell "event: data"
	size int      // of it that is used
}

func (e *eventBoundary) boundary() bool { return !e.inEvent && !e.owed }

func (e *eventBoundary) pass(p []byte) {
	for _, c := range p {
		e.next(c)
	}
}

// passToBoundary passes up to the next boundary; whole tells that it came, and n
// how many bytes stand before it.
func (e *eventBoundary) passToBoundary(p []byte) (n int, whole bool) {
	for i, c := range p {
		if e.next(c); e.boundary() {
			return i + 1, true
		}
	}
	return len(p), false
}

func (e *eventBoundary) next(c byte) {
	switch {
	case c == '\n' && e.cr: // the CR has ended the line
		e.cr = false
	case c == '\n', c == '\r':
		e.cr = c == '\r'
		if !e.inLine {
			e.endEvent()
			return
		}
		e.endLine()
	default:
		e.inEvent, e.inLine, e.cr = true, true, false
		if e.size < len(e.line) {
			e.line[e.size] = c
			e.size++
		}
	}
}

// endLine reads the line for the name of its event, the last of which counts.
func (e *eventBoundary) endLine() {
	field, value, _ := bytes.Cut(e.line[:e.size], []byte(":"))
	if string(field) == "event" {
		e.named, e.data = true, string(bytes.TrimPrefix(value, []byte(" "))) == "data"
	}
	e.inLine, e.size = false, 0
}

// endEvent leaves the event. A comment by itself has no name, and changes nothing.
func (e *eventBoundary) endEvent() {
	if e.named {
		e.owed = e.data
	}
	e.inEvent, e.named, e.data = false, false, false
}
