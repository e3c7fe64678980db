package cache

import "net/http"

// The two values of Cache-Control that a client ever sees (design §7).
const (
	// NoStore goes on every answer that is not proven to be Public.
	NoStore = "no-store"
	// Public goes on marked immutable reads of public streams. The age is 300
	// seconds and no more, since a stream can be made private or deleted while
	// copies of it lie in caches that nobody can reach.
	Public = "public, max-age=300, immutable"
)

// Answer is what Control must know of an answer and of its request. The zero
// value is not to be stored, so a forgotten field never opens a cache.
type Answer struct {
	Method     string // the request's, exact case
	Status     int    // the one the client sees
	Immutable  bool   // the request's route is an immutable chunk or snapshot
	Marked     bool   // the node's answer said Stream-Immutable: true
	Public     bool   // the stream is public
	Credential bool   // the request carried any Authorization, good or bad
}

// Control is the value of the answer's Cache-Control header, whatever the node
// said (design §7, facts §0.10). It is a pure function, safe for concurrent
// use, and does not allocate.
//
// A credential alone forbids storing: with it the answer may differ from a
// stranger's, and a shared cache does not look at Authorization once an answer
// says "public" (RFC 9111 §3.5).
func Control(a Answer) string {
	if !a.Credential && a.Public && a.Immutable && a.Marked && reads(a.Method) && storable(a.Status) {
		return Public
	}
	return NoStore
}

// reads keeps the rule safe by itself: immutable routes know GET and HEAD only,
// but the refusal of another method is an answer too.
func reads(method string) bool {
	return method == http.MethodGet || method == http.MethodHead
}

func storable(status int) bool {
	return status == http.StatusOK || status == http.StatusPartialContent || status == http.StatusNotModified
}
