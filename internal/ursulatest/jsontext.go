package ursulatest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// maxDepth is the deepest nesting of a stored JSON message (facts §1.6).
const maxDepth = 127

var errEmptyArray = errors.New("JSON append array must not be empty")

// jsonMessages gives the stored form of a JSON write: each message without
// insignificant white space and ended by one LF; a top-level array is several
// messages. The text of a message (order, numbers, escapes) is kept. Its error
// texts reach the client as the 400's message.
func jsonMessages(body []byte, emptyArray bool) ([]byte, error) {
	if !utf8.Valid(body) {
		return nil, errors.New("invalid JSON payload: invalid UTF-8")
	}
	if !json.Valid(body) {
		// encoding/json stops at 10000 levels, and the node says "too deep" there.
		if depth(body) > maxDepth {
			return nil, tooDeep()
		}
		return nil, errors.New("invalid JSON payload: not JSON text")
	}
	var text bytes.Buffer
	// Valid input, so this cannot fail.
	_ = json.Compact(&text, body)
	compact := text.Bytes()
	if len(compact) == 0 || compact[0] != '[' {
		if depth(compact) > maxDepth {
			return nil, tooDeep()
		}
		return append(compact, '\n'), nil
	}
	return splitArray(compact, emptyArray)
}

func tooDeep() error {
	return fmt.Errorf("invalid JSON payload: message nesting depth exceeds %d", maxDepth)
}

// splitArray makes one line of each element of a compact array.
func splitArray(compact []byte, emptyArray bool) ([]byte, error) {
	if len(compact) == 2 {
		if !emptyArray {
			return nil, errEmptyArray
		}
		return nil, nil
	}
	out := make([]byte, 0, len(compact))
	start, level := 1, 0
	flush := func(end int) error {
		if depth(compact[start:end]) > maxDepth {
			return tooDeep()
		}
		out = append(append(out, compact[start:end]...), '\n')
		start = end + 1
		return nil
	}
	for i := 0; i < len(compact); i++ {
		switch compact[i] {
		case '"':
			i = stringEnd(compact, i)
		case '[', '{':
			level++
		case ']', '}':
			level--
		case ',':
			if level == 1 {
				if err := flush(i); err != nil {
					return nil, err
				}
			}
		default: // part of a scalar
		}
	}
	if err := flush(len(compact) - 1); err != nil {
		return nil, err
	}
	return out, nil
}

// depth is the deepest nesting of brackets outside strings.
func depth(text []byte) int {
	level, deepest := 0, 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			i = stringEnd(text, i)
		case '[', '{':
			level++
			deepest = max(deepest, level)
		case ']', '}':
			level--
		default: // part of a scalar, or white space
		}
	}
	return deepest
}

// stringEnd is the index of the quote that closes the string at start.
func stringEnd(text []byte, start int) int {
	for i := start + 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i
		default: // inside the string
		}
	}
	return len(text)
}
