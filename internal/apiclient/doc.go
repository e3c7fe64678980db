// Package apiclient is the client's side of a gateway: it talks the Management API
// and the data path. It owns what makes that safe over a bad network: which request
// may be made again and when, where an append, a read or a tail goes on after a cut,
// and what an answer proves. It refuses to know where its keys come from, and of
// terminals, files and command lines.
package apiclient
