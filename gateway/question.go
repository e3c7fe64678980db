package gateway

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// Question is a request that is asked about and not made.
type Question struct {
	// Method is the request's; "" = GET.
	Method string `json:"method"`
	// URL is what is asked for: a whole URL, or the path and query alone.
	URL string `json:"url"`
	// Headers are the request's lines, "Name: value". A body is asked about by its
	// Content-Length, or "Transfer-Encoding: chunked".
	Headers []string `json:"headers"`
	// Client is the address that it comes from, as the gateway sees it; "" = 127.0.0.1.
	Client string `json:"client"`
}

// ErrQuestion says that a question is none.
var ErrQuestion = errors.New("the question")

// questionError tells what is wrong with one. It repeats nothing of it.
type questionError string

func (e questionError) Error() string        { return string(e) }
func (e questionError) Is(target error) bool { return target == ErrQuestion }

// request makes the request, by the reader that reads those of clients. Where Go's own server
// would answer before anything of ours is asked, status is what with, bare.
func (q Question) request(ctx context.Context, headerBytes int64) (r *http.Request, status int, err error) {
	client := netip.MustParseAddr("127.0.0.1")
	if q.Client != "" {
		if client, err = netip.ParseAddr(q.Client); err != nil {
			return nil, 0, questionError("client is no address: write it without a port, as in 203.0.113.7")
		}
	}
	text, err := q.text()
	if err != nil {
		return nil, 0, err
	}
	// What the server has read ahead may let a few KiB more pass.
	in := &io.LimitedReader{R: strings.NewReader(text), N: headerBytes}
	r, err = http.ReadRequest(bufio.NewReader(in))
	if err != nil {
		return nil, serverStatus(err, in.N <= 0), nil
	}
	if status := refusedByServer(r); status != 0 {
		return nil, status, nil
	}
	r.RemoteAddr = net.JoinHostPort(client.String(), "0")
	if r.Body != http.NoBody && r.ContentLength != 0 {
		r.Body = unsentBody{}
	}
	return r.WithContext(ctx), 0, nil
}

// serverStatus is what the server answers to a head that cannot be read.
func serverStatus(err error, large bool) int {
	switch {
	case large: // whatever else is wrong with it
		return http.StatusRequestHeaderFieldsTooLarge
	case strings.HasPrefix(err.Error(), "unsupported transfer encoding"):
		return http.StatusNotImplemented
	default:
		return http.StatusBadRequest
	}
}

// refusedByServer is the status of what net/http's server refuses behind its parser; 0 where
// that lets a request pass.
func refusedByServer(r *http.Request) int {
	if !httpguts.ValidHostHeader(r.Host) {
		return http.StatusBadRequest
	}
	for name, values := range r.Header {
		if !httpguts.ValidHeaderFieldName(name) {
			return http.StatusBadRequest
		}
		for _, v := range values {
			if !httpguts.ValidHeaderFieldValue(v) {
				return http.StatusBadRequest
			}
		}
	}
	if expect := r.Header.Get("Expect"); expect != "" && !httpguts.HeaderValuesContainsToken(r.Header["Expect"], "100-continue") {
		return http.StatusExpectationFailed
	}
	return 0
}

// text is the request's head as a client would send it.
func (q Question) text() (string, error) {
	method := q.Method
	if method == "" {
		method = http.MethodGet
	}
	host, target := q.target()
	var b strings.Builder
	b.WriteString(method + " " + target + " HTTP/1.1\r\n")
	hasHost := false
	for _, line := range append([]string{method, target, host}, q.Headers...) {
		if strings.ContainsAny(line, "\r\n\x00") {
			return "", questionError("a line break is no part of a method, a URL or a header")
		}
	}
	for _, line := range q.Headers {
		name, _, ok := strings.Cut(line, ":")
		if !ok {
			return "", questionError("a header is written as 'Name: value'")
		}
		hasHost = hasHost || strings.EqualFold(name, "Host")
		b.WriteString(line + "\r\n")
	}
	if !hasHost {
		b.WriteString("Host: " + host + "\r\n")
	}
	b.WriteString("\r\n")
	return b.String(), nil
}

// target cuts a URL into the host and what a client would put on the request line, byte for
// byte.
func (q Question) target() (host, target string) {
	scheme, rest, ok := strings.Cut(q.URL, "://")
	if !ok || !strings.EqualFold(scheme, "http") && !strings.EqualFold(scheme, "https") {
		return "localhost", q.URL
	}
	end := strings.IndexAny(rest, "/?")
	if end < 0 {
		return rest, "/"
	}
	host, target = rest[:end], rest[end:]
	if target[0] == '?' {
		target = "/" + target
	}
	return host, target
}

// otherHost reports a question about another host than origin's.
func (q Question) otherHost(origin string) bool {
	host, _ := q.target()
	u, err := url.Parse(origin)
	return strings.Contains(q.URL, "://") && err == nil && !strings.EqualFold(u.Host, host)
}
