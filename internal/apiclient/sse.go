package apiclient

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
	"time"
)

// errLongEvent says that an event is larger than a stream's events are.
var errLongEvent = errors.New("an event is too large")

// event is one of a text/event-stream (WHATWG HTML §9.2).
type event struct {
	name string
	data []byte // the lines of data, with LF between them
}

// events reads a text/event-stream. Lines end in LF or CRLF; a CR alone, which the
// format allows too, ends none, since a stream's answers have none.
type events struct {
	in    *bufio.Reader
	max   int           // bytes of an event
	retry time.Duration // what the stream said last; 0 = nothing
}

func newEvents(in io.Reader, most int) *events {
	return &events{in: bufio.NewReaderSize(in, 32<<10), max: most}
}

// next is the next whole event. What a cut leaves of one is dropped, as the format
// wants it; the error is then the reader's, io.EOF after a clean end.
func (s *events) next() (event, error) {
	var e event
	lines, size := 0, 0
	for {
		line, err := s.line()
		if err != nil {
			return event{}, err
		}
		if size += len(line); size > s.max {
			return event{}, errLongEvent
		}
		if len(line) == 0 {
			if lines > 0 {
				return e, nil
			}
			e, size = event{}, 0
			continue
		}
		name, value, _ := bytes.Cut(line, []byte{':'})
		value = bytes.TrimPrefix(value, []byte{' '})
		switch string(name) {
		case "event":
			e.name = string(value)
		case "data":
			if lines > 0 {
				e.data = append(e.data, '\n')
			}
			e.data = append(e.data, value...)
			lines++
		case "retry":
			if ms, err := strconv.ParseUint(string(value), 10, 31); err == nil {
				s.retry = time.Duration(ms) * time.Millisecond
			}
		default: // a comment, or a field of nobody
		}
	}
}

// line is the next whole line without its end.
func (s *events) line() ([]byte, error) {
	var line []byte
	for {
		part, err := s.in.ReadSlice('\n')
		if len(line)+len(part) > s.max {
			return nil, errLongEvent
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			line = append(line, part...)
		case err != nil:
			return nil, err
		default:
			if line == nil {
				line = part // it stands until the next read, which is after its use
			} else {
				line = append(line, part...)
			}
			return bytes.TrimSuffix(line[:len(line)-1], []byte{'\r'}), nil
		}
	}
}
