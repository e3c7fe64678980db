// Package replica is what one replica of the gateway knows of the store, in memory: the
// tenant.Directory of the request path.
//
// It owns how long what it knows may be used. It asks the store for what it does not
// know, once for all who ask; it follows the store's log of changes, drops what a change
// is about and only then tells of it; and while the store is out of reach it goes on
// with what it knows, for a stated time and no longer. Nothing is ever "not found"
// because the store is gone (A11).
//
// It refuses to know SQL, who may change what, and what a request is.
//
// The order in which a change comes into force is: what it is about is dropped, then
// cutoffs and signing keys are read anew, then watchers are told. Whoever has read the
// new cutoff of a key so finds its new rights, and cannot make a token with the old
// ones behind it (tenant.Directory).
package replica
