package apiclient

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// jsonPieces puts whole JSON values together in one array, which an append takes as
// as many messages. A value of the source that is an array itself is as many messages
// too, as it would be in an append of its own.
type jsonPieces struct {
	in          *json.Decoder
	guard       *guard
	size, limit int64
	inArray     bool
	held        []byte // a message that did not fit into the piece before
	count       int    // of messages read
	err         error  // what ended it
}

func newJSONPieces(source io.Reader, size, limit int64) *jsonPieces {
	g := &guard{in: source}
	return &jsonPieces{in: json.NewDecoder(g), guard: g, size: size, limit: limit}
}

func (s *jsonPieces) next() (piece, error) {
	if s.err != nil {
		return piece{}, s.err
	}
	body, n := []byte{'['}, 0
	for {
		message := s.held
		s.held = nil
		if message == nil {
			if message, s.err = s.message(); errors.Is(s.err, io.EOF) {
				break
			}
			if s.err != nil {
				return piece{}, s.err
			}
		}
		if n > 0 && int64(len(body)+len(message)+2) > s.size {
			s.held = message
			break
		}
		if n > 0 {
			body = append(body, ',')
		}
		body = append(body, message...)
		n++
		if int64(len(body)) >= s.size {
			break
		}
	}
	if n == 0 {
		return piece{}, s.err
	}
	return finish(body, n), nil
}

// finish closes the array. One message alone goes without, so that it may be as large
// as an append may; but for an array, which would be taken for several.
func finish(body []byte, n int) piece {
	if n == 1 && body[1] != '[' {
		return piece{body[1:], 1}
	}
	return piece{append(body, ']'), n}
}

// message is the text of the next one; one that no append can hold is an error.
func (s *jsonPieces) message() ([]byte, error) {
	for {
		s.guard.allowed = s.in.InputOffset() + s.limit + guardSlack
		more := s.in.More()
		switch {
		case s.inArray && !more: // its end, or none
			if _, err := s.in.Token(); err != nil {
				return nil, s.bad(err)
			}
			s.inArray = false
		case !s.inArray && more && s.beginsArray():
			if _, err := s.in.Token(); err != nil {
				return nil, s.bad(err)
			}
			s.inArray = true
		default:
			var text json.RawMessage
			if err := s.in.Decode(&text); err != nil {
				return nil, s.bad(err)
			}
			if n := int64(len(text)); n > s.limit || text[0] == '[' && n > s.limit-2 {
				return nil, &TooLargeError{fmt.Sprintf("message %d", s.count+1), s.limit}
			}
			s.count++
			return text, nil
		}
	}
}

// beginsArray looks at the first byte of the next value, which More has read.
func (s *jsonPieces) beginsArray() bool {
	buffered := s.in.Buffered()
	var one [1]byte
	for {
		if n, err := buffered.Read(one[:]); n == 0 || err != nil {
			return false
		}
		switch one[0] {
		case ' ', '\t', '\r', '\n':
		default:
			return one[0] == '['
		}
	}
}

// bad is the error of a source: of what is read from, or of what is in it.
func (s *jsonPieces) bad(err error) error {
	var syntax *json.SyntaxError
	switch {
	case errors.Is(err, errGuard):
		return &TooLargeError{fmt.Sprintf("message %d", s.count+1), s.limit}
	case errors.Is(err, io.EOF) && !s.inArray:
		return io.EOF
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return &NotJSONError{s.count + 1, s.guard.read, io.ErrUnexpectedEOF}
	case errors.As(err, &syntax):
		return &NotJSONError{s.count + 1, s.in.InputOffset(), err}
	default:
		return err
	}
}

// guardSlack is how much white space there may be around a message.
const guardSlack = 64 << 10

// errGuard says that more was asked for than a message may have.
var errGuard = errors.New("too much for a message")

// guard bounds what a decoder takes in for one message, which it keeps whole.
type guard struct {
	in            io.Reader
	read, allowed int64
}

func (g *guard) Read(p []byte) (int, error) {
	left := g.allowed - g.read
	if left <= 0 {
		return 0, errGuard
	}
	n, err := g.in.Read(p[:min(int64(len(p)), left)])
	g.read += int64(n)
	return n, err
}
