// Package cli is the command line of those who use a gateway: an account's owner, and
// an operator who keeps accounts. It owns the flags, the texts, the terminal, and what
// is said when something fails. It refuses to know how a request is made safe to
// repeat, which is apiclient's, and how a gateway is built and run, which is cmd's.
package cli
