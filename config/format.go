package config

import (
	"errors"
	"mime"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// formatError says what a text should be, and the corrected text where one
// can be made. It holds nothing else of the text.
type formatError struct{ want, better string }

func (e *formatError) Error() string { return e.want }

// checkFormat checks a text by the name in a format tag and returns it in its
// one spelling.
func checkFormat(format, s string) (string, error) {
	switch format {
	case "listen":
		return s, checkListen(s)
	case "origin":
		return baseURL(s, true)
	case "node":
		return baseURL(s, false)
	case "page":
		return s, checkPage(s)
	case "media":
		return s, checkMedia(s)
	case "label":
		return s, checkLabel(s)
	case "domain":
		return s, checkDomain(s)
	case "email":
		return s, checkEmail(s)
	case "otlp":
		return s, checkOTLP(s)
	}
	return s, nil
}

func checkListen(s string) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		better := ""
		if _, err := strconv.ParseUint(s, 10, 16); err == nil {
			better = `":` + s + `"`
		}
		return &formatError{"want host:port, or :port for all interfaces", better}
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return &formatError{want: "want host:port with a port from 0 to 65535"}
	}
	if _, err := netip.ParseAddr(host); host != "" && err != nil && !hostName(host) {
		return &formatError{want: "want host:port with an IP address or a host name, or nothing before the colon"}
	}
	return nil
}

// hostName accepts what DNS and container names are made of.
func hostName(s string) bool {
	if s == "" || len(s) > 253 || strings.HasPrefix(s, ".") || strings.Contains(s, "..") {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if c != '.' && c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return true
}

// checkDomain checks a name that a certificate can be for, in the one spelling in which
// clients send it: lower case, xn-- for other scripts, no dot at the end.
func checkDomain(s string) error {
	want := "want a host name in lower case, other scripts in their xn-- form"
	better := strings.TrimSuffix(strings.ToLower(s), ".")
	name := strings.TrimPrefix(better, "*.")
	if _, err := netip.ParseAddr(name); err == nil || !hostName(name) || strings.ContainsRune(name, '_') || strings.HasSuffix(name, ".") {
		return &formatError{want: want + "; no address, no port, no scheme"}
	}
	if better != s {
		return &formatError{want, better}
	}
	return nil
}

// checkEmail looks for what is surely no address; the authority judges the rest.
func checkEmail(s string) error {
	name, host, ok := strings.Cut(s, "@")
	if !ok || name == "" || !hostName(host) || strings.ContainsAny(s, " \t<>,;\"") || !utf8.ValidString(s) {
		return &formatError{want: "want one e-mail address"}
	}
	return nil
}

// baseURL checks a URL of scheme, host and port. An origin has to be written in
// its one spelling, since clients compare it byte for byte; a node's URL is
// brought into it.
func baseURL(s string, exact bool) (string, error) {
	want := "want scheme, host and port of a URL (http or https), nothing after them"
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Opaque != "" || (u.Scheme != "http" && u.Scheme != "https") {
		return "", &formatError{want: want}
	}
	host, port := strings.ToLower(u.Hostname()), u.Port()
	if addr, err := netip.ParseAddr(host); err == nil && addr.Zone() == "" && addr.Is6() {
		host = "[" + addr.String() + "]"
	} else if !hostName(host) {
		return "", &formatError{want: want + "; a host has letters, digits, '.' and '-' only, and other scripts in their xn-- form"}
	}
	if strings.HasSuffix(u.Host, ":") {
		return "", &formatError{want: want + "; after the colon of the host comes a port"}
	}
	if n, err := strconv.ParseUint(port, 10, 16); port != "" && (err != nil || n == 0) {
		return "", &formatError{want: want + "; a port is from 1 to 65535"}
	}
	if u.User != nil {
		return "", &formatError{want: want + "; no user and no password"}
	}
	base := u.Scheme + "://" + host
	if port != "" && (!exact || port != defaultPort(u.Scheme)) {
		base += ":" + port
	}
	if u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.Contains(s, "#") || (u.Path != "" && u.Path != "/") || (exact && s != base) {
		return "", &formatError{want, base}
	}
	return base, nil
}

func defaultPort(scheme string) string {
	if scheme == "https" {
		return "443"
	}
	return "80"
}

// checkPage checks the origin of pages. It is compared byte for byte with what
// browsers send, so only their one spelling of it (RFC 6454 §6.2) ever matches.
func checkPage(s string) error {
	const want = `want an origin as browsers send it: scheme://host, with :port where it is not the scheme's own; or "*", which is all`
	scheme, host, ok := strings.Cut(s, "://")
	switch {
	case s == "*":
		return nil
	case s == "null":
		return &formatError{want: want + `; null is sent for every local file and every sandboxed page, and names none of them`}
	case strings.Contains(s, "*"):
		return &formatError{want: want + "; there are no patterns, so list each origin"}
	case !ok:
		base, err := baseURL("https://"+s, true)
		var f *formatError
		if errors.As(err, &f) {
			base = f.better
		}
		return &formatError{want, base}
	case strings.EqualFold(scheme, "http") || strings.EqualFold(scheme, "https"):
		_, err := baseURL(s, true)
		return err
	}
	// Apps have schemes of their own, as in capacitor://localhost.
	if lower := strings.ToLower(strings.TrimSuffix(s, "/")); lower != s && checkPage(lower) == nil {
		return &formatError{want, lower}
	}
	name, port, hasPort := strings.Cut(host, ":")
	if _, err := strconv.ParseUint(port, 10, 16); hasPort && err != nil || !schemeName(scheme) || !hostName(name) {
		return &formatError{want: want}
	}
	return nil
}

// schemeName is RFC 3986 §3.1, in lower case.
func schemeName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if ('a' > c || c > 'z') && (i == 0 || (c < '0' || c > '9') && c != '+' && c != '-' && c != '.') {
			return false
		}
	}
	return s != ""
}

func checkMedia(s string) error {
	kind, _, err := mime.ParseMediaType(s)
	if err != nil || !strings.Contains(kind, "/") || len(s) > 256 || !printable(s) {
		return &formatError{want: "want a media type of at most 256 bytes"}
	}
	return nil
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// maxLabel bounds the names that are for people only, in bytes.
const maxLabel = 100

func checkLabel(s string) error {
	if len(s) > maxLabel || strings.TrimSpace(s) != s || !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return &formatError{want: "want a name of 1 to 100 bytes without control characters or a space at either end"}
	}
	return nil
}

// parsePrefix reads an address or a network. A network is written with its
// first address, so that a slip of the pen does not trust the wrong one.
func parsePrefix(s string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(s); err == nil {
		if addr.Zone() != "" {
			return netip.Prefix{}, &formatError{want: "want an address without a zone"}
		}
		addr = addr.Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, errors.New("want an IP address or a network such as 10.0.0.0/8")
	}
	if p.Masked() != p {
		return netip.Prefix{}, &formatError{"want the first address of the network before the slash", p.Masked().String()}
	}
	return p, nil
}
