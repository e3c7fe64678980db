package ursulatest

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
)

// Request is one client request as a node received it.
type Request struct {
	Node             int // index of the node
	Method           string
	Target           string // raw request target, never decoded
	Host             string
	Header           http.Header
	Body             []byte // as far as it was read
	ContentLength    int64  // -1 when not declared
	TransferEncoding []string
	ConnID           int64 // number of the connection in the process of the node; 0 without one
	RemoteAddr       string
	Proto            string // HTTP/1.1, HTTP/2.0
}

// recorder keeps the last requests within maxRequests and maxRequestBytes.
type recorder struct {
	mu      sync.Mutex
	entries []*entry
	bytes   int
	counts  map[int]int
}

type entry struct {
	req  Request
	body bytes.Buffer
}

func (l *recorder) add(node int, r *http.Request) *entry {
	e := &entry{req: Request{
		Node: node, Method: r.Method, Target: r.RequestURI, Host: r.Host, Header: r.Header.Clone(),
		ContentLength: r.ContentLength, TransferEncoding: slices.Clone(r.TransferEncoding),
		ConnID: connID(r.Context()), RemoteAddr: r.RemoteAddr, Proto: r.Proto,
	}}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.counts == nil {
		l.counts = make(map[int]int)
	}
	l.counts[node]++
	l.entries = append(l.entries, e)
	l.trim()
	return e
}

// trim drops the oldest entries beyond the bounds; l.mu is held.
func (l *recorder) trim() {
	for len(l.entries) > maxRequests || (l.bytes > maxRequestBytes && len(l.entries) > 1) {
		l.bytes -= l.entries[0].body.Len()
		l.entries[0] = nil
		l.entries = l.entries[1:]
	}
}

func (l *recorder) write(e *entry, p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Contains(l.entries, e) {
		return // dropped meanwhile: its bytes are no longer counted
	}
	e.body.Write(p)
	l.bytes += len(p)
	l.trim()
}

// hits counts the requests of a node, of all nodes when node is negative.
func (l *recorder) hits(node int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if node >= 0 {
		return l.counts[node]
	}
	total := 0
	for _, n := range l.counts {
		total += n
	}
	return total
}

func (l *recorder) snapshot() []Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]Request, 0, len(l.entries))
	for _, e := range l.entries {
		r := e.req
		r.Header = r.Header.Clone()
		r.Body = bytes.Clone(e.body.Bytes())
		out = append(out, r)
	}
	return out
}

func (l *recorder) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries, l.bytes, l.counts = nil, 0, nil
}

// recordedBody tees what a handler reads into the record.
type recordedBody struct {
	io.ReadCloser
	log   *recorder
	entry *entry
}

func (b *recordedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.log.write(b.entry, p[:n])
	}
	return n, err
}

// connKey is the context key of the connection a request came on.
type connKey struct{}

type connInfo struct {
	id   int64
	conn net.Conn
}

func connID(ctx context.Context) int64 {
	if info, ok := ctx.Value(connKey{}).(connInfo); ok {
		return info.id
	}
	return 0
}

// resetConn closes the TCP connection of a request so that the peer sees a
// reset, whatever the protocol above it. It reports whether there was one.
func resetConn(ctx context.Context) bool {
	info, ok := ctx.Value(connKey{}).(connInfo)
	if !ok {
		return false
	}
	if tcp, ok := info.conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // send RST instead of FIN
	}
	_ = info.conn.Close()
	return true
}

func decimal(v uint64) string { return strconv.FormatUint(v, 10) }
