package manage

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"sluice/internal/refusal"
)

// object is a JSON object whose members are read one by one, strictly: names are exact
// and stand once, types are as they are, and what no reader knows is refused. The first
// fault is kept and the readers after it do nothing, so that it is looked at once, with
// done.
type object struct {
	path    string // of the object within the body, with a dot at its end
	members map[string]json.RawMessage
	err     error
}

// badField is a member of the body, a parameter of the path or a header that is wrong.
func badField(field, message string) error {
	return refusal.Because(refusal.InvalidRequest, message, nil).About(field)
}

// sentence makes a sentence of an error of a grammar, which holds nothing of the input.
func sentence(err error) string {
	text := err.Error()
	// "bad stream name: it has 1 to 100 characters": the field says the first half.
	if _, rule, ok := strings.Cut(text, ": "); ok {
		text = rule
	}
	return text + "."
}

// errSyntax is a body that is no JSON object.
var errSyntax = errors.New("the body is not a JSON object")

// parseObject reads a body.
func parseObject(text []byte) (*object, error) {
	notJSON := func(err error) error {
		return refusal.Because(refusal.InvalidRequest, "The body is not a JSON object in UTF-8.", err)
	}
	if !utf8.Valid(text) {
		return nil, notJSON(errSyntax)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	var whole json.RawMessage
	if err := decoder.Decode(&whole); err != nil {
		return nil, notJSON(err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, refusal.Because(refusal.InvalidRequest, "Something follows the JSON object in the body.", err)
	}
	if whole[0] != '{' {
		return nil, notJSON(errSyntax)
	}
	if halfPair(whole) {
		return nil, refusal.Because(refusal.InvalidRequest, `A string in the body has half of a surrogate pair, which no character is: write both as in \ud83d\ude00.`, nil)
	}
	return readObject(whole, "")
}

// halfPair reports whether valid JSON has a \u escape of half a surrogate pair (RFC 8259
// §8.2), of which encoding/json makes U+FFFD: another text than was sent.
func halfPair(text []byte) bool {
	for {
		i := bytes.IndexByte(text, '\\') // in strings only
		if i < 0 {
			return false
		}
		text = text[i:]
		r, ok := unicodeEscape(text)
		switch {
		case !ok:
			text = text[2:]
		case !utf16.IsSurrogate(r):
			text = text[escapeBytes:]
		default:
			second, _ := unicodeEscape(text[escapeBytes:])
			if utf16.DecodeRune(r, second) == utf8.RuneError {
				return true
			}
			text = text[2*escapeBytes:]
		}
	}
}

// escapeBytes is the length of \u and its four digits.
const escapeBytes = 6

// unicodeEscape reads the \u escape that a text begins with.
func unicodeEscape(text []byte) (rune, bool) {
	if len(text) < escapeBytes || text[0] != '\\' || text[1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(text[2:escapeBytes]), 16, 16)
	return rune(n), err == nil
}

// readObject takes an object, known to be valid JSON, apart. encoding/json by itself
// takes the last of two members of one name, and names in any case.
func readObject(text json.RawMessage, path string) (*object, error) {
	o := &object{path: path, members: map[string]json.RawMessage{}}
	decoder := json.NewDecoder(bytes.NewReader(text))
	if _, err := decoder.Token(); err != nil {
		return nil, err
	}
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return nil, err
		}
		name, _ := token.(string)
		if _, twice := o.members[name]; twice {
			return nil, badField(path+printable(name), "This member stands twice: send it once.")
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return nil, err
		}
		o.members[name] = value
	}
	return o, nil
}

// only refuses members of other names.
func (o *object) only(names ...string) {
	if o.err != nil {
		return
	}
	unknown := ""
	for name := range o.members {
		// The first by name, so that the answer is the same each time.
		if !slices.Contains(names, name) && (unknown == "" || name < unknown) {
			unknown = name
		}
	}
	if _, empty := o.members[""]; unknown != "" || empty {
		o.fault(unknown, "This member is not known: there are "+strings.Join(names, ", ")+".")
	}
}

// fault keeps the first fault.
func (o *object) fault(name, message string) {
	if o.err == nil {
		o.err = badField(o.path+printable(name), message)
	}
}

// member is the value of a member; ok is false where there is none or a fault before.
func (o *object) member(name string) (value json.RawMessage, ok bool) {
	if o.err != nil {
		return nil, false
	}
	value, ok = o.members[name]
	return value, ok
}

