package gateway

import (
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"sluice/internal/refusal"
)

const (
	// SurplusConnections is how many connections too many are answered at one time,
	// each for surplusTime at the most; those beyond are closed unread. So many
	// descriptors they take, over those of the bound.
	SurplusConnections = 16
	surplusTime        = 2 * time.Second
	// surplusWait bounds each step of an answer to one.
	surplusWait = time.Second
	// surplusBody is what is read of a body before the answer, in bytes.
	surplusBody = 64 << 10
)

// surplus is the bound of all connections together, and what becomes of those that are
// too many.
type surplus struct {
	most     atomic.Int64 // 0 = any number
	turned   atomic.Int64
	failures atomic.Int64
	told     atomic.Pointer[func(event string, cause error)]
	idle     atomic.Pointer[idleConns]
	waiting  chan net.Conn // to be answered; has room for all that may be
	slots    chan struct{}
}

func newSurplus() surplus {
	return surplus{waiting: make(chan net.Conn, SurplusConnections), slots: make(chan struct{}, SurplusConnections)}
}

// SetMost bounds how many connections may be open over all addresses, those of trusted
// proxies included, from now on; 0 is any number.
func (c *Connections) SetMost(most int) { c.most.Store(int64(most)) }

// Most is the bound in force; 0 is any number.
func (c *Connections) Most() int64 { return c.most.Load() }

// TurnedAway is how many connections were answered 503 or closed, since as many were
// open as may be.
func (c *Connections) TurnedAway() int64 { return c.turned.Load() }

// AcceptFailures is how often a connection could not be taken for want of something of
// the process' or the machine's.
func (c *Connections) AcceptFailures() int64 { return c.failures.Load() }

// The events that Notify tells of.
const (
	EventTurnedAway  = "turned_away"
	EventNotAccepted = "not_accepted"
)

// Notify has f called with each connection that is turned away or cannot be taken, by
// the goroutine that accepts: it must not block. cause is nil where there is none.
func (c *Connections) Notify(f func(event string, cause error)) { c.told.Store(&f) }

func (s *surplus) tell(event string, cause error) {
	if f := s.told.Load(); f != nil {
		(*f)(event, cause)
	}
}

// Telling is Listener for connections in clear text: those over the bound of all are
// given to the server of Surplus, as many as it may have at one time.
func (c *Connections) Telling(l net.Listener) net.Listener { return &countingListener{l, c, true} }

// enter counts one connection more, if there may be one.
func (c *Connections) enter() bool {
	for {
		if all, most := c.all.Add(1), c.most.Load(); most <= 0 || all <= most {
			return true
		}
		c.all.Add(-1)
		if !c.idle.Load().closeOne() {
			return false
		}
	}
}

func (c *Connections) turnAway(conn net.Conn, tell bool) {
	c.turned.Add(1)
	c.tell(EventTurnedAway, nil)
	if tell {
		select {
		case c.slots <- struct{}{}:
			s := &surplusConn{Conn: conn, slots: c.slots}
			s.end = time.AfterFunc(surplusTime, func() { _ = s.Close() })
			c.waiting <- s
			return
		default:
		}
	}
	_ = conn.Close()
}

// surplusConn has a slot until it is closed.
type surplusConn struct {
	net.Conn

	slots chan struct{}
	end   *time.Timer
	once  sync.Once
}

// CloseWrite is for net/http: what is closed while its client still sends is reset, and
// the answer lost.
func (c *surplusConn) CloseWrite() error {
	if half, ok := c.Conn.(halfCloser); ok {
		return half.CloseWrite()
	}
	return nil
}

// Close implements net.Conn.
func (c *surplusConn) Close() error {
	c.end.Stop()
	err := c.Conn.Close()
	c.once.Do(func() { <-c.slots })
	return err
}

// unaccepted is an error of Accept as net/http takes it: after one that is temporary it
// waits, up to a second, and goes on. Of those that accept(2) says to try again Go knows
// a few only, and the others would end the server.
func (c *Connections) unaccepted(err error) error {
	for _, passes := range []error{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EPERM, syscall.EPROTO,
		syscall.ECONNABORTED, syscall.ENETDOWN, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.EHOSTUNREACH,
		syscall.ENOPROTOOPT, syscall.EOPNOTSUPP, syscall.ETIMEDOUT,
	} {
		if errors.Is(err, passes) {
			c.failures.Add(1)
			c.tell(EventNotAccepted, err)
			return passingError{err}
		}
	}
	return err
}

// passingError is a net.Error after which net/http goes on to accept.
type passingError struct{ error }

func (passingError) Timeout() bool   { return false }
func (passingError) Temporary() bool { return true }
func (e passingError) Unwrap() error { return e.error }

var _ net.Error = passingError{}

// Surplus is the listener of the connections that Telling gives on. Its Close closes
// nothing but itself.
func (c *Connections) Surplus() net.Listener {
	return &surplusListener{waiting: c.waiting, closed: make(chan struct{})}
}

type surplusListener struct {
	waiting chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

// Accept implements net.Listener.
func (l *surplusListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.waiting:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *surplusListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *surplusListener) Addr() net.Addr { return &net.TCPAddr{} }

// ServeSurplus makes a server of NewServer's the one of Surplus: whatever is asked is
// answered 503, over HTTP/1.1 and HTTP/2, and the connection ends. It reads a head and a
// small body first, since what is closed unread is reset, and the answer lost with it.
func ServeSurplus(s *http.Server) {
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Expect") == "" {
			_, _ = io.CopyN(io.Discard, r.Body, surplusBody)
		}
		w.Header().Set("Connection", "close") // over HTTP/2 net/http makes a GOAWAY of it
		w.Header().Set(requestIDHeader, rand.Text())
		_ = refusal.Write(w, r.Method, connectionsExhausted(nil))
	})
	s.ReadHeaderTimeout, s.ReadTimeout, s.WriteTimeout, s.IdleTimeout = surplusWait, surplusWait, surplusTime, surplusWait
}

var (
	_ net.Listener = (*surplusListener)(nil)
	_ net.Conn     = (*surplusConn)(nil)
)
