package proxyproto

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/pires/go-proxyproto"
)

const (
	// maxLine bounds a header of version 1 with its CRLF (proxy-protocol.txt §2.1).
	maxLine = 107
	// prefixV2 is what stands before the part of a header of version 2 whose length it
	// tells (§2.2).
	prefixV2 = 16
	// maxHeader bounds one of version 2, which may be 64 KiB long: a client's certificate is
	// the longest thing that balancers send along.
	maxHeader = 4 << 10

	signatureV1 = "PROXY "
	signatureV2 = "\r\n\r\n\x00\r\nQUIT\n"
	// unknownV2 is a header of version 2 that passes on what it cannot name, as UNKNOWN is in
	// version 1. Receivers may take or refuse it (§2.2); the library refuses it.
	unknownV2 = "\x21\x00"
)

var (
	errLong      = errors.New("the header is too long")
	errCut       = errors.New("the header has no end")
	errMissing   = errors.New("there is no header")
	errUntrusted = errors.New("a header of a peer that is no trusted proxy")
	errCrowded   = errors.New("the client has too many connections")
	errTransport = errors.New("the header is of a connection that was not over TCP")
)

// found says what the first bytes of a connection are.
type found int

const (
	undecided found = iota // a header's beginning, as far as they go
	nothing                // no header
	begun                  // a header, of which there is more to come
	whole                  // a header, and maybe bytes behind it
)

// measure says what b begins with, and the header's length once it is whole.
func measure(b []byte) (length int, is found, err error) {
	switch {
	case begins(b, signatureV1):
		if len(b) < len(signatureV1) {
			return 0, undecided, nil
		}
		end := bytes.IndexByte(b[:min(len(b), maxLine)], '\n')
		switch {
		case end >= 0:
			return end + 1, whole, nil
		case len(b) >= maxLine:
			return 0, begun, errLong
		default:
			return 0, begun, nil
		}
	case begins(b, signatureV2):
		if len(b) < len(signatureV2) {
			return 0, undecided, nil
		}
		if len(b) < prefixV2 {
			return 0, begun, nil
		}
		length = prefixV2 + int(binary.BigEndian.Uint16(b[prefixV2-2:]))
		switch {
		case length > maxHeader:
			return 0, begun, errLong
		case len(b) < length:
			return length, begun, nil
		default:
			return length, whole, nil
		}
	default:
		return 0, nothing, nil
	}
}

// begins reports whether b and the signature are the same, as far as both go.
func begins(b []byte, signature string) bool {
	n := min(len(b), len(signature))
	return string(b[:n]) == signature[:n]
}

// parse reads a whole header. It gives the client that it names; the zero one where it names
// none: a balancer's own connection, as for health checks (LOCAL), or one of a kind that it
// cannot name (UNKNOWN, UNSPEC, Unix sockets).
func parse(header []byte) (netip.AddrPort, error) {
	if bytes.HasPrefix(header, []byte(signatureV2+unknownV2)) {
		return netip.AddrPort{}, nil
	}
	h, err := proxyproto.Read(bufio.NewReaderSize(bytes.NewReader(header), len(header)))
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("read it: %w", err)
	}
	if h.Command.IsLocal() || h.TransportProtocol == proxyproto.UnixStream {
		return netip.AddrPort{}, nil
	}
	source, _, ok := h.TCPAddrs()
	if !ok {
		return netip.AddrPort{}, errTransport
	}
	client := addrPort(source)
	if !client.IsValid() {
		return netip.AddrPort{}, errTransport
	}
	return client, nil
}
