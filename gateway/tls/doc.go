// Package tls ends TLS on the public listeners (design §9 tls): it owns the certificates
// in use, how each comes and is replaced, and the plain HTTP listener that sends clients
// on to the origin.
//
// Certificates come of files (Files), of a certificate authority by ACME (ACME), or of an
// authority of its own for development (Internal). Whatever goes wrong with the next one,
// the one in use stays in use; State says so.
//
// It refuses to know accounts and streams, what is served once a connection is secure,
// and where a storage that replicas share keeps what it is given.
package tls
