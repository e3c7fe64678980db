package gateway

import (
	"net/http"
	"strings"
	"testing"
)

// A write whose body net/http had not read was forwarded as an empty one, and
// with Stream-Closed closed its stream without the last message: over HTTP/1.0
// with a Transfer-Encoding, whose header and body the server drops, and over
// HTTP/2 with a Content-Length that the stream ends without.
func TestUnreadBodyIsNoEmptyWrite(t *testing.T) {
	rg := newRig(t, rigOptions{})
	auth := "Authorization: Bearer " + rg.Keys[key] + "\r\nContent-Type: " + rigType + "\r\nStream-Closed: true\r\n"
	for name, request := range map[string]string{
		"HTTP/1.0, chunked":            "POST /acme/s.priv HTTP/1.0\r\n" + auth + "Transfer-Encoding: chunked\r\n\r\n5\r\nfinal\r\n0\r\n\r\n",
		"HTTP/1.0, both framings":      "POST /acme/s.priv HTTP/1.0\r\n" + auth + "Connection: keep-alive\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n9e\r\n",
		"HTTP/1.0, by its end":         "POST /acme/s.priv HTTP/1.0\r\n" + auth + "\r\nfinal",
		"HTTP/1.0, with a good length": "POST /acme/s.priv HTTP/1.0\r\n" + auth + "Content-Length: 5\r\n\r\nfinal",
	} {
		t.Run(name, func(t *testing.T) {
			if got := rg.raw(t, request); !strings.HasPrefix(got, "HTTP/1.0 400 ") || !strings.Contains(got, "HTTP/1.1 or later") {
				t.Errorf("answer %.200q", got)
			}
		})
	}
	for name, fields := range map[string][][2]string{
		"HTTP/2, ends without its length": {{"content-length", "5"}},
		"HTTP/2, two lengths":             {{"content-length", "0"}, {"content-length", "5"}},
		"HTTP/2, no number":               {{"content-length", "x"}},
	} {
		t.Run(name, func(t *testing.T) {
			if status := rg.headersOnly(t, http.MethodPost, fields); status != "400" && status != "reset" {
				t.Errorf("status %s", status)
			}
		})
	}
	for _, r := range rg.Cluster.Requests() {
		if r.Method == http.MethodPost {
			t.Errorf("the node got %s %s %q", r.Method, r.Target, r.Body)
		}
	}
}

// headersOnly sends one HTTP/2 request that ends with its head, and returns the
// answer's status, or "reset".
func (rg *rig) headersOnly(t *testing.T, method string, fields [][2]string) string {
	t.Helper()
	return rg.frames(t, append([][2]string{
		{":method", method},
		{":scheme", "http"},
		{":authority", "edge"},
		{":path", "/acme/s.priv"},
		{"authorization", "Bearer " + rg.Keys[key]},
		{"content-type", rigType},
		{"stream-closed", "true"},
	}, fields...))
}
