package gateway

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"
)

// reader is a client whose connection can stop reading, over one of the ways in.
type reader struct {
	*http.Client

	stop   chan struct{} // closed: nothing is read from the connection any more
	closed chan struct{} // closed at the end
}

// stoppingConn reads until it is stopped.
type stoppingConn struct {
	net.Conn

	of *reader
}

func (c stoppingConn) Read(p []byte) (int, error) {
	select {
	case <-c.of.stop:
		<-c.of.closed
		return 0, net.ErrClosed
	default:
		return c.Conn.Read(p)
	}
}

// newReader makes a client of a protocol, with so many bytes for what is received.
func newReader(t *testing.T, http2 bool, buffer int) *reader {
	t.Helper()
	r := &reader{stop: make(chan struct{}), closed: make(chan struct{})}
	var p http.Protocols
	p.SetHTTP1(!http2)
	p.SetHTTP2(http2)
	p.SetUnencryptedHTTP2(http2)
	transport := &http.Transport{
		Protocols: &p, DisableCompression: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // not about trust
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			var d net.Dialer
			c, err := d.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			if tcp, ok := c.(*net.TCPConn); ok {
				err = tcp.SetReadBuffer(buffer)
			}
			return stoppingConn{c, r}, err
		},
	}
	t.Cleanup(func() {
		close(r.closed)
		transport.CloseIdleConnections()
	})
	r.Client = &http.Client{Transport: transport}
	return r
}

// slowRig is a gateway before a node whose answer is a script, with bounds of its own
// for readers. The node tells on ended whether it was heard to the end.
func slowRig(t *testing.T, stall time.Duration, ends bool, script func(c *upConn) error) (*rig, *Connections, <-chan error) {
	t.Helper()
	conns, ended := NewConnections(), make(chan error, 1)
	conns.stall = stall
	certificate := httptest.NewTLSServer(http.NotFoundHandler())
	config := &tls.Config{Certificates: certificate.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12}
	certificate.Close()
	rg, _ := newUpRig(t, func(c *upConn, _ *upRequest) { ended <- script(c) }, rigOptions{
		change: func(o *Options) { o.Pace.TailWrite, o.Pace.StreamWrite = stall, stall },
		around: func(l net.Listener) net.Listener {
			if l = conns.Listener(l); ends {
				l = tls.NewListener(l, config)
			}
			return l
		},
	})
	if ends {
		rg.URL = strings.Replace(rg.URL, "http:", "https:", 1)
	}
	return rg, conns, ended
}

// largeAnswer is more than all sockets on the way hold, which grow to 10 MiB.
const largeAnswer = 32 << 20

func sayLarge(c *upConn) error {
	_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nStream-Up-To-Date: true\r\nContent-Length: "+
		strconv.Itoa(largeAnswer)+"\r\n\r\n")
	for part, said := strings.Repeat("x", 1<<20), 0; err == nil && said < largeAnswer; said += len(part) {
		_, err = io.WriteString(c, part)
	}
	return err
}

// waysIn are the protocols of the public listener.
func waysIn(t *testing.T, test func(t *testing.T, http2, ends bool)) {
	t.Helper()
	for name, way := range map[string][2]bool{"h1": {false, false}, "h2": {true, false}, "h1 over TLS": {false, true}, "h2 over TLS": {true, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, way[0], way[1])
		})
	}
}

// S09, H16: a client that asked for a large answer and read none of it kept its
// connection, the node's, and what was on its way, for as long as it liked; only tails
// had a bound. It is cut, whatever is spoken on the connection, and so is a stream of
// HTTP/2 whose client reads the connection but not that stream.
func TestAnswerThatNobodyReads(t *testing.T) {
	const stall = 300 * time.Millisecond
	waysIn(t, func(t *testing.T, http2, ends bool) {
		for name, all := range map[string]bool{"connection": true, "stream": false} {
			if !all && !http2 {
				continue
			}
			t.Run(name, func(t *testing.T) {
				rg, conns, ended := slowRig(t, stall, ends, sayLarge)
				r := newReader(t, http2, 8<<10)
				res, _ := rg.open(t, r.Client, "/acme/s.priv?offset=-1", key)
				if all {
					close(r.stop)
				}
				if err := <-ended; err == nil {
					t.Error("the node was heard to the end")
				}
				rg.awaitCount(t, `sluice_answers_ended_total{end="stalled"} 1`)
				if all {
					poll(t, "the connection is gone", func() bool { return conns.Open() == 0 })
					return
				}
				if n, err := io.Copy(io.Discard, res.Body); err == nil || n == largeAnswer {
					t.Errorf("%d bytes and a clean end", n)
				}
			})
		}
	})
}

// A client that is slow but reads, and one that waits for a node, are cut by no bound of
// readers: each piece has its time, and a silent node costs its client none.
func TestSlowReadersAreServed(t *testing.T) {
	const stall = 2 * time.Second
	waysIn(t, func(t *testing.T, http2, ends bool) {
		t.Run("slow client", func(t *testing.T) {
			rg, _, ended := slowRig(t, stall, ends, sayLarge)
			res, _ := rg.open(t, newReader(t, http2, 256<<10).Client, "/acme/s.priv?offset=-1", key)
			tick := time.NewTicker(25 * time.Millisecond)
			defer tick.Stop()
			began, piece := time.Now(), make([]byte, 64<<10)
			for left := largeAnswer; left > 0; left -= len(piece) {
				if _, err := io.ReadFull(res.Body, piece); err != nil {
					t.Fatalf("%d bytes before the end: %v", left, err)
				}
				<-tick.C
			}
			if took := time.Since(began); took < stall {
				t.Errorf("read in %v, which is no slow client", took)
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
		t.Run("slow node", func(t *testing.T) {
			rg, _, _ := slowRig(t, stall, ends, func(c *upConn) error {
				c.say("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nStream-Up-To-Date: true\r\nContent-Length: 4\r\n\r\n[1")
				<-time.After(2 * stall)
				c.say(",]")
				return nil
			})
			res, _ := rg.open(t, newReader(t, http2, 256<<10).Client, "/acme/s.priv?offset=-1", key)
			if text, err := io.ReadAll(res.Body); string(text) != "[1,]" {
				t.Errorf("%q, %v", text, err)
			}
		})
	})
}
