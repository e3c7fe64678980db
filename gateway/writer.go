package gateway

import "net/http"

// recorder notes what was answered. It has Unwrap, so that flushing and
// deadlines reach the connection (S01), and it drops informational answers of
// nodes: they say nothing a client needs, and would freeze headers (H10).
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
}

var _ http.ResponseWriter = (*recorder)(nil)

// Unwrap is for http.ResponseController.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *recorder) WriteHeader(status int) {
	if status < http.StatusOK {
		return
	}
	if w.status == 0 {
		w.status = status
		// What has no media type stays without one: net/http would guess it from
		// the bytes, which their owner chose.
		if _, ok := w.Header()["Content-Type"]; !ok {
			w.Header()["Content-Type"] = nil
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *recorder) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}
