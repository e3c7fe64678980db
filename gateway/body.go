package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"sluice/internal/refusal"
)

// Pace says how slowly a body may come (facts §7). Zero fields have the
// defaults of design §4.
type Pace struct {
	Stall      time.Duration // longest time without a byte of an admitted body; 30 s
	Window     time.Duration // over which MinBytes must come; 30 s
	MinBytes   int64         // 30720, which is 1024 B/s
	BudgetWait time.Duration // longest wait for the body budget; 1 s
	DrainStall time.Duration // longest time without a byte of a refused body; 5 s
	DrainTotal time.Duration // longest time for a refused body in all; 30 s
	TailWrite  time.Duration // longest time that a client may take a live read's bytes; 30 s
	// StreamWrite is the longest time in which the client of an HTTP/2 stream may give no
	// room to the next 32 KiB of an answer; 10 min. Clients give it in steps of half their
	// window, which is 5 MiB of curl's: at 20 KiB a second that takes four minutes.
	StreamWrite time.Duration
}

func (p Pace) withDefaults() Pace {
	or := func(d *time.Duration, def time.Duration) {
		if *d == 0 {
			*d = def
		}
	}
	or(&p.Stall, 30*time.Second)
	or(&p.Window, 30*time.Second)
	or(&p.BudgetWait, time.Second)
	or(&p.DrainStall, 5*time.Second)
	or(&p.DrainTotal, 30*time.Second)
	or(&p.TailWrite, 30*time.Second)
	or(&p.StreamWrite, 10*time.Minute)
	if p.MinBytes == 0 {
		p.MinBytes = 30720
	}
	return p
}

var errTooSlow = errors.New("body too slow")

// pacedReader reads a body under deadlines. A deadline that passes ends the
// body for good: net/http does not take up a read that timed out.
type pacedReader struct {
	body     io.Reader
	control  *http.ResponseController
	stall    time.Duration
	end      time.Time // of the whole body; zero = none
	window   time.Duration
	minBytes int64 // in each window; 0 = any

	windowEnd   time.Time
	windowBytes int64
}

func (p *pacedReader) Read(b []byte) (int, error) {
	now := time.Now()
	if p.windowEnd.IsZero() {
		p.windowEnd = now.Add(p.window)
	}
	// Only a writer that no connection stands behind cannot set deadlines.
	_ = p.control.SetReadDeadline(p.deadline(now))
	n, err := p.body.Read(b)
	if errors.Is(err, os.ErrDeadlineExceeded) || err == nil && !p.keepsUp(time.Now(), n) {
		return n, errTooSlow
	}
	return n, err
}

// deadline is when the body is cut unless a byte comes before: by its stall, by
// its end, or by the end of a window that lacks its bytes so far.
func (p *pacedReader) deadline(now time.Time) time.Time {
	at := now.Add(p.stall)
	if !p.end.IsZero() && at.After(p.end) {
		at = p.end
	}
	if p.windowBytes < p.minBytes && at.After(p.windowEnd) {
		at = p.windowEnd
	}
	return at
}

// keepsUp counts bytes that have come, and reports whether the windows that ended
// before them had theirs. Windows follow each other without a gap: one that began
// only with the byte that closed the last would be longer by what the client waits.
func (p *pacedReader) keepsUp(now time.Time, n int) bool {
	for p.minBytes > 0 && now.After(p.windowEnd) {
		if p.windowBytes < p.minBytes {
			return false
		}
		p.windowEnd, p.windowBytes = p.windowEnd.Add(p.window), 0
	}
	p.windowBytes += int64(n)
	return true
}

// done takes the deadline off, so that it does not meet the next request.
func (p *pacedReader) done() { _ = p.control.SetReadDeadline(time.Time{}) }

// readBody reads the whole body before its first byte may go to a node, inside
// the account's limit, the budget and the pace. Until then nothing has been
// forwarded, so each of its refusals proves that nothing applied (design §4).
func (c *chain) readBody(next handler) handler {
	return func(s *Scope, w http.ResponseWriter, r *http.Request) error {
		if s.bodyDone {
			return next(s, w, r)
		}
		held := &reservation{budget: c.Budget}
		defer held.release()
		in := &pacedReader{
			body: r.Body, control: http.NewResponseController(w),
			stall: c.Pace.Stall, window: c.Pace.Window, minBytes: c.Pace.MinBytes,
		}
		body, err := c.collect(s, r, in, held)
		if err != nil {
			return err
		}
		in.done()
		s.body, s.bodyDone = body, true
		return next(s, w, r)
	}
}

// lookAtBody stands in for readBody in a chain that only looks: the share of its account's
// uploads and the room that a body of its declared length would have. No byte of it is
// there, so how it comes, and how long one of undeclared length is, it does not say.
func (c *chain) lookAtBody(next handler) handler {
	return func(s *Scope, w http.ResponseWriter, r *http.Request) error {
		if size := r.ContentLength; !s.bodyDone && size >= 0 {
			share := c.newUpload(s)
			defer share.release()
			if err := share.grow(r.Context(), size); err != nil {
				return err
			}
			if !c.Budget.fits(size) {
				return refusal.New(refusal.UploadBudgetExhausted, nil)
			}
		}
		return next(s, w, r)
	}
}

