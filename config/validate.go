package config

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
)

// finding is a problem that has not been given its line yet.
type finding struct{ path, message string }

// findings collects what is wrong with a Config.
type findings []finding

func (f *findings) add(path, format string, args ...any) {
	*f = append(*f, finding{path, fmt.Sprintf(format, args...)})
}

// validate finds what no single key shows: contradictions, duplicates, and
// words outside the domain's grammar. It is pure. Empty values are passed over:
// the decoder has reported them.
func validate(c *Config, g Grammar) []finding {
	var f findings
	f.listeners(c)
	f.proxyProtocol(c)
	f.tls(c)
	f.nodes(c.Ursula.Nodes)
	f.auth(c, g)
	f.origins(c.CORS.Origins)
	f.limits(c)
	f.redis(c.Redis, g)
	f.store(c, g)
	f.trace(c.Trace)
	f.streams(c)
	f.accounts(c.Accounts, g)
	return f
}

// redis checks how the servers are named, as a whole.
func (f *findings) redis(r Redis, g Grammar) {
	if g.Redis == nil || !r.Configured() {
		return
	}
	if err := g.Redis(r); err != nil {
		f.add("redis", "%v", err)
	}
}

// sealingKeyBytes is what auth.sealing_key holds (design §5).
const sealingKeyBytes = 32

// store checks where what people manage is kept, and what its secrets are sealed with.
func (f *findings) store(c *Config, g Grammar) {
	key := c.Auth.SealingKey
	if raw, err := base64.StdEncoding.DecodeString(key.Reveal()); !key.IsZero() && (err != nil || len(raw) != sealingKeyBytes) {
		f.add("auth.sealing_key", "want %d bytes in base64; make them with: openssl rand -base64 %d", sealingKeyBytes, sealingKeyBytes)
	}
	if !c.Store.Configured() {
		if !key.IsZero() {
			f.add("auth.sealing_key", "seals nothing without a store; remove it, or write store: {url: …}")
		}
		return
	}
	if g.Store != nil {
		if err := g.Store(c.Store); err != nil {
			f.add("store.url", "%v", err)
			return
		}
	}
	if key.IsZero() && strings.HasPrefix(c.Store.URL.Reveal(), "postgres") {
		f.add("auth.sealing_key", `is required with Postgres; write sealing_key: "${SLUICE_SEALING_KEY}", the same for all replicas`)
	}
	if len(c.Auth.SigningKeys) > 0 {
		f.add("auth.signing_keys", "signing keys are kept in the store, and rotate by themselves; remove them, or the store")
	}
}

// Lifecycles of streams (Streams.Lifecycle).
const (
	Managed  = "managed"
	Protocol = "protocol"
)

func (f *findings) streams(c *Config) {
	if c.Streams.Lifecycle == Protocol && !c.Store.Configured() {
		f.add("streams.lifecycle", `protocol needs a store, which holds what clients create; write store: {url: "sqlite:/var/lib/sluice/sluice.db"}, or lifecycle: managed`)
	}
}

func (f *findings) listeners(c *Config) {
	type listener struct{ path, addr string }
	var all []listener
	check := func(path, addr string) {
		for _, l := range all {
			if overlap(addr, l.addr) {
				f.add(path, "listens where %s does already; write another port", l.path)
				return
			}
		}
		all = append(all, listener{path, addr})
	}
	for i, addr := range c.Listen {
		path := "listen"
		if len(c.Listen) > 1 {
			path = fmt.Sprintf("listen[%d]", i)
		}
		check(path, addr)
	}
	check("admin.listen", c.Admin.Listen)
	if c.TLS.HTTPListen != "" {
		check("tls.http_listen", c.TLS.HTTPListen)
	}
	if c.Admin.Token.IsZero() && !loopback(c.Admin.Listen) {
		f.add("admin.token", `is required, since admin.listen is not a loopback address; write token: "${SLUICE_ADMIN_TOKEN}", or listen: 127.0.0.1:9090`)
	}
}

// overlap reports whether two addresses cannot be listened on at one time.
func overlap(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || portA != portB || strings.Trim(portA, "0") == "" {
		return false
	}
	return hostA == hostB || wildcard(hostA) || wildcard(hostB)
}

func wildcard(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "" || (err == nil && addr.IsUnspecified())
}

// loopback reports whether an address is reached from this machine only.
func loopback(hostPort string) bool {
	host, _, err := net.SplitHostPort(hostPort)
	return err == nil && loopbackHost(host)
}

func loopbackHost(host string) bool {
	addr, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || (err == nil && addr.Unmap().IsLoopback())
}

