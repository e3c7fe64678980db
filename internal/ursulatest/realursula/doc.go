// Package realursula runs the real Ursula binary for tests: one in-memory node,
// or a Raft cluster of several.
//
// It owns the processes: it finds the binary, writes their configuration, waits
// until they serve, and ends each by its own pid when the test ends. It refuses
// to know the protocol (that is ursulatest's and the gateway's) and is imported
// by tests only.
package realursula
