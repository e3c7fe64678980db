package apiclient

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Times of a tail.
const (
	// sseQuiet is how long a tail may be silent before it is opened again: a gateway
	// sends a comment every 15 s, unless its operator set that otherwise.
	sseQuiet = 90 * time.Second
	pollTime = 30 * time.Second
	// healthy is how long a tail that was cut has to have stood for the next try to
	// be a first one.
	healthy = 10 * time.Second
	// pollFloor is what an empty long-poll takes at least; where it does not, the next
	// one waits like after a failure.
	pollFloor = 100 * time.Millisecond
)

// TailOptions are what is followed.
type TailOptions struct {
	Stream string // its URL
	Offset string // "-1" is the start, "now" the end
	// LongPoll asks again and again instead of holding one answer open, for ways that
	// hold answers back. Streams of text are always followed so: an event has no room
	// for their CR, NUL and broken UTF-8.
	LongPoll bool
}

// Event is news of a stream.
type Event struct {
	Data        []byte // empty where only the offset is news
	Next        string // the offset to go on from
	ContentType string
	UpToDate    bool
	Closed      bool // the stream's end, for good
}

// Tail gives emit what comes to a stream, each byte once and in order, until the
// stream's end, which is no error. A tail that is cut, or told to come later, goes on
// from the offset of the last event, for as long as ctx lasts, once it stood; before
// that it gives up after ContactPatience. Other refusals (401, 402, 403, 404, 410), a
// stream that was made again and an error of emit end it.
func (c *Client) Tail(ctx context.Context, o TailOptions, emit func(Event) error) error {
	head, err := c.Head(ctx, o.Stream)
	if err != nil {
		return err
	}
	t := &tailing{c: c, stream: o.Stream, next: o.Offset, incarnation: head.Incarnation, media: head.ContentType, emit: emit}
	if o.Offset == "now" {
		t.next = head.Next // from here on nothing is missed, however long the first try takes
	}
	follow := t.sse
	if kind, _, err := mime.ParseMediaType(head.ContentType); o.LongPoll || err == nil && strings.HasPrefix(kind, "text/") {
		follow = t.longPoll
	}
	pace := c.pace(0)
	for {
		t.began, t.moved = c.o.Now(), false
		err := follow(ctx)
		var stop *stopError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &stop):
			return stop.error
		case t.moved || c.o.Now().Sub(t.began) >= healthy:
			pace.progress()
		}
		if err := pace.wait(ctx, err); err != nil {
			return err
		}
	}
}

// stopError is what emit wants to end the tail with.
type stopError struct{ error }

// tailing is a tail under way.
type tailing struct {
	c                         *Client
	stream, next, incarnation string
	media, cursor             string
	emit                      func(Event) error
	began                     time.Time
	moved                     bool // something came since it was opened
}

// tell gives an event out, and remembers the offset after it.
func (t *tailing) tell(e Event) error {
	if len(e.Data) > 0 || e.Closed || e.Next != t.next {
		if err := t.emit(e); err != nil {
			return &stopError{err}
		}
		t.moved = true
	}
	t.next = e.Next
	return nil
}

// longPoll follows until the stream's end, or an error.
func (t *tailing) longPoll(ctx context.Context) error {
	for {
		asked := t.c.o.Now()
		query := url.Values{"live": {"long-poll"}, "timeout_ms": {strconv.FormatInt(pollTime.Milliseconds(), 10)}}
		if t.cursor != "" {
			query.Set("cursor", t.cursor)
		}
		got, err := t.c.readOnce(ctx, readURL(t.stream, t.next, query), boundTo(t.incarnation), pollTime+quietTime)
		if err != nil {
			return err
		}
		t.cursor = got.cursor
		if err := t.tell(Event{got.body, got.next, t.media, got.upToDate, got.closed}); err != nil {
			return err
		}
		if got.closed {
			return nil
		}
		if len(got.body) == 0 && t.c.o.Now().Sub(asked) < pollFloor {
			return &CutError{}
		}
	}
}

// sse follows one answer until its end: nil is the stream's.
func (t *tailing) sse(ctx context.Context) error {
	q := request{
		method: http.MethodGet, url: readURL(t.stream, t.next, url.Values{"live": {"sse"}}),
		header: boundTo(t.incarnation), quiet: sseQuiet,
	}
	res, err := t.c.send(ctx, q)
	if err != nil {
		return err
	}
	defer res.close()
	if kind, _, err := mime.ParseMediaType(res.Header.Get("Content-Type")); err != nil || kind != "text/event-stream" {
		return &StrangeError{hostOf(t.stream), "its tail is no text/event-stream"}
	}
	encoded := res.Header.Get("Stream-Sse-Data-Encoding") == "base64"
	in := newEvents(res, maxRead)
	var held []byte // data whose offset is still to come: nothing of it is told before
	for {
		e, err := in.next()
		switch {
		case errors.Is(err, errLongEvent):
			return &StrangeError{hostOf(t.stream), err.Error()}
		case errors.Is(err, io.EOF):
			return &CutError{Retry: in.retry}
		case err != nil:
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return &CutError{Retry: in.retry, Err: t.c.unanswered(ctx, res.Request.Context(), q, true, err)}
		}
		done := false
		if held, done, err = t.take(held, e, encoded); done || err != nil {
			return err
		}
	}
}

// take is what one event does: it returns the data that waits for its offset, and
// whether that was the stream's end.
func (t *tailing) take(held []byte, e event, encoded bool) ([]byte, bool, error) {
	switch e.name {
	case "data":
		data := e.data
		if encoded {
			var err error
			if data, err = base64.StdEncoding.DecodeString(string(e.data)); err != nil { // it skips line ends
				return nil, false, &StrangeError{hostOf(t.stream), "an event of it is not base64"}
			}
		}
		if len(held)+len(data) > maxRead {
			return nil, false, &StrangeError{hostOf(t.stream), errLongEvent.Error()}
		}
		return append(held, data...), false, nil
	case "control":
		var at struct {
			Next     string `json:"streamNextOffset"`
			UpToDate bool   `json:"upToDate"`
			Closed   bool   `json:"streamClosed"`
		}
		if err := json.Unmarshal(e.data, &at); err != nil || at.Next == "" {
			return nil, false, &StrangeError{hostOf(t.stream), "a control event of it tells no offset"}
		}
		return nil, at.Closed, t.tell(Event{held, at.Next, t.media, at.UpToDate, at.Closed})
	case "error":
		return nil, false, t.c.eventError(e.data)
	case "credential-expired": // the next try is refused, and says why
		return nil, false, &CutError{}
	default:
		return held, false, nil
	}
}

// eventError is the error of an error event, whose body is that of an answer. What is
// not known to be for good may pass.
func (c *Client) eventError(data []byte) error {
	e := &Error{Status: http.StatusServiceUnavailable}
	e.read(c, data)
	switch e.Code {
	case "STREAM_NOT_FOUND", "BUCKET_NOT_FOUND", "BUCKET_ERASED":
		e.Status = http.StatusNotFound
	case "STREAM_GONE":
		e.Status = http.StatusGone
	case "INCARNATION_MISMATCH":
		e.Status = http.StatusPreconditionFailed
	default:
	}
	return e
}
