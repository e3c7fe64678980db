package proxyproto

import (
	"bytes"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
)

// H09: what stands before a connection's first byte was taken of anybody, was taken for the
// request's, or crashed whoever read it.
func TestHeaders(t *testing.T) {
	const (
		v1        = "PROXY TCP4 203.0.113.7 10.0.0.1 56324 443\r\n"
		forged    = "PROXY TCP4 198.51.100.1 10.0.0.1 1 443\r\n"
		client    = "203.0.113.7:56324"
		worstLine = "PROXY UNKNOWN ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n"
		long6     = "PROXY TCP6 2001:0db8:1111:1111:1111:1111:1111:1111 2001:0db8:1111:1111:1111:1111:1111:2222 65535 65535\r\n"
	)
	unix := "/run/front.sock" + strings.Repeat("\x00", 108-15) + strings.Repeat("\x00", 108)
	tests := []struct {
		name, from, header string
		client             string  // whom the connection is of
		why                Refusal // in place of that
		behind             string  // what is left in front of the payload
		optional           bool    // what differs where a header is not required
	}{
		{name: "version 1", from: balancer, header: v1, client: client},
		{name: "version 1, IPv6", from: balancer, header: long6, client: "[2001:db8:1111:1111:1111:1111:1111:1111]:65535"},
		{name: "version 1, IPv4 in IPv6", from: balancer, header: "PROXY TCP6 ::ffff:203.0.113.7 ::1 56324 443\r\n", client: client},
		{name: "version 1 of IPv4 in IPv6", from: "[::ffff:10.0.0.9]:4000", header: v1, client: client},
		{name: "version 1 of IPv6", from: "[fd00::9]:4000", header: v1, client: client},
		{name: "version 1, unknown", from: balancer, header: "PROXY UNKNOWN\r\n", client: balancer},
		{name: "version 1, unknown, as long as can be", from: balancer, header: worstLine, client: balancer},
		{name: "version 1, unknown, with addresses", from: balancer, header: "PROXY UNKNOWN 203.0.113.7 10.0.0.1 56324 443\r\n", client: balancer},
		{name: "version 1 twice", from: balancer, header: v1 + forged, client: client, behind: forged},
		{name: "version 1 without CR", from: balancer, header: strings.ReplaceAll(v1, "\r", ""), why: Malformed},
		{name: "version 1 of another transport", from: balancer, header: "PROXY UDP4 203.0.113.7 10.0.0.1 1 2\r\n", why: Malformed},
		{name: "version 1, too few words", from: balancer, header: "PROXY TCP4 203.0.113.7\r\n", why: Malformed},
		{name: "version 1, too many words", from: balancer, header: "PROXY TCP4 203.0.113.7 10.0.0.1 1 2 198.51.100.1\r\n", why: Malformed},
		{name: "version 1, no address", from: balancer, header: "PROXY TCP4 streams.example.com 10.0.0.1 1 2\r\n", why: Malformed},
		{name: "version 1, IPv6 as IPv4", from: balancer, header: "PROXY TCP4 2001:db8::1 10.0.0.1 1 2\r\n", why: Malformed},
		{name: "version 1, a zone", from: balancer, header: "PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n", why: Malformed},
		{name: "version 1, no port", from: balancer, header: "PROXY TCP4 203.0.113.7 10.0.0.1 65536 2\r\n", why: Malformed},
		{name: "version 1, nothing said", from: balancer, header: "PROXY \r\n", why: Malformed},
		{name: "version 1, 107 bytes without an end", from: balancer, header: "PROXY TCP4 " + strings.Repeat("1", 96), why: Malformed},
		{name: "version 1, without an end at all", from: balancer, header: "PROXY " + strings.Repeat("1", 100_000), why: Malformed},
		{name: "another method", from: balancer, header: "PROXYING / HTTP/1.1\r\n", why: Missing, client: balancer, behind: "PROXYING / HTTP/1.1\r\n", optional: true},
		{name: "HTTP/2", from: balancer, header: "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", why: Missing, client: balancer, behind: "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", optional: true},
		{name: "TLS", from: balancer, header: "\x16\x03\x01\x02\x00", why: Missing, client: balancer, behind: "\x16\x03\x01\x02\x00", optional: true},
		{name: "none", from: balancer, why: Missing, client: balancer, optional: true},

		{name: "version 2", from: balancer, header: v2(proxy, tcp4, from4(client)), client: client},
		{name: "version 2, IPv6", from: balancer, header: v2(proxy, tcp6, from6("[2001:db8::7]:9")), client: "[2001:db8::7]:9"},
		{name: "version 2, IPv4 in IPv6", from: balancer, header: v2(proxy, tcp6, from6("[::ffff:203.0.113.7]:56324")), client: client},
		{name: "version 2 with values", from: balancer, header: v2(proxy, tcp4, from4(client)+tlv(0xea, "\x01vpce-08d2bf15fac5001c9")+tlv(0x03, "abcd")), client: client},
		{name: "version 2 with a certificate", from: balancer, header: v2(proxy, tcp4, from4(client)+tlv(0x28, strings.Repeat("c", 3000))), client: client},
		{name: "version 2 with values that are none", from: balancer, header: v2(proxy, tcp4, from4(client)+"\x01\xff\xff"), client: client},
		{name: "version 2, as long as it may be", from: balancer, header: v2(proxy, tcp4, from4(client)+strings.Repeat("\x04", maxHeader-prefixV2-12)), client: client},
		{name: "version 2, too long", from: balancer, header: v2(proxy, tcp4, from4(client)+strings.Repeat("\x04", maxHeader-prefixV2-11)), why: Malformed},
		{name: "version 2, longest", from: balancer, header: v2(proxy, tcp4, from4(client)+strings.Repeat("\x04", 65535-12)), why: Malformed},
		{name: "version 2, too short for its addresses", from: balancer, header: v2(proxy, tcp4, from4(client)[:11]), why: Malformed},
		{name: "version 2, no addresses", from: balancer, header: v2(proxy, tcp4, ""), why: Malformed},
		{name: "version 2, its own connection", from: balancer, header: v2(local, unspec, ""), client: balancer},
		{name: "version 2, its own connection, with values", from: balancer, header: v2(local, unspec, tlv(0x04, "xyz")), client: balancer},
		{name: "version 2, its own connection, with addresses", from: balancer, header: v2(local, tcp4, from4(client)), client: balancer},
		{name: "version 2, its own connection, without the addresses", from: balancer, header: v2(local, tcp4, ""), client: balancer},
		{name: "version 2 of a Unix socket", from: balancer, header: v2(proxy, unixStream, unix), client: balancer},
		{name: "version 2 of UDP", from: balancer, header: v2(proxy, udp4, from4(client)), why: Malformed},
		{name: "version 2, unknown", from: balancer, header: v2(proxy, unspec, ""), client: balancer},
		{name: "version 2, unknown, with values", from: balancer, header: v2(proxy, unspec, tlv(0x04, "xyz")), client: balancer},
		{name: "version 2, unknown, cut values", from: balancer, header: v2(proxy, unspec, "\x04\xff"), client: balancer},
		{name: "version 3, unknown", from: balancer, header: v2(0x31, unspec, ""), why: Malformed},
		{name: "version 2 of an unknown family", from: balancer, header: v2(proxy, 0x51, from4(client)), why: Malformed},
		{name: "version 2 of an unknown transport", from: balancer, header: v2(proxy, 0x13, from4(client)), why: Malformed},
		{name: "version 2 of an unknown command", from: balancer, header: v2(0x22, tcp4, from4(client)), why: Malformed},
		{name: "version 3", from: balancer, header: v2(0x31, tcp4, from4(client)), why: Malformed},
		{name: "version 2 twice", from: balancer, header: v2(proxy, tcp4, from4(client)) + v2(proxy, tcp4, from4("198.51.100.1:1")), client: client, behind: v2(proxy, tcp4, from4("198.51.100.1:1"))},
		{name: "version 2, then 1", from: balancer, header: v2(local, unspec, "") + forged, client: balancer, behind: forged},

		{name: "version 1 of a stranger", from: stranger, header: v1, why: Untrusted},
		{name: "unknown of a stranger", from: stranger, header: "PROXY UNKNOWN\r\n", why: Untrusted},
		{name: "garbage of a stranger", from: stranger, header: "PROXY x\r\n", why: Untrusted},
		{name: "version 2 of a stranger", from: stranger, header: v2(proxy, tcp4, from4(client)), why: Untrusted},
		{name: "version 2 of a stranger's own connection", from: stranger, header: v2(local, unspec, ""), why: Untrusted},
		{name: "version 2 of a neighbour", from: "10.0.1.9:4000", header: v2(proxy, tcp4, from4(client)), why: Untrusted},
		{name: "none of a stranger", from: stranger, why: Untrusted, client: stranger, optional: true},
		{name: "HTTP/2 of a stranger", from: stranger, header: "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", why: Untrusted, client: stranger, behind: "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", optional: true},
		{name: "another method of a stranger", from: stranger, header: "PROXYING / HTTP/1.1\r\n", why: Untrusted, client: stranger, behind: "PROXYING / HTTP/1.1\r\n", optional: true},
	}
	for _, tt := range tests {
		for _, required := range []bool{true, false} {
			why := tt.why
			if tt.optional && !required {
				why = ""
			}
			for _, size := range []int{1, 7, 16, 1 << 20} {
				r := newRig(required)
				over := &script{pieces: pieces(tt.header+payload, size)}
				if required && why == Untrusted {
					r.in <- comingConn{over, addr(tt.from)}
					close(r.in)
					if _, err := r.Accept(); err == nil || !over.closed || r.why() != Untrusted || over.read != 0 {
						t.Errorf("%s, required: %v, closed %t, %q, %d bytes read", tt.name, err, over.closed, r.why(), over.read)
					}
					continue
				}
				c := r.connect(t, tt.from, over)
				checkFront(t, r, c, front{name: tt.name, from: tt.from, client: tt.client, why: why, data: tt.behind + payload})
			}
		}
	}
}

