package apiclient

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice/internal/bubble"
)

// A refused connection was tried for twenty seconds with a line each time, and a create
// said that it may have been done: nothing was ever sent.
func TestNobodyTakesTheCall(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "text/plain")
		r.down = true
		began := time.Now()
		_, err := r.Do(context.Background(), Call{Method: http.MethodPost, Path: "/v1/x"})
		var gave *GaveUpError
		if took := time.Since(began); !errors.As(err, &gave) || Unsure(err) || took > dialPatience || took < time.Second {
			t.Errorf("%v after %v", err, took)
		}
		if told := r.told(); len(told) != 1 {
			t.Errorf("told %d times", len(told))
		}
		// A gateway that comes back in between takes it, a create too.
		time.AfterFunc(time.Second, func() { r.set(func() { r.down = false }) })
		r.front = func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { _, _ = io.WriteString(w, `{}`) }
		if _, err := r.Do(context.Background(), Call{Method: http.MethodPost, Path: "/v1/x"}); err != nil {
			t.Error(err)
		}
	})
}

// An unknown host, https to a port that speaks http or anything else, and a certificate
// of nobody were tried for half a minute. They are told at once.
func TestHopelessWays(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	signed := httptest.NewUnstartedServer(http.NotFoundHandler())
	signed.Config.ErrorLog = log.New(io.Discard, "", 0)
	signed.StartTLS()
	t.Cleanup(signed.Close)
	unknown := func(err *net.DNSError) func(context.Context, string, string) (net.Conn, error) {
		return func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: err}
		}
	}
	for name, tc := range map[string]struct {
		origin string
		dial   func(context.Context, string, string) (net.Conn, error)
		says   string
	}{
		"an unknown host":  {"http://gateway.test", unknown(&net.DNSError{Err: "no such host", Name: "gateway.test", IsNotFound: true}), "no such host"},
		"https to http":    {strings.Replace(plain.URL, "http:", "https:", 1), nil, "HTTP response to HTTPS client"},
		"a strange signer": {signed.URL, nil, "certificate"},
		"another protocol": {"https://gateway.test", speaking("SSH-2.0-OpenSSH_9.6\r\n"), "TLS"},
	} {
		t.Run(name, func(t *testing.T) {
			transport := NewTransport(nil)
			transport.Proxy = nil
			if tc.dial != nil {
				transport.DialContext = tc.dial
			}
			c := New(Options{Origin: tc.origin, Transport: transport, Jitter: func() float64 { return 0 }, Notice: func(n Notice) { t.Errorf("tries again: %v", n.Err) }})
			t.Cleanup(c.Close)
			_, err := c.Do(t.Context(), Call{Method: http.MethodGet, Path: "/v1/x"})
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v", err)
			}
			if _, err := c.Head(t.Context(), tc.origin+"/acme/s.x"); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("HEAD: %v", err)
			}
		})
	}
}

// speaking is a way to somebody who says something, whatever they hear.
func speaking(text string) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go func() {
			_, _ = server.Read(make([]byte, 4096))
			_, _ = io.WriteString(server, text)
			_ = server.Close()
		}()
		return client, nil
	}
}

// A name that is not known for a while, as on a network that changes, does not end what
// stood already.
func TestHopeIsKeptOnceAnswered(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "text/plain")
		r.front = func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { _, _ = io.WriteString(w, `{}`) }
		if _, err := r.Do(context.Background(), Call{Method: http.MethodGet, Path: "/v1/x"}); err != nil {
			t.Fatal(err)
		}
		lost := &UnansweredError{Err: &net.DNSError{Err: "no such host", IsNotFound: true}}
		if err := r.pace(time.Minute).wait(context.Background(), lost); err != nil {
			t.Errorf("it ends with %v", err)
		}
	})
}

// A 500 of a proxy, and a 503 of one, said nothing of what became of a create; a 503
// without a code was even taken for a proof, and the create was sent again.
func TestWhatIsUnsure(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"a lost answer":       {&UnansweredError{Sent: true, Err: io.ErrUnexpectedEOF}, true},
		"never sent":          {&UnansweredError{Err: syscall.ECONNREFUSED}, false},
		"never sent, in time": {&GaveUpError{time.Second, &UnansweredError{Err: syscall.ECONNREFUSED}}, false},
		"a proxy's 500":       {&Error{Status: 500}, true},
		"the gateway's 500":   {&Error{Status: 500, Code: "INTERNAL"}, true},
		"a proxy's 502":       {&Error{Status: 502}, true},
		"a proxy's 503":       {&Error{Status: 503}, true},
		"a 503 that proves":   {&Error{Status: 503, Code: "AUTHENTICATION_UNAVAILABLE"}, false},
		"a store's 503":       {&Error{Status: 503, Code: "STORE_UNAVAILABLE"}, true},
		"a 504":               {&Error{Status: 504}, true},
		"a proxy's 408":       {&Error{Status: 408}, true},
		"a slow body":         {&Error{Status: 408, Code: "BODY_TOO_SLOW"}, false},
		"a 429":               {&Error{Status: 429}, false},
		"a refusal":           {&Error{Status: 403}, false},
		"another program":     {&StrangeError{}, false},
		"nothing":             {nil, false},
	} {
		if got := Unsure(tc.err); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Any 2xx with any JSON passed for done: a deletion that a web page answers with 200.
func TestDoWantsTheStatus(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "text/plain")
		status := 0
		r.front = func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, `{}`) // nothing of it where the status has no body
		}
		for _, tc := range []struct {
			answers, wants int
			ok             bool
		}{{200, 0, true}, {204, 0, false}, {200, 204, false}, {204, 204, true}, {200, 201, false}, {202, 202, true}} {
			status = tc.answers
			_, err := r.Do(context.Background(), Call{Method: http.MethodDelete, Path: "/v1/x", Status: tc.wants})
			var strange *StrangeError
			if tc.ok != (err == nil) || err != nil && !errors.As(err, &strange) {
				t.Errorf("%d where %d is wanted: %v", tc.answers, tc.wants, err)
			}
		}
	})
}

// What refuses a call without the API's words is no gateway: a proxy, or a storage node.
func TestForeignRefusals(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "text/plain")
		for name, tc := range map[string]struct {
			code    string
			headers []string
			want    bool
		}{
			"the API's":     {"FORBIDDEN", []string{"X-Request-Id", "a"}, false},
			"a node's":      {"INVALID_BUCKET_ID", []string{"X-Request-Id", "a", "Ursula-Cluster-Id", "c"}, true},
			"of no request": {"FORBIDDEN", nil, true},
			"without code":  {"", []string{"X-Request-Id", "a"}, true},
		} {
			r.front = refusing(1, http.MethodGet, 400, tc.code, tc.headers...)
			_, err := r.Do(context.Background(), Call{Method: http.MethodGet, Path: "/v1/x"})
			var e *Error
			if !errors.As(err, &e) || e.Foreign != tc.want {
				t.Errorf("%s: %#v", name, err)
			}
		}
	})
}
