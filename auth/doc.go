// Package auth owns credentials and access: the form of API keys, the reading
// of the Authorization header, Streams tokens and their exchange, other issuers'
// tokens and the keys that verify them, who a credential stands for, whether it
// still stands, and what it reaches (design §5).
//
// It refuses to know HTTP answers: it returns errors, and the gateway says what
// each becomes on the wire. It does not know where keys are kept, only
// tenant.Directory, and it sees an account's state only where a token is made.
// No error of it repeats any part of a credential.
//
// A token is verified from memory. Only a key of another issuer that is not
// known yet is asked for, within bounds; see remoteKeys.
package auth
