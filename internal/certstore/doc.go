// Package certstore has a store that replicas share keep what an ACME client keeps: it
// gives certmagic its Storage and its locks.
//
// A lock is a lease of the store that its holder makes last longer while it works: a
// replica that is killed loses it within 20 s, and another one goes on (C01).
//
// It refuses to know what is kept, how it is sealed, and what a lock is for.
package certstore
