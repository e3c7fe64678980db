package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"time"
)

const (
	// idleTimeout is Ursula's own gateway's: a node that drains keeps idle
	// connections for a second only, so none is used that is older than half of
	// that (facts §4.3). Under traffic connections never reach it.
	idleTimeout = 500 * time.Millisecond
	// idlePerNode bounds the connections kept to one node, idleTotal to all.
	idlePerNode = 512
	idleTotal   = 2048
	// maxHeadBytes bounds a node's response head and all 1xx before it.
	maxHeadBytes = 64 << 10
	// copyBuffer sizes the reads and writes of a connection.
	copyBuffer = 16 << 10
	// maxDiscard and discardTime bound what is read of an answer that is not
	// wanted, so that its connection can be used again.
	maxDiscard  = 16 << 10
	discardTime = 500 * time.Millisecond
)

// newTransport makes the one http.Transport of a pool. It uses no proxy of the
// environment (U08), adds no coding of its own (U06) and speaks HTTP/1.1.
func newTransport() *http.Transport {
	dialer := &net.Dialer{
		Timeout: ConnectTimeout,
		// Facts §4.3: idle 2T/5, interval T/5 of a user timeout T of 5 s.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 3},
	}
	return &http.Transport{
		DialContext:            watched(dialer.DialContext),
		DisableCompression:     true,
		MaxIdleConns:           idleTotal,
		MaxIdleConnsPerHost:    idlePerNode,
		IdleConnTimeout:        idleTimeout,
		TLSHandshakeTimeout:    ConnectTimeout,
		MaxResponseHeaderBytes: maxHeadBytes,
		ReadBufferSize:         copyBuffer,
		WriteBufferSize:        copyBuffer,
	}
}

func newNode(base string) (*node, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
		return nil, fmt.Errorf("node %s: want http://host:port or https://host:port", base)
	}
	return &node{base: u.Scheme + "://" + u.Host, scheme: u.Scheme, host: u.Host}, nil
}

// maxStale bounds how many kept connections that a node has ended meanwhile one
// attempt may meet.
const maxStale = 8

// exchange makes one attempt at one node and tells the observer. at.connected
// says afterwards whether the request may have had an effect there.
func (p *Pool) exchange(req *http.Request, m Meta, at *attempt, several bool) (*http.Response, error) {
	res, err := p.once(req, m, at, several)
	for n := 0; errors.Is(err, errStale) && n < maxStale; n++ {
		res, err = p.once(req, m, at, several)
	}
	switch {
	case err == nil:
		p.observer.Exchanged(at.node.host, class(res.StatusCode))
	case req.Context().Err() != nil:
		p.observer.Exchanged(at.node.host, clientClosed)
	default:
		p.observer.Exchanged(at.node.host, outcome(at, err))
	}
	return res, err
}

// once sends the request on one connection. Its error is errStale when that had
// ended before a byte of the request was written.
func (p *Pool) once(req *http.Request, m Meta, at *attempt, several bool) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	// The connection has a time of its own; the head's begins when it stands.
	timer := time.AfterFunc(2*ConnectTimeout, func() { cancel(errHeaderTimeout) })
	var conn *watchedConn
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		// The transport looks for another connection only where the request cannot
		// have had an effect on the one before (retry.go).
		GetConn: func(string) { at.connected = false },
		GotConn: func(info httptrace.GotConnInfo) {
			at.connected = true
			// A connection with TLS is not watched: it reads when nobody asks.
			if conn, _ = info.Conn.(*watchedConn); conn != nil {
				conn.handOver(ctx)
			}
			timer.Reset(headerTimeout(m))
		},
	})
	res, err := p.transport.RoundTrip(outgoing(ctx, req, m, at.node, several))
	inTime := timer.Stop()
	switch {
	case err != nil:
	case res.StatusCode == http.StatusSwitchingProtocols:
		err = errUnexpected1xx
	case !inTime:
		// The head came as the timer fired: its body is cut already.
		err = errHeaderTimeout
	default:
		res.Body = &bodyCloser{ReadCloser: res.Body, cancel: cancel}
		return res, nil
	}
	if res != nil {
		_ = res.Body.Close()
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	} else if at.connected && conn != nil && conn.untouched() {
		at.connected, err = false, errStale
	}
	cancel(nil)
	return nil, err
}

// outgoing is the request as it goes to that node.
func outgoing(ctx context.Context, req *http.Request, m Meta, n *node, several bool) *http.Request {
	out := req.WithContext(ctx)
	target := *req.URL
	target.Scheme, target.Host = n.scheme, n.host
	if m.CatchUp && several {
		target.RawQuery = leaderQuery(target.RawQuery)
	}
	out.URL = &target
	// An empty Host makes the node's own address the Host header (H19).
	out.Host = ""
	out.Body, out.ContentLength, out.GetBody = nil, int64(len(m.Body)), nil
	if len(m.Body) > 0 {
		// GetBody stays nil: the transport may not send a body twice by itself.
		out.Body = io.NopCloser(bytes.NewReader(m.Body))
	}
	return out
}

// bodyCloser ends the attempt's context with the answer's body.
type bodyCloser struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b *bodyCloser) Close() error {
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}

// discard reads the rest of a small answer, so that its connection is kept. A
// node that does not end it loses the connection, never the request its time.
func discard(res *http.Response) {
	if b, ok := res.Body.(*bodyCloser); ok {
		timer := time.AfterFunc(discardTime, func() { b.cancel(nil) })
		defer timer.Stop()
	}
	_, _ = io.CopyN(io.Discard, res.Body, maxDiscard)
	_ = res.Body.Close()
}

// clientClosed is the outcome that blames nobody: the client left.
const clientClosed = "client_closed"

// outcome names why there is no answer. err is one of once's.
func outcome(at *attempt, err error) string {
	switch {
	case !at.connected:
		return Unreachable.String()
	case errors.Is(err, errHeaderTimeout):
		return TimedOut.String()
	default:
		return Failed.String()
	}
}

func class(status int) string {
	switch status / 100 {
	case 2:
		return "2xx"
	case 3:
		return "3xx"
	case 4:
		return "4xx"
	default:
		return "5xx"
	}
}
