// Package limits owns the measures of what counting over replicas costs
// (docs/benchmarks.md): a request's admission, a heartbeat with few tails and with
// many, the memory of many accounts, a pass over them; and what requests wait when
// Redis is lost.
//
// It drives ratelimit through its public methods, and the built program from
// outside; it refuses to know how either works. There is nothing here but
// benchmarks, and they need a redis-server.
package limits
