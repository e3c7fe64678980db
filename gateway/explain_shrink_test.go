package gateway

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// shrink takes off a request what is not needed for it to fail: header lines behind the
// first keep ones, the query, and the tail of the path.
func shrink(q generated, keep int, fails func(generated) bool) generated {
	for again := true; again; {
		again = false
		try := func(less generated) {
			if fails(less) {
				q, again = less, true
			}
		}
		for i := len(q.Headers) - 1; i >= keep; i-- {
			less := q
			less.Headers = slices.Delete(slices.Clone(q.Headers), i, i+1)
			if less.body != "" && isOfBody(q.Headers[i]) {
				less.body = "" // else it is the next request
			}
			try(less)
		}
		for _, mark := range []string{"?", "&", "/"} {
			if at := strings.LastIndex(q.URL, mark); at > 0 {
				less := q
				less.URL = q.URL[:at]
				try(less)
			}
		}
	}
	return q
}

// isOfBody reports a line that says how long the body is.
func isOfBody(line string) bool {
	name, _, _ := strings.Cut(line, ":")
	return strings.EqualFold(name, "Content-Length") || strings.EqualFold(name, "Transfer-Encoding")
}

// report shrinks a request about which the explanation is wrong, and prints it as a test may
// have it.
func (e *explainRig) report(t *testing.T, n int, q generated, fault string) {
	t.Helper()
	keep, tries := len(e.credentials[q.as]), 0
	least := shrink(q, keep, func(less generated) bool {
		id := fmt.Sprint("shrunk-", n, "-", tries)
		tries++
		less.Headers = append(slices.Clone(less.Headers), requestIDHeader+": "+id)
		less.Headers = slices.DeleteFunc(less.Headers, func(line string) bool {
			return strings.HasPrefix(line, requestIDHeader+": explained-")
		})
		_, still := e.check(t, id, less)
		return still != ""
	})
	t.Fatalf("request %d, with the credential %q: %s\nshrunk: {Method: %q, URL: %.300q, Headers: %.600q}, body %.100q", n, q.as, fault, least.Method, least.URL, least.Headers[keep:], least.body)
}

// A counter-example is made small without being made another one.
func TestShrink(t *testing.T) {
	q := generated{Question: Question{
		Method: "POST", URL: "/acme/s.pub/snapshot/1?a=b&c=d",
		Headers: []string{"Authorization: Bearer x", "Te: trailers", "Content-Length: 3", "Expect: much", "Via: 1.1 x"},
	}, body: "abc"}
	got := shrink(q, 1, func(q generated) bool {
		return slices.Contains(q.Headers, "Expect: much") && strings.HasPrefix(q.URL, "/acme/s.pub") && slices.Contains(q.Headers, "Authorization: Bearer x")
	})
	if got.URL != "/acme/s.pub" || !slices.Equal(got.Headers, []string{"Authorization: Bearer x", "Expect: much"}) || got.body != "" {
		t.Errorf("%+v", got)
	}
}

// What is easily explained otherwise than it is done: where Go's own server answers, where a
// proxy changes a request on its way, and where two things are wrong at once.
func TestExplainAgreesOn(t *testing.T) {
	e := newExplainRig(t, false)
	for i, tc := range []struct {
		Question
		as, body string
	}{
		{Question{Method: "GET", URL: "/acme/s.priv", Headers: []string{"Expect: much"}}, "full", ""},
		{Question{Method: "POST", URL: "/acme/s.priv", Headers: []string{"Transfer-Encoding: gzip"}}, "full", ""},
		{Question{Method: "POST", URL: "/acme/s.priv", Headers: []string{"Content-Length: 1", "Content-Length: 2"}}, "full", ""},
		{Question{Method: "POST", URL: "/acme/s.priv", Headers: []string{"Content-Length: 257"}}, "none", strings.Repeat("b", 257)},
		{Question{Method: "POST", URL: "/acme/s.priv", Headers: []string{"Content-Length: 257"}}, "read", strings.Repeat("b", 257)},
		{Question{Method: "POST", URL: "/acme/s.priv", Headers: []string{"Content-Length: 1", "Transfer-Encoding: chunked"}}, "full", "1\r\nb\r\n0\r\n\r\n"},
		{Question{Method: "GET", URL: "/acme/s.priv", Headers: []string{"Connection: X-Mine", "X-Mine: 1", "Te: trailers"}}, "full", ""},
		{Question{Method: "GET", URL: "/acme/s.priv", Headers: []string{"Upgrade: websocket", "Connection: upgrade"}}, "full", ""},
		{Question{Method: "HEAD", URL: "/acme/../acme/s.priv"}, "full", ""},
		{Question{Method: "GET", URL: "/acme/s%2epriv"}, "full", ""},
		{Question{Method: "GET", URL: "http://other.example.com/acme/s.pub"}, "none", ""},
		{Question{Method: "OPTIONS", URL: "/acme/s.priv", Headers: []string{"Origin: https://evil.example.com", "Access-Control-Request-Method: POST"}}, "none", ""},
		{Question{Method: "GET", URL: "/acme/s.pub"}, "revoked token", ""},
		{Question{Method: "GET", URL: "/acme/s.pub"}, "two", ""},
		{Question{Method: "DELETE", URL: "/gone/s.priv"}, "gone.full", ""},
		{Question{Method: "CONNECT", URL: "/acme/s.priv"}, "full", ""},
		{Question{Method: "GET", URL: "/acme/s.priv", Headers: []string{"X-Bad: " + strings.Repeat("a", 48<<10)}}, "full", ""},
		{Question{Method: "GET", URL: "/acme/s.priv", Headers: []string{"Host: a b"}}, "full", ""},
	} {
		id := fmt.Sprint("explained-", i)
		tc.Headers = slices.Concat(e.credentials[tc.as], []string{requestIDHeader + ": " + id}, tc.Headers)
		if x, fault := e.check(t, id, generated{tc.Question, tc.body, tc.as}); fault != "" {
			t.Errorf("%s %.100s as %s: %s\nexplained: %+v", tc.Method, tc.URL, tc.as, fault, x)
		}
	}
}
