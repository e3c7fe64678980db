// Package realclients runs other people's clients, as they are published, for tests:
// the Durable Streams clients in JavaScript and Python, their conformance suite, and
// Chromium.
//
// It owns where they are found (tools/clients locks their versions, `make clients`
// installs them) and the folder that a script of a test runs in. It refuses to know
// what the scripts do, and is imported by tests only.
package realclients