// has reports whether the member stands there, null included.
func (o *object) has(name string) bool {
	_, ok := o.members[name]
	return ok
}

func isNull(value json.RawMessage) bool { return string(value) == "null" }

// text reads a string; nil where there is none.
func (o *object) text(name string) *string {
	value, ok := o.member(name)
	if !ok {
		return nil
	}
	var s string
	if value[0] != '"' || json.Unmarshal(value, &s) != nil {
		o.fault(name, "This is a string.")
		return nil
	}
	return &s
}

// need reads a string that must be there.
func (o *object) need(name string) string {
	s := o.text(name)
	if s == nil {
		o.fault(name, "This is needed.")
		return ""
	}
	return *s
}

// flag reads a boolean; nil where there is none.
func (o *object) flag(name string) *bool {
	value, ok := o.member(name)
	if !ok {
		return nil
	}
	is := string(value) == "true"
	if !is && string(value) != "false" {
		o.fault(name, "This is true or false.")
		return nil
	}
	return &is
}

// integer reads a whole number; nil where there is none, or null and that is allowed.
func (o *object) integer(name string, least, most int64, nullable bool) *int64 {
	value, ok := o.member(name)
	if !ok || (nullable && isNull(value)) {
		return nil
	}
	n, ok := wholeNumber(value)
	if !ok || n < least || n > most {
		o.fault(name, "This is a whole number from "+strconv.FormatInt(least, 10)+" to "+strconv.FormatInt(most, 10)+".")
		return nil
	}
	return &n
}

// wholeNumber reads a JSON number that is one; 1.0 and 1e3 are.
func wholeNumber(value json.RawMessage) (int64, bool) {
	if n, err := strconv.ParseInt(string(value), 10, 64); err == nil {
		return n, true
	}
	const exact = 1 << 53
	f, err := strconv.ParseFloat(string(value), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > exact {
		return 0, false
	}
	return int64(f), true
}

// times are those of RFC 3339 §5.6, in which small letters stand too. time.Parse takes
// others: an hour of one digit, a comma before the fraction.
var times = regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`)

// maxYear is the last year that RFC 3339 can write; what lies behind it in UTC could be
// stored and never be shown.
const maxYear = 9999

// time reads a time of RFC 3339, cut to what the store keeps, microseconds; nil where
// there is none, or null. The year 1, Go's zero time, is a time like any other.
func (o *object) time(name string) *time.Time {
	value, ok := o.member(name)
	if !ok || isNull(value) {
		return nil
	}
	s := o.text(name)
	if s == nil {
		return nil
	}
	t, fault := readTime(*s)
	if fault != "" {
		o.fault(name, fault)
		return nil
	}
	return &t
}

// readTime reads a time of RFC 3339, cut to microseconds, or says what it has to be.
func readTime(s string) (t time.Time, fault string) {
	t, err := time.Parse(time.RFC3339, strings.ToUpper(s))
	t = t.UTC().Truncate(time.Microsecond)
	switch {
	case err != nil || !times.MatchString(s):
		return t, "This is a time as in 2027-06-01T00:00:00Z."
	case t.Year() > maxYear:
		return t, "This is a time whose year in UTC is at most " + strconv.Itoa(maxYear) + "."
	}
	return t, ""
}

// texts reads a list of strings; ok is false where there is none, or null.
func (o *object) texts(name string, most int) (list []string, ok bool) {
	value, ok := o.member(name)
	if !ok || isNull(value) {
		return nil, false
	}
	var raw []json.RawMessage
	if value[0] != '[' || json.Unmarshal(value, &raw) != nil {
		o.fault(name, "This is a list of strings.")
		return nil, false
	}
	if len(raw) > most {
		o.fault(name, "This list has at most "+strconv.Itoa(most)+" entries.")
		return nil, false
	}
	list = make([]string, len(raw))
	for i := range raw {
		if raw[i][0] != '"' || json.Unmarshal(raw[i], &list[i]) != nil {
			o.fault(name, "This is a list of strings.")
			return nil, false
		}
	}
	return list, true
}

// object reads an object within this one; nil where there is none.
func (o *object) object(name string) *object {
	value, ok := o.member(name)
	if !ok {
		return nil
	}
	if value[0] != '{' {
		o.fault(name, "This is an object.")
		return nil
	}
	inner, err := readObject(value, o.path+name+".")
	if err != nil {
		o.err = err
		return nil
	}
	return inner
}
