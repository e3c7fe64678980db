package failover

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// silentFor is how long a tail's client bears silence, while others write to the
// stream, before it opens the tail anew: longer than an election, and than the
// 10 s for which a node that drains keeps its tails (facts §12).
const silentFor = 15 * time.Second

// TailEnds counts how the connections of tails ended.
type TailEnds struct {
	Cut    int // in the middle, without an end of the answer
	Told   int // after an error event of the node's
	Silent int // by the client, because nothing came any more
}

// tail follows a stream from its start by live=sse. When its connection ends it
// goes on at the offset of the last control event, through the next gateway.
type tail struct {
	path    string
	client  *client
	http2   bool
	book    *book
	high    *atomic.Int64
	content strings.Builder
	offset  atomic.Int64 // of the last control event

	ends TailEnds
}

func (t *tail) name() string {
	if t.http2 {
		return "tail over HTTP/2 of " + t.path
	}
	return "tail over HTTP/1.1 of " + t.path
}

func (t *tail) behind() bool { return t.offset.Load() < t.high.Load() }

func (t *tail) run(ctx context.Context) {
	defer t.client.close()
	for {
		again, ok := t.follow(ctx)
		if !ok || ctx.Err() != nil {
			return
		}
		t.client.switchGateway()
		if !wait(ctx, again) {
			return
		}
	}
}

// follow opens the tail and reads it to its end. It returns when to open it
// again; false = never.
func (t *tail) follow(ctx context.Context) (time.Duration, bool) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(silentFor, func() { cancel(errSilent) })
	defer silence.Stop()
	res, err := t.client.open(ctx, http.MethodGet, fmt.Sprintf("%s?offset=%d&live=sse", t.path, t.offset.Load()), "")
	if err != nil {
		t.book.failed(none(err).label())
		return pause, true
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(res.Body, maxAnswer)) // an error body may be missing
		a := read(reply{res.StatusCode, res.Header, body})
		t.book.note(a.odd...)
		t.book.failed(a.label())
		if a.status/100 == 4 && a.status != http.StatusRequestTimeout {
			t.book.stop("tail: " + a.label())
			return 0, false
		}
		return max(a.retryAfter, pause), true
	}
	events := bufio.NewReader(res.Body)
	err = t.events(events, func() { silence.Reset(silentFor) })
	if errors.Is(err, errTold) {
		_, _ = io.Copy(io.Discard, events) // however it ends: the client was told
	}
	t.ended(ctx, err)
	return pause, true
}

var (
	errSilent = errors.New("silent")
	errTold   = errors.New("an error event")
	errBroken = errors.New("an event that cannot be")
)

// ended notes how an open tail ended.
func (t *tail) ended(ctx context.Context, err error) {
	switch {
	case errors.Is(context.Cause(ctx), errSilent):
		t.ends.Silent++
		t.book.failed("silent tail")
	case ctx.Err() != nil: // the trial is over
	case errors.Is(err, errTold):
		t.ends.Told++
	case errors.Is(err, errBroken): // noted
	case errors.Is(err, io.EOF):
		t.book.note("a tail of an open stream ended cleanly")
	default:
		t.ends.Cut++
		t.book.failed("tail cut")
	}
}

// events reads events until the connection ends; io.EOF is a clean end. What a
// data event brought counts once its control event names the next offset.
func (t *tail) events(r *bufio.Reader, heard func()) error {
	var pending string
	for {
		kind, data, err := event(r)
		if err != nil {
			return err
		}
		heard()
		switch kind {
		case "data":
			pending += data
		case "control":
			if err := t.control(pending, data); err != nil {
				return err
			}
			pending = ""
		case "error":
			t.book.failed("event " + codeOf([]byte(data)))
			return errTold
		default:
			t.book.note("event " + strconv.Quote(kind))
		}
	}
}

func (t *tail) control(pending, data string) error {
	var control struct{ StreamNextOffset string }
	if err := json.Unmarshal([]byte(data), &control); err != nil {
		t.book.note("a control event that is no JSON")
		return errBroken
	}
	next, err := strconv.ParseInt(control.StreamNextOffset, 10, 64)
	if err != nil || next != t.offset.Load()+int64(len(pending)) {
		t.book.note(fmt.Sprintf("a tail at %d brought %d bytes and says that the next offset is %s", t.offset.Load(), len(pending), control.StreamNextOffset))
		return errBroken
	}
	t.content.WriteString(pending)
	t.offset.Store(next)
	return nil
}

// event reads one event. io.EOF is a clean end of the answer, wherever it comes.
func event(r *bufio.Reader) (kind, data string, err error) {
	var lines []string
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return "", "", err
		}
		line = strings.TrimSuffix(line, "\n")
		field, value, _ := strings.Cut(line, ":")
		switch {
		case line == "" && kind == "" && lines == nil: // after a comment
		case line == "":
			return kind, strings.Join(lines, "\n"), nil
		case field == "event":
			kind = strings.TrimPrefix(value, " ")
		case field == "data":
			lines = append(lines, value)
		}
	}
}
