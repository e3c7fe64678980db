package refusal

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
)

func TestTableIsWhole(t *testing.T) {
	seen := map[Code]bool{}
	last := 0
	for _, e := range Table() {
		if seen[e.Code] {
			t.Errorf("%s stands twice", e.Code)
		}
		seen[e.Code] = true
		if e.Status < last {
			t.Errorf("%s (%d) stands after %d", e.Code, e.Status, last)
		}
		last = e.Status
		if e.Message == "" || e.When == "" || e.Outcome == "" || !strings.HasSuffix(e.Message, ".") {
			t.Errorf("%s: message, when and outcome are needed: %+v", e.Code, e)
		}
		// The promise of design §4: every 4xx proves that nothing applied.
		if e.Status < 500 && e.Outcome != OutcomeNone {
			t.Errorf("%s is a 4xx that proves nothing", e.Code)
		}
		retry := strings.Contains(strings.Join(e.Headers, " "), "Retry-After")
		if want := e.Status == 429 || e.Status == 503; retry != want {
			t.Errorf("%s: Retry-After %v, want %v", e.Code, retry, want)
		}
	}
}

func TestWrite(t *testing.T) {
	secretCause := errors.New("dial tcp 10.0.0.7:4437: tbo_secret")
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		for _, e := range Table() {
			t.Run(method+" "+string(e.Code), func(t *testing.T) {
				rec := httptest.NewRecorder()
				rec.Header().Set("Ursula-Cluster-Id", "left over")
				rec.Header().Set("Producer-Outcome", "left over")
				if err := Write(rec, method, New(e.Code, secretCause)); err != nil {
					t.Fatal(err)
				}
				res := rec.Result()
				t.Cleanup(func() { _ = res.Body.Close() })
				if res.StatusCode != e.Status {
					t.Errorf("status %d, want %d", res.StatusCode, e.Status)
				}
				for name, want := range map[string]string{
					"Content-Type": "application/json", "Cache-Control": "no-store",
					"X-Content-Type-Options": "nosniff", "Ursula-Protocol": "", "Ursula-Cluster-Id": "", "Producer-Outcome": "",
				} {
					if got := res.Header.Get(name); got != want {
						t.Errorf("%s: %q, want %q", name, got, want)
					}
				}
				if e.Status == 429 || e.Status == 503 {
					if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err != nil || s < 1 {
						t.Errorf("Retry-After: %q", res.Header.Get("Retry-After"))
					}
				}
				text := rec.Body.String()
				if method == http.MethodHead {
					if text != "" {
						t.Errorf("HEAD has a body: %q", text)
					}
					return
				}
				if got := res.Header.Get("Content-Length"); got != strconv.Itoa(len(text)) {
					t.Errorf("Content-Length %s, body %d", got, len(text))
				}
				var got map[string]map[string]string
				if err := json.Unmarshal([]byte(text), &got); err != nil {
					t.Fatal(err)
				}
				if len(got) != 1 || len(got["error"]) != 2 || got["error"]["code"] != string(e.Code) || got["error"]["message"] != e.Message {
					t.Errorf("body %s", text)
				}
			})
		}
	}
}

// The cause is for the log: a client that is told a node's address or a key
// learns what it must not.
func TestCauseStaysInside(t *testing.T) {
	r := New(UpstreamUnreachable, errors.New("10.0.0.7 refused"))
	rec := httptest.NewRecorder()
	if err := Write(rec, http.MethodGet, r); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(rec.Body.String(), "10.0.0.7") {
		t.Errorf("answer names the node: %s", rec.Body)
	}
	if !strings.Contains(r.Error(), "10.0.0.7") {
		t.Errorf("log lacks the cause: %s", r.Error())
	}
}

func TestFrom(t *testing.T) {
	r := New(Forbidden, nil)
	if got := From(fmt.Errorf("wrapped: %w", r)); got != r {
		t.Errorf("From lost the refusal: %v", got)
	}
	other := errors.New("boom")
	if got := From(other); got.Code != Internal || !errors.Is(got, other) {
		t.Errorf("From(other) = %v", got)
	}
	if got := New(Code("NO_SUCH_CODE"), nil).Status(); got != http.StatusInternalServerError {
		t.Errorf("a code without a row has status %d", got)
	}
}

// "<key>" was written \u003ckey\u003e.
func TestSentencesAreReadAsTheyAre(t *testing.T) {
	rec := httptest.NewRecorder()
	if err := Write(rec, http.MethodGet, Because(InvalidRequest, "Send <key> & wait.", nil)); err != nil {
		t.Fatal(err)
	}
	if got, want := rec.Body.String(), `{"error":{"code":"INVALID_REQUEST","message":"Send <key> & wait."}}`; got != want {
		t.Errorf("body %s, want %s", got, want)
	}
}

// A form that is told only that something is wrong cannot mark what.
func TestField(t *testing.T) {
	rec := httptest.NewRecorder()
	if err := Write(rec, http.MethodPost, Because(InvalidRequest, "Too short.", nil).About("limits.burst")); err != nil {
		t.Fatal(err)
	}
	if got, want := rec.Body.String(), `{"error":{"code":"INVALID_REQUEST","message":"Too short.","field":"limits.burst"}}`; got != want {
		t.Errorf("body %s, want %s", got, want)
	}
}
