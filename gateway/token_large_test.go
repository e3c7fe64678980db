package gateway

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// H12 for an exchange: a body that said itself that it was too large was waited
// for, and invited with a 100 first; anybody could hold a connection so for half a
// minute. It is refused from its head.
func TestLargeFormIsRefusedFromItsHead(t *testing.T) {
	rg := newRig(t, rigOptions{})
	for name, expect := range map[string]string{"waiting": "Expect: 100-continue\r\n", "silent": ""} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			raw := rg.raw(t, fmt.Sprintf("POST /v1/token HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n%sContent-Length: %d\r\n\r\n", expect, 40<<20))
			if !strings.HasPrefix(raw, "HTTP/1.1 413 ") || !strings.Contains(raw, `"error":"invalid_request"`) {
				t.Errorf("answered %q", raw)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("took %s", took)
			}
		})
	}
}

// M06: the refusal of a method that no page may send had no header of CORS, so that
// its page could not read it.
func TestPagesReadTheRefusalOfAnyMethod(t *testing.T) {
	const page = "https://app.example.com"
	rg := newRig(t, rigOptions{origins: []string{page}})
	for _, method := range []string{http.MethodPatch, "PROPFIND", "FOO", http.MethodGet} {
		got := rg.Do(t, method, "/v1/token", "", "", "Origin", page)
		if got.StatusCode != http.StatusMethodNotAllowed || got.Header.Get("Access-Control-Allow-Origin") != page || got.Header.Get("Access-Control-Expose-Headers") != "*" {
			t.Errorf("%s: %d %v", method, got.StatusCode, got.Header)
		}
	}
}
