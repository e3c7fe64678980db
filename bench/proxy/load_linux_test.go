package proxy

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
)

const target = "/acme/s.bench"

// load is a number of kept connections to one process, on which the same small
// read is asked again and again.
type load struct {
	request []byte
	conns   []*conn
}

type conn struct {
	net.Conn
	in *bufio.Reader
}

func dialLoad(ctx context.Context, address, key string, conns int) (*load, error) {
	l := &load{request: fmt.Appendf(nil,
		"GET %s?offset=-1 HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nAccept: application/json\r\nUser-Agent: bench\r\n\r\n",
		target, address, key)}
	for range conns {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			l.close()
			return nil, err
		}
		l.conns = append(l.conns, &conn{Conn: c, in: bufio.NewReader(c)})
	}
	return l, nil
}

func (l *load) close() {
	for _, c := range l.conns {
		_ = c.Close()
	}
}

// run asks so many times in all, evenly over the connections, each of which has
// one request under way at any time.
func (l *load) run(reads int) error {
	var group errgroup.Group
	for _, c := range l.conns {
		group.Go(func() error {
			for range reads / len(l.conns) {
				if _, err := c.Write(l.request); err != nil {
					return err
				}
				if err := c.readAnswer(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// readAnswer reads one answer of a stated length, and takes a 200 only.
func (c *conn) readAnswer() error {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 200 ")) {
		return fmt.Errorf("answer is %q", line)
	}
	length := -1
	for len(line) > len("\r\n") {
		if line, err = c.in.ReadSlice('\n'); err != nil {
			return err
		}
		name, value, _ := strings.Cut(string(line), ":")
		if strings.EqualFold(name, "Content-Length") {
			if length, err = strconv.Atoi(strings.TrimSpace(value)); err != nil {
				return err
			}
		}
	}
	if length <= 0 {
		return fmt.Errorf("length is %d", length)
	}
	_, err = io.CopyN(io.Discard, c.in, int64(length))
	return err
}
