package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// What is legal and unwise with networks, times and sizes. Nothing is looked up, so that of
// a host only what its name says is known: an address, or this machine's own name.

// unwise remarks on what operators meet in the first weeks.
func (f *findings) unwise(c *Config) {
	f.openListeners(c)
	f.unnamedProxy(c)
	f.openWays(c)
	f.openRedis(c.Redis)
	f.unwiseTimes(c)
	d, b := c.Limits.Default, c.Limits.BodyBudget
	f.noLimits("limits.default", AccountLimits{RequestsPerSecond: &d.RequestsPerSecond, Burst: &d.Burst, OpenTails: &d.OpenTails, UploadBytes: &d.UploadBytes}, b)
	for i, a := range c.Accounts {
		f.noLimits(fmt.Sprintf("accounts[%d].limits", i), a.Limits, b)
	}
	if c.Redis.Configured() && strings.HasPrefix(c.Store.URL.Reveal(), "sqlite:") {
		f.add("store.url", "is a file, which is one replica's, while redis shares the counts of several: the others would know none of its accounts; name Postgres, or remove redis")
	}
}

// shortToken is the length below which a token is guessed rather than made, in characters.
const shortToken = 20

// openListeners remarks on what comes in without TLS.
func (f *findings) openListeners(c *Config) {
	if host, _, _ := net.SplitHostPort(c.Admin.Listen); onInternet(host) {
		f.add("admin.listen", "is an address of the internet, and its token crosses it in clear, since this listener has no TLS; write a private address, or 127.0.0.1:9090")
	}
	if t := c.Admin.Token; !t.IsZero() && len(t.Reveal()) < shortToken {
		f.add("admin.token", "is shorter than %d characters, and whoever guesses it manages every account; take what this prints: openssl rand -hex 32", shortToken)
	}
	if c.TLS.Mode == TLSInternal && !loopbackHost(c.OriginHost()) {
		f.add("tls.mode", "internal is for development: no client trusts its authority by itself; write mode: acme, or files")
	}
	if c.TLS.On() {
		return
	}
	for i, addr := range c.Listen {
		path := "listen"
		if len(c.Listen) > 1 {
			path = fmt.Sprintf("listen[%d]", i)
		}
		switch host, port, _ := net.SplitHostPort(addr); {
		case onInternet(host):
			f.add(path, "is an address of the internet without TLS, where clients' keys are read on their way; write tls: {mode: acme}, or the private address that your load balancer reaches")
		case port == "443" && !loopbackHost(host):
			f.add(path, "is the port of https, and speaks plain http with tls.mode: off; write tls: {mode: acme}, or files, or another port where a load balancer ends TLS")
		}
	}
}

// unnamedProxy remarks on a proxy that has to be there, since somebody ends TLS.
func (f *findings) unnamedProxy(c *Config) {
	if strings.HasPrefix(c.Origin, "https:") && !c.TLS.On() && len(c.TrustedProxies) == 0 {
		f.add("trusted_proxies", "is empty, while origin is https and something in front ends TLS: all clients have its address, and share server.connections_per_address and failed_credentials_per_minute; write its address, as in trusted_proxies: [10.0.0.9]")
	}
}

// openWays remarks on what is sent in clear over the internet.
func (f *findings) openWays(c *Config) {
	for i, node := range c.Ursula.Nodes {
		if openHTTP(node) {
			f.add(fmt.Sprintf("ursula.nodes[%d]", i), "is reached in clear over the internet, and a node takes the word of whoever reaches it; write its private address, or https")
		}
	}
	if len(c.Trace.Headers) > 0 && openHTTP(c.Trace.Endpoint) {
		f.add("trace.endpoint", "is reached in clear over the internet, with the credential of trace.headers; write https")
	}
	for i, page := range c.CORS.Origins {
		if u, err := url.Parse(page); err == nil && u.Scheme == "http" && !loopbackHost(u.Hostname()) {
			f.add(fmt.Sprintf("cors.origins[%d]", i), "is http: whoever is on the way to it changes the page, and takes the token that it holds; write https")
		}
	}
}

// openRedis remarks on a Redis that others reach. It repeats nothing of the URL.
func (f *findings) openRedis(r Redis) {
	path, plain := "redis.addrs", true
	var hosts []string
	var password bool // there is one
	if u, err := url.Parse(r.URL.Reveal()); err == nil && !r.URL.IsZero() {
		if u.Scheme == "unix" {
			return
		}
		path, plain = "redis.url", u.Scheme == "redis"
		_, password = u.User.Password()
		hosts = append(hosts, u.Hostname())
	}
	for _, addr := range r.Addrs {
		host, _, _ := net.SplitHostPort(addr)
		hosts = append(hosts, host)
	}
	apart, open := false, false
	for _, h := range hosts {
		apart, open = apart || h != "" && !loopbackHost(h), open || onInternet(h)
	}
	if apart && !password {
		f.add(path, `has no password, so that whoever reaches that Redis lifts or closes every account's limits; write url: "${REDIS_URL}", with redis://user:password@host:6379 in it`)
	}
	if open && plain {
		f.add(path, "is reached in clear over the internet; write rediss://, or a private address")
	}
}

