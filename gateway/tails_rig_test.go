package gateway

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/gateway/upstream"
	"sluice/internal/tenant"
)

// liveNodes are a way to the nodes whose live reads the test feeds. Other reads
// are answered with what was set.
type liveNodes struct {
	opened chan *liveRead // in the order of their coming

	mu       sync.Mutex
	body     func() io.ReadCloser // of other answers
	canceled int                  // exchanges that were given up
}

// liveRead is one live read at the nodes.
type liveRead struct {
	*io.PipeWriter
	request *http.Request
	answer  chan string     // of a long-poll: its body
	ended   <-chan struct{} // the exchange was given up, or its body closed
}

func newLiveNodes() *liveNodes { return &liveNodes{opened: make(chan *liveRead, 4096)} }

// Identity implements Upstream.
func (*liveNodes) Identity() (upstream.Identity, error) {
	return upstream.Identity{}, upstream.ErrNotIdentified
}

// Send implements Upstream.
func (n *liveNodes) Send(ctx context.Context, r *http.Request, m upstream.Meta) (*http.Response, error) {
	res := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Request: r, ProtoMajor: 1, ProtoMinor: 1, ContentLength: -1}
	if !m.Live && !m.LongPoll {
		n.mu.Lock()
		defer n.mu.Unlock()
		res.Body = n.body()
		return res, nil
	}
	body, feed := io.Pipe()
	ended, over := context.WithCancel(ctx)
	read := &liveRead{feed, r, make(chan string, 1), ended.Done()}
	context.AfterFunc(ctx, func() {
		_ = feed.CloseWithError(ctx.Err())
		n.mu.Lock()
		defer n.mu.Unlock()
		n.canceled++
	})
	n.opened <- read
	res.Body = closer{body, over}
	if m.Live {
		res.Header.Set("Content-Type", "text/event-stream")
		return res, nil
	}
	select {
	case text := <-read.answer:
		_ = body.Close()
		res.Body = closer{io.NopCloser(strings.NewReader(text)), over}
		return res, nil
	case <-ctx.Done():
		over()
		return nil, ctx.Err()
	}
}

// closer tells of a body's being closed.
type closer struct {
	io.ReadCloser
	over func()
}

func (c closer) Close() error {
	c.over()
	return c.ReadCloser.Close()
}

// clients are those of both protocols over connections in memory, in a bubble.
func (l *pipeListener) clients(t testing.TB) map[string]*http.Client {
	t.Helper()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		server, client := net.Pipe()
		l.dialled.Add(1)
		select {
		case l.conns <- addressed{server}:
			return client, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	made := map[string]*http.Client{}
	for name, set := range map[string]func(*http.Protocols){"h1": func(p *http.Protocols) { p.SetHTTP1(true) }, "h2": func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) }} {
		var p http.Protocols
		set(&p)
		transport := &http.Transport{DialContext: dial, DisableCompression: true, Protocols: &p}
		t.Cleanup(transport.CloseIdleConnections)
		made[name] = &http.Client{Transport: transport}
	}
	return made
}

// tailEnd is what a client saw of a tail.
type tailEnd struct {
	status int
	header http.Header
	text   string
	err    error // nil = a clean end
	at     time.Time
}

// follow opens a tail and reads it to its end, in a goroutine.
func follow(ctx context.Context, c *http.Client, url, bearer string) <-chan tailEnd {
	return followFrom(ctx, c, url, bearer, func() {})
}

// followFrom is follow, and says when the first bytes of the body have come.
func followFrom(ctx context.Context, c *http.Client, url, bearer string, begun func()) <-chan tailEnd {
	done, begun := make(chan tailEnd, 1), sync.OnceFunc(begun)
	go func() {
		defer begun() // where nothing comes, too
		end := tailEnd{}
		defer func() {
			end.at = time.Now()
			done <- end
		}()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			end.err = err
			return
		}
		if bearer != "" {
			req.Header.Set("Authorization", "Bearer "+bearer)
		}
		res, err := c.Do(req)
		if err != nil {
			end.err = err
			return
		}
		defer func() { _ = res.Body.Close() }()
		end.status, end.header = res.StatusCode, res.Header
		var first [1]byte
		n, err := io.ReadFull(res.Body, first[:])
		begun()
		if n == 0 {
			if !errors.Is(err, io.EOF) {
				end.err = err
			}
			return
		}
		text, err := io.ReadAll(res.Body)
		end.text, end.err = string(first[:])+string(text), err
	}()
	return done
}

// gone reports whether nobody's exchange is under way any more.
func (r *liveRead) gone() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

const manyTails = 1000

func roomyTails(l *tenant.Limits) { l.OpenTails = manyTails }

// cutShort reports an end that no client takes for a clean one.
func cutShort(err error) bool {
	return err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

// ask makes one request, raw, on a connection of its own in memory.
func (l *pipeListener) ask(t testing.TB, request string) answer {
	t.Helper()
	conn := l.dial()
	defer func() { _ = conn.Close() }()
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = io.WriteString(conn, request)
	}()
	method, _, _ := strings.Cut(request, " ")
	res := nextAnswer(t, bufio.NewReader(conn), method)
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("body: %v", err)
	}
	<-written
	res.Text = string(text)
	return res
}
