// Package auth owns credentials and access: the form of API keys, the reading
// of the Authorization header, who a credential stands for, and what that
// reaches (design §5).
//
// It refuses to know HTTP answers: it returns errors, and the gateway says what
// each becomes on the wire. It does not know where keys are kept, only
// tenant.Directory, and it never sees an account's state or limits. No error of
// it repeats any part of a credential.
package auth
