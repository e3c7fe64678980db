package redistest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Fault is what becomes of one command. The zero Fault passes it on.
type Fault struct {
	// Error, if not empty, is answered in place of the server, which never sees the
	// command: "READONLY You can't write against a read only replica.".
	Error string
	// Late holds the answer back for so long: the server has done its work.
	Late time.Duration
	// Hang passes nothing on and answers nothing, until the connection ends.
	Hang bool
	// Cut closes the connection: the server does not see the command.
	Cut bool
	// Lose passes the command on and closes the connection in place of the answer.
	Lose bool
}

// Proxy stands before a server and reads what passes, command by command.
type Proxy struct {
	Addr string

	target string
	ln     net.Listener

	mu       sync.Mutex
	rule     func(conn int, command []string) Fault
	accepted int
	open     map[net.Conn]bool
	closed   bool
	commands []Command
	change   chan struct{} // closed and replaced with the rule
	running  sync.WaitGroup
}

// Command is one command that passed, or was to.
type Command struct {
	Conn  int      // of the proxy's connections, from 1
	Args  []string // the command and its arguments
	Bytes int      // on the wire
}

// StartProxy listens before the server, until the test ends.
func StartProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	ln, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &Proxy{
		Addr: ln.Addr().String(), target: target, ln: ln,
		open: make(map[net.Conn]bool), change: make(chan struct{}),
	}
	p.running.Go(p.accept)
	tb.Cleanup(func() {
		_ = ln.Close()
		p.mu.Lock()
		p.closed = true
		for conn := range p.open {
			_ = conn.Close()
		}
		p.mu.Unlock()
		p.Rule(nil)
		p.running.Wait()
	})
	return p
}

// Rule makes a function decide on each command from now on: conn is the number of
// the connection, from 1, command its words. nil passes everything on. Commands
// that hang or are late come free.
func (p *Proxy) Rule(rule func(conn int, command []string) Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rule = rule
	close(p.change)
	p.change = make(chan struct{})
}

// Conns is how many connections there have been.
func (p *Proxy) Conns() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Commands are those since the last call, up to 10,000.
func (p *Proxy) Commands() []Command {
	p.mu.Lock()
	defer p.mu.Unlock()
	since := p.commands
	p.commands = nil
	return since
}

// Scripts are the faults of a rule for the calls of scripts alone.
func Scripts(f Fault) func(int, []string) Fault {
	return func(_ int, command []string) Fault {
		if strings.HasPrefix(strings.ToUpper(command[0]), "EVAL") {
			return f
		}
		return Fault{}
	}
}

// All is a rule for all commands.
func All(f Fault) func(int, []string) Fault { return func(int, []string) Fault { return f } }

func (p *Proxy) accept() {
	for {
		conn, err := p.ln.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.serve(conn) })
	}
}

// track notes a connection that the end of the test closes.
func (p *Proxy) track(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.open[conn] = true
	return true
}

func (p *Proxy) untrack(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, conn)
	_ = conn.Close()
}

func (p *Proxy) serve(client net.Conn) {
	defer p.untrack(client)
	server, err := (&net.Dialer{Timeout: time.Second}).DialContext(context.Background(), "tcp", p.target)
	if err != nil {
		return
	}
	defer p.untrack(server)
	if !p.track(client) || !p.track(server) {
		return
	}
	p.mu.Lock()
	p.accepted++
	number := p.accepted
	p.mu.Unlock()
	// A client that has gone must not leave a command that hangs behind.
	gone, done := make(chan struct{}), make(chan struct{})
	defer close(done)
	commands := make(chan message, 1)
	p.running.Go(func() {
		defer close(gone)
		from := bufio.NewReader(client)
		for {
			m, err := read(from)
			if err != nil {
				return
			}
			select {
			case commands <- m:
			case <-done:
				return
			}
		}
	})
	from := bufio.NewReader(server)
	for {
		select {
		case <-gone:
			return
		case m := <-commands:
			if err := p.pass(number, m, client, server, from, gone); err != nil {
				return
			}
		}
	}
}

var errCut = errors.New("cut by the rule")

// maxCommands bounds what Commands returns.
const maxCommands = 10_000

// decide notes a command and asks the rule about it, again and again while it says
// that the command hangs.
func (p *Proxy) decide(conn int, m message, gone <-chan struct{}) (Fault, <-chan struct{}, error) {
	for noted := false; ; noted = true {
		p.mu.Lock()
		rule, change := p.rule, p.change
		if !noted && len(p.commands) < maxCommands {
			p.commands = append(p.commands, Command{Conn: conn, Args: m.words, Bytes: len(m.raw)})
		}
		p.mu.Unlock()
		var f Fault
		if rule != nil && len(m.words) > 0 {
			f = rule(conn, m.words)
		}
		if !f.Hang {
			return f, change, nil
		}
		select {
		case <-change:
		case <-gone:
			return f, change, errCut
		}
	}
}

func (p *Proxy) pass(conn int, m message, client, server net.Conn, from *bufio.Reader, gone <-chan struct{}) error {
	f, change, err := p.decide(conn, m, gone)
	switch {
	case err != nil:
		return err
	case f.Cut:
		return errCut
	case f.Error != "":
		_, err := io.WriteString(client, "-"+f.Error+"\r\n")
		return err
	}
	if _, err := server.Write(m.raw); err != nil {
		return err
	}
	answer, err := read(from)
	if err != nil {
		return err
	}
	if f.Lose {
		return errCut
	}
	if f.Late > 0 {
		timer := time.NewTimer(f.Late)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-change:
		case <-gone:
			return errCut
		}
	}
	_, err = client.Write(answer.raw)
	return err
}

// message is one value of the protocol: a command, or an answer.
type message struct {
	raw   []byte
	words []string // of an array of strings
}

// read reads one value of RESP2, whole.
func read(from *bufio.Reader) (message, error) {
	line, err := from.ReadBytes('\n')
	if err != nil {
		return message{}, err
	}
	m := message{raw: line}
	if len(line) < 3 {
		return m, fmt.Errorf("%w: %q", errors.ErrUnsupported, line)
	}
	text := strings.TrimSpace(string(line[1:]))
	switch line[0] {
	case '+', '-', ':':
		return m, nil
	case '$':
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return m, err
		}
		body := make([]byte, n+2)
		if _, err := io.ReadFull(from, body); err != nil {
			return m, err
		}
		m.raw = append(m.raw, body...)
		m.words = []string{string(body[:n])}
		return m, nil
	case '*':
		n, err := strconv.Atoi(text)
		if err != nil {
			return m, err
		}
		for range n {
			part, err := read(from)
			if err != nil {
				return m, err
			}
			m.raw = append(m.raw, part.raw...)
			m.words = append(m.words, part.words...)
		}
		return m, nil
	default:
		return m, fmt.Errorf("%w: %q", errors.ErrUnsupported, line)
	}
}
