package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// asSlowLoad holds a slowLoad, in JSON: this test binary is that load then, as a process
// of its own, so that it has a core of its own. It ends with its standard input, and
// writes slowCounts to its standard output.
const asSlowLoad = "SLUICE_TEST_AS_SLOW_LOAD"

// slowLoad is clients that send next to nothing and keep what they have (H16): half-open
// heads of which a byte comes every 5 s, bodies of 10 B/s, handshakes that do not go on.
// Who is cut comes again.
type slowLoad struct {
	Address   string // of the gateway
	TLS       bool
	Path, Key string // of what the bodies are sent to

	Heads, Bodies, Shakes int
	Addresses             int // loopback addresses that they come from, 127.0.0.2 and on
}

// slowCounts is what became of them.
type slowCounts struct {
	Cut     map[string]int     // connections that the gateway ended, by kind
	Longest map[string]float64 // how long one of them had been there, in seconds
	Slow    int                // bodies answered 408 BODY_TOO_SLOW
	Odd     []string           // whatever else
}

const slowByte = 5 * time.Second

// runSlowLoad is the process.
func runSlowLoad(text string) error {
	s := slowLoader{counts: slowCounts{Cut: map[string]int{}, Longest: map[string]float64{}}}
	if err := json.Unmarshal([]byte(text), &s.slowLoad); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for kind, one := range map[string]struct {
		n    int
		goOn func(context.Context, net.Conn) error
	}{"head": {s.Heads, s.head}, "body": {s.Bodies, s.body}, "handshake": {s.Shakes, s.shake}} {
		for i := range one.n {
			all.Go(func() { s.again(ctx, kind, i, one.n, one.goOn) })
		}
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	stop()
	all.Wait()
	return json.NewEncoder(os.Stdout).Encode(s.counts)
}

type slowLoader struct {
	slowLoad

	mu     sync.Mutex
	counts slowCounts
}

// again has one client after the other, until ctx ends. The first begin over two seconds.
func (s *slowLoader) again(ctx context.Context, kind string, i, of int, goOn func(context.Context, net.Conn) error) {
	wait := time.Duration(i) * 2 * time.Second / time.Duration(of)
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+i%s.Addresses))}, Timeout: 10 * time.Second} //nolint:gosec // a few
	for pause(ctx, wait) {
		wait = 100 * time.Millisecond
		conn, err := d.DialContext(ctx, "tcp", s.Address)
		if err != nil {
			s.odd(ctx, kind, err)
			continue
		}
		began := time.Now()
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		if err = goOn(ctx, conn); ctx.Err() == nil {
			s.mu.Lock()
			s.counts.Cut[kind]++
			s.counts.Longest[kind] = max(s.counts.Longest[kind], time.Since(began).Seconds())
			s.mu.Unlock()
			s.odd(ctx, kind, err)
		}
		stop()
		_ = conn.Close()
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// odd notes what should not have come; nil and the end of a connection should.
func (s *slowLoader) odd(ctx context.Context, kind string, err error) {
	var broke *net.OpError
	if errors.As(err, &broke) && broke.Timeout() {
		return // the load itself had no turn in time: connecting needs none of the gateway
	}
	if err == nil || ctx.Err() != nil || errors.Is(err, io.EOF) || errors.As(err, &broke) && broke.Op != "dial" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.counts.Odd) < 10 {
		s.counts.Odd = append(s.counts.Odd, kind+": "+err.Error())
	}
}

func (s *slowLoader) secured(ctx context.Context, conn net.Conn) (net.Conn, error) {
	if !s.TLS {
		return conn, nil
	}
	c := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // an authority of the edge's own
	return c, c.HandshakeContext(ctx)
}

// trickle writes a text piece by piece, as long as nothing comes. The error is nil where
// something does.
func trickle(conn net.Conn, text string, piece int, every time.Duration) error {
	one := make([]byte, 1)
	for text != "" {
		n := min(piece, len(text))
		if _, err := io.WriteString(conn, text[:n]); err != nil {
			return err
		}
		text = text[n:]
		_ = conn.SetReadDeadline(time.Now().Add(every))
		if n, err := conn.Read(one); n > 0 {
			return nil
		} else if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return errors.New("all of it was taken")
}

// head sends a byte of a head every 5 s. What is there of one at its deadline is parsed by
// Go, which finds that it is no request.
func (s *slowLoader) head(ctx context.Context, conn net.Conn) error {
	c, err := s.secured(ctx, conn)
	if err != nil {
		return err
	}
	first := &firstByte{Conn: c}
	err = trickle(first, "GET "+s.Path+" HTTP/1.1\r\nHost: x\r\nX-Slow: "+strings.Repeat("x", 1000), 1, slowByte)
	if err == nil {
		text, _ := io.ReadAll(io.LimitReader(c, 1<<10))
		if len(text) == 0 || strings.HasPrefix(string(text), "TTP/1.1 400 Bad Request\r\n") {
			return nil // what is under way when the connection ends may lose the answer
		}
		return fmt.Errorf("half a head is answered %c%q", first.byte[0], text)
	}
	return err
}

// shake sends a byte of a handshake every 5 s.
func (s *slowLoader) shake(_ context.Context, conn net.Conn) error {
	if err := trickle(conn, "\x16\x03\x01\x02\x00\x01"+strings.Repeat("\x00", 500), 1, slowByte); err != nil {
		return err
	}
	return nil // an alert
}

// body sends 10 B/s of a body that may be sent.
func (s *slowLoader) body(ctx context.Context, conn net.Conn) error {
	c, err := s.secured(ctx, conn)
	if err != nil {
		return err
	}
	head := "POST " + s.Path + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + s.Key + "\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
	if _, err := io.WriteString(c, head); err != nil {
		return err
	}
	first := &firstByte{Conn: c}
	if err := trickle(first, strings.Repeat(" ", 100_000), 10, time.Second); err != nil {
		return fmt.Errorf("a slow body has no answer: %w", err)
	}
	_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
	res, err := http.ReadResponse(bufio.NewReader(io.MultiReader(strings.NewReader(string(first.byte[:])), c)), nil)
	if err != nil {
		return fmt.Errorf("the answer to a slow body: %v", err) //nolint:errorlint // odd, whatever it is
	}
	text, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if said := (reply{res, string(text)}); res.StatusCode != http.StatusRequestTimeout || said.code() != "BODY_TOO_SLOW" || !res.Close {
		return fmt.Errorf("a slow body is answered %d %s", res.StatusCode, text)
	}
	s.mu.Lock()
	s.counts.Slow++
	s.mu.Unlock()
	return nil
}

// firstByte keeps the byte that was read.
type firstByte struct {
	net.Conn

	byte [1]byte
}

func (f *firstByte) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p[:1])
	if n > 0 {
		f.byte[0] = p[0]
	}
	return n, err
}
