package gateway

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// H17, H22, over HTTP/2, where no client library asks for it: odd methods, CONNECT
// of an authority, and CONNECT of a protocol (RFC 8441) reach no node and make no
// tunnel.
func TestMethodsOverHTTP2(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("200 OK", "", "tunnel")), pace(Pace{DrainStall: 20 * time.Millisecond}))
	path := [][2]string{{":scheme", "http"}, {":authority", "edge"}, {":path", "/acme/s.priv"}}
	for _, tc := range []struct {
		name   string
		fields [][2]string
		status string // "reset" too is no tunnel where "reset" follows a bar
	}{
		{"TRACE", append([][2]string{{":method", "TRACE"}}, path...), "405"},
		{"lower case", append([][2]string{{":method", "get"}}, path...), "405"},
		{"unknown", append([][2]string{{":method", "FOO"}}, path...), "405"},
		{"override", append(append([][2]string{{":method", "PATCH"}}, path...), [2]string{"x-http-method-override", "GET"}), "405"},
		{"CONNECT", [][2]string{{":method", "CONNECT"}, {":authority", "node:4437"}}, "405"},
		{"CONNECT of websocket", append([][2]string{{":method", "CONNECT"}, {":protocol", "websocket"}}, path...), "405|reset"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := rg.frames(t, append(tc.fields, [2]string{"authorization", "Bearer " + rg.Keys[key]})); got == "" || !strings.Contains(tc.status, got) {
				t.Errorf("status %q, want %s", got, tc.status)
			}
		})
	}
	u.untouched(t)
}

// frames sends one HTTP/2 request of these fields, whose stream stays open for a
// tunnel's bytes, and returns the answer's status, or "reset".
func (rg *rig) frames(t *testing.T, fields [][2]string) string {
	t.Helper()
	conn := rg.dial(t)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(conn, bufio.NewReader(conn))
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	var head strings.Builder
	enc := hpack.NewEncoder(&head)
	for _, f := range fields {
		if err := enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			t.Fatal(err)
		}
	}
	method := fields[0][1]
	err := errors.Join(framer.WriteSettings(), framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: 1, BlockFragment: []byte(head.String()), EndHeaders: true, EndStream: method != http.MethodConnect,
	}))
	if method == http.MethodConnect {
		err = errors.Join(err, framer.WriteData(1, false, []byte("GET /acme/s.priv HTTP/1.1\r\nHost: node\r\n\r\n")))
	}
	if err != nil {
		t.Fatal(err)
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		switch f := frame.(type) {
		case *http2.MetaHeadersFrame:
			return f.PseudoValue("status")
		case *http2.RSTStreamFrame:
			return "reset"
		case *http2.GoAwayFrame:
			return "reset"
		}
	}
}
