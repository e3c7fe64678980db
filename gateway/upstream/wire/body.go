package wire

import (
	"io"
	"net/http"
	"time"
)

// Read implements io.Reader for the answer's body. A body that was cut ends with
// the cause, one that the server did not end with an error: never cleanly.
func (x *Exchange) Read(p []byte) (int, error) {
	if x.readErr != nil {
		return 0, x.readErr
	}
	n, err := x.body.Read(p)
	switch err {
	case nil:
		return n, nil
	case io.EOF: // exactly: an error that wraps it is one of the connection
		x.readErr = io.EOF
		if cause := x.end(true); cause != nil {
			x.readErr = cause
		}
	default:
		x.readErr = x.why(err)
		_ = x.end(false)
	}
	return n, x.readErr
}

// Close implements io.Closer for the answer's body. A connection whose answer
// was not read to its end is closed. It is not for use beside Read; Cut is.
func (x *Exchange) Close() error {
	if x.readErr == nil {
		x.readErr = http.ErrBodyReadAfterClose
	}
	_ = x.end(false)
	return nil
}

// end gives the connection back, or closes it. whole tells that the answer was
// read to its end. The error is what the exchange was cut for before that.
func (x *Exchange) end(whole bool) error {
	if whole && !x.last {
		x.settle()
	}
	x.mu.Lock()
	if x.over {
		x.mu.Unlock()
		return nil
	}
	x.over = true
	cause := x.cause
	keep := whole && !x.last && cause == nil && x.sent()
	l := x.link
	x.mu.Unlock()
	switch {
	case l == nil:
	case keep && l.in.Buffered() == 0:
		l.conns.put(l)
	default:
		l.close()
		if x.written != nil {
			<-x.written
		}
	}
	if x.Ended != nil {
		x.Ended()
	}
	return cause
}

// settle waits a moment for the writer of a request whose answer is here whole.
func (x *Exchange) settle() {
	if x.written == nil || x.sent() {
		return
	}
	timer := time.NewTimer(graceForWriter)
	defer timer.Stop()
	select {
	case <-x.written:
	case <-timer.C:
	}
}

// sent reports whether the request was written whole.
func (x *Exchange) sent() bool {
	if x.written != nil {
		select {
		case <-x.written:
		default:
			return false
		}
	}
	return x.sendErr == nil
}
