// Package gateway owns the request path: what a request is, whether it may
// pass, what is sent to a node and what comes back (design §2-§8).
//
//	listener ── header limits, HTTP/1.1 and HTTP/2
//	  scope ───── request id, client address, access log, metrics, panic guard
//	  route ───── one reading of the target                       404 405 400
//	  authenticate credential → principal or anonymous            401 503
//	  authorize ── does the principal reach this stream so?       401 403 503
//	  account ──── standing of the stream's account               402 403
//	  lifecycle ── PUT or DELETE of the stream itself             403
//	  admit ────── body size, rate, open tails, body              413 429 503 408
//	  change ───── a PUT or DELETE of a stream, written down       404 409 503
//	  proxy ────── httputil.ReverseProxy over upstream.Pool       502 503 504
//	  answer ───── Cache-Control and header hygiene
//
// The order is written once, in chain.go. Access is decided before the proxy is
// entered, from the same Route that is forwarded.
//
// The package refuses to know where accounts are kept, how the configuration
// file looks, and how nodes are chosen.
package gateway
