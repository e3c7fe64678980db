// Package proxy owns the measure of what the gateway costs: CPU time for each
// proxied small read, of the gateway's process alone, beside a bare
// httputil.ReverseProxy over a connection pool of the same settings
// (docs/benchmarks.md).
//
// It drives the built program from outside, and the pool through its public
// methods; it refuses to know how either works. There is nothing here but a
// benchmark, for Linux, since it reads the CPU clocks of other processes.
package proxy
