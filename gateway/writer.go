package gateway

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"sluice/internal/usage"
)

// recorder notes what was answered. It has Unwrap, so that flushing and
// deadlines reach the connection (S01), and it drops informational answers of
// nodes: they say nothing a client needs, and would freeze headers (H10).
type recorder struct {
	http.ResponseWriter

	// out is held while something is written: ReverseProxy flushes the first head of
	// a stream from another goroutine than the one that writes.
	out    sync.Mutex
	status int
	use    usage.Answer // what was sent, for the log and the meter

	stall   time.Duration // longest time that a write may take; 0 = any
	stream  bool          // of HTTP/2: its end is written once the handler has returned
	late    time.Time     // when the write under way has
	stalled bool          // one has taken longer
	gone    bool          // one has failed otherwise: there is no client any more

	mu  sync.Mutex // guards the deadline of writing
	end time.Time  // of all writing; zero = none
}

var _ http.ResponseWriter = (*recorder)(nil)

// Unwrap is for http.ResponseController.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *recorder) WriteHeader(status int) {
	w.out.Lock()
	defer w.out.Unlock()
	w.writeHeader(status)
}

func (w *recorder) writeHeader(status int) {
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
	w.out.Lock()
	defer w.out.Unlock()
	if w.status == 0 {
		w.writeHeader(http.StatusOK)
	}
	for sent := 0; ; {
		piece := p[sent:]
		if w.stall > 0 {
			piece = piece[:min(len(piece), readPiece)] // each has its time
		}
		w.writing()
		n, err := w.ResponseWriter.Write(piece)
		w.use.Sent(n)
		w.written(err)
		if sent += n; err != nil || sent >= len(p) {
			return sent, err
		}
	}
}

// beat writes a heartbeat and flushes it. Its bytes are no data.
func (w *recorder) beat(text string) error {
	w.out.Lock()
	w.writing()
	n, err := io.WriteString(w.ResponseWriter, text)
	w.use.Beat(n)
	w.written(err)
	w.out.Unlock()
	if err != nil {
		return err
	}
	return w.FlushError()
}

// FlushError is for http.ResponseController.
func (w *recorder) FlushError() error {
	w.out.Lock()
	defer w.out.Unlock()
	if w.status == 0 {
		w.writeHeader(http.StatusOK)
	}
	w.writing()
	err := http.NewResponseController(w.ResponseWriter).Flush()
	w.written(err)
	return err
}

// writing bounds the write that follows.
func (w *recorder) writing() {
	if w.stall > 0 {
		w.late = time.Now().Add(w.stall)
		w.deadline(w.late)
	}
}

// written takes the bound of a write off. Over HTTP/2 a deadline that passes resets
// the stream, also where nothing is being written: a silent tail would be cut.
func (w *recorder) written(err error) {
	switch {
	// A stream of HTTP/2 whose deadline passes is reset, and says no more.
	case errors.Is(err, os.ErrDeadlineExceeded), err != nil && w.stream && !time.Now().Before(w.late):
		w.stalled = true
	case err != nil:
		w.gone = true
	}
	if w.stall > 0 && err == nil {
		w.deadline(time.Time{})
	}
}

// deadline bounds writing; the zero time is any. Behind a writer that no connection
// stands behind there is nothing to bound.
func (w *recorder) deadline(at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.end.IsZero() && (at.IsZero() || w.end.Before(at)) {
		at = w.end
	}
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(at)
}

// until bounds all writing that is left. It may be called by any goroutine.
func (w *recorder) until(end time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.end = end
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(end)
}

// release takes the deadline of a write that failed off, so that it does not meet
// the next request. Of a stream what is left to be written has its time.
func (w *recorder) release() {
	switch {
	case w.stall == 0 || w.stalled:
	case w.stream:
		w.writing()
	default:
		w.deadline(time.Time{})
	}
}
