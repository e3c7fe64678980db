// Package limittest owns the suite that every implementation of the limits
// passes: one set of rules for those of this process and for those that replicas
// share, so that neither drifts.
//
// It refuses to know how an implementation works: it moves the clock, asks, and
// counts. It is imported by tests only.
package limittest