func (f *findings) nodes(nodes []string) {
	first := make(map[string]int, len(nodes))
	for i, node := range nodes {
		u, err := url.Parse(node)
		if err != nil || node == "" {
			continue
		}
		if u.Port() == "" {
			u.Host += ":" + defaultPort(u.Scheme)
		}
		// One address is one node, whatever the scheme: no port speaks both.
		if at, ok := first[u.Host]; ok {
			f.add(fmt.Sprintf("ursula.nodes[%d]", i), "is the same node as ursula.nodes[%d]; remove one of them", at)
			continue
		}
		first[u.Host] = i
	}
}

func (f *findings) limits(c *Config) {
	d := c.Limits.Default
	if d.RequestsPerSecond > 0 && d.Burst == 0 {
		f.add("limits.default.burst", noBurst)
	}
	largest, at := d.RequestBytes, "limits.default.request_bytes"
	for i, a := range c.Accounts {
		path := fmt.Sprintf("accounts[%d].limits", i)
		own := a.Limits.Over(d)
		if own.RequestsPerSecond > 0 && own.Burst == 0 {
			switch {
			case a.Limits.Burst != nil:
				f.add(path+".burst", noBurst)
			case d.RequestsPerSecond == 0:
				f.add(path+".requests_per_second", "is above 0 while limits.default.burst is 0, so that no request would ever pass; add burst: 1 or more")
			}
		}
		if own.RequestBytes > largest {
			largest, at = own.RequestBytes, path+".request_bytes"
		}
	}
	// A part of the budget is kept for small bodies, so the largest must fit twice.
	if c.Limits.BodyBudget < 2*largest {
		f.add("limits.body_budget", "is smaller than twice %s, so that the largest allowed body might never fit; write body_budget: %v or more, or lower that limit", at, 2*largest)
	}
}

const noBurst = "is 0 while requests_per_second is above 0, so that no request would ever pass; write burst: 1 or more, or requests_per_second: 0 to refuse all"

// accountChecks is the state of the pass over the accounts.
type accountChecks struct {
	*findings
	grammar Grammar
	digests map[string]string // digest → path of its first key; at most one per key of the file
}

func (f *findings) accounts(accounts []Account, g Grammar) {
	c := accountChecks{f, g, map[string]string{}}
	ids := make(map[string]string, len(accounts))
	for i, a := range accounts {
		path := fmt.Sprintf("accounts[%d]", i)
		c.unique(ids, a.ID, path, "id")
		if g.AccountID != nil && a.ID != "" {
			c.grammarError(path+".id", g.AccountID(a.ID), "id: acme")
		}
		c.streams(a, path)
		c.keys(a, path)
	}
}

func (c accountChecks) streams(a Account, path string) {
	names := make(map[string]string, len(a.Streams))
	for i, s := range a.Streams {
		path := fmt.Sprintf("%s.streams[%d]", path, i)
		c.unique(names, s.Name, path, "name")
		if c.grammar.StreamName != nil && s.Name != "" {
			c.grammarError(path+".name", c.grammar.StreamName(a.ID, s.Name), "name: events")
		}
	}
}

func (c accountChecks) keys(a Account, path string) {
	names := make(map[string]string, len(a.Keys))
	for i, k := range a.Keys {
		path := fmt.Sprintf("%s.keys[%d]", path, i)
		c.unique(names, k.Name, path, "name")
		c.unique(c.digests, k.Digest, path, "digest")
		if c.grammar.Digest != nil && k.Digest != "" {
			c.grammarError(path+".digest", c.grammar.Digest(k.Digest), "what \"sluice api-key generate\" prints")
		}
		if c.grammar.StreamSet != nil && len(k.Streams) > 0 {
			c.grammarError(path+".streams", c.grammar.StreamSet(k.Streams), `streams: [events, "logs.*"], or remove the key to reach all`)
		}
	}
}

// unique finds a value that another section has already; first holds the path of
// the first section with each.
func (f *findings) unique(first map[string]string, value, path, key string) {
	if value == "" {
		return
	}
	if at, ok := first[value]; ok {
		f.add(path+"."+key, "is the same as %s.%s; each %s is given once, so change or remove one of them", at, key, key)
		return
	}
	first[value] = path
}

// once finds what a list has twice. A value that is empty was reported already.
func (f *findings) once(path string, values []string) {
	first := make(map[string]int, len(values))
	for i, v := range values {
		if at, ok := first[v]; ok && v != "" {
			f.add(fmt.Sprintf("%s[%d]", path, i), "is the same as %s[%d]; remove one of them", path, at)
			continue
		}
		first[v] = i
	}
}

func (f *findings) grammarError(path string, err error, eg string) {
	if err != nil {
		f.add(path, "%v; write e.g. %s", err, eg)
	}
}
