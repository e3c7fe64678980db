package wire

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// splits cuts an answer into the segments that it arrives in: each byte of at is
// the length of the next one.
func splits(answer string, at []byte) []string {
	var parts []string
	for _, n := range at {
		if k := int(n) + 1; k < len(answer) {
			parts, answer = append(parts, answer[:k]), answer[k:]
		}
	}
	return append(parts, answer)
}

// answerSeeds are answers as they should be, and ones that readers stumble over.
func answerSeeds() []string {
	var seeds []string
	for _, f := range framings() {
		seeds = append(seeds, f.answer, f.answer[:len(f.answer)/2])
	}
	return append(seeds,
		"", "\n", "\r\n", "HTTP/1.1 200 OK\r\n\r\n"+answer("a"), "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 200 OK\nContent-Length: 1\n\na", "HTTP/1.1  200 OK\r\n\r\n", "HTTP/2.0 200 OK\r\n\r\n", "HTTP/0.9 200 OK\r\n\r\nx",
		"HTTP/1.1 099 X\r\nContent-Length: 1\r\n\r\na", "HTTP/1.1 999 X\r\n\r\n", "HTTP/1.1 20 X\r\n\r\n", "ICY 200 OK\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
		"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\na", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\na", "HTTP/1.1 200 OK\r\nContent-Length: 9999999999999999999\r\n\r\na",
		"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
		chunkedHead+"1;a=\"\r\n\"\r\na\r\n0\r\n\r\n", chunkedHead+"0x1\r\na\r\n0\r\n\r\n", chunkedHead+"1\na\n0\n\n", chunkedHead+"ffffffffffffffff\r\n",
		chunkedHead+"1\r\nab\r\n0\r\n\r\n", chunkedHead+"0\r\nA: b\r\nContent-Length: 3\r\n\r\n", chunkedHead+"0\r\n bad\r\n\r\n",
		"HTTP/1.1 200 OK\r\n A: b\r\n\r\n", "HTTP/1.1 200 OK\r\nA : b\r\n\r\n", "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", "HTTP/1.1 200 OK\r\n: b\r\n\r\n",
		"HTTP/1.1 200 OK\r\nConnection: close\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\na", "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\na",
		"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nabc", "HTTP/1.1 101 X\r\n\r\n", "HTTP/1.1 204 X\r\nTransfer-Encoding: chunked\r\n\r\n",
		"HTTP/1.1 100 X\r\nContent-Length: 3\r\n\r\nabc"+answer("a"), "HTTP/1.1 103 X\r\nTransfer-Encoding: chunked\r\n\r\n"+answer("a"),
		"HTTP/1.1 200 OK\r\nA: "+strings.Repeat("x", comparedHead)+"\r\n\r\n", strings.Repeat("HTTP/1.1 100 X\r\n\r\n", 200)+answer("a"),
		answer(strings.Repeat("x", 5000)), chunkedHead+"1388\r\n"+strings.Repeat("x", 5000)+"\r\n0\r\n\r\n", chunkedHead+"0\r\nA: "+strings.Repeat("x", 5000)+"\r\n\r\n",
	)
}

// FuzzAnswer reads an answer, split in any way and then ended or reset, with wire
// and with http.Transport: they make the same of it. Wanted differences:
//
//   - 101: wire refuses it, and http.Transport hands out the connection.
//   - Which error it was: wire tells the connection's own, a timeout or MaxHead,
//     where http.Transport tells of the line that came in part.
//
// What follows an answer is nobody's for both; what becomes of the connection is
// in keeping_test.go and unasked_test.go, since http.Transport waits there less.
func FuzzAnswer(f *testing.F) {
	for i, seed := range answerSeeds() {
		for method := range uint8(3) {
			f.Add([]byte(seed), []byte(nil), method, false)
			f.Add([]byte(seed), []byte{byte(i), 0, 40}, method, i%2 == 0)
		}
	}
	quiet, loud := states(f)
	f.Fuzz(func(t *testing.T, raw, at []byte, method uint8, reset bool) {
		if len(raw) > lineRoom/2 || len(at) > 100 {
			t.Skip("a line has to hold it")
		}
		parts := splits(string(raw), at)
		s := func() *scripted {
			return &scripted{states: [2]syscall.RawConn{quiet, loud}, serve: func(far *line) {
				if !skipRequest(far) {
					return
				}
				for _, part := range parts {
					if part != "" {
						_, _ = io.WriteString(far, part)
					}
				}
				if reset {
					far.reset()
				}
			}}
		}
		request := func() *http.Request {
			return newRequest(t, []string{http.MethodGet, http.MethodHead, http.MethodPost}[method%3], "")
		}
		got, want := s().viaWire(request()), s().viaTransport(request(), false)
		if want.Status == http.StatusSwitchingProtocols {
			if !errors.Is(got.err, ErrSwitched) {
				t.Fatalf("101: error %v", got.err)
			}
			return
		}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(read{})); diff != "" {
			t.Fatalf("%q to %s\nhttp.Transport -, wire +:\n%s\nwire: %v\nhttp.Transport: %v", parts, request().Method, diff, got.err, want.err)
		}
	})
}

// skipRequest reads a request without a body to its end, byte by byte.
func skipRequest(far *line) bool {
	var seen string
	for one := make([]byte, 1); !strings.HasSuffix(seen, "\r\n\r\n"); seen += string(one) {
		if _, err := io.ReadFull(far, one); err != nil {
			return false
		}
	}
	return true
}
