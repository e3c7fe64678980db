// Package proxyproto takes the PROXY protocol (versions 1 and 2, HAProxy's
// proxy-protocol.txt) from load balancers: a header before a connection's first byte that
// names whom the balancer passes on. It owns who may send one, where it ends, how long it
// may take and how long it may be, and what the connection's address is then. It refuses to
// know what is spoken behind the header, who is trusted, and how many connections a client
// may have: the last two are passed in.
//
// The header itself is read by github.com/pires/go-proxyproto, once all of it has come. Its
// listener is not used: it refuses a header of version 1 that comes in two segments, and one
// of version 2 over 256 bytes; takes one that did not come in time as one that was left out;
// and reads nothing of whoever is not trusted, so that their header is the next layer's to
// answer.
package proxyproto
