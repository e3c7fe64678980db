package upstream

import (
	"bytes"
	"context"
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
	// maxDiscard bounds what is read of an answer that is not wanted, so that its
	// connection can be used again.
	maxDiscard = 16 << 10
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
		DialContext:            dialer.DialContext,
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

// exchange makes one attempt at one node. It sets at.connected as soon as a
// byte of the request may have left.
func (p *Pool) exchange(req *http.Request, m Meta, at *attempt, several bool) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { at.connected = true },
	})
	out := req.WithContext(ctx)
	target := *req.URL
	target.Scheme, target.Host = at.node.scheme, at.node.host
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
	timer := time.AfterFunc(headerTimeout(m), func() { cancel(errHeaderTimeout) })
	res, err := p.transport.RoundTrip(out)
	inTime := timer.Stop()
	if err == nil {
		switch {
		case res.StatusCode == http.StatusSwitchingProtocols:
			err = errUnexpected1xx
		case !inTime:
			// The head came as the timer fired: its body is cut already.
			err = errHeaderTimeout
		}
		if err != nil {
			_ = res.Body.Close()
		}
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		cancel(nil)
		p.observer.Exchanged(at.node.host, outcome(at, err))
		return nil, err
	}
	p.observer.Exchanged(at.node.host, class(res.StatusCode))
	res.Body = &bodyCloser{ReadCloser: res.Body, cancel: cancel}
	return res, nil
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

// discard reads the rest of a small answer, so that its connection is kept.
func discard(res *http.Response) {
	_, _ = io.CopyN(io.Discard, res.Body, maxDiscard)
	_ = res.Body.Close()
}

func outcome(at *attempt, err error) string {
	switch {
	case err == errHeaderTimeout: //nolint:errorlint // a cause is this very value
		return TimedOut.String()
	case at.connected:
		return Failed.String()
	default:
		return Unreachable.String()
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
