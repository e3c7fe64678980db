package apiclient

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sluice/internal/secret"
	"sluice/internal/ursulatest"
)

// rig is a client before the stand-in for Ursula, over connections in memory, so that
// it runs in a bubble: waits cost nothing, and whole contents can be compared for a
// cut after every single byte.
type rig struct {
	*Client
	cluster *ursulatest.Cluster
	stream  string // URL of the stream that the rig made

	mu      sync.Mutex
	cuts    []cut // of the next connections, in order; past their end none is cut
	down    bool  // nobody is there
	dials   int
	notices []Notice
	front   func(w http.ResponseWriter, r *http.Request, node http.Handler)
	asked   []string // method and query of each request
	open    []net.Conn
}

// cut ends a connection when so many bytes went one way; -1 = never.
type cut struct{ up, down int }

const origin = "http://gateway.test"

func newRig(t *testing.T, media string) *rig {
	t.Helper()
	r := &rig{cluster: ursulatest.New(ursulatest.Options{}), stream: origin + "/acme/s.events"}
	conns := make(pipeListener)
	server := &http.Server{Handler: r, ReadHeaderTimeout: time.Hour}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(conns)
	}()
	transport := NewTransport(nil)
	transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return r.dial(ctx, conns) }
	r.Client = New(Options{
		Origin: origin, Key: secret.New("tbo_key"), Transport: transport, UserAgent: "test",
		Jitter: func() float64 { return 0 },
		Notice: func(n Notice) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.notices = append(r.notices, n)
		},
	})
	t.Cleanup(func() {
		r.Close()
		_ = server.Close()
		<-served
		_ = r.cluster.Close()
	})
	r.make(t, media)
	return r
}

// make makes the stream at the node, past the rig's faults.
func (r *rig) make(t *testing.T, media string) {
	t.Helper()
	if code := r.node(t, http.MethodPut, "", media); code != http.StatusCreated {
		t.Fatalf("create: %d", code)
	}
}

func (r *rig) dial(ctx context.Context, conns pipeListener) (net.Conn, error) {
	r.mu.Lock()
	r.dials++
	down, c := r.down, cut{-1, -1}
	if len(r.cuts) > 0 {
		c, r.cuts = r.cuts[0], r.cuts[1:]
	}
	r.mu.Unlock()
	if down {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	client, server := net.Pipe()
	r.set(func() { r.open = append(r.open, server) })
	select {
	case conns <- &cutConn{Conn: server, left: c}:
		return client, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// ServeHTTP passes requests to the node, as the test wants it.
func (r *rig) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	r.asked = append(r.asked, req.Method+" "+req.URL.RawQuery)
	front := r.front
	r.mu.Unlock()
	if front == nil {
		r.cluster.Node(0).Handler().ServeHTTP(w, req)
		return
	}
	front(w, req, r.cluster.Node(0).Handler())
}

func (r *rig) set(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// cut ends every connection.
func (r *rig) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.open {
		_ = c.Close()
	}
	r.open = nil
}

func (r *rig) requests() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.asked...)
}

func (r *rig) told() []Notice {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Notice(nil), r.notices...)
}

// node sends a request straight to the node, with nothing in between.
func (r *rig) node(t *testing.T, method, body, media string, headers ...string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, r.stream, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.RequestURI = req.URL.RequestURI()
	req.Header.Set("Content-Type", media)
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	w := newRecorder()
	r.cluster.Node(0).Handler().ServeHTTP(w, req)
	return w.code
}

// content is the whole stream, as the node has it.
func (r *rig) content(t *testing.T) string {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, r.stream, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.RequestURI = req.URL.RequestURI()
	w := newRecorder()
	r.cluster.Node(0).Handler().ServeHTTP(w, req)
	if w.code != http.StatusOK {
		t.Fatalf("read: %d %s", w.code, w.body.String())
	}
	return w.body.String()
}

type recorder struct {
	header http.Header
	code   int
	body   strings.Builder
}

func newRecorder() *recorder { return &recorder{header: http.Header{}, code: http.StatusOK} }

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(code int)        { r.code = code }
func (r *recorder) Write(p []byte) (int, error) { return r.body.Write(p) }

// pipeListener gives out connections in memory.
type pipeListener chan net.Conn

func (l pipeListener) Accept() (net.Conn, error) {
	c, ok := <-l
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (l pipeListener) Close() error {
	close(l)
	return nil
}
func (l pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// cutConn is the server's end of a connection that breaks.
type cutConn struct {
	net.Conn
	mu   sync.Mutex
	left cut
}

func (c *cutConn) Read(p []byte) (int, error) {
	c.mu.Lock()
	left := c.left.up
	c.mu.Unlock()
	if left == 0 {
		_ = c.Close()
		return 0, io.ErrUnexpectedEOF
	}
	if left > 0 {
		p = p[:min(len(p), left)]
	}
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left.up > 0 {
		c.left.up -= n
	}
	return n, err
}

func (c *cutConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	left := c.left.down
	c.mu.Unlock()
	if left < 0 || left > len(p) {
		n, err := c.Conn.Write(p)
		c.mu.Lock()
		defer c.mu.Unlock()
		if left > 0 {
			c.left.down -= n
		}
		return n, err
	}
	n, _ := c.Conn.Write(p[:left])
	_ = c.Close()
	return n, io.ErrClosedPipe
}

// refusing answers the first n requests of a method with a status and code, and
// passes on the others.
func refusing(n int, method string, status int, code string, headers ...string) func(http.ResponseWriter, *http.Request, http.Handler) {
	var mu sync.Mutex
	return func(w http.ResponseWriter, r *http.Request, node http.Handler) {
		mu.Lock()
		refuse := n > 0 && r.Method == method
		if refuse {
			n--
		}
		mu.Unlock()
		if !refuse {
			node.ServeHTTP(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		for i := 0; i+1 < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, `{"error":{"code":"`+code+`","message":"as the test wants it"}}`)
	}
}