// front is what there has to be of a connection.
type front struct {
	name, from, client string
	why                Refusal
	data               string
}

func checkFront(t *testing.T, r *rig, c net.Conn, want front) {
	t.Helper()
	if want.why != "" {
		want.client, want.data = want.from, ""
	}
	first := c.RemoteAddr().String() // as net/http begins
	got, err := io.ReadAll(c)
	wanted := strings.Replace(strings.Replace(want.client, "[::ffff:", "", 1), "]", "", 1)
	if !strings.Contains(want.client, "::ffff:") {
		wanted = want.client
	}
	if after := c.RemoteAddr().String(); first != wanted || after != wanted {
		t.Errorf("%s: of %s, then %s, want %s", want.name, first, after, wanted)
	}
	if string(got) != want.data || r.why() != want.why || (err != nil) != (want.why != "") {
		t.Errorf("%s: %.80q, %v, refused as %q; want %.80q, %q", want.name, got, err, r.why(), want.data, want.why)
	}
	if want.why != "" {
		if _, err := c.Write([]byte("HTTP/1.1 400 Bad Request")); err == nil {
			t.Errorf("%s: it can be answered", want.name)
		}
	}
	_, own := c.LocalAddr().(Own)
	checkTaken(t, r, want, own)
	if want.why == "" && want.client != want.from && own {
		t.Errorf("%s: a client's connection is taken for the balancer's own", want.name)
	}
}

