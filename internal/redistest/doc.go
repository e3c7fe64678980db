// Package redistest runs real redis-server processes for tests: a single server,
// a master and a replica under Sentinel, a Cluster of three masters; and a proxy
// that speaks the protocol and makes of it what no real server can be made to do.
//
// It owns the processes: on free loopback ports, in temporary folders, each ended
// by its own pid when the test ends. It refuses to know what is kept in Redis, and
// is imported by tests only.
package redistest
