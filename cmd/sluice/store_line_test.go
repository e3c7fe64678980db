package main

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
)

// storeLine is the network between one replica and Postgres: it can be cut, and it can
// lose notifications, and nothing else. For that it reads where messages begin and end
// (PostgreSQL manual, "Message Formats"); there is no encryption on it.
type storeLine struct {
	listener net.Listener
	target   string

	deaf  atomic.Bool  // notifications are swallowed
	lost  atomic.Int64 // these
	asked atomic.Int64 // statements that the replica had run

	mu      sync.Mutex
	down    bool
	open    map[net.Conn]struct{}
	running sync.WaitGroup
}

// Types of messages.
const (
	pgNotification = 'A' // of the server
	pgBind         = 'B' // of the client: a statement is run
)

// newStoreLine leads to the server of a URL, and returns the URL by which it is reached
// over the line.
func newStoreLine(t *testing.T, store string) (*storeLine, string) {
	t.Helper()
	u, err := url.Parse(store)
	if err != nil {
		t.Fatal(err)
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &storeLine{listener: listener, target: u.Host, open: make(map[net.Conn]struct{})}
	l.running.Go(l.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		l.cut()
		l.running.Wait()
	})
	u.Host = listener.Addr().String()
	return l, u.String()
}

func (l *storeLine) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		var d net.Dialer
		server, err := d.Dial("tcp", l.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		if !l.join(client, server) {
			continue
		}
		l.running.Go(func() { l.carry(client, server, l.fromClient) })
		l.running.Go(func() { l.carry(server, client, l.fromServer) })
	}
}

// join reports whether the line is up, and closes both where it is not.
func (l *storeLine) join(conns ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range conns {
		if l.down {
			_ = c.Close()
			continue
		}
		l.open[c] = struct{}{}
	}
	return !l.down
}

// carry ends with either of the two.
func (l *storeLine) carry(from, to net.Conn, messages func(io.Writer, *bufio.Reader) error) {
	_ = messages(to, bufio.NewReaderSize(from, 64<<10)) // what ended it ends the other
	_, _ = from.Close(), to.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, from)
}

// fromClient passes the first message, which alone has no type, and then the others.
func (l *storeLine) fromClient(to io.Writer, from *bufio.Reader) error {
	head, err := from.Peek(4)
	if err != nil {
		return err
	}
	if _, err := io.CopyN(to, from, int64(binary.BigEndian.Uint32(head))); err != nil {
		return err
	}
	return passMessages(to, from, func(kind byte) bool {
		if kind == pgBind {
			l.asked.Add(1)
		}
		return true
	})
}

func (l *storeLine) fromServer(to io.Writer, from *bufio.Reader) error {
	return passMessages(to, from, func(kind byte) bool {
		if kind != pgNotification || !l.deaf.Load() {
			return true
		}
		l.lost.Add(1)
		return false
	})
}

func passMessages(to io.Writer, from *bufio.Reader, passes func(kind byte) bool) error {
	for {
		head, err := from.Peek(5)
		if err != nil {
			return err
		}
		size := int64(binary.BigEndian.Uint32(head[1:])) + 1
		into := to
		if !passes(head[0]) {
			into = io.Discard
		}
		if _, err := io.CopyN(into, from, size); err != nil {
			return err
		}
	}
}

// cut ends all connections, and every new one at once, until mend.
func (l *storeLine) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = true
	for c := range l.open {
		_ = c.Close()
	}
}

func (l *storeLine) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = false
}