// checkTaken wants one word of each connection that goes on, and none of another.
func checkTaken(t *testing.T, r *rig, want front, own bool) {
	t.Helper()
	var as []Taken
	switch {
	case want.why != "" || want.from == stranger:
	case own:
		as = []Taken{OfBalancer}
	case want.client == want.from:
		as = []Taken{WithoutHeader}
	default:
		as = []Taken{OfClient}
	}
	if !slices.Equal(r.taken, as) {
		t.Errorf("%s: told of as %q, want %q", want.name, r.taken, as)
	}
}

// H08: whoever came as a connection that the balancer could not name was believed as the
// balancer is. Handlers are told of it.
func TestOwnConnectionIsTold(t *testing.T) {
	for header, want := range map[string]bool{
		"PROXY UNKNOWN\r\n":                       true,
		v2(local, unspec, ""):                     true,
		"PROXY TCP4 203.0.113.7 10.0.0.1 1 2\r\n": false,
		"": false,
	} {
		r := newRig(false)
		c := r.connect(t, balancer, &script{pieces: pieces(header+payload, 1<<20)})
		if _, own := c.LocalAddr().(Own); own != want {
			t.Errorf("%q: its own: %t", header, own)
		}
		if c.LocalAddr().String() != "10.0.0.1:443" {
			t.Errorf("%q: local address %s", header, c.LocalAddr())
		}
	}
}

