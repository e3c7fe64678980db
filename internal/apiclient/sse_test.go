package apiclient

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// WHATWG HTML §9.2, as far as a stream's answers go; what a cut leaves is dropped.
func TestEvents(t *testing.T) {
	type one struct{ Name, Data string }
	for name, tc := range map[string]struct {
		in    string
		want  []one
		retry time.Duration
	}{
		"one":                        {"event: data\ndata:{\"n\":1}\ndata:\n\n", []one{{"data", "{\"n\":1}\n"}}, 0},
		"a space after the colon":    {"data: a\ndata:  b\n\n", []one{{"", "a\n b"}}, 0},
		"CRLF":                       {"event: x\r\ndata: a\r\n\r\n", []one{{"x", "a"}}, 0},
		"comments between":           {":\n\n: hello\ndata: a\n\n:\n\n", []one{{"", "a"}}, 0},
		"a name without data":        {"event: x\n\ndata: a\n\n", []one{{"", "a"}}, 0},
		"retry":                      {"retry: 1500\n\ndata: a\n\n", []one{{"", "a"}}, 1500 * time.Millisecond},
		"a retry that is none":       {"retry: soon\n\n", nil, 0},
		"fields of nobody":           {"id: 7\nfoo\nfoo: bar\ndata\n\n", []one{{"", ""}}, 0},
		"a cut in an event":          {"data: a\n\nevent: x\ndata: b\n", []one{{"", "a"}}, 0},
		"a cut in a line":            {"data: a\n\ndata: b", []one{{"", "a"}}, 0},
		"nothing":                    {"", nil, 0},
		"a line longer than buffers": {"data: " + strings.Repeat("x", 100_000) + "\n\n", []one{{"", strings.Repeat("x", 100_000)}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			for _, in := range []io.Reader{strings.NewReader(tc.in), iotest.OneByteReader(strings.NewReader(tc.in))} {
				events := newEvents(in, 200_000)
				var got []one
				for {
					e, err := events.next()
					if err != nil {
						if !errors.Is(err, io.EOF) {
							t.Error(err)
						}
						break
					}
					got = append(got, one{e.name, string(e.data)})
				}
				if diff := cmp.Diff(tc.want, got); diff != "" || events.retry != tc.retry {
					t.Errorf("retry %v (-want +got):\n%s", events.retry, diff)
				}
			}
		})
	}
}

// An event without an end does not take all memory.
func TestEventsAreBounded(t *testing.T) {
	for _, in := range []string{strings.Repeat("x", 2000), strings.Repeat("data: x\n", 300), "data: " + strings.Repeat("x", 1100) + "\n\n"} {
		if _, err := newEvents(strings.NewReader(in), 1000).next(); !errors.Is(err, errLongEvent) {
			t.Errorf("%.20q…: %v", in, err)
		}
	}
}
