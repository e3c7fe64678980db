package wire

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"
	"syscall"
	"testing"
)

// fuzzedRequest makes a request of anything at all, past what net/url and net/http
// would refuse to parse.
func fuzzedRequest(method, urlHost, host, path, query, name, value string, body []byte, length int64, how uint8) *http.Request {
	req := &http.Request{
		Method: method, Host: host, Header: http.Header{}, ProtoMajor: 1, ProtoMinor: 1,
		URL: &url.URL{Scheme: "http", Host: urlHost, Path: path, RawQuery: query}, ContentLength: length,
	}
	if name != "" || value != "" {
		req.Header[name] = []string{value, "second"}
	}
	switch how % 4 {
	case 0: // none
	case 1:
		req.Body = http.NoBody
	case 2:
		req.Body = io.NopCloser(bytes.NewReader(body))
	case 3:
		req.Body = io.NopCloser(opaque{bytes.NewReader(body)})
	}
	req.Close = how&4 != 0
	if how&8 != 0 {
		req.TransferEncoding = []string{"chunked"}
	}
	if how&16 != 0 {
		req.Trailer = http.Header{name: {value}}
	}
	if how&32 != 0 {
		req.URL.Opaque, req.URL.Path = path, ""
	}
	if how&64 != 0 {
		req.ContentLength = int64(len(body))
	}
	req.ContentLength = max(req.ContentLength, -1)
	if method == http.MethodConnect {
		req.Body, req.ContentLength = nil, 0 // net/http gives it no framing
	}
	return req
}

// FuzzRequest has wire and http.Transport write a request: they write the same
// bytes, or both refuse it. One difference is wanted: a body that is longer than
// it was declared wire refuses, and http.Transport too, but when its answer is
// faster than the finding.
func FuzzRequest(f *testing.F) {
	f.Add("GET", "node.test", "", "/b/s", "offset=-1", "", "", []byte(nil), int64(0), uint8(0))
	f.Add("POST", "node.test:4437", "else.test", "/b/s", "", "Content-Type", "text/plain", []byte("body"), int64(4), uint8(2))
	f.Add("PUT", "node.test", "", "", "", "Expect", "100-continue", []byte("body"), int64(-1), uint8(3))
	f.Add("DELETE", "[fe80::1%25a]:1", "", "//x", "a b", "Trailer", "A", []byte("body"), int64(0), uint8(2|8|16))
	f.Add("", "", "node.test", "*", "\x00", "A b", "c\r\nd", []byte("body"), int64(3), uint8(1))
	f.Add("CONNECT", "node.test:1", "", "", "", "Connection", "upgrade", []byte(nil), int64(0), uint8(4))
	f.Add("OPTIONS", "node.test", "a/b", "*", "", "Host", "evil", []byte("x"), int64(1), uint8(32|64|2))
	f.Add("POST", "node.test", "", "/", "", "A", "b", []byte("longer"), int64(4), uint8(3))
	f.Add("HEAD", "\xff.test", "a b", "/%zz\r\n", "é", "Content-Length", "7", bytes.Repeat([]byte("x"), 3000), int64(3000), uint8(2))
	quiet, loud := states(f)
	f.Fuzz(func(t *testing.T, method, urlHost, host, path, query, name, value string, body []byte, length int64, how uint8) {
		both := [2]syscall.RawConn{quiet, loud}
		if how&128 != 0 {
			both = [2]syscall.RawConn{}
		}
		request := func() *http.Request {
			return fuzzedRequest(method, urlHost, host, path, query, name, value, body, length, how)
		}
		if r := request(); r.Body == nil || r.ContentLength <= 0 || r.ContentLength >= int64(len(body)) || how&8 != 0 {
			sameRequest(t, both, request)
			return
		}
		if len(body)+len(path)+len(query)+len(host)+len(urlHost)+len(value) > writeBuffer/4 {
			t.Skip("what is declared of it may have left")
		}
		if got := newRecorder(both).viaWire(request()); how%4 > 1 && !errors.Is(got.err, ErrRequest) {
			t.Fatalf("error %v", got.err)
		}
	})
}
