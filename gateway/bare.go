package gateway

import (
	"bytes"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"sluice/internal/refusal"
)

// statusClearText stands for HTTP where TLS is spoken; the answer is a 400.
const statusClearText = 0

// clearTextRest is how long the rest of such a request may take.
const clearTextRest = 500 * time.Millisecond

// looksLikeHTTP reports whether the first five bytes of a connection begin a request.
func looksLikeHTTP(first [5]byte) bool {
	switch string(first[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "DELET", "OPTIO", "PATCH", "TRACE", "CONNE", "PRI *":
		return true
	default:
		return false
	}
}

// statusIn is the status of an answer that net/http writes by itself, with one write. What
// is none is a 400.
func statusIn(p []byte) int {
	const before, digits = len("HTTP/1.1 "), 3
	if len(p) >= before+digits && bytes.HasPrefix(p, []byte("HTTP/1.")) {
		if status, err := strconv.Atoi(string(p[before : before+digits])); err == nil && status >= http.StatusBadRequest && status <= 599 {
			return status
		}
	}
	return http.StatusBadRequest
}

// unread is the refusal of what net/http has not made a request of.
func unread(status int) *refusal.Refusal {
	var message string // the table's
	switch status {
	case statusClearText:
		message = "This port speaks TLS: begin the URL with https://."
		status = http.StatusBadRequest
	case http.StatusExpectationFailed:
		message = "The one expectation that there is is 100-continue: send that, or no Expect header."
	case http.StatusRequestHeaderFieldsTooLarge:
		message = "The request's line and headers are too large together: send fewer or shorter headers."
	case http.StatusNotImplemented:
		message = "The one transfer coding that there is is chunked, by itself: send that, or a Content-Length."
	case http.StatusHTTPVersionNotSupported:
		message = "This version of HTTP is not spoken here: use HTTP/1.1, or HTTP/2 where it was agreed on."
	}
	ref := refusal.Because(refusal.InvalidRequest, message, nil)
	ref.At = status
	return ref
}

// answer writes the refusal of a status, and counts and logs it; the connection has to be
// closed behind it. There was no request: its method, its id and its client behind proxies
// are not known.
func (g *ConnGuard) answer(to io.Writer, from net.Conn, status int) error {
	ref := unread(status)
	var raw [12]byte
	_, _ = io.ReadFull(g.options.Random, raw[:])
	id := hex.EncodeToString(raw[:])
	w := &plainAnswer{header: http.Header{}}
	w.header.Set(requestIDHeader, id)
	w.header.Set("Date", g.options.Now().UTC().Format(http.TimeFormat))
	_ = refusal.Write(w, "", ref)
	g.tellRefusal(addressOf(from.RemoteAddr().String()).String(), id, w.status)
	res := http.Response{
		StatusCode: w.status, ProtoMajor: 1, ProtoMinor: 1, Header: w.header, Close: true,
		Body: io.NopCloser(&w.body), ContentLength: int64(w.body.Len()),
	}
	var text bytes.Buffer
	if err := res.Write(&text); err != nil {
		return err
	}
	_, err := to.Write(text.Bytes())
	return err
}

// plainAnswer keeps an answer that no server writes.
type plainAnswer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

var _ http.ResponseWriter = (*plainAnswer)(nil)

func (w *plainAnswer) Header() http.Header         { return w.header }
func (w *plainAnswer) WriteHeader(status int)      { w.status = status }
func (w *plainAnswer) Write(p []byte) (int, error) { return w.body.Write(p) }
