package gateway

import (
	"errors"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// What a client may do on one HTTP/2 connection. net/http bounds what is kept in memory,
// and how many requests are under way, but not how often one is begun and ended, nor what
// else a client sends (G01, G02). Neither meets a client that ends requests now and then:
// browsers and SDKs end a few a second, at the most all that are under way.
const (
	// resetBurst requests may be ended by their client at once, then one each resetEvery.
	resetBurst = 1000
	resetEvery = 10 * time.Millisecond
	// frameBurst frames without data may come at once, then one each frameEvery, and one
	// more for each bytesPerFrame that are sent to the client: who reads much tells often
	// how much it has read, and how long it takes.
	frameBurst    = 10_000
	frameEvery    = time.Millisecond
	bytesPerFrame = 16
	// pingCost is that of a PING, whose answer of 17 bytes must not pay for it.
	pingCost = 2
	// maxContinuations bounds the frames of one header. Two carry server.header_bytes.
	maxContinuations = 64
)

// The types of frames (RFC 9113 §6) that matter here.
const (
	frameData         = 0x0
	frameHeaders      = 0x1
	frameRST          = 0x3
	framePing         = 0x6
	frameContinuation = 0x9

	flagEndStream  = 0x1
	flagPadded     = 0x8
	frameHeaderLen = 9
)

// Why connections are closed, as the metric has it.
const (
	abuseResets = "resets"
	abuseFrames = "frames"
	abuseHeader = "header"
)

var errAbuse = errors.New("the connection was closed for what its client did")

// frameReader finds the frames in what comes, however it is cut.
type frameReader struct {
	head          [frameHeaderLen]byte
	have          int // bytes of head
	skip          int // bytes of the payload that are left
	continuations int // of the header under way
	last          uint32
}

// frame is the header of one.
type frame struct {
	length      int
	kind, flags byte
	stream      uint32
}

// next takes the bytes of p up to the end of a frame's header; ok is whether there is one.
func (r *frameReader) next(p []byte) (f frame, rest []byte, ok bool) {
	n := min(r.skip, len(p))
	r.skip -= n
	p = p[n:]
	n = copy(r.head[r.have:], p)
	r.have += n
	p = p[n:]
	if r.have < frameHeaderLen {
		return f, p, false
	}
	h := &r.head
	f = frame{
		length: int(h[0])<<16 | int(h[1])<<8 | int(h[2]), kind: h[3], flags: h[4],
		stream: (uint32(h[5])<<24 | uint32(h[6])<<16 | uint32(h[7])<<8 | uint32(h[8])) &^ (1 << 31),
	}
	r.have, r.skip = 0, f.length
	return f, p, true
}

// budget is what is left of something that a client may do. What was sent is added by
// whoever writes, all else is one goroutine's.
type budget struct {
	burst int64         // at once
	every time.Duration // one more
	left  int64
	at    time.Time // when it was filled up last
	sent  atomic.Int64
}

// take reports whether there was so much left. It looks at the clock when nothing seems
// to be, so that at most twice as much is taken at once.
func (b *budget) take(n int64, now func() time.Time) bool {
	if b.left -= n; b.left >= 0 {
		return true
	}
	if b.at.IsZero() {
		b.left, b.at = b.left+b.burst, now()
		return b.left >= 0
	}
	passed := now().Sub(b.at)
	b.at = b.at.Add(passed - passed%b.every)
	b.left = min(b.burst, b.left+n+int64(passed/b.every)+b.sent.Swap(0)/bytesPerFrame) - n
	return b.left >= 0
}

// lookAtFrames follows the frames of a client.
func (c *guardedConn) lookAtFrames(p []byte) error {
	for {
		f, rest, ok := c.frames.next(p)
		if !ok {
			return nil
		}
		p = rest
		if f.kind == frameHeaders && f.stream > c.frames.last {
			c.frames.last = f.stream
			c.begun.Add(1)
		}
		if c.trusted {
			continue
		}
		if err := c.charge(f); err != nil {
			return err
		}
	}
}

// charge counts a frame.
func (c *guardedConn) charge(f frame) error {
	cost := int64(1)
	switch f.kind {
	case frameData:
		if f.flags&flagEndStream != 0 || f.length > 0 && f.flags&flagPadded == 0 {
			return nil
		}
	case framePing:
		cost = pingCost
	case frameHeaders:
		c.frames.continuations = 0
	case frameContinuation:
		if c.frames.continuations++; c.frames.continuations > maxContinuations {
			return c.abuse(abuseHeader)
		}
	case frameRST:
		// Some clients answer each frame that comes late on a stream that they have ended with
		// one more: a request is ended once.
		if c.resets.Add(1) > c.begun.Load() {
			break
		}
		if err := c.chargeReset(); err != nil {
			return err
		}
	}
	if !c.without.take(cost, c.guard.options.Now) {
		return c.abuse(abuseFrames)
	}
	return nil
}

// chargeReset counts a request that its client has ended. Any goroutine may call it.
func (c *guardedConn) chargeReset() error {
	if c.trusted {
		return nil
	}
	c.ending.Lock()
	within := c.endings.take(1, c.guard.options.Now)
	c.ending.Unlock()
	if within {
		return nil
	}
	return c.abuse(abuseResets)
}

// abuse closes the connection, without a word: a GOAWAY would have to wait for a client
// that may not read.
func (c *guardedConn) abuse(why string) error {
	c.abused.Do(func() {
		c.guard.options.Metrics.Abused(why)
		c.guard.options.Log.Info("connection closed for what its client did", zap.String("client", c.address()), zap.String("why", why))
		_ = c.raw.Close()
	})
	return errAbuse
}
