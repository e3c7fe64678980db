package ursulatest_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/ursulatest"
)

// step is one raw request. Target, headers and body may hold {inc}, the
// incarnation the last answer named, {tag}, its ETag, and {wrong}, a token that
// no stream has.
type step struct {
	name   string
	method string
	target string
	header []string // "Name: value"
	body   string
	until  string // read the body until it holds this, and leave
	free   bool   // the error's message is worded otherwise; its code is not
}

// shot is an answer as far as it must be equal on every node: what is random
// is replaced by its order of appearance.
type shot struct {
	Status int
	Header map[string][]string
	Body   string
}

// script runs steps in order against one node and keeps what they name.
type script struct {
	base     string
	inc, tag string
	names    map[string]string // random value → stable name
	counts   map[string]int
}

func newScript(base string) *script {
	return &script{base: base, names: make(map[string]string), counts: make(map[string]int)}
}

const wrongToken = "4503599627370497"

var (
	boundaryRE = regexp.MustCompile(`ursula-bootstrap-[0-9a-f]{32}`)
	tagRE      = regexp.MustCompile(`"[0-9a-f]{32}"`)
	messageRE  = regexp.MustCompile(`"message":"[^\n]*"}}`)
)

// stable names a random value by its kind and order of appearance.
func (s *script) stable(kind, value string) string {
	if name, ok := s.names[value]; ok {
		return name
	}
	s.counts[kind]++
	name := fmt.Sprintf("<%s %d>", kind, s.counts[kind])
	s.names[value] = name
	return name
}

func (s *script) expand(text string) string {
	return strings.NewReplacer("{inc}", s.inc, "{tag}", s.tag, "{wrong}", wrongToken).Replace(text)
}

// dial opens a connection that a stuck node cannot hold for ever.
func dial(t *testing.T, base string) net.Conn {
	t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// do sends one request byte for byte and returns the normalised answer.
func (s *script) do(t *testing.T, st step) shot {
	t.Helper()
	conn := dial(t, s.base)
	var req bytes.Buffer
	fmt.Fprintf(&req, "%s %s HTTP/1.1\r\nHost: node\r\nConnection: close\r\n", st.method, s.expand(st.target))
	declared := false
	for _, h := range st.header {
		declared = declared || strings.HasPrefix(h, "Content-Length:") || strings.HasPrefix(h, "Transfer-Encoding:")
		req.WriteString(s.expand(h) + "\r\n")
	}
	body := s.expand(st.body)
	if !declared && (body != "" || st.method == http.MethodPost || st.method == http.MethodPut) {
		fmt.Fprintf(&req, "Content-Length: %d\r\n", len(body))
	}
	req.WriteString("\r\n" + body)
	if _, err := conn.Write(req.Bytes()); err != nil {
		t.Fatalf("%s %s: write: %v", st.method, st.target, err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: st.method})
	if err != nil {
		t.Fatalf("%s %s: %v", st.method, st.target, err)
	}
	defer func() {
		_ = conn.Close() // first, since closing a body reads it to its end
		_ = res.Body.Close()
	}()
	return s.shot(t, res, st)
}

func (s *script) shot(t *testing.T, res *http.Response, st step) shot {
	t.Helper()
	raw, err := readUntil(res.Body, st.until)
	if err != nil {
		t.Fatalf("%s %s: body: %v", st.method, st.target, err)
	}
	if v := res.Header.Get("Stream-Incarnation"); v != "" {
		s.inc = v
	}
	if v := res.Header.Get("Etag"); v != "" {
		s.tag = v
	}
	if res.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		if raw, err = io.ReadAll(z); err != nil {
			t.Fatal(err)
		}
	}
	if res.StatusCode == http.StatusNotModified {
		res.Header.Del("Content-Type") // Go's server takes it away (package comment)
	}
	return shot{Status: res.StatusCode, Header: s.headers(res.Header), Body: s.body(string(raw), st.free)}
}

// headers drops what the HTTP library decides and names what is random.
func (s *script) headers(h http.Header) map[string][]string {
	out := make(map[string][]string)
	for name, values := range h {
		switch name {
		case "Date", "Connection":
			continue
		case "Stream-Incarnation":
			values = []string{s.stable("incarnation", values[0])}
		case "Content-Length":
			// Kept: a head that promises another length is a difference.
		default:
			values = slices.Clone(values)
		}
		for i, v := range values {
			v = boundaryRE.ReplaceAllString(v, "<boundary>")
			values[i] = tagRE.ReplaceAllStringFunc(v, func(tag string) string { return s.stable("tag", tag) })
		}
		out[name] = values
	}
	return out
}

func (s *script) body(text string, free bool) string {
	text = boundaryRE.ReplaceAllString(text, "<boundary>")
	if s.inc != "" {
		text = strings.ReplaceAll(text, s.inc, "<token>")
	}
	// Whether a bucket is known is a matter of the stream's Raft group (facts §1.3).
	text = strings.Replace(text, `"STREAM_NOT_FOUND","message":"the stream does not exist"`, `"NO_STREAM"`, 1)
	text = strings.Replace(text, `"BUCKET_NOT_FOUND","message":"the bucket does not exist"`, `"NO_STREAM"`, 1)
	if free {
		text = messageRE.ReplaceAllString(text, `"message":"…"}}`)
	}
	return text
}

// readUntil reads a body to its end, or until it holds a text.
func readUntil(r io.Reader, text string) ([]byte, error) {
	if text == "" {
		return io.ReadAll(r)
	}
	var got bytes.Buffer
	buf := make([]byte, 4096)
	for !strings.Contains(got.String(), text) {
		n, err := r.Read(buf)
		got.Write(buf[:n])
		if err != nil {
			return got.Bytes(), fmt.Errorf("%q never came in %q: %w", text, got.String(), err)
		}
	}
	return got.Bytes(), nil
}

// compare runs a step on both nodes and demands the same answer.
func compare(t *testing.T, standIn, realNode *script, st step) {
	t.Helper()
	want := realNode.do(t, st)
	got := standIn.do(t, st)
	if st.free { // its length follows the wording
		delete(want.Header, "Content-Length")
		delete(got.Header, "Content-Length")
	}
	if diff := diffShots(want, got); diff != "" {
		t.Errorf("%s %s %v\nreal node (-) and stand-in (+) differ:\n%s", st.method, st.target, st.header, diff)
	}
}

// start runs a cluster of the stand-in for a test.
func start(t *testing.T, o ursulatest.Options) *ursulatest.Cluster {
	t.Helper()
	c := ursulatest.New(o)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// within bounds a wait of a test.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// blob is n bytes that no two places share.
func blob(n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "%07d ", i)
	}
	return b.String()[:n]
}

func diffShots(want, got shot) string { return cmp.Diff(want, got) }

// serve asks the first node's handler without a connection.
func serve(t *testing.T, c *ursulatest.Cluster, method, target, body string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	c.Node(0).Handler().ServeHTTP(w, r)
	return w
}
