// Package postgrestest runs a real PostgreSQL for tests: one server that the tests of a
// package share, each with a database of its own, or one that a test stops, freezes and
// starts again.
//
// It owns the processes: on free loopback ports, with data directories that are thrown
// away, each ended by its own pid when the test ends. It refuses to know what is kept in
// Postgres, and is imported by tests only.
package postgrestest
