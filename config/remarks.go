package config

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// expiry is a declared key that ends, with the warning for when it has.
type expiry struct {
	at      time.Time
	problem Problem
}

// Warnings lists what is odd in the file at the given time, and allowed. They
// are in the order of the file.
func (c *Config) Warnings(now time.Time) []Problem {
	all := append([]Problem(nil), c.warnings...)
	for _, e := range c.expiries {
		if !now.Before(e.at) {
			all = append(all, e.problem)
		}
	}
	inFileOrder(all)
	return all
}

// remark works out the warnings while the lines are at hand.
func (c *Config) remark(file string, root *yaml.Node) {
	place := func(f finding) Problem {
		at := locate(root, f.path)
		return Problem{File: file, Line: at.line, Column: at.column, Path: f.path, Message: f.message}
	}
	for _, f := range odd(c) {
		c.warnings = append(c.warnings, place(f))
	}
	c.tailCaps = tailCaps(c, file, root)
	for i, a := range c.Accounts {
		for j, k := range a.Keys {
			if k.ExpiresAt.IsZero() {
				continue
			}
			c.expiries = append(c.expiries, expiry{k.ExpiresAt, place(finding{
				fmt.Sprintf("accounts[%d].keys[%d].expires_at", i, j),
				"the key has expired and is refused with 401; remove it, or give it a later time",
			})})
		}
	}
}

func odd(c *Config) []finding {
	var f findings
	if u, err := url.Parse(c.Origin); err == nil && u.Scheme == "http" && !loopbackHost(u.Hostname()) {
		f.add("origin", "clients send their keys in clear over http; use https, with TLS ended here or in front")
	}
	for i, p := range c.TrustedProxies {
		if p.Bits() == 0 {
			f.add(fmt.Sprintf("trusted_proxies[%d]", i), "is every address, so that any client can claim any address; name your proxies")
		}
	}
	f.oddAuth(c)
	f.unwise(c)
	if slices.Contains(c.CORS.Origins, "*") {
		f.add("cors.origins", "lets the page of any site read answers from within its visitors' browsers, public streams on a private network too; list the origins where you know them")
	}
	if n := c.Server.FailedCredentialsPerMinute; n > 0 && n < sustainedFailures {
		f.add("server.failed_credentials_per_minute", "is so many at once, but 60 a minute over a while all the same, since less than one a second is not counted; write 60 or more, or 0 to count none")
	}
	d := c.Limits.Default
	f.closed("limits.default", AccountLimits{&d.RequestsPerSecond, &d.Burst, &d.OpenTails, &d.Uploads, &d.UploadBytes, &d.RequestBytes})
	for i, a := range c.Accounts {
		f.closed(fmt.Sprintf("accounts[%d].limits", i), a.Limits)
	}
	return f
}

// sustainedFailures is the least that is let through in a minute, over a while.
const sustainedFailures = 60

// oddAuth remarks on tokens.
func (f *findings) oddAuth(c *Config) {
	switch origin, err := url.Parse(c.Origin); {
	case c.Auth.ExchangePerSecond == 0:
		f.add("auth.exchange_per_second", "is 0, which turns the token exchange off and does not mean unlimited; leave the key out for the default")
	case len(c.Auth.SigningKeys) > 0 || c.Store.Configured() || err == nil && loopbackHost(origin.Hostname()):
		// The store keeps the keys for all replicas. On one machine there is no other replica.
	default:
		f.add("auth.signing_keys", `has no key, so that tokens are signed with one that this process makes: they end with it, and no other replica takes them; write signing_keys: ["file:/etc/sluice/signing-1.pem"], made by "openssl ecparam -name prime256v1 -genkey -noout"`)
	}
	declared := make(map[string]bool, len(c.Accounts))
	for _, a := range c.Accounts {
		declared[a.ID] = true
	}
	for i, is := range c.Auth.Issuers {
		path := fmt.Sprintf("auth.issuers[%d]", i)
		for _, at := range []struct{ key, url string }{{"issuer", is.Issuer}, {"jwks_url", is.JWKSURL}} {
			if strings.HasPrefix(strings.ToLower(at.url), "http:") {
				f.add(path+"."+at.key, "is http, which is for trials on one machine: whoever can listen there makes tokens that are taken; use https")
			}
		}
		for j, id := range is.Accounts {
			if !declared[id] && !c.Store.Configured() { // else people may make it, or have
				f.add(fmt.Sprintf("%s.accounts[%d]", path, j), "no account of that id is declared, so that its tokens are refused with 403; declare it under accounts, or remove it here")
			}
		}
	}
}

// closed remarks on limits of 0: they read like "no limit" and mean "nothing".
func (f *findings) closed(path string, l AccountLimits) {
	const zero = "is 0, which refuses all and does not mean unlimited; leave the key out for the default"
	isZero := func(n *int) bool { return n != nil && *n == 0 }
	none := func(b *Bytes) bool { return b != nil && *b == 0 }
	for _, l := range []struct {
		key  string
		zero bool
	}{
		{"requests_per_second", isZero(l.RequestsPerSecond)},
		{"burst", isZero(l.Burst)},
		{"open_tails", isZero(l.OpenTails)},
		{"uploads", isZero(l.Uploads)},
		{"upload_bytes", none(l.UploadBytes)},
		{"request_bytes", none(l.RequestBytes)},
	} {
		if l.zero {
			f.add(path+"."+l.key, zero)
		}
	}
}
