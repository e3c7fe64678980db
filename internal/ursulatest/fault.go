package ursulatest

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// Fault is asked before a node answers a request. It returns true when it
// answered (or broke) the request itself; false lets the real answer follow.
// A fault may be called concurrently.
type Fault func(w http.ResponseWriter, r *http.Request) (handled bool)

// answerKey is the context key of the node's real answer, for faults that
// spoil it only in part.
type answerKey struct{}

func realAnswer(ctx context.Context) func(http.ResponseWriter, *http.Request) {
	if f, ok := ctx.Value(answerKey{}).(func(http.ResponseWriter, *http.Request)); ok {
		return f
	}
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotImplemented) }
}

// Hang reads the request and then never answers: it holds until the client
// leaves, the node stops or the cluster closes.
func Hang(_ http.ResponseWriter, r *http.Request) bool {
	// Read to the end: only then does the server notice a client that leaves.
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
	panic(http.ErrAbortHandler)
}

// Reset closes the TCP connection before any answer and before the body is
// read; the client sees a connection reset.
func Reset(_ http.ResponseWriter, r *http.Request) bool {
	resetConn(r.Context())
	panic(http.ErrAbortHandler)
}

// ReadThen reads the whole body before f is asked, for faults that come after
// the node received a write.
func ReadThen(f Fault) Fault {
	return func(w http.ResponseWriter, r *http.Request) bool {
		body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
		if err != nil {
			return f(w, r)
		}
		r.Body = replay(body)
		return f(w, r)
	}
}

// Status answers with that status, header and body; nothing else is added. The
// body is sent on every method but HEAD.
func Status(code int, header http.Header, body []byte) Fault {
	return func(w http.ResponseWriter, r *http.Request) bool {
		_, _ = io.Copy(io.Discard, r.Body)
		for name, values := range header {
			w.Header()[http.CanonicalHeaderKey(name)] = values
		}
		w.WriteHeader(code)
		if r.Method != http.MethodHead && len(body) > 0 {
			_, _ = w.Write(body)
		}
		return true
	}
}

// CutAfter sends the real answer's head and the first n bytes of its body, and
// then resets the connection (HTTP/2: the stream, since a reset of the
// connection would overtake the bytes). An answer of n bytes or less ends whole.
func CutAfter(n int) Fault {
	return func(w http.ResponseWriter, r *http.Request) bool {
		realAnswer(r.Context())(&cutWriter{ResponseWriter: w, r: r, left: n}, r)
		return true
	}
}

type cutWriter struct {
	http.ResponseWriter
	r    *http.Request
	left int
}

func (w *cutWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *cutWriter) Write(p []byte) (int, error) {
	if len(p) <= w.left {
		w.left -= len(p)
		return w.ResponseWriter.Write(p)
	}
	_, _ = w.ResponseWriter.Write(p[:w.left])
	_ = http.NewResponseController(w.ResponseWriter).Flush()
	if w.r.ProtoMajor < 2 {
		resetConn(w.r.Context())
	}
	panic(http.ErrAbortHandler)
}

// Delay waits d (or until the client leaves), then lets the real answer follow.
func Delay(d time.Duration) Fault {
	return func(_ http.ResponseWriter, r *http.Request) bool {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			return false
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
}

// SilentHead sends the real answer's head at once and not one byte of its body;
// it holds until the client leaves, the node stops or the cluster closes.
func SilentHead(w http.ResponseWriter, r *http.Request) bool {
	realAnswer(r.Context())(silentWriter{w}, r)
	<-r.Context().Done()
	panic(http.ErrAbortHandler)
}

type silentWriter struct{ w http.ResponseWriter }

func (w silentWriter) Header() http.Header         { return w.w.Header() }
func (w silentWriter) Unwrap() http.ResponseWriter { return w.w }

func (w silentWriter) WriteHeader(code int) {
	w.w.WriteHeader(code)
	_ = http.NewResponseController(w.w).Flush()
}

func (w silentWriter) Write(p []byte) (int, error) { return len(p), nil }

// Times asks f for the first n requests only.
func Times(n int, f Fault) Fault {
	var seen atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) bool {
		if seen.Add(1) > int64(n) {
			return false
		}
		return f(w, r)
	}
}

// Match asks f only for the requests that match accepts.
func Match(match func(*http.Request) bool, f Fault) Fault {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if !match(r) {
			return false
		}
		return f(w, r)
	}
}

// Chain asks each fault in turn until one handled the request.
func Chain(faults ...Fault) Fault {
	return func(w http.ResponseWriter, r *http.Request) bool {
		for _, f := range faults {
			if f(w, r) {
				return true
			}
		}
		return false
	}
}

var (
	_ Fault = Hang
	_ Fault = Reset
	_ Fault = SilentHead
)
