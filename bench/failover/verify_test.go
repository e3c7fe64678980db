package failover

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// The check of a trial must itself be able to fail, for each of its promises.
func TestVerify(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		content string
		acks    []ack
		refused string
		want    Verdict
	}{
		{"clean", "a 0 0\na 1 0\n", []ack{{seq: 0, line: "a 0 0\n", from: 0, to: 6}, {seq: 1, line: "a 1 0\n", from: 6, to: 12}}, "", Verdict{}},
		{"stored and never acknowledged", "a 0 0\n", nil, "", Verdict{}},
		{"keyless receipt", "a 0 0\n", []ack{{line: "a 0 0\n", from: -1, to: 6}}, "", Verdict{}},
		{"lost", "a 1 0\n", []ack{{line: "a 0 0\n", from: 0, to: 6}}, "", Verdict{Lost: 1}},
		{"doubled", "a 0 0\na 0 0\n", nil, "", Verdict{Doubled: 1}},
		{"doubled with another payload", "a 0 0\na 0 1\n", nil, "", Verdict{Doubled: 1}},
		{"out of order", "a 1 0\na 0 0\n", []ack{{seq: 0, line: "a 0 0\n", from: 6, to: 12}}, "", Verdict{OutOfOrder: 1}},
		{"late, and its producer never learned of it", "a 1 0\na 0 0\n", []ack{{seq: 1, line: "a 1 0\n", from: 0, to: 6}}, "", Verdict{}},
		{"refused and stored", "a 0 0\n", nil, "a 0 0\n", Verdict{Refused: 1}},
		{"refused and stored instead of the next", "a 0 0\n", []ack{{line: "a 0 1\n", from: 0, to: 6}}, "a 0 0\n", Verdict{Lost: 1, Refused: 1}},
		{"foreign", "b 0 0\n", nil, "", Verdict{Foreign: 1}},
		{"torn", "a 0 0\na 1", nil, "", Verdict{Foreign: 1}},
		{"another place than acknowledged", "a 0 0\n", []ack{{line: "a 0 0\n", from: 6, to: 12}}, "", Verdict{Misplaced: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBook()
			b.acks = tt.acks
			if tt.refused != "" {
				b.gaveUp(tt.refused)
			}
			got := verify(tt.content, map[string]*book{"a": b})
			if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(Verdict{}, "Examples")); diff != "" {
				t.Errorf("verdict (-want +got):\n%s\n%v", diff, got.Examples)
			}
			if got.Clean() != (len(got.Examples) == 0) {
				t.Errorf("clean %v with the examples %q", got.Clean(), got.Examples)
			}
		})
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	receipt := []string{"Stream-Offset", "00000000000000000004", "Stream-Next-Offset", "00000000000000000008"}
	for _, tt := range []struct {
		name    string
		status  int
		code    string
		header  []string
		keyless bool
		want    Outcome
		odd     []string
	}{
		{"first", 200, "", receipt, false, Applied, nil},
		{"repeat", 204, "", receipt, false, Applied, nil},
		{"keyless", 204, "", receipt[2:], true, Applied, nil},
		{"no receipt", 200, "", nil, false, Unknown, []string{"200 without a receipt"}},
		{"half a receipt", 200, "", receipt[2:], false, Unknown, []string{"200 without a receipt"}},
		{"proved", 503, "NO_LEADER", []string{"Retry-After", "1"}, false, Refused, nil},
		{"proved, Retry-After missing", 503, "NO_LEADER", nil, false, Refused, []string{"503 NO_LEADER without Retry-After"}},
		{"proving code at another status", 502, "NO_LEADER", nil, false, Unknown, []string{"answer 502 NO_LEADER"}},
		{"unknown", 503, "OUTCOME_UNKNOWN", []string{"Retry-After", "1"}, false, Unknown, nil},
		{"broken", 502, "UPSTREAM_FAILED", nil, false, Unknown, nil},
		{"timeout", 504, "UPSTREAM_TIMEOUT", nil, false, Unknown, nil},
		{"500", 500, "INTERNAL", nil, false, Unknown, []string{"answer 500 INTERNAL"}},
		{"redirect", 307, "", []string{"Location", "http://127.0.0.1:1/"}, false, Wrong, []string{"header Location"}},
		{"refused", 409, "STREAM_CLOSED", nil, false, Wrong, []string{"answer 409 STREAM_CLOSED"}},
		{"raft header", 204, "", append([]string{"X-Ursula-Raft-Group", "1"}, receipt...), false, Applied, []string{"header X-Ursula-Raft-Group"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := reply{tt.status, http.Header{"Cache-Control": {"no-store"}}, []byte(`{"error":{"code":"` + tt.code + `"}}`)}
			for i := 0; i+1 < len(tt.header); i += 2 {
				r.header.Set(tt.header[i], tt.header[i+1])
			}
			got := judge(r, !tt.keyless)
			if got.outcome != tt.want {
				t.Errorf("outcome %d, want %d", got.outcome, tt.want)
			}
			if diff := cmp.Diff(tt.odd, got.odd); diff != "" {
				t.Errorf("oddities (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLongestGap(t *testing.T) {
	t.Parallel()
	start := time.Unix(0, 0)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	b := newBook()
	for _, s := range []int{1, 2, 3, 7, 8, 9} {
		b.acked(ack{at: at(s)})
	}
	for _, tt := range []struct {
		name     string
		from, to int
		want     time.Duration
	}{
		{"inside", 2, 9, 4 * time.Second},
		{"begins inside the gap", 5, 9, 4 * time.Second},
		{"ends inside the gap", 1, 6, 3 * time.Second},
		{"nothing more comes", 8, 20, 11 * time.Second},
		{"nothing came yet", 0, 1, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := b.longestGap(at(tt.from), at(tt.to)); got != tt.want {
				t.Errorf("gap %v, want %v", got, tt.want)
			}
		})
	}
}

func TestEvent(t *testing.T) {
	t.Parallel()
	text := "event: data\ndata:one\ndata:two\ndata:\n\n:comment\n\nevent: control\ndata:{}\n\nevent: da"
	r := bufio.NewReader(strings.NewReader(text))
	for _, want := range [][2]string{{"data", "one\ntwo\n"}, {"control", "{}"}} {
		kind, data, err := event(r)
		if err != nil || kind != want[0] || data != want[1] {
			t.Errorf("event %q %q, %v; want %q", kind, data, err, want)
		}
	}
	if _, _, err := event(r); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v, want io.EOF", err)
	}
}

// The node said of this stream, in a cluster of four groups: X-Ursula-Raft-Group: 2.
func TestGroup(t *testing.T) {
	t.Parallel()
	if got := Group("/demo/s.x", 4); got != 2 {
		t.Errorf("group %d, want 2", got)
	}
}
