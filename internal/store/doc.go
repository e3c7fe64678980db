// Package store keeps what people manage: accounts, streams, API keys and the keys that
// sign tokens (design §5, §10). SQLite holds it for one replica, Postgres for several;
// both answer the same queries, in queries of one text.
//
// It owns what one change is, and so what is true at each moment for everybody: a
// change is one transaction, which also appends to the log of changes that replicas
// follow, and to the records of who changed what. It refuses to know HTTP, what a node
// does, and who may ask for a change.
//
// Every error that is not one of this package's own wraps ErrUnavailable: it says
// nothing of what is stored. A change that failed so may have been made all the same,
// where the answer to its commit was lost.
package store
