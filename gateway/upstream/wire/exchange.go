package wire

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"
)

// What ends an exchange beside the errors of the connection and the cause that
// Cut was given.
var (
	// ErrHeadTimeout says that no head came in time.
	ErrHeadTimeout = errors.New("no response head in time")
	// ErrHeadTooLong says that the head, or what came before it, had no end
	// within MaxHead.
	ErrHeadTooLong = errors.New("the response head is too long")
	// ErrSwitched says that the server switched protocols, which nobody asked.
	ErrSwitched = errors.New("the server switched protocols unasked")
	// ErrRequest says that the request cannot be written as HTTP/1.1.
	ErrRequest = errors.New("no request of HTTP/1.1")
)

const (
	// graceAfterWriteError is how long the answer may take of a server that has
	// ended the connection in the middle of the request: one that refuses a body
	// unread has sent it by then.
	graceAfterWriteError = time.Second
	// graceForWriter is how long an answer that is here whole waits for the request
	// to have been written whole, so that its connection can be kept: the server may
	// have all of it before the writer has been told so.
	graceForWriter = 50 * time.Millisecond
)

// Exchange is one request on one connection, and its answer's body. Do is called
// once; Cut may be called at any time, by anybody.
type Exchange struct {
	Fresh   bool          // take no kept connection
	Connect time.Duration // how long a new connection may take
	Head    time.Duration // how long the head may take, once a connection stands
	Ended   func()        // called once when nothing is left of the exchange; may be nil
	// Idle, where not nil, is called by the Read of an answer's body that has waited
	// for IdleAfter without a byte, and as long again each time after. Its error ends
	// the body.
	Idle      func() error
	IdleAfter time.Duration

	mu        sync.Mutex
	link      *conn
	stop      context.CancelFunc // of the dial
	cause     error              // that it was cut for
	connected bool
	over      bool
	headDone  bool
	hurried   bool // the request could not be written whole
	sentWhole bool

	by         time.Time // when the head is late
	wrote      bool      // of an exchange that failed
	unanswered bool

	body    io.Reader
	readErr error         // what reading it ended with
	last    bool          // the connection ends with this answer
	written chan struct{} // closed once the request is written or has failed; nil = it was by Do
	sendErr error         // of the writing; read after written
}

// Connected reports whether the exchange got a connection, so that the request
// may have reached the server.
func (x *Exchange) Connected() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.connected
}

// Wrote reports whether a byte of the request has left, or may have. It is for
// after a Do that failed.
func (x *Exchange) Wrote() bool { return x.wrote }

// Unanswered reports whether the connection was a kept one and was ended by the
// server, or on the way to it, without a byte of an answer. It is for after a Do
// that failed.
func (x *Exchange) Unanswered() bool { return x.unanswered }

// Cut ends the exchange: Do, or the reading of its body, fails with cause. It
// does nothing once the exchange is over, and does not wait.
func (x *Exchange) Cut(cause error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over || x.cause != nil {
		return
	}
	x.cause = cause
	if x.stop != nil {
		x.stop()
	}
	if x.link != nil {
		x.link.close()
	}
}

// Do sends the request, with a body of req.ContentLength bytes, and returns its
// answer once the head is whole; the caller closes the body. req must not be
// changed before that, and nothing ends a Read of its own body that waits. The
// error is the cause of a Cut, one of the errors above, or the connection's own;
// Connected, Wrote and Unanswered say what it proves. The end of ctx ends a dial;
// for the rest it has to be made to call Cut.
func (x *Exchange) Do(ctx context.Context, c *Conns, req *http.Request) (*http.Response, error) {
	size, err := sizeOf(req)
	if err != nil {
		_ = x.end(false)
		return nil, err
	}
	l, err := x.connect(ctx, c)
	if err != nil {
		_ = x.end(false)
		return nil, err
	}
	res, err := x.exchange(l, req, size)
	if err != nil {
		err = x.failed(l, err)
		_ = x.end(false)
		return nil, err
	}
	// What follows a status that HTTP does not have is no answer of HTTP's.
	x.last = res.Close || asksToClose(req) || res.StatusCode < http.StatusOK
	if res.Body == http.NoBody {
		if err := x.end(true); err != nil {
			return nil, x.failed(l, err)
		}
		return res, nil
	}
	x.body = res.Body
	res.Body = x
	return res, nil
}

// connect takes a kept connection or opens one.
func (x *Exchange) connect(ctx context.Context, c *Conns) (*conn, error) {
	if !x.Fresh {
		if l := c.take(); l != nil {
			return l, x.hold(l)
		}
	}
	ctx, stop := context.WithTimeout(ctx, x.Connect)
	defer stop()
	x.mu.Lock()
	x.stop = stop
	cause := x.cause
	x.mu.Unlock()
	if cause != nil {
		return nil, cause
	}
	l, err := c.dial(ctx)
	if err != nil {
		return nil, x.why(err)
	}
	return l, x.hold(l)
}

