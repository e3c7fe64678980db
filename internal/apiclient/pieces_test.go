package apiclient

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

func split(s splitter) (bodies []string, messages int, err error) {
	for {
		p, err := s.next()
		if err != nil {
			return bodies, messages, err
		}
		bodies, messages = append(bodies, string(p.body)), messages+p.messages
	}
}

// Pieces are cut where a stream's readers want them, and are the same each time,
// however the source comes.
func TestPieces(t *testing.T) {
	for name, tc := range map[string]struct {
		media, in   string
		size, limit int64
		want        []string
		messages    int
	}{
		"bytes":                      {"application/octet-stream", "0123456789", 4, 100, []string{"0123", "4567", "89"}, 0},
		"bytes, even":                {"image/png", "01234567", 4, 100, []string{"0123", "4567"}, 0},
		"lines":                      {"text/plain; charset=utf-8", "ab\ncd\nef\n", 6, 100, []string{"ab\ncd\n", "ef\n"}, 0},
		"no last end":                {"text/plain", "ab\ncd", 6, 100, []string{"ab\ncd"}, 0},
		"a line above the size":      {"text/plain", "a\n0123456789\nb\n", 6, 100, []string{"a\n", "0123456789\n", "b\n"}, 0},
		"empty lines":                {"application/x-ndjson", "\n\n\n", 2, 100, []string{"\n\n", "\n"}, 0},
		"JSON lines":                 {"application/json", "{\"n\":1}\n{\"n\":2}\n{\"n\":3}\n", 17, 100, []string{`[{"n":1},{"n":2}]`, `{"n":3}`}, 3},
		"JSON over lines":            {"application/json", "{\n \"n\": 1\n}\n{}", 100, 100, []string{"[{\n \"n\": 1\n},{}]"}, 2},
		"an array":                   {"application/json", "[1,\n2, 3]", 100, 100, []string{"[1,2,3]"}, 3},
		"an array above the limit":   {"application/json", "[1,22,333,4444]", 8, 8, []string{"[1,22]", "333", "4444"}, 4},
		"arrays and values":          {"application/json", "[1,2] 3 [[4]] [] \"[5]\"", 100, 100, []string{`[1,2,3,[4],"[5]"]`}, 5},
		"one array in an array":      {"application/json", "[[1,2]]", 100, 100, []string{"[[1,2]]"}, 1},
		"a message of all the limit": {"application/json", `"0123456"` + " 1", 5, 9, []string{`"0123456"`, "1"}, 2},
		"no line ends":               {"application/json", `{"n":1}{"n":2}`, 100, 100, []string{`[{"n":1},{"n":2}]`}, 2},
		"scalars":                    {"application/json", "1 true null \"x\"", 100, 100, []string{`[1,true,null,"x"]`}, 4},
		"nothing but white space":    {"application/json", " \n ", 100, 100, nil, 0},
		"an empty array":             {"application/json", "[]", 100, 100, nil, 0},
		"nothing":                    {"text/plain", "", 100, 100, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			for how, in := range map[string]io.Reader{"at once": strings.NewReader(tc.in), "byte by byte": iotest.OneByteReader(strings.NewReader(tc.in)), "data with the end": iotest.DataErrReader(strings.NewReader(tc.in))} {
				got, messages, err := split(newSplitter(tc.media, in, tc.size, tc.limit))
				if diff := cmp.Diff(tc.want, got); diff != "" || messages != tc.messages || !errors.Is(err, io.EOF) {
					t.Errorf("%s: %d messages, %v (-want +got):\n%s", how, messages, err, diff)
				}
			}
		})
	}
}

