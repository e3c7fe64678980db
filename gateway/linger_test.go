package gateway

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"sluice/internal/tenant"
)

// Facts B4, B6: a body over the limit was answered without being read, and a client
// that sends its whole body first lost the answer: over HTTP/2 to a reset of its
// stream in nearly every second try, over HTTP/1.1 to one of its connection.
func TestTooLargeBodyGetsItsAnswer(t *testing.T) {
	const limit = 1 << 10
	rg := newRig(t, rigOptions{limits: func(l *tenant.Limits) { l.RequestBytes = limit }})
	for name, c := range protocols(t) {
		for _, size := range []int{2 * limit, 300 << 10, 9 << 20} {
			for range 5 {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, rg.URL+"/acme/s.priv", bytes.NewReader(make([]byte, size)))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Authorization", "Bearer "+rg.Keys[key])
				req.Header.Set("Content-Type", rigType)
				res, err := c.Do(req)
				if err != nil {
					t.Fatalf("%s, %d bytes: %v", name, size, err)
				}
				text, err := io.ReadAll(res.Body)
				_ = res.Body.Close()
				cancel()
				if got := (answer{res, string(text)}); err != nil || res.StatusCode != http.StatusRequestEntityTooLarge || got.code() != "REQUEST_TOO_LARGE" {
					t.Errorf("%s, %d bytes: %d %q %v", name, size, res.StatusCode, text, err)
				}
			}
		}
	}
	for _, r := range rg.Cluster.Requests() {
		if r.Method == http.MethodPost {
			t.Errorf("%s %s reached the node", r.Method, r.Target)
		}
	}
}
