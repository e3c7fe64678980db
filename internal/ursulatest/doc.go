// Package ursulatest is an in-memory stand-in for an Ursula cluster.
//
// It is a development aid, not a store: `sluice dev` runs on it so that a
// machine with Go alone can try the whole gateway, and tests use it where they
// need faults on demand or want to see what reached a node. Nothing survives
// the process, there is no Raft behind it, and it must never hold data that
// matters.
//
// The package owns the client port of an Ursula 0.11 node as the facts (§1,
// §3, §4.1, §5, §8, §10) describe it: routes, headers, error bodies, offsets,
// live reads, snapshots, immutable reads, and how a follower answers. Its
// conformance suite runs one table of raw requests against it and against the
// real binary (sub-package realursula) and demands the same answers, so that it
// cannot drift.
//
// It refuses to know anything of Sluice: accounts, keys, limits and refusals
// are the gateway's. It also has no admin or cluster listener, no cold store
// (parts answer 501 as on a memory node), one Raft group for all streams, and
// no background sweep: an expired stream goes at its next use.
//
// Where it differs from a real node, because Go's own HTTP server answers
// before a handler sees the request or edits what it answers: two Host lines and
// a bad percent escape in the path are a bare 400, of Content-Length with
// Transfer-Encoding only the latter is kept, and a 304 loses its Content-Type.
package ursulatest
