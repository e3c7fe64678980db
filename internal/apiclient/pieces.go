package apiclient

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"mime"
	"strings"
)

// piece is the body of one append.
type piece struct {
	body     []byte
	messages int // of JSON; 0 of anything else
}

// splitter cuts a source into pieces, the same ones each time: the end is io.EOF. A
// piece's body is the caller's. What was read for a piece before another error is not
// given out: a source that is corrected there has the same pieces before it.
type splitter interface{ next() (piece, error) }

// TooLargeError is a line or a message that no append can hold. Pieces before it may
// have been appended.
type TooLargeError struct {
	What  string // "line 7"
	Limit int64  // bytes of an append
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%s is larger than one append may be, %d bytes", e.What, e.Limit)
}

// NotJSONError is a source that is not what a JSON stream holds.
type NotJSONError struct {
	Message int // from 1
	At      int64
	Err     error
}

func (e *NotJSONError) Error() string {
	return fmt.Sprintf("message %d, near byte %d, is not JSON: %v", e.Message, e.At, e.Err)
}

// Unwrap is what is wrong with it.
func (e *NotJSONError) Unwrap() error { return e.Err }

// newSplitter cuts a source of a media type into pieces of at most size bytes; what
// cannot be cut is a piece of up to limit bytes.
func newSplitter(media string, source io.Reader, size, limit int64) splitter {
	size = min(size, limit)
	kind, _, err := mime.ParseMediaType(media)
	switch {
	case err == nil && kind == "application/json":
		return newJSONPieces(source, size, limit)
	case err == nil && (strings.HasPrefix(kind, "text/") || kind == "application/x-ndjson"):
		return &linePieces{in: bufio.NewReaderSize(source, 64<<10), size: size, limit: limit}
	default:
		return &bytePieces{source, size}
	}
}

// bytePieces cuts anywhere.
type bytePieces struct {
	in   io.Reader
	size int64
}

func (s *bytePieces) next() (piece, error) {
	body := make([]byte, s.size)
	n, err := io.ReadFull(s.in, body)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return piece{body: body[:n]}, err
}

// linePieces cuts after line ends.
type linePieces struct {
	in          *bufio.Reader
	size, limit int64
	held        []byte // a line that did not fit into the piece before
	line        int
}

func (s *linePieces) next() (piece, error) {
	body := s.held
	s.held = nil
	for int64(len(body)) < s.size {
		line, err := s.readLine()
		if err != nil && !errors.Is(err, io.EOF) {
			return piece{}, err
		}
		if len(body) > 0 && int64(len(body)+len(line)) > s.size {
			s.held = line
			break
		}
		body = append(body, line...)
		if err != nil {
			return s.rest(body)
		}
	}
	return piece{body: body}, nil
}

// rest gives out what is left at the end, which comes again at the next call.
func (s *linePieces) rest(body []byte) (piece, error) {
	if len(body) == 0 {
		return piece{}, io.EOF
	}
	s.in.Reset(failing{io.EOF})
	return piece{body: body}, nil
}

// readLine reads a line with its end, of limit bytes at most.
func (s *linePieces) readLine() ([]byte, error) {
	var line []byte
	for {
		part, err := s.in.ReadSlice('\n')
		line = append(line, part...)
		if int64(len(line)) > s.limit {
			return nil, &TooLargeError{fmt.Sprintf("line %d", s.line+1), s.limit}
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		s.line++
		return line, err
	}
}

// failing is a reader that has nothing but an error.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
