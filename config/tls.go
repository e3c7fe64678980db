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

// TLS says how the public listener ends TLS.
type TLS struct {
	// `off`: plain HTTP/1.1 and HTTP/2 with prior knowledge, for a load balancer
	// that ends TLS in front. Keys travel in clear between the two.
	// `files`: the pair of `cert` and `key`, read anew when it changes.
	// `acme`: ordered of a certificate authority and renewed by itself.
	// `internal`: issued by an authority of this gateway's own, for development.
	// With all but `off`, `listen` speaks HTTPS and nothing else (TLS 1.2 or later, HTTP/1.1
	// and HTTP/2), and `origin` has to be https.
	Mode string `yaml:"mode" default:"off" eg:"acme" enum:"off|files|acme|internal" restart:"true"`

	// With `files`: the certificate and those that lead to its authority, in PEM. A
	// relative path begins at the folder of this file. The file is looked at every 5 s; a
	// pair that does not match leaves the one before it in use.
	Cert string `yaml:"cert" eg:"/etc/sluice/tls/tls.crt" format:"path"`

	// With `files`: the certificate's private key, in PEM.
	Key string `yaml:"key" eg:"/etc/sluice/tls/tls.key" format:"path"`

	// With `acme` and `internal`: the names to have certificates for, at most 100, one
	// certificate each. Other names are refused, whoever asks for them. Absent: the host of
	// `origin`, which has to be among them.
	Domains []string `yaml:"domains" eg:"[streams.example.com]" format:"domain" list:"nonempty"`

	// With `acme`: whom the authority may write to. Ordering agrees to its terms of
	// service, with an address or without.
	Email string `yaml:"email" eg:"ops@example.com" format:"email"`

	// An address for plain HTTP, `host:port`, which is sent on to `origin` and nowhere else
	// (308); a request with `Authorization` is refused, since its credential came in clear.
	// With `acme` it answers HTTP-01, for which the authority has to reach it at port 80;
	// without it there is TLS-ALPN-01 alone, for which it has to reach `listen` at 443.
	HTTPListen string `yaml:"http_listen" eg:"\":80\"" format:"listen" restart:"true"`

	// With `acme`: the directory of the authority (RFC 8555).
	CA string `yaml:"ca" default:"https://acme-v02.api.letsencrypt.org/directory" eg:"https://acme.internal.example.com/directory" restart:"true"`

	// With `acme`: certificates in PEM that the authority's own server is trusted by,
	// in place of the system's.
	CARoot string `yaml:"ca_root" eg:"/etc/sluice/acme-root.pem" format:"path" restart:"true"`

	// With `acme` and no store: the folder in which accounts and certificates are kept,
	// made with mode 0700. Replicas may share one. With a store they are there, sealed with
	// `auth.sealing_key`. With `internal`: the folder of its authority; absent, it lives as
	// long as the process, or beside a SQLite store.
	Storage string `yaml:"storage" eg:"/var/lib/sluice/tls" format:"path" restart:"true"`
}

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
