// Package tenant owns the domain's words: account, stream, key, limits, the
// grammar of their names (design §1) and the narrow interface through which the
// request path looks them up.
//
// It does no I/O, speaks no HTTP and refuses to know where accounts are kept
// or how a key is presented.
package tenant
