// Package pebbletest is how tests have the real Pebble, the certificate authority that
// Let's Encrypt tests ACME clients with: in the test's own process, from its packages, as
// its program runs it. It refuses to know who orders certificates.
package pebbletest
