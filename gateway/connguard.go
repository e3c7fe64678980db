package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"sluice/internal/refusal"
	"sluice/internal/telemetry"
)

// ConnGuard stands between the connections of clients and net/http: it ends TLS, so that
// it sees what both sides say. It closes HTTP/2 connections whose client does more than it
// may (G01, G02), and what net/http answers by itself it has look, count and log like
// every other refusal (H18). It is safe for concurrent use.
type ConnGuard struct {
	options ConnGuardOptions
	trusted atomic.Pointer[[]netip.Prefix]
}

// ConnGuardOptions are the parts of a ConnGuard; all are needed.
type ConnGuardOptions struct {
	Log     *zap.Logger
	Metrics *telemetry.Metrics
	Now     func() time.Time
	Random  io.Reader // of request ids; must not fail
}

// NewConnGuard makes one that trusts nobody.
func NewConnGuard(o ConnGuardOptions) *ConnGuard { return &ConnGuard{options: o} }

// Set says whose connections, made from now on, bring many clients' requests, and are
// bounded by what net/http bounds alone.
func (g *ConnGuard) Set(trusted []netip.Prefix) { g.trusted.Store(&trusted) }

// Listener guards the connections of l, which speak TLS where there is a config of it.
// It is the outermost of the listeners that wrap one.
func (g *ConnGuard) Listener(l net.Listener, config *tls.Config) net.Listener {
	return &guardedListener{l, g, config}
}

// Attach has a server tell the guard which requests it hands on. It comes before Serve.
func (g *ConnGuard) Attach(s *http.Server) {
	inner := s.Handler
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := connOf(r)
		if c == nil {
			inner.ServeHTTP(w, r)
			return
		}
		r.TLS = c.state
		if c.speaks != speaksHTTP2 { // half of a preface is a request of HTTP/2.0
			c.answering.Store(true)
		} else {
			c.heard.Add(1)
			defer c.ended(r.Context())
		}
		inner.ServeHTTP(w, r)
	})
	s.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		if c, ok := conn.(*guardedConn); ok {
			return context.WithValue(ctx, connKey{}, c)
		}
		return ctx
	}
	s.ConnState = func(conn net.Conn, state http.ConnState) {
		// An answer over HTTP/1 is written whole.
		if c, ok := conn.(*guardedConn); ok && state == http.StateIdle {
			c.answering.Store(false)
		}
	}
}

// connKey is where net/http's contexts hold a request's connection: it has no other way to
// tell a handler.
type connKey struct{}

// connOf is the connection that a request came on; nil where it is not guarded.
func connOf(r *http.Request) *guardedConn {
	c, _ := r.Context().Value(connKey{}).(*guardedConn)
	return c
}

type guardedListener struct {
	net.Listener

	guard  *ConnGuard
	config *tls.Config
}

// Accept implements net.Listener.
func (l *guardedListener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &guardedConn{Conn: raw, raw: raw, guard: l.guard}
	if l.config != nil {
		c.secure = tls.Server(raw, l.config)
		c.Conn = c.secure
	}
	return c, nil
}

// spoken is what a connection speaks, as far as is known.
type spoken uint8

const (
	speaksNothing spoken = iota // what has come may become the preface of HTTP/2
	speaksHTTP1
	speaksHTTP2
)

// guardedConn is a client's connection. net/http finds no TLS in it: the handshake is
// made with its first read, and HTTP/2 known by its preface.
type guardedConn struct {
	net.Conn // behind TLS, where there is any

	raw   net.Conn
	guard *ConnGuard

	secure *tls.Conn            // nil: there is no TLS
	state  *tls.ConnectionState // nil before the handshake
	broken error                // the handshake's, or of what came first

	// Of whoever reads; set for good before anything is written.
	speaks  spoken
	trusted bool // known once HTTP/2 is spoken
	greeted int  // bytes of the preface that have come
	frames  frameReader

	answering atomic.Bool  // a handler has been given a request over HTTP/1, whose answer may not be whole yet
	begun     atomic.Int64 // requests over HTTP/2 whose headers have begun to come
	heard     atomic.Int64 // requests over HTTP/2 that handlers were given
	tails     atomic.Int64 // open over HTTP/2
	aborted   atomic.Int64 // requests over HTTP/2 that ended before their handlers did
	resets    atomic.Int64 // RST_STREAM that came
	without   budget       // of frames without data
	abused    sync.Once
	closed    sync.Once

	ending  sync.Mutex // guards endings
	endings budget     // of requests that are ended by the client
}

// errNotHTTP ends a connection that speaks what it has not agreed on.
var errNotHTTP = errors.New("another protocol than was agreed on")

// Read implements net.Conn.
func (c *guardedConn) Read(p []byte) (int, error) {
	if c.broken != nil {
		return 0, c.broken
	}
	if c.secure != nil && c.state == nil {
		if err := c.shake(); err != nil {
			return 0, err
		}
	}
	n, err := c.Conn.Read(p)
	if n == 0 || c.speaks == speaksHTTP1 {
		return n, err
	}
	if failed := c.look(p[:n]); failed != nil {
		return 0, failed
	}
	return n, err
}

