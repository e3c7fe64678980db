package auth

import (
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxNesting is how deep objects and arrays may stand inside each other.
const maxNesting = 16

// member is one name and value of a JSON object.
type member struct {
	name  string
	value json.RawMessage
}

// object is a JSON object as it stands, its names exact: "ISS" is another
// member than "iss".
type object []member

// get is the value of a member; nil where it is missing.
func (o object) get(name string) json.RawMessage {
	for _, m := range o {
		if m.name == name {
			return m.value
		}
	}
	return nil
}

// readObject reads a JSON object whose members, at any depth, stand once: two
// readers of a member that stands twice could take different ones, and
// encoding/json takes the last without a word. The error is ErrMalformedToken.
func readObject(text []byte) (object, error) {
	if !utf8.Valid(text) || !json.Valid(text) {
		return nil, ErrMalformedToken
	}
	w := walker{text: text}
	w.space()
	if w.text[w.at] != '{' {
		return nil, ErrMalformedToken
	}
	members, ok := w.object(1)
	if !ok {
		return nil, ErrMalformedToken
	}
	return members, nil
}

// walker goes over a text that is known to be valid JSON, so that it needs to
// tell its parts apart, and no more.
type walker struct {
	text []byte
	at   int
}

func (w *walker) space() {
	for w.at < len(w.text) && strings.IndexByte(" \t\r\n", w.text[w.at]) >= 0 {
		w.at++
	}
}

// next passes over white space, one byte of punctuation and white space.
func (w *walker) next() byte {
	w.space()
	c := w.text[w.at]
	w.at++
	w.space()
	return c
}

// object reads the object that begins here; ok is false where a member stands
// twice or the nesting is too deep.
func (w *walker) object(depth int) (members object, ok bool) {
	if depth > maxNesting {
		return nil, false
	}
	members = make(object, 0, 16)
	var names nameSet
	w.next()
	for w.text[w.at] != '}' {
		name, _ := readString(w.string())
		if !names.add(name, members) {
			return nil, false
		}
		w.next() // the colon
		from := w.at
		if !w.value(depth) {
			return nil, false
		}
		members = append(members, member{name, w.text[from:w.at]})
		w.comma()
	}
	w.at++
	return members, true
}

// fewNames is how many names are quicker looked through than hashed. Without the
// hashing, a token full of names would cost the square of their number.
const fewNames = 32

// nameSet knows the names of an object once they are many.
type nameSet map[string]struct{}

// add reports whether name is new to the members read so far.
func (s *nameSet) add(name string, members object) bool {
	if *s == nil {
		if len(members) < fewNames {
			return !slices.ContainsFunc(members, func(m member) bool { return m.name == name })
		}
		*s = make(nameSet, 4*fewNames)
		for _, m := range members {
			(*s)[m.name] = struct{}{}
		}
	}
	before := len(*s)
	(*s)[name] = struct{}{}
	return len(*s) > before
}

func (w *walker) array(depth int) bool {
	if depth > maxNesting {
		return false
	}
	w.next()
	for w.text[w.at] != ']' {
		if !w.value(depth) {
			return false
		}
		w.comma()
	}
	w.at++
	return true
}

// comma passes over the comma behind an element, where there is one.
func (w *walker) comma() {
	w.space()
	if w.text[w.at] == ',' {
		w.next()
	}
}

// value passes over the value that begins here.
func (w *walker) value(depth int) bool {
	switch w.text[w.at] {
	case '{':
		_, ok := w.object(depth + 1)
		return ok
	case '[':
		return w.array(depth + 1)
	case '"':
		w.string()
	default: // a number, true, false, null
		for w.at < len(w.text) && strings.IndexByte(",]} \t\r\n", w.text[w.at]) < 0 {
			w.at++
		}
	}
	return true
}

// string is the string that begins here, with its quotes.
func (w *walker) string() json.RawMessage {
	from := w.at
	for w.at++; w.text[w.at] != '"'; w.at++ {
		if w.text[w.at] == '\\' {
			w.at++
		}
	}
	w.at++
	return w.text[from:w.at]
}

// readString is a JSON string; null and a missing member are none.
func readString(raw json.RawMessage) (string, bool) {
	if len(raw) == 0 || raw[0] != '"' {
		return "", false
	}
	if !slices.Contains(raw, '\\') { // stands for itself
		return string(raw[1 : len(raw)-1]), true
	}
	var s string
	err := json.Unmarshal(raw, &s)
	return s, err == nil
}

// readStrings is a JSON array of strings and nothing else.
func readStrings(raw json.RawMessage) ([]string, bool) {
	if len(raw) == 0 || raw[0] != '[' {
		return nil, false
	}
	var entries []json.RawMessage
	if err := json.Unmarshal(raw, &entries); err != nil {
		return nil, false
	}
	list := make([]string, len(entries))
	for i, e := range entries {
		var ok bool
		if list[i], ok = readString(e); !ok {
			return nil, false
		}
	}
	return list, true
}
