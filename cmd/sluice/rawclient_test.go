package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	h2 "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A raw client does by itself what net/http does for its own: so it can end a connection or
// a stream in any way there is, and costs next to nothing beside what it is to try.

// rawPatience is how long a raw client waits for what has to come.
const rawPatience = 60 * time.Second

// rawDialer makes connections of raw clients to one address.
type rawDialer struct {
	address string
	secure  bool // over TLS
	h2      bool
	buffer  int // of the kernel for what is not read, in bytes; 0 = its own
}

func (d rawDialer) String() string {
	name := "http/1.1"
	if d.h2 {
		name = "h2"
	}
	if d.secure {
		name += " over TLS"
	}
	return name
}

// dial makes a connection that has spoken nothing of HTTP yet.
func (d rawDialer) dial(ctx context.Context) (conn net.Conn, tcp *net.TCPConn, err error) {
	var dialer net.Dialer
	if d.buffer > 0 {
		dialer.Control = func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, d.buffer) })
		}
	}
	raw, err := dialer.DialContext(ctx, "tcp", d.address)
	if err != nil {
		return nil, nil, err
	}
	tcp = raw.(*net.TCPConn) //nolint:errcheck // it was asked for
	if err := tcp.SetDeadline(time.Now().Add(rawPatience)); err != nil {
		return nil, nil, err
	}
	if !d.secure {
		return tcp, tcp, nil
	}
	protocol := "http/1.1"
	if d.h2 {
		protocol = "h2"
	}
	ended := tls.Client(tcp, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}}) //nolint:gosec // an authority of each edge's own
	if err := ended.HandshakeContext(ctx); err != nil {
		_ = tcp.Close()
		return nil, nil, fmt.Errorf("handshake: %w", err)
	}
	return ended, tcp, nil
}

// rawConn is a connection with any number of exchanges: over HTTP/1.1 one after the other.
type rawConn struct {
	net.Conn

	tcp  *net.TCPConn
	in   *bufio.Reader
	host string

	// Of HTTP/1.1.
	answer *http.Response
	taken  strings.Builder // of its body, by take

	// Of HTTP/2.
	framer  *h2.Framer
	encoder *hpack.Encoder
	block   bytes.Buffer
	next    uint32
	streams map[uint32]*rawStream
	away    bool // the server takes no more
}

// rawStream is what has come of an exchange.
type rawStream struct {
	status string
	text   strings.Builder
	ended  bool // in good order
	reset  bool
}

// connect makes a connection that can ask.
func (d rawDialer) connect(ctx context.Context) (*rawConn, error) {
	conn, tcp, err := d.dial(ctx)
	if err != nil {
		return nil, err
	}
	c := &rawConn{Conn: conn, tcp: tcp, in: bufio.NewReader(conn), host: "streams.example.com"}
	if !d.h2 {
		return c, nil
	}
	c.framer, c.next, c.streams = h2.NewFramer(conn, c.in), 1, map[uint32]*rawStream{}
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.encoder = hpack.NewEncoder(&c.block)
	// Beside the preface more room than all that is read on one connection takes up.
	const room = 1 << 30
	_, err = io.WriteString(conn, h2.ClientPreface)
	if err = errors.Join(err, c.framer.WriteSettings(h2.Setting{ID: h2.SettingInitialWindowSize, Val: room}), c.framer.WriteWindowUpdate(0, room)); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return c, nil
}

// ask sends a request without a body. It gives the stream's id, or 0 over HTTP/1.1.
func (c *rawConn) ask(method, target, key string) (uint32, error) {
	return c.begin(method, target, key, true)
}

// begin sends the head of a request, with further fields: names, which are in lower case,
// and values. Unless it ends there, send follows.
func (c *rawConn) begin(method, target, key string, ends bool, more ...string) (uint32, error) {
	if key != "" {
		more = append(more, "authorization", "Bearer "+key)
	}
	if c.framer == nil {
		text := method + " " + target + " HTTP/1.1\r\nHost: " + c.host + "\r\n"
		for i := 0; i+1 < len(more); i += 2 {
			text += more[i] + ": " + more[i+1] + "\r\n"
		}
		_, err := io.WriteString(c, text+"\r\n")
		return 0, err
	}
	c.block.Reset()
	fields := append([]string{":method", method, ":scheme", "https", ":authority", c.host, ":path", target}, more...)
	for i := 0; i+1 < len(fields); i += 2 {
		if err := c.encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			return 0, err
		}
	}
	id := c.next
	c.next += 2
	c.streams[id] = &rawStream{}
	return id, c.framer.WriteHeaders(h2.HeadersFrameParam{StreamID: id, BlockFragment: c.block.Bytes(), EndStream: ends, EndHeaders: true})
}

