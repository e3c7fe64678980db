package apiclient

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"time"

	"sluice/internal/secret"
)

// Bounds of an exchange.
const (
	maxAnswer     = 4 << 20  // bytes of an answer of the Management API
	maxRefusal    = 64 << 10 // bytes of a refusal
	maxAnswerHead = 64 << 10
	// quietTime is how long nothing may move, in either direction, before an exchange
	// is given up. A gateway answers 504 long before.
	quietTime = 60 * time.Second
)

// Options are what a Client is made of.
type Options struct {
	// Origin is where the Management API is: scheme, host and port, no path. The
	// client follows no redirect, so the key goes where it is sent.
	Origin string
	Key    secret.Secret // zero: anonymous
	// Transport is the way out; nil = NewTransport of the environment's proxy.
	Transport http.RoundTripper
	UserAgent string
	Now       func() time.Time // nil = time.Now
	// Jitter is in [0, 1), evenly; it spreads clients that were cut off together.
	Jitter func() float64
	// Notice is told before each wait; nil = nobody is. It must not block.
	Notice func(Notice)
}

// Notice says that something failed and will be tried again after a wait.
type Notice struct {
	Err  error
	Wait time.Duration
}

// Client talks to one gateway. It may be used by several goroutines at once.
type Client struct {
	o       Options
	http    *http.Client
	reached atomic.Bool // something has answered
}

// New makes a client. It opens nothing yet; Close lets go of idle connections.
func New(o Options) *Client {
	if o.Transport == nil {
		o.Transport = NewTransport(http.ProxyFromEnvironment)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Notice == nil {
		o.Notice = func(Notice) {}
	}
	return &Client{o: o, http: &http.Client{
		Transport:     o.Transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close lets go of idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// NewTransport is the way out. A proxy is used for https only: over http it would
// read the key.
func NewTransport(proxy func(*http.Request) (*url.URL, error)) *http.Transport {
	return &http.Transport{
		Proxy: func(r *http.Request) (*url.URL, error) {
			if r.URL.Scheme != "https" {
				return nil, nil
			}
			return proxy(r)
		},
		ForceAttemptHTTP2: true, MaxResponseHeaderBytes: maxAnswerHead,
		IdleConnTimeout: 30 * time.Second, TLSHandshakeTimeout: 15 * time.Second,
		MaxIdleConnsPerHost: 2,
	}
}

// request is one exchange to be made.
type request struct {
	method string
	url    string // whole
	header http.Header
	body   []byte
	quiet  time.Duration // 0 = quietTime
}

// response is an answer whose status is 2xx. Its body must be closed.
type response struct {
	*http.Response
	watch *watch
}

// close ends the exchange.
func (r *response) close() {
	_ = r.Body.Close()
	r.watch.end()
}

// Read reads the body under the watch.
func (r *response) Read(p []byte) (int, error) {
	n, err := r.Body.Read(p)
	r.watch.touch()
	return n, err
}

// Strange is the error of an answer to a call that no Management API gives. It may be
// used for what an answer's content tells.
func (c *Client) Strange(what string) error { return &StrangeError{hostOf(c.o.Origin), what} }

// send makes one exchange, once. Its errors are *Error, where the gateway answered
// with another status than 2xx, *UnansweredError, or that of ctx.
func (c *Client) send(ctx context.Context, q request) (*response, error) {
	if q.quiet == 0 {
		q.quiet = quietTime
	}
	within, w := watched(ctx, q.quiet)
	var sent atomic.Bool // the transport calls back from goroutines of its own
	within = httptrace.WithClientTrace(within, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }})
	var body io.Reader = http.NoBody
	if q.body != nil {
		body = watchedReader{bytes.NewReader(q.body), w}
	}
	req, err := http.NewRequestWithContext(within, q.method, q.url, body)
	if err != nil {
		w.end()
		return nil, err
	}
	if q.body != nil {
		req.ContentLength = int64(len(q.body))
	}
	for name, values := range q.header {
		req.Header[name] = values
	}
	if !c.o.Key.IsZero() {
		req.Header.Set("Authorization", "Bearer "+c.o.Key.Reveal())
	}
	req.Header.Set("User-Agent", c.o.UserAgent)
	res, err := c.http.Do(req) //nolint:bodyclose // response.close does, for whom it is given to
	if err != nil {
		defer w.end()
		return nil, c.unanswered(ctx, within, q, sent.Load(), err)
	}
	c.reached.Store(true)
	w.touch()
	r := &response{res, w}
	if res.StatusCode < 200 || res.StatusCode > 299 {
		defer r.close()
		return nil, c.refused(res, r)
	}
	return r, nil
}

// unanswered is the error of an exchange that broke: where it was sent, nobody knows
// what became of the request. Where the caller ended it, it is ctx's.
func (c *Client) unanswered(ctx, within context.Context, q request, sent bool, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(context.Cause(within), errQuiet) {
		err = errQuiet
	}
	var inner *url.Error
	if errors.As(err, &inner) {
		err = inner.Err // what it says names the URL a second time
	}
	return &UnansweredError{Host: hostOf(q.url), Sent: sent, Err: err}
}

func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// errQuiet is the cause of an exchange that was given up.
var errQuiet = errors.New("no answer for too long")

// watch ends an exchange in which nothing moves.
type watch struct {
	timer  *time.Timer
	quiet  time.Duration
	cancel context.CancelCauseFunc
}

func watched(ctx context.Context, quiet time.Duration) (context.Context, *watch) {
	ctx, cancel := context.WithCancelCause(ctx)
	return ctx, &watch{time.AfterFunc(quiet, func() { cancel(errQuiet) }), quiet, cancel}
}

func (w *watch) touch() { w.timer.Reset(w.quiet) }

func (w *watch) end() {
	w.timer.Stop()
	w.cancel(nil)
}

type watchedReader struct {
	io.Reader
	w *watch
}

func (r watchedReader) Read(p []byte) (int, error) {
	r.w.touch()
	return r.Reader.Read(p)
}
