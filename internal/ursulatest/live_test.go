package ursulatest_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/ursulatest"
	"sluice/internal/ursulatest/realursula"
)

// plot is a live read and what happens to its stream while it waits.
type plot struct {
	name   string
	media  string
	body   string   // of the create
	read   string   // query of the live read
	waits  string   // SSE: the text after which the first write happens; long-poll: ""
	events []step   // what happens then, on the stream "/B/s"
	untils []string // after each event, the text to wait for; "" for the end
}

func plots() []plot {
	appendStep := step{method: "POST", target: "/B/s", header: []string{textType}, body: "more\n"}
	closeStep := step{method: "POST", target: "/B/s", header: []string{"Stream-Closed: true"}}
	deleteStep := step{method: "DELETE", target: "/B/s"}
	return []plot{
		{
			name: "sse append then close", media: textType, read: "offset=now&live=sse", waits: "upToDate",
			events: []step{appendStep, closeStep}, untils: []string{"00000000000000000005", ""},
		},
		{
			name: "sse append and close at once", media: textType, body: "old", read: "offset=0&live=sse", waits: "upToDate",
			events: []step{{method: "POST", target: "/B/s", header: []string{textType, "Stream-Closed: true"}, body: "end"}}, untils: []string{""},
		},
		{name: "sse deleted", media: textType, read: "offset=now&live=sse", waits: "upToDate", events: []step{deleteStep}, untils: []string{""}},
		{
			name: "sse json", media: jsonType, read: "offset=now&live=sse", waits: "upToDate",
			events: []step{{method: "POST", target: "/B/s", header: []string{jsonType}, body: `[{"a":1},2]`}, closeStep}, untils: []string{"00000000000000000010", ""},
		},
		{
			name: "sse octets", media: octets, read: "offset=now&live=sse&cursor=0", waits: "upToDate",
			events: []step{{method: "POST", target: "/B/s", header: []string{octets}, body: "\xff\x00"}, closeStep}, untils: []string{"00000000000000000002", ""},
		},
		{name: "long-poll append", media: textType, read: "offset=0&live=long-poll&timeout_ms=15000", events: []step{appendStep}, untils: []string{""}},
		{name: "long-poll close", media: textType, read: "offset=0&live=long-poll&timeout_ms=15000", events: []step{closeStep}, untils: []string{""}},
		{name: "long-poll deleted", media: textType, read: "offset=0&live=long-poll&timeout_ms=15000", events: []step{deleteStep}, untils: []string{""}},
	}
}

// TestLiveConformance lets live reads wait at both nodes while their stream
// changes, and demands the same bytes.
func TestLiveConformance(t *testing.T) {
	node := realursula.Start(t)
	c := start(t, ursulatest.Options{ClusterID: node.ClusterID})
	for i, p := range plots() {
		t.Run(p.name, func(t *testing.T) {
			bucket := fmt.Sprintf("/live-%d/", i)
			want, wantBody := p.run(t, newScript(node.URL), bucket)
			got, gotBody := p.run(t, newScript(c.URLs()[0]), bucket)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("heads of real node (-) and stand-in (+) differ:\n%s", diff)
			}
			if diff := cmp.Diff(wantBody, gotBody); diff != "" {
				t.Errorf("bodies of real node (-) and stand-in (+) differ:\n%s", diff)
			}
			if err := c.WaitTails(within(t), 0); err != nil {
				t.Errorf("%d live reads still wait: %v", c.OpenTails(), err)
			}
		})
	}
}

func (p plot) run(t *testing.T, s *script, bucket string) (head shot, body string) {
	t.Helper()
	act := func(st step) {
		t.Helper()
		st.target = strings.ReplaceAll(st.target, "/B/", bucket)
		if got := s.do(t, st); got.Status >= 300 {
			t.Fatalf("%s %s: status %d: %s", st.method, st.target, got.Status, got.Body)
		}
	}
	act(step{method: "PUT", target: "/B/s", header: []string{p.media}, body: p.body})
	conn := dial(t, s.base)
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprintf(conn, "GET %ss?%s HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n", bucket, p.read); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	if p.waits == "" {
		// A long-poll sends nothing before it ends. From an offset that is not
		// "now" its answer is the same whichever of read and event comes first.
		for _, e := range p.events {
			act(e)
		}
	}
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if p.waits == "" {
		return s.shot(t, res, step{}), ""
	}
	var got strings.Builder
	more := func(until string) {
		t.Helper()
		part, err := readUntil(res.Body, until)
		if err != nil {
			t.Fatal(err)
		}
		got.Write(part)
	}
	more(p.waits)
	for i, e := range p.events {
		act(e)
		if p.untils[i] != "" {
			more(p.untils[i])
		}
	}
	rest, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	got.Write(rest)
	head = shot{Status: res.StatusCode, Header: s.headers(res.Header)}
	return head, s.body(got.String(), false)
}