const (
	// graceUsual is after what Kubernetes kills a pod that was told to stop, unless its
	// terminationGracePeriodSeconds says otherwise. systemd's TimeoutStopSec is 90 s.
	graceUsual = 30 * time.Second
	// idleUsual is the shortest time after which load balancers cut a silent connection.
	idleUsual = time.Minute
	// tailsShort is the age below which tails are mostly opened again.
	tailsShort = time.Minute
	// staleLong is how long a revocation that is not heard of is still an incident of today.
	staleLong = time.Hour
)

// unwiseTimes remarks on times that do not fit what is around the gateway.
func (f *findings) unwiseTimes(c *Config) {
	if all := c.DrainDelay + c.DrainTimeout; c.DrainTimeout > graceUsual {
		f.add("drain_timeout", "makes a stop last up to %v with drain_delay, and a supervisor kills it before: Kubernetes after 30s, systemd after 90s; write drain_timeout: 20s, or give terminationGracePeriodSeconds or TimeoutStopSec more than %v", all, all)
	}
	switch h := c.Tails.Heartbeat; {
	case h == 0:
		f.add("tails.heartbeat", "is 0s: what is between you and clients cuts silent tails, and tails whose client is gone keep their slot; write heartbeat: 15s")
	case h >= idleUsual:
		f.add("tails.heartbeat", "is so long that most load balancers cut a silent tail first, after 60s; write heartbeat: 15s")
	}
	if a := c.Tails.MaxAge; a > 0 && a < tailsShort {
		f.add("tails.max_age", "is so short that readers mostly open tails again, each time with a request that counts; write max_age: 1h, or remove it")
	}
	if c.Store.Configured() && c.Store.StaleFor > staleLong {
		f.add("store.stale_for", "lets a key that is revoked elsewhere go on for so long while the store is away; write stale_for: 15m")
	}
}

const (
	manyRequests = 100_000   // a second or at once: about what one replica can serve at all
	manyTails    = 1_000_000 // of one account
)

// noLimits remarks on limits that nothing ever reaches.
func (f *findings) noLimits(path string, l AccountLimits, budget Bytes) {
	for _, n := range []struct {
		key   string
		value *int
		many  int
		eg    string
	}{
		{"requests_per_second", l.RequestsPerSecond, manyRequests, "1000"},
		{"burst", l.Burst, manyRequests, "2000"},
		{"open_tails", l.OpenTails, manyTails, "10000"},
	} {
		if n.value != nil && *n.value >= n.many {
			f.add(path+"."+n.key, "is so large that it limits nothing: one account can take what all the others need; write what it may use, as in %s: %s", n.key, n.eg)
		}
	}
	if l.UploadBytes != nil && *l.UploadBytes > budget {
		f.add(path+".upload_bytes", "is above limits.body_budget, which is for all accounts: one of them can refuse the uploads of the others with 503; write upload_bytes: %v or less, or a larger body_budget", budget/4) //nolint:mnd // so that a few accounts fit
	}
}

// tailCap is a limit of tails in the file, with the remark for where it does not fit.
type tailCap struct {
	tails int
	place Problem
}

// tailCaps are the limits of open tails, of the defaults and of accounts.
func tailCaps(c *Config, file string, root *yaml.Node) []tailCap {
	var caps []tailCap
	add := func(tails int, path string) {
		at := locate(root, path)
		caps = append(caps, tailCap{tails, Problem{File: file, Line: at.line, Column: at.column, Path: path}})
	}
	add(c.Limits.Default.OpenTails, "limits.default.open_tails")
	for i, a := range c.Accounts {
		if n := a.Limits.OpenTails; n != nil {
			add(*n, fmt.Sprintf("accounts[%d].limits.open_tails", i))
		}
	}
	return caps
}

// Crowded lists the limits of open tails that a process which may have so many descriptors
// open could not hold: each tail takes two at most, the client's and the node's. 0: the
// number is not known, and there is nothing to say.
func (c *Config) Crowded(descriptors uint64) []Problem {
	var all []Problem
	for _, t := range c.tailCaps {
		if descriptors == 0 || uint64(max(t.tails, 0))*2 <= descriptors { //nolint:mnd // see above
			continue
		}
		p := t.place
		p.Message = fmt.Sprintf("is more than this process could hold, which may open %d files and takes two for a tail; write open_tails: %d or less, or raise its limit: LimitNOFILE of systemd, ulimit -n", descriptors, descriptors/4) //nolint:mnd // room for all else
		all = append(all, p)
	}
	inFileOrder(all)
	return all
}

// openHTTP reports a URL of plain http at an address of the internet.
func openHTTP(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Scheme == "http" && onInternet(u.Hostname())
}

// onInternet reports whether a host is an address that anybody may reach: none of this
// machine, of a private network (RFC 1918, RFC 4193), of a link, or of a carrier's (RFC 6598).
func onInternet(host string) bool {
	addr, err := netip.ParseAddr(host)
	addr = addr.Unmap()
	return err == nil && addr.IsGlobalUnicast() && !addr.IsPrivate() && !netip.MustParsePrefix("100.64.0.0/10").Contains(addr)
}
