package gateway

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// secureListen serves the rig's gateway over TLS as well, and gives that address.
func (rg *rig) secureListen(t testing.TB) string {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	certificate := httptest.NewTLSServer(http.NotFoundHandler())
	config := &tls.Config{Certificates: certificate.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12}
	certificate.Close()
	server := NewServer(rg.Gateway, log.New(rg.Log, "server: ", 0))
	guard := NewConnGuard(ConnGuardOptions{Log: rg.Options.Log, Metrics: rg.Options.Metrics, Now: time.Now, Random: rand.Reader})
	guard.Attach(server)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(guard.Listener(l, config))
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return l.Addr().String()
}

// secureDial makes a connection over TLS, for a name and with these protocols.
func secureDial(t testing.TB, address, name string, protocols ...string) net.Conn {
	t.Helper()
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, ServerName: name, NextProtos: protocols}} //nolint:gosec // not about trust
	conn, err := d.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// flooder is a client of HTTP/2 that says what it likes, frame by frame.
type flooder struct {
	t      testing.TB
	conn   net.Conn
	framer *http2.Framer // writes into out
	out    bytes.Buffer
	block  bytes.Buffer
	enc    *hpack.Encoder
	next   uint32        // the next request's stream
	ended  chan struct{} // the connection was closed
	// answered has the status of each answer that came, "GOAWAY" and "RST_STREAM".
	answered chan string
}

// flooders are a way to begin each: in clear text and over TLS.
func (rg *rig) flooders(t testing.TB) map[string]func(t testing.TB) *flooder {
	t.Helper()
	secure := rg.secureListen(t)
	return map[string]func(t testing.TB) *flooder{
		"clear text": func(t testing.TB) *flooder { return newFlooder(t, rg.dial(t)) }, //nolint:thelper // makes one
		"TLS": func(t testing.TB) *flooder { //nolint:thelper // makes one
			return newFlooder(t, secureDial(t, secure, "edge", "h2"))
		},
	}
}

func newFlooder(t testing.TB, conn net.Conn) *flooder {
	t.Helper()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	f := &flooder{t: t, conn: conn, next: 1, ended: make(chan struct{}), answered: make(chan string, 1<<16)}
	f.framer = http2.NewFramer(&f.out, nil)
	f.enc = hpack.NewEncoder(&f.block)
	f.out.WriteString(http2.ClientPreface)
	f.must(f.framer.WriteSettings())
	f.must(f.flush())
	go f.read()
	return f
}

// read takes whatever comes.
func (f *flooder) read() {
	defer close(f.ended)
	framer := http2.NewFramer(io.Discard, bufio.NewReader(f.conn))
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return
		}
		var what string
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			what = frame.PseudoValue("status")
		case *http2.GoAwayFrame:
			what = "GOAWAY"
		case *http2.RSTStreamFrame:
			what = "RST_STREAM"
		default:
			continue
		}
		select {
		case f.answered <- what:
		default:
		}
	}
}

func (f *flooder) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// flush sends what was written.
func (f *flooder) flush() error {
	_, err := f.conn.Write(f.out.Bytes())
	f.out.Reset()
	return err
}

// fields are a header in HPACK.
func (f *flooder) fields(pairs ...string) []byte {
	f.block.Reset()
	for i := 0; i+1 < len(pairs); i += 2 {
		f.must(f.enc.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]}))
	}
	return bytes.Clone(f.block.Bytes())
}

// request writes a request, and gives its stream.
func (f *flooder) request(method, path, bearer string, endStream bool, more ...string) uint32 {
	id := f.next
	f.next += 2
	pairs := append([]string{":method", method, ":scheme", "http", ":authority", "edge", ":path", path, "authorization", "Bearer " + bearer}, more...)
	f.must(f.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: f.fields(pairs...), EndStream: endStream, EndHeaders: true}))
	return id
}

// flood writes batches until the connection is closed, or there were enough of them.
func (f *flooder) flood(batches int, write func()) (closed bool) {
	f.t.Helper()
	for range batches {
		write()
		if f.flush() != nil {
			break
		}
	}
	select {
	case <-f.ended:
		return true
	case <-time.After(20 * time.Second):
		return false
	}
}

// await waits for the first answer that is one of these, or the end of the connection.
func (f *flooder) await(want ...string) string {
	f.t.Helper()
	for {
		select {
		case got := <-f.answered:
			if strings.Contains(strings.Join(want, "|"), got) {
				return got
			}
		case <-f.ended:
			return "closed"
		case <-time.After(20 * time.Second):
			f.t.Fatalf("none of %v came", want)
		}
	}
}