// send sends a part of a request's body.
func (c *rawConn) send(id uint32, part string, last bool) error {
	if c.framer != nil {
		return c.framer.WriteData(id, last, []byte(part))
	}
	_, err := io.WriteString(c, part)
	return err
}

// take waits for so many bytes of the answer's body.
func (c *rawConn) take(id uint32, n int) error {
	if c.framer != nil {
		s := c.streams[id]
		err := c.read(func() bool { return s.text.Len() >= n || s.ended || s.reset })
		if err == nil && s.text.Len() < n {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	_, err := io.CopyN(&c.taken, c.answer.Body, int64(n))
	return err
}

// head waits for the answer's head, and gives its status.
func (c *rawConn) head(id uint32) (status string, err error) {
	if c.framer != nil {
		s := c.streams[id]
		err := c.read(func() bool { return s.status != "" || s.reset })
		return s.status, err
	}
	if c.answer, err = http.ReadResponse(c.in, nil); err != nil { //nolint:bodyclose // it ends with its connection
		return "", err
	}
	return fmt.Sprint(c.answer.StatusCode), nil
}

// until waits until a text has come of the answer's body, or its end, in good order or not.
func (c *rawConn) until(id uint32, text string) error {
	if c.framer != nil {
		s := c.streams[id]
		return c.read(func() bool { return s.ended || s.reset || strings.Contains(s.text.String(), text) })
	}
	var got strings.Builder
	var part [1024]byte
	for !strings.Contains(got.String(), text) {
		n, err := c.answer.Body.Read(part[:])
		got.Write(part[:n])
		if err != nil {
			return ignoreEnd(err)
		}
	}
	return nil
}

// end waits for the answer's end, and gives its body. whole tells one in good order.
func (c *rawConn) end(id uint32) (text string, whole bool, err error) {
	if c.framer != nil {
		s := c.streams[id]
		err := c.read(func() bool { return s.ended || s.reset })
		return s.text.String(), s.ended, err
	}
	_, err = io.Copy(&c.taken, c.answer.Body)
	text = c.taken.String()
	c.taken.Reset()
	return text, err == nil, ignoreEnd(err)
}

// ignoreEnd passes over the ends that a peer may make of an answer.
func ignoreEnd(err error) error {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return err
	}
	return nil
}

// read takes frames up until something holds. A connection that is closed ends all that
// was not.
func (c *rawConn) read(holds func() bool) error {
	for !holds() {
		frame, err := c.framer.ReadFrame()
		if err != nil {
			if err := ignoreEnd(err); err != nil {
				return err
			}
			c.away = true
			for _, s := range c.streams {
				s.reset = !s.ended
			}
			return nil
		}
		s := c.streams[frame.Header().StreamID]
		switch f := frame.(type) {
		case *h2.SettingsFrame:
			if !f.IsAck() {
				err = c.framer.WriteSettingsAck()
			}
		case *h2.PingFrame:
			if !f.IsAck() {
				err = c.framer.WritePing(true, f.Data)
			}
		case *h2.MetaHeadersFrame:
			if s != nil && s.status == "" {
				s.status = f.PseudoValue("status")
			}
			if s != nil {
				s.ended = f.StreamEnded()
			}
		case *h2.DataFrame:
			if s != nil {
				s.text.Write(f.Data())
				s.ended = f.StreamEnded()
			}
		case *h2.RSTStreamFrame:
			if s != nil && !s.ended {
				s.reset = true
			}
		case *h2.GoAwayFrame:
			c.away = true
			for id, s := range c.streams {
				if id > f.LastStreamID && !s.ended {
					s.reset = true
				}
			}
		}
		if err := ignoreEnd(err); err != nil {
			return err
		}
	}
	return nil
}
