package gateway

import (
	"bufio"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"sluice/internal/refusal"
)

// serving is a server of connections that are bounded, and of those that are too many.
type serving struct {
	*Connections

	url string
}

func newServing(t *testing.T, most int) *serving {
	t.Helper()
	s := &serving{Connections: NewConnections()}
	s.SetMost(most)
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.url = "http://" + l.Addr().String()
	quiet := log.New(io.Discard, "", 0)
	surplus := NewServer(nil, quiet)
	ServeSurplus(surplus)
	for server, l := range map[*http.Server]net.Listener{
		NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "served") }), quiet): s.Telling(l),
		surplus: s.Surplus(),
	} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = server.Serve(l)
		}()
		t.Cleanup(func() {
			_ = server.Close()
			<-done
		})
	}
	return s
}

func (s *serving) dial(t *testing.T) net.Conn {
	t.Helper()
	var d net.Dialer
	c, err := d.DialContext(t.Context(), "tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// O08: connections were taken until there was no descriptor left for anything else. Those
// over the bound, whoever they come from, are told so in the words of every refusal, over
// HTTP/1.1 and HTTP/2, or closed where many come; and one that ends makes room.
func TestConnectionsTooMany(t *testing.T) {
	s := newServing(t, 2)
	var told atomic.Int64
	s.Notify(func(event string, _ error) {
		if event == EventTurnedAway {
			told.Add(1)
		}
	})
	first, second := s.dial(t), s.dial(t)
	poll(t, "both are counted", func() bool { return s.Open() == 2 })
	for name, c := range protocols(t) {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost} {
			t.Run(name+" "+method, func(t *testing.T) {
				var body io.Reader
				if method == http.MethodPost {
					body = strings.NewReader(strings.Repeat("x", 16<<10))
				}
				req, err := http.NewRequestWithContext(t.Context(), method, s.url+"/acme/s.priv", body)
				if err != nil {
					t.Fatal(err)
				}
				res, err := c.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				text, err := io.ReadAll(res.Body)
				_ = res.Body.Close()
				if err != nil || res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" || res.Header.Get("X-Request-Id") == "" {
					t.Errorf("%d %v, error %v", res.StatusCode, res.Header, err)
				}
				if holds := strings.Contains(string(text), string(refusal.UpstreamUnreachable)); holds == (method == http.MethodHead) {
					t.Errorf("body %q", text)
				}
				c.CloseIdleConnections()
			})
		}
	}
	// Of many that say nothing none is kept for long, and each of them is closed.
	many := make([]net.Conn, 3*SurplusConnections)
	for i := range many {
		many[i] = s.dial(t)
	}
	for _, c := range many {
		_, _ = io.Copy(io.Discard, c)
	}
	if got := s.TurnedAway(); got < int64(len(many)) || got != told.Load() {
		t.Errorf("%d turned away, %d told of", got, told.Load())
	}
	if got := s.Open(); got != 2 {
		t.Errorf("%d connections are counted, want the 2 that are open", got)
	}
	_ = first.Close()
	poll(t, "there is room", func() bool { return s.Open() == 1 })
	third := s.dial(t)
	for _, c := range []net.Conn{second, third} {
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if res := readAnswer(t, bufio.NewReader(c), http.MethodGet); res.Text != "served" {
			t.Errorf("%d %q", res.StatusCode, res.Text)
		}
	}
}

// failing is a listener whose Accept fails some times, and then gives connections.
type failing struct {
	*pipes

	errs []error
}

func (f *failing) Accept() (net.Conn, error) {
	if len(f.errs) > 0 {
		err := f.errs[0]
		f.errs = f.errs[1:]
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", err)}
	}
	return f.pipes.Accept()
}

// O08: one accept that failed, since there were no descriptors or since a firewall
// refused it, ended the server. It goes on, after a wait, and only its close is an end.
func TestAcceptGoesOn(t *testing.T) {
	c := NewConnections()
	var causes []error
	c.Notify(func(_ string, cause error) { causes = append(causes, cause) })
	in := &failing{&pipes{make(chan net.Conn, 1), make(chan struct{})}, []error{syscall.EMFILE, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.EPERM, syscall.ECONNABORTED}}
	fails := len(in.errs)
	server := NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "served") }), log.New(io.Discard, "", 0))
	done := make(chan error, 1)
	ours, theirs := net.Pipe()
	in.conns <- theirs
	go func() { done <- server.Serve(c.Listener(in)) }()
	if _, err := io.WriteString(ours, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if res := readAnswer(t, bufio.NewReader(ours), http.MethodGet); res.Text != "served" {
		t.Errorf("%d %q", res.StatusCode, res.Text)
	}
	if got := c.AcceptFailures(); int(got) != fails || len(causes) != fails || !errors.Is(causes[0], syscall.EMFILE) {
		t.Errorf("%d failures, told of %v", got, causes)
	}
	_ = ours.Close()
	_ = server.Close()
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("ended with %v", err)
	}
	if got := c.AcceptFailures(); int(got) != fails {
		t.Errorf("the close is counted as a failure")
	}
}

// O08: tools that leave connections behind filled the admin listener, and the operator
// was locked out. The one on which nothing has been asked for longest makes room, and
// none on which something is.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	conns, quiet := NewConnections(), log.New(io.Discard, "", 0)
	conns.SetMost(3)
	release := make(chan struct{})
	server := NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			<-release
		}
		_, _ = io.WriteString(w, "served")
	}), quiet)
	conns.MakeRoom(server)
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &serving{Connections: conns, url: "http://" + l.Addr().String()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(conns.Listener(l))
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	ask := func(path string) *bufio.Reader {
		t.Helper()
		c := s.dial(t)
		if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		return bufio.NewReader(c)
	}
	served := func(from *bufio.Reader) {
		t.Helper()
		if res := readAnswer(t, from, http.MethodGet); res.Text != "served" {
			t.Errorf("%d %q", res.StatusCode, res.Text)
		}
	}
	held := ask("/hold")
	poll(t, "it is taken", func() bool { return conns.Open() == 1 })
	for range 20 {
		served(ask("/"))
		poll(t, "the connection waits for a request", func() bool {
			idle := conns.idle.Load()
			idle.mu.Lock()
			defer idle.mu.Unlock()
			return idle.all.Len() == int(conns.Open())-1
		})
	}
	if got := conns.Open(); got != 3 || conns.TurnedAway() != 0 {
		t.Errorf("%d are open, %d were turned away", got, conns.TurnedAway())
	}
	first, second := ask("/hold"), ask("/hold")
	poll(t, "all that may be are in use", func() bool {
		idle := conns.idle.Load()
		idle.mu.Lock()
		defer idle.mu.Unlock()
		return conns.Open() == 3 && idle.all.Len() == 0
	})
	if _, err := ask("/").ReadByte(); err == nil {
		t.Error("a connection was taken over the bound")
	}
	close(release)
	for _, from := range []*bufio.Reader{held, first, second} {
		served(from)
	}
}