// What cannot be appended is told with its place. Whole pieces before it are given out,
// and nothing else, so that a corrected source goes on where this one stopped.
func TestPiecesRefuse(t *testing.T) {
	for name, tc := range map[string]struct {
		media, in string
		want      []string
		says      string
	}{
		"a long line":        {"text/plain", "ab\n" + strings.Repeat("x", 20) + "\n", nil, "line 2 is larger than one append may be, 16 bytes"},
		"a long message":     {"application/json", `1 "` + strings.Repeat("x", 200000) + `"`, nil, "message 2 is larger"},
		"a little long":      {"application/json", `1 "0123456789abcdef"`, nil, "message 2 is larger"},
		"one array, long":    {"application/json", `[[1,2,3,4,5,6,78]]`, nil, "message 1 is larger"},
		"an endless array":   {"application/json", "[1,2", nil, "message 3, near byte 4, is not JSON: unexpected EOF"},
		"half a message":     {"application/json", "1 {\"a\"", nil, "message 2, near byte 6, is not JSON: unexpected EOF"},
		"no JSON":            {"application/json", "1\nhello\n", nil, "message 2, near byte"},
		"a stray bracket":    {"application/json", "1 ]", nil, "message 2, near byte"},
		"after whole pieces": {"application/json", "12345678 12345678 hello", []string{"12345678", "12345678"}, "message 3, near byte"},
		"lines before it":    {"text/plain", "1234567\nab\n" + strings.Repeat("x", 20), []string{"1234567\n"}, "line 3 is larger"},
		"a missing comma":    {"application/json", "[1 2]", nil, "message 2, near byte"},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, err := split(newSplitter(tc.media, strings.NewReader(tc.in), 8, 16))
			if diff := cmp.Diff(tc.want, got); diff != "" || err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v, want %q (-want +got):\n%s", err, tc.says, diff)
			}
		})
	}
}

// A source that breaks is an error, not its end.
func TestPiecesOfABrokenSource(t *testing.T) {
	broken := errors.New("broken")
	for _, media := range []string{"text/plain", "application/json", "application/octet-stream"} {
		in := io.MultiReader(strings.NewReader("1\n2\n"), iotest.ErrReader(broken))
		if _, _, err := split(newSplitter(media, in, 100, 100)); !errors.Is(err, broken) {
			t.Errorf("%s: %v", media, err)
		}
	}
}

// The pieces of anything JSON hold its messages, in order, each within the limit.
func FuzzPiecesOfJSON(f *testing.F) {
	f.Add(`[1,[2,3]] {"a":[]} "x"`, uint8(5))
	f.Add("[\n[]\n]", uint8(3))
	f.Fuzz(func(t *testing.T, in string, size uint8) {
		limit := int64(64)
		bodies, messages, err := split(newSplitter("application/json", strings.NewReader(in), int64(size)+1, limit))
		var got []json.RawMessage
		for _, b := range bodies {
			if int64(len(b)) > limit || !json.Valid([]byte(b)) {
				t.Fatalf("%q: piece %q", in, b)
			}
			if b[0] != '[' {
				got = append(got, json.RawMessage(b))
				continue
			}
			var several []json.RawMessage
			if json.Unmarshal([]byte(b), &several) != nil {
				t.Fatalf("%q: piece %q", in, b)
			}
			got = append(got, several...)
		}
		if len(got) != messages {
			t.Fatalf("%q: %d messages in %q, told %d", in, len(got), bodies, messages)
		}
		if json.Valid([]byte(in)) && errors.Is(err, io.EOF) {
			want := []json.RawMessage{json.RawMessage(in)}
			if strings.HasPrefix(strings.TrimLeft(in, " \t\r\n"), "[") {
				if json.Unmarshal([]byte(in), &want) != nil {
					t.Fatal("valid JSON that is none")
				}
			}
			if len(want) != len(got) {
				t.Fatalf("%q: %q, want %q", in, got, want)
			}
			for i := range want {
				if strings.TrimSpace(string(want[i])) != string(got[i]) {
					t.Errorf("%q: message %d is %q, want %q", in, i, got[i], want[i])
				}
			}
		}
	})
}
