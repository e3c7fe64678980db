package auth

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// oracleObject is what readObject promises, by encoding/json's own reader.
func oracleObject(text []byte) (map[string]json.RawMessage, bool) {
	var members map[string]json.RawMessage
	if !utf8.Valid(text) || json.Unmarshal(text, &members) != nil || members == nil {
		return nil, false
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return members, oracleValue(d, 1)
}

func oracleValue(d *json.Decoder, depth int) bool {
	token, err := d.Token()
	open, ok := token.(json.Delim)
	if err != nil || !ok {
		return err == nil
	}
	if depth > maxNesting {
		return false
	}
	names := make(map[any]bool)
	for d.More() {
		if open == '{' {
			name, err := d.Token()
			if err != nil || names[name] {
				return false
			}
			names[name] = true
		}
		if !oracleValue(d, depth+1) {
			return false
		}
	}
	_, err = d.Token()
	return err == nil
}

func objects() []string {
	many := make([]string, 100)
	for i := range many {
		many[i] = fmt.Sprintf(`"n%d":%d`, i, i)
	}
	all := strings.Join(many, ",")
	return []string{
		`{}`, ` { } `, `{"a":1}`, "\t{\n\"a\" : [ 1 , {\"b\":null} ] ,\r\n\"c\":\"\\\"}\" }", `{"a":[],"b":{},"c":[[],[{}]]}`,
		`{"a":true,"b":false,"c":null,"d":-1.5e+3,"":""}`, `{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, `{"A":1,"a":2}`, `{"\ud800":1,"\udc00":2}`,
		`{"a":{"b":1,"b":1}}`, `{"a":[{"b":1},{"b":1}]}`, `{"a":[{"b":1,"b":1}]}`, `{"a":"\\"}`, `{"a\"":1,"a\"":2}`, `{"é":"\u00e9"}`,
		`[]`, `null`, `"x"`, `1`, ``, ` `, `{`, `{"a"}`, `{"a":1,}`, `{,}`, `{"a":1}{}`, `{"a":01}`, "{\"a\":\"\xff\"}", "{\"a\":\"\n\"}",
		`{` + all + `}`, `{` + all + `,"n0":1}`, `{` + all + `,"n99":1}`, `{` + all + `,"m":1,"m":1}`,
		strings.Repeat(`{"a":`, 16) + `1` + strings.Repeat(`}`, 16), strings.Repeat(`{"a":`, 17) + `1` + strings.Repeat(`}`, 17),
		`{"a":` + strings.Repeat(`[`, 15) + strings.Repeat(`]`, 15) + `}`, `{"a":` + strings.Repeat(`[`, 16) + strings.Repeat(`]`, 16) + `}`,
	}
}

func checkObject(t *testing.T, text []byte) {
	t.Helper()
	got, err := readObject(text)
	want, ok := oracleObject(text)
	if (err == nil) != ok || err != nil && !errors.Is(err, ErrMalformedToken) {
		t.Fatalf("%q: got %v, want it taken: %t", text, err, ok)
	}
	if err != nil {
		return
	}
	if len(got) != len(want) {
		t.Fatalf("%q: %d members, want %d", text, len(got), len(want))
	}
	for name, value := range want {
		if !bytes.Equal(got.get(name), value) {
			t.Errorf("%q: member %q is %q, want %q", text, name, got.get(name), value)
		}
		var s string
		isString := json.Unmarshal(value, &s) == nil && value[0] == '"'
		if read, ok := readString(got.get(name)); ok != isString || read != s && ok {
			t.Errorf("%q: read as %q, %t; want %q, %t", value, read, ok, s, isString)
		}
	}
	if got.get("no such member") != nil && want["no such member"] == nil {
		t.Errorf("%q has a member that it has not", text)
	}
}

func TestReadObject(t *testing.T) {
	for _, text := range objects() {
		checkObject(t, []byte(text))
	}
}

// FuzzReadObject holds the reader to encoding/json's.
func FuzzReadObject(f *testing.F) {
	for _, text := range objects() {
		f.Add([]byte(text))
	}
	f.Fuzz(checkObject)
}

// A token full of names cost the square of their number, before any signature.
func TestManyMembersAreCheap(t *testing.T) {
	var text strings.Builder
	text.WriteString(`{"a":0`)
	for i := range 50_000 {
		fmt.Fprintf(&text, `,"%d":0`, i)
	}
	text.WriteString("}")
	began := time.Now()
	if o, err := readObject([]byte(text.String())); err != nil || len(o) != 50_001 {
		t.Errorf("%d members, %v", len(o), err)
	}
	// The square takes a dozen seconds.
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("it took %v", took)
	}
}
