package main

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// cutter is the way to a gateway, on which connections are lost: it passes a
// connection's answers up to a byte, and then cuts it, by turns with an end and with a
// reset. What the client sent has come to the gateway by then.
type cutter struct {
	address string // where it listens
	// rule is how many bytes of answers a connection may have, -1 = all; request is how
	// it begins, n its number, from 0 on.
	rule func(n int, request string) int

	listener net.Listener
	wait     sync.WaitGroup
	mu       sync.Mutex
	target   string
	conns    map[net.Conn]struct{}
	accepted int
	cut      int
	closed   bool
}

// cutSome is the rule that cuts the first connections, and then every third one, each
// after as many bytes as comes from the seed: before the answer, in its head, or later.
func cutSome(first int, seed uint64) func(int, string) int {
	r := rand.New(rand.NewPCG(seed, seed)) //nolint:gosec // no secret
	return func(n int, _ string) int {
		at := r.IntN(900)
		if n >= first && n%3 != 0 {
			return -1
		}
		return at
	}
}

// newCutter listens; to says where the gateway is, before the first request.
func newCutter(t *testing.T, rule func(int, string) int) *cutter {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{address: l.Addr().String(), rule: rule, listener: l, conns: make(map[net.Conn]struct{})}
	c.wait.Go(c.accept)
	t.Cleanup(c.close)
	return c
}

func (c *cutter) to(target string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.target = target
}

// cuts is how many connections were cut.
func (c *cutter) cuts() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cut
}

func (c *cutter) close() {
	c.mu.Lock()
	c.closed = true
	for conn := range c.conns {
		_ = conn.Close()
	}
	c.mu.Unlock()
	_ = c.listener.Close()
	c.wait.Wait()
}

func (c *cutter) accept() {
	for {
		conn, err := c.listener.Accept()
		if err != nil {
			return
		}
		if c.track(conn) {
			c.wait.Go(func() { c.serve(conn) })
		}
	}
}

func (c *cutter) track(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		_ = conn.Close()
		return false
	}
	c.conns[conn] = struct{}{}
	return true
}

func (c *cutter) drop(conns ...net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close()
		delete(c.conns, conn)
	}
}

func (c *cutter) serve(client net.Conn) {
	head, buf := []byte(nil), make([]byte, 4096)
	for !bytes.Contains(head, []byte("\r\n\r\n")) && len(head) < 64<<10 {
		n, err := client.Read(buf)
		if head = append(head, buf[:n]...); err != nil {
			c.drop(client)
			return
		}
	}
	c.mu.Lock()
	limit, target, odd := c.rule(c.accepted, string(head)), c.target, c.accepted%2 == 1
	c.accepted++
	c.mu.Unlock()
	server, err := net.Dial("tcp", target) //nolint:noctx // on this machine
	if err != nil || !c.track(server) {
		c.drop(client) // nobody is there
		return
	}
	var up sync.WaitGroup
	up.Go(func() {
		if _, err := server.Write(head); err == nil {
			_, _ = io.Copy(server, client)
		}
		if tcp, ok := server.(*net.TCPConn); ok {
			_ = tcp.CloseWrite()
		}
	})
	if limit < 0 {
		_, _ = io.Copy(client, server)
	} else {
		c.passAndCut(client, server, limit, odd)
	}
	c.drop(client, server)
	up.Wait()
}

// passAndCut passes as many bytes of answers, waits for one more, and cuts there: the
// gateway has answered.
func (c *cutter) passAndCut(client, server net.Conn, limit int, reset bool) {
	if _, err := io.CopyN(client, server, int64(limit)); err != nil {
		return // it ended before
	}
	if n, _ := server.Read(make([]byte, 1)); n == 0 {
		return
	}
	c.mu.Lock()
	c.cut++
	c.mu.Unlock()
	if tcp, ok := client.(*net.TCPConn); ok && reset {
		_ = tcp.SetLinger(0)
	}
}