// Write implements net.Conn.
func (c *guardedConn) Write(p []byte) (int, error) {
	switch {
	case c.broken != nil:
		return 0, c.broken
	case c.speaks == speaksHTTP2:
		c.without.sent.Add(int64(len(p)))
	case !c.answering.Load():
		return len(p), c.guard.answer(c.Conn, c.raw, statusIn(p))
	}
	return c.Conn.Write(p)
}

// CloseWrite is for net/http, which lingers on what it has refused to read.
func (c *guardedConn) CloseWrite() error {
	if half, ok := c.Conn.(halfCloser); ok && c.broken == nil {
		return half.CloseWrite()
	}
	return nil
}

// Close implements net.Conn.
func (c *guardedConn) Close() error {
	err := c.Conn.Close()
	c.closed.Do(func() { c.guard.options.Metrics.Unheard(max(0, c.begun.Load()-c.heard.Load())) })
	return err
}

// shake makes the handshake, within headDeadline, and leaves as much for the first head.
// Whoever speaks HTTP without it is told so.
func (c *guardedConn) shake() error {
	if c.broken != nil {
		return c.broken
	}
	_ = c.raw.SetDeadline(time.Now().Add(headDeadline))
	if err := c.secure.Handshake(); err != nil { //nolint:noctx // the deadline ends it, and the server's end closes the connection
		c.broken = err
		c.guard.options.Log.Debug("TLS handshake failed", zap.String("client", c.address()), zap.String("cause", telemetry.Foreign(err.Error())))
		var noTLS tls.RecordHeaderError
		if errors.As(err, &noTLS) && noTLS.Conn != nil && looksLikeHTTP(noTLS.RecordHeader) {
			_ = c.guard.answer(c.raw, c.raw, statusClearText)
			// What is closed with bytes unread is reset, and the answer lost.
			_ = c.raw.SetReadDeadline(time.Now().Add(clearTextRest))
			_, _ = io.CopyN(io.Discard, c.raw, maxHead)
		}
		return err
	}
	_ = c.raw.SetWriteDeadline(time.Time{})
	_ = c.raw.SetReadDeadline(time.Now().Add(headDeadline))
	state := c.secure.ConnectionState()
	c.state = &state
	switch state.NegotiatedProtocol {
	case "", "h2", "http/1.1":
		return nil
	default:
		// Another is not HTTP, but what proves a name to an ACME authority (C04).
		c.broken = errNotHTTP
		return errNotHTTP
	}
}

// preface begins HTTP/2 (RFC 9113 §3.4).
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// look follows what has come from the client, but for HTTP/1.
func (c *guardedConn) look(p []byte) error {
	if c.speaks == speaksNothing {
		n := min(len(p), len(preface)-c.greeted)
		if string(p[:n]) != preface[c.greeted:c.greeted+n] {
			c.speaks = speaksHTTP1
			if c.state != nil && c.state.NegotiatedProtocol == "h2" {
				c.broken = errNotHTTP
				return errNotHTTP
			}
			return nil
		}
		if c.greeted += n; c.greeted < len(preface) {
			return nil
		}
		p = p[n:]
		if c.state != nil && c.state.NegotiatedProtocol != "h2" {
			// net/http would take it, since it knows nothing of the agreement.
			_ = c.guard.answer(c.Conn, c.raw, http.StatusHTTPVersionNotSupported)
			c.speaks, c.broken = speaksHTTP1, errNotHTTP
			return errNotHTTP
		}
		// Only now: the address waits for the header of the PROXY protocol.
		if trusted := c.guard.trusted.Load(); trusted != nil {
			c.trusted = isTrusted(addressOf(c.raw.RemoteAddr().String()), *trusted)
		}
		c.speaks = speaksHTTP2
		c.without.burst, c.without.every = frameBurst, frameEvery
		c.endings.burst, c.endings.every = resetBurst, resetEvery
	}
	return c.lookAtFrames(p)
}

// ended is told when a request over HTTP/2 has ended, while its context still tells
// whether the client, or net/http for its faults, ended it before.
func (c *guardedConn) ended(ctx context.Context) {
	if ctx.Err() == nil || c.aborted.Add(1) <= c.resets.Load() {
		return // it is counted by its RST_STREAM
	}
	_ = c.chargeReset()
}

// takeTail reports whether one more tail may be open; giveTail gives it back.
func (c *guardedConn) takeTail(limit int64) bool {
	if c.tails.Add(1) <= limit || c.trusted || limit <= 0 {
		return true
	}
	c.tails.Add(-1)
	return false
}

func (c *guardedConn) giveTail() { c.tails.Add(-1) }

func (c *guardedConn) address() string { return addressOf(c.raw.RemoteAddr().String()).String() }

var (
	_ net.Listener = (*guardedListener)(nil)
	_ net.Conn     = (*guardedConn)(nil)
	_ halfCloser   = (*guardedConn)(nil)
)

// tellRefusal logs and counts what was answered before there was a request.
func (g *ConnGuard) tellRefusal(client, id string, status int) {
	g.options.Metrics.Request(NoOperation.String(), status, 0, true)
	g.options.Metrics.Refused(string(refusal.InvalidRequest))
	g.options.Log.Info("no request", zap.String("request_id", id), zap.String("client", client),
		zap.Int("status", status), zap.String("code", string(refusal.InvalidRequest)))
}
