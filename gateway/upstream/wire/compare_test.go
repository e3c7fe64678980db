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

// viaWire and viaTransport make one request and read the answer to its end.
func (s *scripted) viaWire(req *http.Request) (*http.Response, []byte, error, error) {
	conns := New(Options{Dial: s.dial, Idle: time.Minute, MaxIdle: 1, MaxHead: comparedHead})
	defer s.wait.Wait()
	defer conns.Close()
	x := &Exchange{Connect: time.Minute, Head: time.Minute}
	res, err := x.Do(context.Background(), conns, req)
	if err != nil {
		return nil, nil, err, nil
	}
	defer func() { _ = res.Body.Close() }()
	body, readErr := io.ReadAll(res.Body)
	return res, body, nil, readErr
}

func (s *scripted) viaTransport(req *http.Request) (*http.Response, []byte, error, error) {
	transport := &http.Transport{DialContext: s.dial, DisableCompression: true, MaxResponseHeaderBytes: comparedHead}
	defer s.wait.Wait()
	defer transport.CloseIdleConnections()
	res, err := transport.RoundTrip(req)
	if err != nil {
		return nil, nil, err, nil
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode == http.StatusSwitchingProtocols {
		return res, nil, nil, nil // its body is the connection
	}
	body, readErr := io.ReadAll(res.Body)
	return res, body, nil, readErr
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
	_, _, err, _ := ours.viaWire(request())
	_, _, theirErr, _ := theirs.viaTransport(request())
	if (err == nil) != (theirErr == nil) {
		t.Fatalf("wire: error %v, wrote\n%q\nhttp.Transport: error %v, wrote\n%q", err, ours.written(), theirErr, theirs.written())
	}
	if err != nil {
		return ""
	}
	if ours.written() != theirs.written() {
		t.Fatalf("wire wrote\n%q\nhttp.Transport\n%q", ours.written(), theirs.written())
	}
	return ours.written()
}
