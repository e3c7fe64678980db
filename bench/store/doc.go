// Package store owns the measures of a gateway on a large store (docs/benchmarks.md): how
// soon it is ready, what the first request of a key takes and what the next ones, and how
// much memory many keys take.
//
// It fills Postgres by itself, and drives the built program from outside; it refuses to
// know how the program asks the store. There is nothing here but benchmarks and a test of
// what they drive, and they need PostgreSQL.
package store
