// Package archtest owns the rules of the layout (design §12) as tests: who may
// import whom, which package may speak which library, and the few house rules
// that no linter states. It holds no code of the product, and nothing imports
// it.
//
// The tests read the sources of the whole module themselves instead of asking
// `go list`, so that they see files of every build constraint and Go's test
// cache knows what they read.
package archtest