// FuzzFront holds, of whatever a connection begins with and however it is cut, that a
// stranger is never taken for anybody else, that no byte behind a header is lost, added or
// read as something else, and that no more is kept than the longest header.
func FuzzFront(f *testing.F) {
	for _, header := range []string{
		"", "P", "PROXY ", "PROXY UNKNOWN\r\n", "PROXY TCP4 203.0.113.7 10.0.0.1 56324 443\r\n", "PROXY TCP6 ::ffff:203.0.113.7 ::1 1 2\r\n",
		"PROXY TCP4 203.0.113.7 10.0.0.1 1 2\r\nPROXY TCP4 198.51.100.1 10.0.0.1 1 2\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "PROXY " + strings.Repeat("x", 200),
		signatureV2, signatureV2[:11], v2(local, unspec, ""), v2(proxy, tcp4, from4("203.0.113.7:1")), v2(proxy, tcp6, from6("[2001:db8::1]:1")),
		v2(proxy, tcp4, from4("203.0.113.7:1")+tlv(1, "h2")+tlv(2, strings.Repeat("x", 700))), v2(proxy, unixStream, strings.Repeat("x", 216)),
		v2(proxy, 0x13, from4("203.0.113.7:1")), v2(proxy, tcp4, strings.Repeat("x", maxHeader)), v2(0x3f, 0xff, "\xff"),
	} {
		for _, cut := range []uint16{1, 13, 4096} {
			f.Add([]byte(header+payload), cut, true, true)
			f.Add([]byte(header+payload), cut, false, false)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, cut uint16, trusted, required bool) {
		from := stranger
		if trusted {
			from = balancer
		}
		r := newRig(required)
		over := &script{pieces: pieces(string(data), int(max(cut, 1)))}
		r.in <- comingConn{over, addr(from)}
		close(r.in)
		c, err := r.Accept()
		if err != nil {
			if trusted || !required || over.read != 0 || !over.closed {
				t.Fatalf("refused at once: trusted %t, required %t, %d bytes read", trusted, required, over.read)
			}
			return
		}
		client := c.RemoteAddr().String()
		if over.read > maxHeader+firstRead {
			t.Fatalf("%d bytes read for a header", over.read)
		}
		got, err := io.ReadAll(c)
		switch _, own := c.LocalAddr().(Own); {
		case err != nil && (len(got) > 0 || client != from || !over.closed):
			t.Fatalf("refused: %d bytes, of %s, closed %t", len(got), client, over.closed)
		case err != nil:
		case !bytes.HasSuffix(data, got):
			t.Fatalf("%q became %q", data, got)
		case client == from && !own && len(got) != len(data):
			t.Fatalf("without a header, %q became %q", data, got)
		case client == from && !own && (begins(data, signatureV1) && len(data) >= len(signatureV1) || begins(data, signatureV2) && len(data) >= len(signatureV2)):
			t.Fatalf("a header was passed on: %q", data)
		case !trusted && (client != from || own):
			t.Fatalf("a stranger came as %s", client)
		case client != from:
			header := data[:len(data)-len(got)]
			named, err := parse(header)
			if err != nil || named.String() != client || len(header) > maxHeader {
				t.Fatalf("%q, of %s: %v, %s", header, client, err, named)
			}
		}
	})
}
