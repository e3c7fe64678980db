package tls

import (
	"bufio"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/zap"
)

// C03: redirects ate challenges, challenges were asked for a credential or went to an
// upstream, and the redirect led wherever Host said.
func TestPlainHTTP(t *testing.T) {
	t.Parallel()
	h := NewRedirect(RedirectOptions{
		Origin: "https://streams.example.com:8443", RequestID: func() string { return "made" },
		Challenge: func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != challengePath+"/open" {
				return false
			}
			_, _ = w.Write([]byte("answer"))
			return true
		},
	})
	const key = "Authorization: Bearer tbo_x\r\n"
	for name, tc := range map[string]struct {
		request        string
		status         int
		location, code string
	}{
		"a read":                   {"GET /acme/s.events?offset=-1&live=sse HTTP/1.1\r\nHost: evil.example\r\n\r\n", 308, "https://streams.example.com:8443/acme/s.events?offset=-1&live=sse", ""},
		"an append":                {"POST /acme/s.events HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}", 308, "https://streams.example.com:8443/acme/s.events", ""},
		"HEAD":                     {"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", 308, "https://streams.example.com:8443/", ""},
		"two slashes":              {"GET //evil.example/ HTTP/1.1\r\nHost: a\r\n\r\n", 308, "https://streams.example.com:8443//evil.example/", ""},
		"HTTP/1.0 without a host":  {"GET /a HTTP/1.0\r\n\r\n", 308, "https://streams.example.com:8443/a", ""},
		"another's whole URL":      {"GET http://evil.example/ HTTP/1.1\r\nHost: a\r\n\r\n", 400, "", "INVALID_REQUEST"},
		"all":                      {"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 400, "", "INVALID_REQUEST"},
		"a credential":             {"GET /acme/s.events HTTP/1.1\r\nHost: a\r\n" + key + "\r\n", 403, "", "FORBIDDEN"},
		"an empty credential":      {"GET / HTTP/1.1\r\nHost: a\r\nauthorization:\r\n\r\n", 403, "", "FORBIDDEN"},
		"an open challenge":        {"GET /.well-known/acme-challenge/open HTTP/1.1\r\nHost: a\r\n\r\n", 200, "", ""},
		"with a credential":        {"GET /.well-known/acme-challenge/open HTTP/1.1\r\nHost: a\r\n" + key + "\r\n", 200, "", ""},
		"no challenge":             {"GET /.well-known/acme-challenge/x HTTP/1.1\r\nHost: a\r\n\r\n", 404, "", "NOT_FOUND"},
		"out of the challenges":    {"GET /.well-known/acme-challenge/../../acme/s.events HTTP/1.1\r\nHost: a\r\n\r\n", 404, "", "NOT_FOUND"},
		"a challenge's encoded up": {"GET /.well-known/acme-challenge/%2e%2e/x HTTP/1.1\r\nHost: a\r\n\r\n", 404, "", "NOT_FOUND"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(tc.request)))
			if err != nil {
				t.Fatal(err)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			res := w.Result()
			defer func() { _ = res.Body.Close() }()
			var body struct {
				Error struct{ Code, Message string }
			}
			_ = json.Unmarshal(w.Body.Bytes(), &body)
			if res.StatusCode != tc.status || res.Header.Get("Location") != tc.location || body.Error.Code != tc.code {
				t.Errorf("%d %q %q, want %d %q %q", res.StatusCode, res.Header.Get("Location"), body.Error.Code, tc.status, tc.location, tc.code)
			}
			if res.Header.Get("Cache-Control") != "no-store" || res.Header.Get("X-Request-Id") != "made" {
				t.Errorf("headers %v", res.Header)
			}
			if strings.Contains(w.Body.String(), "tbo_") {
				t.Error("the credential is in the answer")
			}
		})
	}
}

// Without a source of challenges none is ever open.
func TestPlainHTTPWithoutChallenges(t *testing.T) {
	t.Parallel()
	h := NewRedirect(RedirectOptions{Origin: "https://streams.example.com", RequestID: func() string { return "made" }})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, challengePath+"/x", nil))
	if w.Code != http.StatusNotFound {
		t.Errorf("status %d", w.Code)
	}
}

// A head over the limit, and one that does not end, cost the plain listener little.
func TestPlainHTTPIsBounded(t *testing.T) {
	t.Parallel()
	std, err := zap.NewStdLogAt(zap.NewNop(), zap.DebugLevel)
	if err != nil {
		t.Fatal(err)
	}
	s := NewRedirectServer(NewRedirect(RedirectOptions{Origin: "https://streams.example.com", RequestID: func() string { return "made" }}), std)
	if s.ReadTimeout != redirectTime || s.WriteTimeout != redirectTime || s.IdleTimeout != redirectIdle {
		t.Error("a wait has no end")
	}
	l := listen(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	defer func() { _ = s.Close(); <-done }()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = conn.Write([]byte("GET / HTTP/1.1\r\nHost: a\r\nX-Long: " + strings.Repeat("x", 64<<10) + "\r\n\r\n"))
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "431") {
		t.Errorf("%q, %v", line, err)
	}
}