// hold makes l the exchange's own, unless it was cut meanwhile.
func (x *Exchange) hold(l *conn) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.stop = nil
	if x.cause != nil {
		l.close()
		return x.cause
	}
	x.link, x.connected = l, true
	return nil
}

// exchange writes the request and reads the answer's head.
func (x *Exchange) exchange(l *conn, req *http.Request, size int64) (*http.Response, error) {
	x.by = time.Now().Add(x.Head)
	if err := l.begin(x.by); err != nil {
		return nil, err
	}
	if size <= writeBuffer && l.buffered() {
		x.write(l, req)
		if x.sendErr != nil && !l.wrote.Load() {
			return nil, x.sendErr
		}
	} else {
		x.written = make(chan struct{})
		go x.send(l, req)
	}
	res, err := x.readHead(l, req)
	if err == nil {
		return res, nil
	}
	x.mu.Lock()
	hurried := x.hurried
	x.mu.Unlock()
	if x.written != nil {
		// Nothing is gained by going on, and Wrote has to be sure.
		l.close()
		<-x.written
	}
	if hurried {
		return nil, x.sendErr
	}
	return nil, err
}

// send writes a request that the kernel may not take at once, beside the reading
// of the answer, which may come before it is written. It ends at the latest when
// the connection is closed, which end does.
func (x *Exchange) send(l *conn, req *http.Request) {
	defer close(x.written)
	x.write(l, req)
}

// write writes the request, and lifts or tightens the bounds of the reading.
func (x *Exchange) write(l *conn, req *http.Request) {
	x.sendErr = l.conns.write(l, req)
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.sendErr == nil:
		x.sentWhole = true
		if x.headDone {
			_ = l.net.SetWriteDeadline(time.Time{}) // the body goes on; TLS writes beside it
		}
	case x.headDone || x.over:
	default:
		x.hurry(l)
	}
}

// hurry bounds the wait for the answer to a request that could not be written
// whole; x.mu is held. It never puts the end off.
func (x *Exchange) hurry(l *conn) {
	x.hurried = true
	if errors.Is(x.sendErr, ErrRequest) {
		l.close() // the server waits for what will not come
		return
	}
	by := time.Now().Add(graceAfterWriteError)
	if by.After(x.by) {
		by = x.by
	}
	_ = l.net.SetReadDeadline(by)
}

// readHead reads the answer's head, and passes informational ones over: they say
// nothing that anybody waits for, and all of them together are held by MaxHead.
func (x *Exchange) readHead(l *conn, req *http.Request) (*http.Response, error) {
	for {
		res, err := http.ReadResponse(l.in, req)
		switch {
		case err != nil && l.dried != nil && !errors.Is(l.dried, io.EOF):
			// A line that is here in part is parsed, and hides why there is no more of it.
			return nil, l.dried
		case err != nil:
			return nil, err
		case res.StatusCode == http.StatusSwitchingProtocols:
			return nil, ErrSwitched
		case res.StatusCode >= http.StatusOK || res.StatusCode < http.StatusContinue:
			return res, x.headIs(l, res)
		}
	}
}

// headIs ends the bounds that hold for a head. Those that are left where nothing
// more is read end with the next request's.
func (x *Exchange) headIs(l *conn, res *http.Response) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.headDone = true
	l.head = -1
	switch {
	case x.cause != nil:
		return x.cause
	case res.Body == http.NoBody, res.ContentLength >= 0 && int64(l.in.Buffered()) >= res.ContentLength:
		return nil // the body is here already
	}
	var by time.Time
	if x.Idle != nil {
		l.idle, l.idleAfter, l.heardAt = x.Idle, x.IdleAfter, time.Now()
		by = l.heardAt.Add(l.idleAfter)
	}
	if !x.sentWhole {
		return l.net.SetReadDeadline(by) // the writer is bound still
	}
	if err := l.net.SetDeadline(time.Time{}); err != nil || by.IsZero() {
		return err
	}
	return l.net.SetReadDeadline(by)
}

// failed notes what an exchange that failed proves, and gives the reason.
func (x *Exchange) failed(l *conn, err error) error {
	err = x.why(err)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.wrote = l.wrote.Load()
	ours := x.cause != nil || errors.Is(err, ErrHeadTimeout) || errors.Is(err, ErrRequest)
	x.unanswered = l.reused && !l.heard.Load() && !ours
	return err
}

// why is the reason of an error: what the exchange was cut for, if it was.
func (x *Exchange) why(err error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.cause != nil:
		return x.cause
	case x.connected && errors.Is(err, os.ErrDeadlineExceeded):
		return ErrHeadTimeout
	default:
		return err
	}
}

var _ io.ReadCloser = (*Exchange)(nil)
