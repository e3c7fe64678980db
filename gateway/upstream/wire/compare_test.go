package wire

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// scripted is a server in memory for one exchange a connection, lighter than a rig:
// it is made anew for each input of a fuzz target.
type scripted struct {
	serve  func(far *line)
	states [2]syscall.RawConn // of a socket; nil = no socket
	wait   sync.WaitGroup
}

func (s *scripted) dial(context.Context, string, string) (net.Conn, error) {
	near, far := newLine()
	s.wait.Go(func() {
		s.serve(far)
		_ = far.Close()
	})
	if s.states[0] == nil {
		return near, nil
	}
	return &socket{line: near, quiet: s.states[0], loud: s.states[1]}, nil
}

// comparedHead bounds the head in both of those that are compared.
const comparedHead = 2 << 10

// read is what a reader made of an answer, and why it did not like it.
type read struct {
	Status           int
	Text, Proto      string
	Header, Trailer  http.Header
	Length           int64
	Coding           []string
	Close            bool
	Body             string
	Failed, CutShort bool // no head; no clean end of the body

	err error
}

// readFrom reads an answer to its end.
func readFrom(res *http.Response, err error) read {
	if err != nil {
		return read{Failed: true, err: err}
	}
	r := read{
		Status: res.StatusCode, Text: res.Status, Proto: res.Proto, Header: res.Header,
		Length: res.ContentLength, Coding: res.TransferEncoding, Close: res.Close,
	}
	if r.Status != http.StatusSwitchingProtocols { // the body is the connection then
		var body []byte
		body, r.err = io.ReadAll(res.Body)
		r.Body, r.CutShort = string(body), r.err != nil
	}
	_ = res.Body.Close()
	r.Trailer = res.Trailer
	return r
}

// viaWire and viaTransport make one request and read its answer.
func (s *scripted) viaWire(req *http.Request) read {
	conns := New(Options{Dial: s.dial, Idle: time.Minute, MaxIdle: 1, MaxHead: comparedHead})
	defer s.wait.Wait()
	defer conns.Close()
	x := &Exchange{Connect: time.Minute, Head: time.Minute}
	return readFrom(x.Do(context.Background(), conns, req))
}

// viaTransport has http.Transport not keep its connection where it would log what
// follows the answer; its request says so then.
func (s *scripted) viaTransport(req *http.Request, keep bool) read {
	transport := &http.Transport{
		DialContext: s.dial, DisableCompression: true, MaxResponseHeaderBytes: comparedHead, DisableKeepAlives: !keep,
	}
	defer s.wait.Wait()
	defer transport.CloseIdleConnections()
	return readFrom(transport.RoundTrip(req))
}

// recorder is a server that keeps what is written to it, whole.
type recorder struct {
	scripted
	mu  sync.Mutex
	got bytes.Buffer
}

func newRecorder(states [2]syscall.RawConn) *recorder {
	r := &recorder{}
	r.scripted = scripted{states: states, serve: r.record}
	return r
}

func (r *recorder) record(far *line) {
	r.mu.Lock()
	defer r.mu.Unlock()
	in := bufio.NewReader(io.TeeReader(far, &r.got))
	// Only the framing is of interest here; what a server would say of the first
	// line is not.
	if _, err := in.ReadString('\n'); err != nil {
		return
	}
	req, err := http.ReadRequest(bufio.NewReader(io.MultiReader(strings.NewReader("POST / HTTP/1.1\r\n"), in)))
	if err != nil {
		return
	}
	if _, err := io.Copy(io.Discard, req.Body); err != nil {
		return
	}
	_, _ = io.WriteString(far, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
	_, _ = io.Copy(io.Discard, in)
}

func (r *recorder) written() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got.String()
}

// sameRequest has both write a request, and wants the same bytes of them or that
// both refuse it. It returns what was written, "" for a refusal.
func sameRequest(t *testing.T, states [2]syscall.RawConn, request func() *http.Request) string {
	t.Helper()
	ours, theirs := newRecorder(states), newRecorder(states)
	got, want := ours.viaWire(request()), theirs.viaTransport(request(), true)
	if got.Failed != want.Failed {
		t.Fatalf("wire: error %v, wrote\n%q\nhttp.Transport: error %v, wrote\n%q", got.err, ours.written(), want.err, theirs.written())
	}
	if got.Failed {
		return ""
	}
	if ours.written() != theirs.written() {
		t.Fatalf("wire wrote\n%q\nhttp.Transport\n%q", ours.written(), theirs.written())
	}
	return ours.written()
}
