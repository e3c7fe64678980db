package gateway

import (
	"context"
	"errors"
	"io"
	"strings"
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
// client. It knows where an event ends, so that it can be ended between two. Read
// and Close belong to one goroutine; end may be called by any.
type eventBody struct {
	body   io.ReadCloser
	cancel context.CancelCauseFunc // of the exchange: it makes a Read return
	until  func(time.Time)         // bounds the writing to the client, which may not be reading

	mu      sync.Mutex
	at      eventBoundary // after what was handed on
	last    []byte        // that it is to end with; nil while it goes on
	resume  bool          // it is to end where its reader can go on without a gap or a repeated event
	over    bool          // the node's part is over: what is left of last, then the end
	stopped bool          // the client's side is not ours any more
	timer   *time.Timer
}

// end lets the event under way come to its end, and then ends the body, cleanly,
// with last. An event that is not whole in time is cut, with no clean end.
func (b *eventBody) end(last []byte) { b.endAt(last, false) }

// endToResume is end, and waits for the event behind data too that says from where
// to go on: a reader that had the one without the other would be told the data again.
func (b *eventBody) endToResume(last []byte) { b.endAt(last, true) }

func (b *eventBody) endAt(last []byte, resume bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	// What must end goes before what only should.
	if b.stopped || b.over || b.last != nil && (resume || !b.resume) {
		return
	}
	again := b.last != nil
	b.last, b.resume = last, resume
	if !again {
		b.timer = time.AfterFunc(eventTime, func() { b.cancel(errEventLate) })
		b.until(time.Now().Add(eventTime))
	}
	if b.at.endable(resume) {
		b.cancel(errEnded)
	}
}

// between reports whether the client stands between two events of a tail that goes
// on.
func (b *eventBody) between() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last == nil && b.at.boundary()
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
	passed, whole := 0, b.at.endable(b.resume)
	if !whole {
		passed, whole = b.at.passTo(p[:n], b.resume)
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

// eventBoundary follows a stream of events and knows whether it stands between
// two: at the start, and behind each empty line (the HTML standard, "Parsing an
// event stream"). A line ends with LF, CR, or both.
//
// It knows of Ursula's events that data is followed by a control event with the offset
// to go on from (facts §10).
type eventBoundary struct {
	inEvent bool // something of an event has come
	inLine  bool // something of a line has
	cr      bool // the last byte was a CR, so that an LF belongs to it

	line  [len(dataEvent) + 1]byte // how the line begins
	n     int                      // how much of that has come
	kind  eventKind                // of the event under way
	owing bool                     // data has come, and not yet from where to go on behind it
}

// eventKind is what the name of an event says.
type eventKind uint8

const (
	unnamed eventKind = iota
	dataKind
	otherKind
)

const (
	eventField = "event:"
	dataEvent  = "event: data"
)

func (e *eventBoundary) boundary() bool { return !e.inEvent }

// endable reports a place to end at: between two events, and with resume where the
// reader knows from where to go on.
func (e *eventBoundary) endable(resume bool) bool { return !e.inEvent && (!resume || !e.owing) }

func (e *eventBoundary) pass(p []byte) {
	for _, c := range p {
		e.next(c)
	}
}

// passTo passes up to the next place to end at; whole tells that it came, and n how
// many bytes stand before it.
func (e *eventBoundary) passTo(p []byte, resume bool) (n int, whole bool) {
	for i, c := range p {
		if e.next(c); e.endable(resume) {
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
		if e.n < len(e.line) {
			e.line[e.n] = c
			e.n++
		}
	}
}

func (e *eventBoundary) endLine() {
	line := string(e.line[:e.n])
	e.inLine, e.n = false, 0
	if name, ok := strings.CutPrefix(line, eventField); ok {
		e.kind = otherKind
		if strings.TrimPrefix(name, " ") == "data" {
			e.kind = dataKind
		}
	}
}

func (e *eventBoundary) endEvent() {
	if e.kind != unnamed { // a comment, or a field alone, says nothing
		e.owing = e.kind == dataKind
	}
	e.inEvent, e.kind = false, unnamed
}
