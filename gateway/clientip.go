package gateway

import (
	"net/http"
	"net/netip"
	"strings"

	"sluice/gateway/proxyproto"
)

// maxForwardedHops bounds how far a forwarded chain is walked.
const maxForwardedHops = 32

// clientAddress tells who asks: the peer, or, where the peer is a trusted
// proxy, the right-most address of the forwarded chain that is not one. Chains
// are walked from the right, since everything further left was written by who
// came before (H08). X-Forwarded-For and Forwarded that disagree are believed
// neither: one of them passed through a proxy that does not write it.
//
// Behind a balancer that speaks the PROXY protocol the peer is whom its header names, who is
// no proxy, as a rule, and is believed nothing. Where it names nobody the peer is the balancer
// itself, which writes no headers of HTTP: what says so came of somebody behind it.
func clientAddress(r *http.Request, trusted []netip.Prefix) netip.Addr {
	peer := addressOf(r.RemoteAddr)
	if len(trusted) == 0 || !isTrusted(peer, trusted) {
		return peer
	}
	if _, own := r.Context().Value(http.LocalAddrContextKey).(proxyproto.Own); own {
		return peer
	}
	xff, hasXFF := walk(r.Header["X-Forwarded-For"], peer, trusted, plainHop)
	fwd, hasFwd := walk(r.Header["Forwarded"], peer, trusted, forwardedHop)
	switch {
	case hasXFF && hasFwd && xff != fwd:
		return peer
	case hasXFF:
		return xff
	case hasFwd:
		return fwd
	default:
		return peer
	}
}

func isTrusted(a netip.Addr, trusted []netip.Prefix) bool {
	for _, p := range trusted {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// walk goes through the header's lines and elements from the right. An element
// that is no address ends the walk at the last one that was.
func walk(lines []string, peer netip.Addr, trusted []netip.Prefix, hop func(string) netip.Addr) (netip.Addr, bool) {
	if len(lines) == 0 {
		return peer, false
	}
	last, hops := peer, 0
	for i := len(lines) - 1; i >= 0; i-- {
		rest := lines[i]
		for more := true; more; {
			element := rest
			if cut := strings.LastIndexByte(rest, ','); cut >= 0 {
				rest, element = rest[:cut], rest[cut+1:]
			} else {
				more = false
			}
			a := hop(strings.TrimSpace(element))
			if hops++; !a.IsValid() || hops > maxForwardedHops {
				return last, true
			}
			last = a
			if !isTrusted(a, trusted) {
				return a, true
			}
		}
	}
	return last, true
}

func plainHop(element string) netip.Addr { return addressOf(element) }

// forwardedHop reads the for= parameter of one element (RFC 7239 §4).
func forwardedHop(element string) netip.Addr {
	for pair := range strings.SplitSeq(element, ";") {
		name, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if ok && strings.EqualFold(name, "for") {
			return addressOf(strings.Trim(value, `"`))
		}
	}
	return netip.Addr{}
}

// addressOf reads an address with or without port or brackets; IPv4 in IPv6
// form is IPv4, and zones are dropped, so that one host has one spelling (L11).
func addressOf(s string) netip.Addr {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().Unmap().WithZone("")
	}
	if len(s) > 2 && s[0] == '[' && s[len(s)-1] == ']' {
		s = s[1 : len(s)-1]
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}
	}
	return a.Unmap().WithZone("")
}

// addressKey is what a client's address is counted by.
func addressKey(a netip.Addr) string { return addressPrefix(a).String() }

// addressPrefix is the address of all that one client has: the /64 in IPv6, and an
// IPv4 address in IPv6 form as what it is (L11).
func addressPrefix(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return a
}
