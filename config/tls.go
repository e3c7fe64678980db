package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// The values of tls.mode.
const (
	TLSOff      = "off"
	TLSFiles    = "files"
	TLSACME     = "acme"
	TLSInternal = "internal"
)

// maxDomains bounds the certificates that are ordered, renewed and told of.
const maxDomains = 100

// On reports whether the public listener ends TLS itself.
func (t TLS) On() bool { return t.Mode != TLSOff }

// TLSDomains are the names to have certificates for: tls.domains, or the origin's host.
// The host of the origin is the first.
func (c *Config) TLSDomains() []string {
	host := c.OriginHost()
	if len(c.TLS.Domains) == 0 {
		return []string{host}
	}
	rest := slices.DeleteFunc(slices.Clone(c.TLS.Domains), func(d string) bool { return d == host })
	return append([]string{host}, rest...)
}

// OriginHost is the host of the origin, without brackets and port; empty where the origin
// does not parse.
func (c *Config) OriginHost() string {
	u, err := url.Parse(c.Origin)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// tls finds what contradicts tls.mode.
func (f *findings) tls(c *Config) {
	t := c.TLS
	f.tlsKeys(t)
	if u, err := url.Parse(c.Origin); t.On() && err == nil && u.Scheme == "http" {
		f.add("origin", "is http, while tls.mode is %s and the listener speaks https only; write https://%s, or tls: {mode: off}", t.Mode, u.Host)
	}
	switch t.Mode {
	case TLSFiles:
		for _, k := range []struct{ key, value, eg string }{{"cert", t.Cert, "/etc/sluice/tls/tls.crt"}, {"key", t.Key, "/etc/sluice/tls/tls.key"}} {
			if k.value == "" {
				f.add("tls."+k.key, "is required with mode: files; write %s: %s", k.key, k.eg)
			}
		}
	case TLSACME:
		f.acme(c)
		f.domains(c)
	case TLSInternal:
		f.domains(c)
	}
}

// tlsKeys finds keys that have no effect in the mode.
func (f *findings) tlsKeys(t TLS) {
	for _, k := range []struct {
		key   string
		set   bool
		modes []string
	}{
		{"cert", t.Cert != "", []string{TLSFiles}},
		{"key", t.Key != "", []string{TLSFiles}},
		{"domains", len(t.Domains) > 0, []string{TLSACME, TLSInternal}},
		{"email", t.Email != "", []string{TLSACME}},
		{"http_listen", t.HTTPListen != "", []string{TLSFiles, TLSACME, TLSInternal}},
		{"ca", t.CA != defaultCA, []string{TLSACME}},
		{"ca_root", t.CARoot != "", []string{TLSACME}},
		{"storage", t.Storage != "", []string{TLSACME, TLSInternal}},
	} {
		if k.set && t.Mode != "" && !slices.Contains(k.modes, t.Mode) {
			f.add("tls."+k.key, "has no effect with mode: %s; remove it, or write mode: %s", t.Mode, strings.Join(k.modes, " or "))
		}
	}
}

// defaultCA is the default of tls.ca.
const defaultCA = "https://acme-v02.api.letsencrypt.org/directory"

// acme checks where certificates come from and are kept.
func (f *findings) acme(c *Config) {
	t := c.TLS
	u, err := url.Parse(t.CA)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" || (u.Scheme != "https" && (u.Scheme != "http" || !loopbackHost(u.Hostname()))) {
		f.add("tls.ca", "want the https URL of an ACME directory (http on loopback only); write ca: %s, or remove the key", defaultCA)
	}
	switch {
	case c.Store.Configured() && t.Storage != "":
		f.add("tls.storage", "certificates are kept in the store, so that all replicas have them; remove it")
	case !c.Store.Configured() && t.Storage == "":
		f.add("tls.storage", "is required with mode: acme and no store, since every start would order anew; write storage: /var/lib/sluice/tls")
	}
}

// domains checks the names to have certificates for.
func (f *findings) domains(c *Config) {
	t, host := c.TLS, c.OriginHost()
	f.once("tls.domains", t.Domains)
	if n := len(t.Domains); n > maxDomains {
		f.add("tls.domains", "has %d names; at most %d are taken", n, maxDomains)
	}
	for i, d := range t.Domains {
		if t.Mode == TLSACME && strings.HasPrefix(d, "*.") {
			f.add(fmt.Sprintf("tls.domains[%d]", i), "a wildcard needs the DNS challenge, which is not here; list the names, or write mode: files")
		}
	}
	_, err := netip.ParseAddr(host)
	switch {
	case host == "":
	case t.Mode == TLSACME && err == nil:
		f.add("origin", "is an address, for which no certificate is ordered; write a host name, or tls: {mode: internal}")
	case len(t.Domains) > 0 && err != nil && !covered(host, t.Domains):
		f.add("tls.domains", "lacks the host of origin, so that no client could connect; add %s", host)
	}
}

// covered reports whether one of the names stands for a host. A wildcard stands for one
// label (RFC 6125 §6.4.3).
func covered(host string, names []string) bool {
	_, parent, _ := strings.Cut(host, ".")
	return slices.Contains(names, host) || (parent != "" && slices.Contains(names, "*."+parent))
}
