package manage

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// A body that no reader of JSON takes, or that two readers could take differently, is
// refused; any other answer than 2xx and 4xx would be a fault of ours. What is accepted is
// JSON by the standard reader too, with each member once.
func FuzzBody(f *testing.F) {
	for _, seed := range []string{
		`{"name":"a","content_type":"a/b"}`, `{"name":"a","name":"b"}`, `{"name":{"name":1}}`, `{}`, `[]`, `null`, ``, `{"":1}`, `{"a":1}{}`,
		`{"id":"acme","limits":{"burst":1e3},"api_key":{"name":"x","streams":["a*"]}}`, "{\"name\":\"\xff\"}", `{"name":"\ud800"}`, `{"limits":{"burst":1,"burst":2}}`,
		`{"expires_at":"2099-01-01T00:00:00Z","overlap_seconds":1,"end_older":true}`, `{"public":true}`, `{"NAME":"a"}`, strings.Repeat(`{"a":`, 2000),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		o, err := parseObject([]byte(body))
		if err != nil {
			if ref := asRefusal(err); ref.Status() != http.StatusBadRequest {
				t.Fatalf("%q: %v", body, err)
			}
			return
		}
		var standard map[string]json.RawMessage
		if err := json.Unmarshal([]byte(body), &standard); err != nil || len(standard) != len(o.members) {
			t.Fatalf("%q is taken: %v", body, err)
		}
		// All readers, on every member: each gives a value or a fault with a field.
		for name := range o.members {
			for _, read := range []func(*object){
				func(o *object) { o.text(name) }, func(o *object) { o.flag(name) }, func(o *object) { o.integer(name, 0, 9, true) },
				func(o *object) { o.time(name) }, func(o *object) { o.texts(name, 9) },
				func(o *object) {
					readLimits(&object{members: map[string]json.RawMessage{"limits": o.members[name]}})
				},
				func(o *object) { o.object(name) }, func(o *object) { o.only("x") },
			} {
				one := &object{members: o.members}
				read(one)
				if one.err == nil {
					continue
				}
				if ref := asRefusal(one.err); ref.Status() != http.StatusBadRequest || len(ref.Field) > 200 {
					t.Fatalf("%q: %v", body, one.err)
				}
			}
		}
	})
}

// Numbers, as JSON has them.
func TestWholeNumber(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "7": 7, "-7": -7, "1.0": 1, "1e3": 1000, "9007199254740993": 9007199254740993,
		"1.5": -1, "1e400": -1, "1e17": -1, `"1"`: -1, "true": -1, "null": -1, "[1]": -1,
	} {
		got, ok := wholeNumber(json.RawMessage(text))
		if bad := want == -1; ok == bad || (ok && got != want) {
			t.Errorf("%s: %d %t", text, got, ok)
		}
	}
}

// Half of a surrogate pair was stored as U+FFFD: another name than was sent.
func TestHalfPair(t *testing.T) {
	for text, want := range map[string]bool{
		`{"a":"\ud800"}`: true, `{"a":"\udc00"}`: true, `{"a":"\ud800\ud800\udc00"}`: true, `{"a":"\udc00\ud800"}`: true, `{"a":"\ud83dx\ude00"}`: true,
		`{"\uDBFF":1}`: true, `{"a":["\uD800\n"]}`: true, `{"a":"\ud800\\udc00"}`: true,
		`{"a":"\ud83d\ude00"}`: false, `{"a":"\uD83D\uDE00\uffff"}`: false, `{"a":"\\ud800"}`: false, `{"a":"\\\\ud800"}`: false, `{"a":"\u00e9\"\\"}`: false, `{}`: false,
	} {
		_, err := parseObject([]byte(text))
		if (err != nil) != want {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// What is taken as JSON in UTF-8.
func TestCheckType(t *testing.T) {
	for _, tt := range []struct {
		header http.Header
		ok     bool
	}{
		{http.Header{"Content-Type": {"application/json"}}, true},
		{http.Header{"Content-Type": {"Application/JSON; Charset=\"UTF-8\""}, "Content-Encoding": {"Identity"}}, true},
		{http.Header{"Content-Type": {"application/json, text/plain"}}, false},
		{http.Header{"Content-Type": {"application/json; charset=latin1"}}, false},
		{http.Header{"Content-Type": {"application/json; charset=utf-8; charset=utf-16"}}, false},
		{http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {""}}, false},
	} {
		if err := checkType(tt.header); (err == nil) != tt.ok {
			t.Errorf("%v: %v", tt.header, err)
		}
	}
}

// The year 1 counted as no time at all, and made keys that never end; a year that is 10000
// in UTC was stored, and no list that held it could be read any more; and times were taken
// that RFC 3339 does not know.
func TestTimes(t *testing.T) {
	for text, want := range map[string]string{
		"2027-06-01T00:00:00Z":           "2027-06-01T00:00:00Z",
		"2027-06-01t01:00:00.1234567z":   "2027-06-01T01:00:00.123456Z",
		"2027-06-01T01:00:00+01:00":      "2027-06-01T00:00:00Z",
		"0001-01-01T00:00:00Z":           "0001-01-01T00:00:00Z",
		"0001-01-01T01:00:00+01:00":      "0001-01-01T00:00:00Z",
		"9999-12-31T23:59:59.999999999Z": "9999-12-31T23:59:59.999999Z",
		"9999-12-31T23:59:59-23:59":      "",
		"9999-12-31T23:59:59-00:01":      "",
		"2027-06-01T1:00:00Z":            "",
		"2027-06-01T00:00:00,5Z":         "",
		"2027-06-01T00:00:00+24:00":      "",
		"2027-06-01T00:00:00+00:60":      "",
		"2027-06-01T00:00:00+0100":       "",
		"2027-06-01 00:00:00Z":           "",
		"2027-02-29T00:00:00Z":           "",
		"2027-06-01T00:00:00":            "",
		"":                               "",
	} {
		o, err := parseObject([]byte(`{"at":"` + text + `"}`))
		if err != nil {
			t.Fatal(err)
		}
		got := o.time("at")
		switch {
		case want == "" && (got != nil || o.err == nil):
			t.Errorf("%q is taken as %v", text, got)
		case want != "" && (got == nil || got.Format(time.RFC3339Nano) != want):
			t.Errorf("%q is %v, want %s: %v", text, got, want, o.err)
		}
	}
}

// Over a real connection a body that does not come is answered after BodyWait, and the
// connection of one that does comes to no harm.
func TestSlowBody(t *testing.T) {
	g := newRig(t)
	o := g.options
	o.BodyWait = 50 * time.Millisecond
	server := httptest.NewServer(NewOwner(o))
	t.Cleanup(server.Close)
	post := func(body io.Reader) int {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/v1/streams", body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+g.key)
		req.Header.Set("Content-Type", "application/json")
		res, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		_, _ = io.Copy(io.Discard, res.Body)
		return res.StatusCode
	}
	if got := post(strings.NewReader(events)); got != http.StatusCreated {
		t.Errorf("a body that comes: %d", got)
	}
	stalled, end := io.Pipe()
	defer func() { _ = end.Close() }()
	go func() { _, _ = io.WriteString(end, `{"name":`) }()
	if got := post(stalled); got != http.StatusRequestTimeout {
		t.Errorf("a body that does not come: %d", got)
	}
	if got := post(strings.NewReader(events)); got != http.StatusConflict {
		t.Errorf("the next: %d", got)
	}
}