// collect reads the body into memory that has been reserved before: 1 MiB at
// first, then twice as much each time, and never more than was declared (facts
// U10, U11). A declared length reserves nothing by itself: who declares much and
// sends nothing would hold everybody's budget.
func (c *chain) collect(s *Scope, r *http.Request, in *pacedReader, held *reservation) ([]byte, error) {
	limit := s.Account.Limits.RequestBytes
	share := c.newUpload(s)
	defer share.release()
	if r.ContentLength >= 0 {
		limit = r.ContentLength // declaredSize has held it to the account's
		if err := share.grow(r.Context(), limit); err != nil {
			return nil, err
		}
	}
	room := min(smallBody, limit)
	if err := c.reserve(r.Context(), held, room); err != nil {
		return nil, err
	}
	// One byte more than there is room for tells a whole body from a longer one.
	body := make([]byte, 0, min(room, initialBody)+1)
	for {
		n, err := in.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		s.bytesIn += int64(n)
		size := int64(len(body))
		switch {
		case size > limit:
			return nil, tooLarge(limit)
		case errors.Is(err, io.EOF):
			// One byte more than there was room for may have come with the end.
			if err := share.grow(r.Context(), size); err != nil {
				return nil, err
			}
			if err := c.reserve(r.Context(), held, size); err != nil {
				return nil, err
			}
			return exact(body), nil
		case errors.Is(err, errTooSlow):
			s.bodyDone = true
			return nil, refusal.New(refusal.BodyTooSlow, err)
		case err != nil:
			s.bodyDone = true
			return nil, refusal.New(refusal.BodyUnreadable, err)
		case size > room:
			room = min(2*room, limit)
			if err := share.grow(r.Context(), room); err != nil {
				return nil, err
			}
			if err := c.reserve(r.Context(), held, room); err != nil {
				return nil, err
			}
		}
		if len(body) == cap(body) {
			body = append(make([]byte, 0, min(2*size, room+1)), body...)
		}
	}
}

const (
	// initialBody is what a body's buffer begins with: memory follows what comes,
	// not what was declared.
	initialBody = 64 << 10
	// spareBody is how much of a buffer may stay empty while its body is held.
	spareBody = 1 << 10
)

// exact gives back what a body did not fill: the budget counts the body only,
// and many small ones in large buffers would hold a multiple of it (facts U10).
func exact(body []byte) []byte {
	if cap(body)-len(body) <= spareBody {
		return body
	}
	return append(make([]byte, 0, len(body)), body...)
}

func (c *chain) reserve(client context.Context, held *reservation, n int64) error {
	ctx, cancel := context.WithTimeout(client, c.Pace.BudgetWait)
	defer cancel()
	if err := held.resize(ctx, n); err != nil {
		return orGone(client, refusal.New(refusal.UploadBudgetExhausted, err))
	}
	return nil
}

// drain reads and drops what is left of a refused request's body, so that a
// client that sends its whole body first gets the answer and keeps its
// connection (facts B1-B5). It reports whether the connection can go on.
func (c *chain) drain(s *Scope, r *http.Request) bool {
	if s.bodyDone {
		// A body that broke or was too slow leaves nothing that could be framed.
		return s.refused != refusal.BodyTooSlow && s.refused != refusal.BodyUnreadable
	}
	limit := c.drainLimit(s)
	// A client that waits for 100 Continue has sent nothing, and reading would
	// invite it to (H12); a body declared over the limit is not worth reading.
	if (r.Header.Get("Expect") != "" && s.bytesIn == 0) || r.ContentLength > limit {
		c.Metrics.Drained("unread")
		return false
	}
	whole := c.drop(s, r, limit, c.Pace.DrainStall)
	s.bodyDone, s.bodyLeft = true, !whole
	if !whole {
		c.Metrics.Drained("cut")
		return false
	}
	c.Metrics.Drained("read")
	return true
}

// drainLimit bounds what is read of a refused body: what the account may send,
// and never less than what anybody may.
func (c *chain) drainLimit(s *Scope) int64 {
	limit := c.MaxRequestBytes
	if s.Account != nil {
		limit = max(limit, s.Account.Limits.RequestBytes)
	}
	return limit
}

// drop reads what is left of a refused body, up to limit bytes of it in all and
// until stall passes without one, and reports whether it came to its end.
func (c *chain) drop(s *Scope, r *http.Request, limit int64, stall time.Duration) bool {
	in := &pacedReader{
		body: r.Body, control: http.NewResponseController(&s.answer),
		stall: stall, end: time.Now().Add(c.Pace.DrainTotal),
	}
	n, err := io.Copy(io.Discard, io.LimitReader(in, limit-s.bytesIn+1))
	s.bytesIn += n
	if err != nil || s.bytesIn > limit {
		return false
	}
	in.done()
	return true
}

// maxLingered bounds the bytes that linger reads: the largest body that any node
// would take (facts §1.6).
const maxLingered = 32 << 20

// linger reads on after the answer to a body that was declared too large. The
// answer has gone out at once; a client that reads it only after its whole body
// would lose it to a reset of the connection, or over HTTP/2 of the stream.
func (c *chain) linger(s *Scope, r *http.Request) {
	if s.bodyDone || r.Header.Get("Expect") != "" {
		return
	}
	if err := http.NewResponseController(&s.answer).Flush(); err == nil {
		// A client that has read the answer may stop sending: do not wait for it long.
		s.bodyDone = c.drop(s, r, max(maxLingered, c.drainLimit(s)), min(maxLinger, c.Pace.DrainStall))
	}
}

// maxLinger is how long a connection that is to be closed is still read after
// its answer, so that bytes under way do not turn the close into a reset that
// costs the client the answer. It is what net/http itself allows.
const maxLinger = 500 * time.Millisecond

// leaveBody bounds what net/http does with a body that nobody has read: it reads
// on after the answer, under no deadline, and a client that withholds the body
// would keep the connection for ever (H12).
func (c *chain) leaveBody(s *Scope) {
	if !s.bodyDone || s.bodyLeft {
		// Only a writer that no connection stands behind cannot set deadlines.
		_ = http.NewResponseController(&s.answer).SetReadDeadline(time.Now().Add(min(maxLinger, c.Pace.DrainStall)))
	}
}
