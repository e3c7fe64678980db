package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// tap is a node that trusts nobody: it reads requests off its connections by
// rules of its own, strict in every byte, answers each with an empty 200, and
// keeps what is odd.
type tap struct {
	url string

	mu   sync.Mutex
	reqs []tapRequest
	odd  []string
	open map[net.Conn]bool
	wait sync.WaitGroup
}

// tapRequest is one request as its bytes were.
type tapRequest struct {
	method, target string
	fields         [][2]string // names as sent
	body           string
}

func (r tapRequest) values(name string) []string {
	var all []string
	for _, f := range r.fields {
		if strings.EqualFold(f[0], name) {
			all = append(all, f[1])
		}
	}
	return all
}

func newTap(tb testing.TB) *tap {
	tb.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	n := &tap{url: "http://" + l.Addr().String(), open: map[net.Conn]bool{}}
	n.wait.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			n.mu.Lock()
			n.open[conn] = true
			n.mu.Unlock()
			n.wait.Go(func() { n.serve(conn) })
		}
	})
	tb.Cleanup(func() {
		_ = l.Close()
		n.mu.Lock()
		for conn := range n.open {
			_ = conn.Close()
		}
		n.mu.Unlock()
		n.wait.Wait()
	})
	return n
}

func (n *tap) serve(conn net.Conn) {
	defer func() {
		_ = conn.Close()
		n.mu.Lock()
		delete(n.open, conn)
		n.mu.Unlock()
	}()
	in := bufio.NewReader(conn)
	for {
		r, err := readTap(in)
		n.mu.Lock()
		switch {
		case err == io.EOF: //nolint:errorlint // the end between two requests is this very value
		case err != nil:
			n.odd = append(n.odd, err.Error())
		case (r.target == "/console/s.identity" || strings.HasPrefix(r.target, "/__ursula/")) && len(r.values("X-Request-Id")) == 0:
			// The pool's own questions.
		default:
			n.reqs = append(n.reqs, r)
		}
		n.mu.Unlock()
		if err != nil {
			return
		}
		if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nUrsula-Protocol: 11\r\nUrsula-Cluster-Id: tap\r\nContent-Length: 0\r\n\r\n"); err != nil {
			return
		}
	}
}

var (
	requestLine = regexp.MustCompile(`\A([A-Z]+) (/[!-~]*) HTTP/1\.1\r\n\z`)
	fieldLine   = regexp.MustCompile(`\A([!#-'*+.\^|~\x600-9A-Za-z-]+): ([^\x00-\x08\n-\x1f\x7f]*)\r\n\z`) // obs-text included (RFC 9110 §5.5)
)

// readTap reads a request whose body, if any, is framed by one Content-Length.
// io.EOF, bare, is the end between two requests; an end within one is the
// gateway's giving up, which is none of its faults.
func readTap(in *bufio.Reader) (tapRequest, error) {
	var r tapRequest
	line, err := in.ReadString('\n')
	if err != nil {
		return r, io.EOF
	}
	parts := requestLine.FindStringSubmatch(line)
	if parts == nil {
		return r, fmt.Errorf("request line %q", line)
	}
	r.method, r.target = parts[1], parts[2]
	for {
		if line, err = in.ReadString('\n'); err != nil {
			return r, io.EOF
		}
		if line == "\r\n" {
			break
		}
		field := fieldLine.FindStringSubmatch(line)
		if field == nil {
			return r, fmt.Errorf("field line %q", line)
		}
		r.fields = append(r.fields, [2]string{field[1], field[2]})
	}
	lengths := r.values("Content-Length")
	if len(lengths) > 1 || len(r.values("Transfer-Encoding")) > 0 {
		return r, fmt.Errorf("framing of %q", r.fields)
	}
	if len(lengths) == 1 {
		size, err := strconv.ParseUint(lengths[0], 10, 31)
		if err != nil || strconv.FormatUint(size, 10) != lengths[0] {
			return r, fmt.Errorf("length %q", lengths[0])
		}
		body := make([]byte, size)
		if _, err := io.ReadFull(in, body); err != nil {
			return r, io.EOF
		}
		r.body = string(body)
	}
	return r, nil
}

// take gives what came since the last call.
func (n *tap) take() ([]tapRequest, []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	reqs, odd := n.reqs, n.odd
	n.reqs, n.odd = nil, nil
	return reqs, odd
}
