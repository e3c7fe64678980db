package apiclient

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"sluice/internal/bubble"
)

// A call is made again only where that can do nothing twice.
func TestDoRepeats(t *testing.T) {
	type try struct {
		status int // 0 = the connection breaks
		code   string
	}
	for name, tc := range map[string]struct {
		method string
		tries  []try
		asked  int // how often it is
		ok     bool
	}{
		"a read that broke":            {http.MethodGet, []try{{0, ""}, {200, ""}}, 2, true},
		"a read of a bad gateway":      {http.MethodGet, []try{{502, ""}, {200, ""}}, 2, true},
		"a create that broke":          {http.MethodPost, []try{{0, ""}, {200, ""}}, 1, false},
		"a create that may be done":    {http.MethodPost, []try{{503, "STORE_UNAVAILABLE"}, {200, ""}}, 1, false},
		"a create that was not done":   {http.MethodPost, []try{{503, "AUTHENTICATION_UNAVAILABLE"}, {429, "RATE_LIMITED"}, {200, ""}}, 3, true},
		"a change that broke":          {http.MethodPatch, []try{{0, ""}, {503, "STORE_UNAVAILABLE"}, {200, ""}}, 3, true},
		"a deletion that was done":     {http.MethodDelete, []try{{0, ""}, {404, "STREAM_NOT_FOUND"}}, 2, true},
		"a deletion of nothing":        {http.MethodDelete, []try{{404, "STREAM_NOT_FOUND"}}, 1, false},
		"a deletion after a 429":       {http.MethodDelete, []try{{429, "RATE_LIMITED"}, {404, "STREAM_NOT_FOUND"}}, 2, false},
		"a deletion at a wrong place":  {http.MethodDelete, []try{{0, ""}, {404, "NOT_FOUND"}}, 2, false},
		"a refusal":                    {http.MethodGet, []try{{403, "FORBIDDEN"}, {200, ""}}, 1, false},
		"a conflict":                   {http.MethodPost, []try{{409, "STREAM_ALREADY_EXISTS_CONFLICT"}, {200, ""}}, 1, false},
		"a redirect":                   {http.MethodGet, []try{{307, ""}, {200, ""}}, 1, false},
		"what is no JSON is no answer": {http.MethodGet, []try{{299, ""}, {200, ""}}, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := newRig(t, "text/plain")
				n := 0
				r.front = func(w http.ResponseWriter, req *http.Request, _ http.Handler) {
					if req.Header.Get("Authorization") != "Bearer tbo_key" || req.Header.Get("User-Agent") != "test" {
						t.Errorf("headers %v", req.Header)
					}
					now := tc.tries[n]
					n++
					switch now.status {
					case 0:
						panic(http.ErrAbortHandler)
					case 200:
						_, _ = io.WriteString(w, `{"done":true}`)
					case 299:
						_, _ = io.WriteString(w, `<html>`)
					case 307:
						w.Header().Set("Location", "http://elsewhere.test/")
						w.WriteHeader(307)
					default:
						refusing(1, req.Method, now.status, now.code)(w, req, nil)
					}
				}
				answer, err := r.Do(context.Background(), Call{Method: tc.method, Path: "/v1/x"})
				if n != tc.asked || (err == nil) != tc.ok {
					t.Errorf("asked %d times, want %d: %s, %v", n, tc.asked, answer, err)
				}
			})
		})
	}
}

// Nothing is tried for ever.
func TestDoGivesUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "text/plain")
		r.down = true
		began := time.Now()
		_, err := r.Do(context.Background(), Call{Method: http.MethodGet, Path: "/v1/x"})
		var gave *GaveUpError
		if took := time.Since(began); !errors.As(err, &gave) || took > callPatience {
			t.Errorf("%v after %v", err, took)
		}
		r.down = false
		r.front = refusing(1, http.MethodGet, 429, "RATE_LIMITED", "Retry-After", "3600")
		began = time.Now()
		_, err = r.Do(context.Background(), Call{Method: http.MethodGet, Path: "/v1/x"})
		var e *Error
		if !errors.As(err, &e) || e.RetryAfter != time.Hour || time.Since(began) > 0 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		r.front = func(_ http.ResponseWriter, req *http.Request, _ http.Handler) { <-req.Context().Done() }
		if _, err = r.Do(context.Background(), Call{Method: http.MethodPost, Path: "/v1/x"}); err == nil || !strings.Contains(err.Error(), "no answer for too long") {
			t.Errorf("a silent gateway: %v", err)
		}
	})
}

// What a gateway says, or somebody in its place, does nothing to a terminal, is short,
// and never has the key.
func TestErrorIsOneLine(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "text/plain")
		r.front = func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("X-Request-Id", "abc")
			w.WriteHeader(400)
			_, _ = io.WriteString(w, `{"error":{"code":"BAD\u001b[2J","message":"no tbo_key here\n`+strings.Repeat("w", 1000)+`","field":"expires_at\r"}}`)
		}
		_, err := r.Do(context.Background(), Call{Method: http.MethodGet, Path: "/v1/x"})
		var e *Error
		if !errors.As(err, &e) || e.Code != "BAD[2J" || e.Field != "expires_at" || !strings.HasPrefix(e.Message, "no <key> herewww") {
			t.Fatalf("%#v", err)
		}
		if text := err.Error(); strings.ContainsAny(text, "\x1b\r\n") || len(text) > 500 || !strings.Contains(text, "(field expires_at)") {
			t.Errorf("says %q", text)
		}
	})
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2027, 6, 1, 12, 0, 0, 0, time.UTC)
	for in, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "0": 0, "-1": 0, "1.5": 0, "x": 0, "99999999999": 0,
		"Tue, 01 Jun 2027 12:00:30 GMT": 30 * time.Second, "Tue, 01 Jun 2027 11:00:00 GMT": 0,
	} {
		if got := retryAfter(in, now); got != want {
			t.Errorf("%q: %v, want %v", in, got, want)
		}
	}
}

// Waits grow to a bound, are spread, and are never shorter than what was told.
func TestDelay(t *testing.T) {
	for _, jitter := range []float64{0, 0.999999} {
		c := New(Options{Jitter: func() float64 { return jitter }})
		p := c.pace(0)
		for p.tries = range 100 {
			if d := p.delay(&UnansweredError{}); d < firstWait/2 || d > maxWait || p.tries > 6 && d < maxWait/2 {
				t.Errorf("try %d waits %v", p.tries, d)
			}
			told := &Error{Status: 429, RetryAfter: 20 * time.Second}
			if d := p.delay(told); d < 20*time.Second || d > 21*time.Second {
				t.Errorf("told 20 s, waits %v", d)
			}
			told.RetryAfter = 1000 * time.Hour
			if d := p.delay(told); d < maxTold || d > maxTold+time.Second {
				t.Errorf("told 1000 hours, waits %v", d)
			}
		}
	}
}
