package gateway

import (
	"net/http"
	"strconv"
	"strings"

	"sluice/cache"
	"sluice/gateway/upstream"
	"sluice/internal/refusal"
)

// cleanRequest removes what a client may not tell a node: credentials, what
// would make Go's transport send a write twice by itself, Ursula's own internal
// headers, method overrides, and whatever claims to know who the client is
// (design §3; H02, H08, H17). ReverseProxy has removed hop-by-hop headers.
func cleanRequest(h http.Header) {
	for name := range h {
		if clientOnly(name) {
			delete(h, name)
		}
	}
}

func clientOnly(name string) bool {
	switch name {
	// A fork's source is another stream, which nobody has authorised; Ursula knows no forks.
	case "Stream-Forked-From", "Stream-Fork-Offset", "Stream-Fork-Sub-Offset",
		"Authorization", "Cookie", "Idempotency-Key", "X-Idempotency-Key",
		"X-Http-Method-Override", "X-Http-Method", "X-Method-Override",
		"X-Original-Url", "X-Original-Uri", "X-Original-Host", "X-Rewrite-Url", "X-Host",
		"Forwarded", "Via", "X-Real-Ip", "True-Client-Ip", "X-Client-Ip", "X-Cluster-Client-Ip", "Cf-Connecting-Ip", "Fastly-Client-Ip",
		// What a node hears of traces comes from here (passTrace): a stranger's wish to be
		// recorded is not the operator's, and the other two may hold anything.
		"Traceparent", "Tracestate", "Baggage",
		"Expect", "Te", "Trailer", "Trailers":
		return true
	}
	return strings.HasPrefix(name, "X-Ursula-") || strings.HasPrefix(name, "X-Forwarded") || strings.HasPrefix(name, "Proxy-") ||
		// A node, or what stands before it, may read '_' as '-'.
		strings.Contains(name, "_")
}

// pass moves what a client may see of a node's header to the client's, which may
// be the same.
func pass(from, to http.Header, same bool) {
	for name, values := range from {
		switch {
		case !nodeOnly(name):
			if has := to[name]; has != nil && !same {
				to[name] = append(has, values...) // Vary, which CORS has set too
			} else if !same {
				to[name] = values
			}
		case same:
			delete(from, name)
		}
	}
}

// finish makes h, which has been passed on, the head of an answer: the gateway's
// own Cache-Control, and what design §8 owes.
func (c *chain) finish(s *Scope, res *http.Response, h http.Header) {
	head := res.Request.Method == http.MethodHead
	if head && c.Lifecycle == nil {
		// A managed stream's life is not the client's to read (facts 0.4).
		delete(h, "Stream-Ttl")
		delete(h, "Stream-Expires-At")
	}
	if s.Route.Operation == Create && res.StatusCode < http.StatusMultipleChoices {
		h["Location"] = []string{c.Origin + s.Route.Path}
	}
	c.ownLimit(s, h)
	if (res.StatusCode == http.StatusTooManyRequests || res.StatusCode == http.StatusServiceUnavailable) && h.Get("Retry-After") == "" {
		h.Set("Retry-After", "1")
	}
	// On HEAD a node says itself who it is, and knows best: it may have come back
	// as another cluster's a moment ago.
	told := head && len(h[upstream.ClusterIDHeader]) == 1 && len(h[upstream.ProtocolHeader]) == 1
	if id, err := c.Upstream.Identity(); err == nil && !told {
		h[upstream.ProtocolHeader] = []string{id.Protocol}
		h[upstream.ClusterIDHeader] = []string{id.ClusterID}
	}
	h["Cache-Control"] = []string{cache.Control(cache.Answer{
		Method: res.Request.Method, Status: res.StatusCode,
		// With a query it is no immutable read: a node refuses it, and what it
		// would answer none the less may depend on what caches ignore (K06, P07).
		Immutable: s.Route.Operation.Immutable() && !s.Route.HasQuery,
		Marked:    h.Get("Stream-Immutable") == "true",
		Public:    s.Public, Credential: s.Credential,
	})}
	refusal.Protect(h)
	h[requestIDHeader] = []string{s.ID}
}

// nodeOnly names what of a node's answer no client may see: its inside, its
// address, cookies, and everything by which it would speak for the gateway's
// origin (caching, CORS, transport security).
func nodeOnly(name string) bool {
	switch name {
	case "Server", "Set-Cookie", "Set-Cookie2", "Via", "Warning", "X-Powered-By", "X-Served-By", "Server-Timing", "Proxy-Status",
		"Location", "Content-Location", "Link", "Refresh", "Sourcemap", "X-Sourcemap",
		"Expires", "Pragma", "Age", "Surrogate-Control", "Edge-Control", "Timing-Allow-Origin",
		"Alt-Svc", "Strict-Transport-Security", "Clear-Site-Data", "Www-Authenticate", "Service-Worker-Allowed",
		"Nel", "Report-To", "Reporting-Endpoints", "Content-Security-Policy-Report-Only", "X-Sendfile":
		return true
	}
	// A proxy in front of the gateway obeys X-Accel-*, a CDN the Cache-Control of
	// its own name (RFC 9213); '_' may be read as '-'.
	return strings.HasPrefix(name, "X-Ursula-") || strings.HasPrefix(name, "Access-Control-") || strings.HasPrefix(name, "X-Accel-") ||
		strings.HasSuffix(name, "-Cache-Control") || strings.Contains(name, "_")
}

// ownLimit makes Ursula-Max-Request-Bytes, where a node sent it, the smaller of
// the node's and the account's limit; a malformed one is the account's (F12).
func (c *chain) ownLimit(s *Scope, h http.Header) {
	sent, ok := h[maxRequestBytesHeader]
	if !ok {
		return
	}
	limit := s.Account.Limits.RequestBytes
	if n, err := strconv.ParseUint(sent[0], 10, 63); err == nil {
		limit = min(limit, int64(n))
	}
	h.Set(maxRequestBytesHeader, strconv.FormatInt(limit, 10))
}
