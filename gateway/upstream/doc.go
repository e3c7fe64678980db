// Package upstream owns the way to Ursula's nodes: which node a request goes
// to, what an internal redirect leads to, what may be sent again, and how long
// an answer is waited for (design §8, facts §4).
//
// It refuses to know accounts, credentials and limits: what arrives here has
// been authorised, and goes to a node as it is. It imports nothing of ours.
//
// How long each rule takes: a connection that is refused moves on at once, one
// that is not answered after ConnectTimeout; a response head is awaited for
// HeaderTimeout and what a body's size or a long-poll's wait adds (timeout.go);
// a node that stops answering is ejected within 1.75 s and is back with its
// first answer (probe.go); redirects are followed for three hops, none begun
// later than five seconds after the first (redirect.go); what goes out again is
// one table (retry.go).
package upstream
